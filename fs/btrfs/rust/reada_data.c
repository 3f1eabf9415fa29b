// SPDX-License-Identifier: GPL-2.0

/*
 * The inodes and the I/O of reada_data.rs.
 */

#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include <linux/sched/signal.h>
#include <trace/events/btrfs.h>
#include "../bio.h"
#include "../btrfs_inode.h"
#include "../compression.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../extent_io.h"
#include "../file-item.h"
#include "../fs.h"
#include "reada_data.h"
#include "reada_stats.h"
#include "reada_walk.h"

/* What reada_data.rs knows of the format. */
static_assert(BTRFS_INODE_ITEM_KEY == 1);
static_assert(BTRFS_EXTENT_DATA_KEY == 108);
static_assert(BTRFS_LAST_FREE_OBJECTID == -256ULL);
static_assert(BTRFS_MAX_COMPRESSED == SZ_128K);

/* Pages to read at a time, so that a reader of much can be killed. */
#define READ_CHUNK	((pgoff_t)(SZ_2M >> PAGE_SHIFT))

struct btrfs_reada_inode {
	u64 ino;
	/* NULL if nothing is to be read of it. */
	struct inode *inode;
	/* Where what was read ahead begins, and how much of it is unused; whole pages, in bytes. */
	u64 start;
	u64 unused;
	/* What comes before this offset in the file was counted as used already, if it was. */
	u64 counted;
	/* Nothing of it was in the page cache before, and so much after it was read ahead. */
	bool clean;
	unsigned long nrpages;
	/* The send cleans the page cache. */
	bool is_open;
	/* The last relocation when nothing of it was read yet. */
	u64 last_reloc_trans;
};

/* An extent that is read as it is on disk. */
struct btrfs_reada_encoded {
	u64 ino;
	u64 offset;
	u64 bytenr;
	u64 len;
	/* Of the last relocation when it was planned. */
	u64 last_reloc_trans;
	refcount_t pending;
	blk_status_t status;
	bool is_used;
	struct completion done;
	unsigned int nr_pages;
	struct page *pages[];
};

/*
 * Prepare the readahead of a send of @root that reads extents newer than the generation @known, and
 * compressed ones as they are on disk if @sends_encoded. There is none without memory for it, or if
 * it is switched off.
 */
void btrfs_reada_data_init(struct btrfs_reada_data *data, struct btrfs_root *root, u64 known,
			   bool sends_encoded)
{
	const struct btrfs_rust_disk disk = btrfs_reada_disk(root->fs_info);

	*data = (struct btrfs_reada_data){ };
	if (!READ_ONCE(root->fs_info->reada.data_enable))
		return;
	data->inodes = kvzalloc_objs(*data->inodes, BTRFS_RUST_DATA_INODES);
	data->encoded = kvzalloc_objs(*data->encoded, BTRFS_RUST_DATA_RANGES);
	data->trigger = folio_alloc(GFP_KERNEL, 0);
	if (data->inodes && data->encoded && data->trigger &&
	    btrfs_rust_data_init(&data->plan, &disk, known, sends_encoded)) {
		data->root = root;
		if (READ_ONCE(root->fs_info->reada.tree_enable))
			data->max_leaves = btrfs_rust_window(&disk) >> root->fs_info->nodesize_bits;
		btrfs_reada_join(&root->fs_info->reada_data);
	} else {
		kvfree(data->inodes);
		kvfree(data->encoded);
		if (data->trigger)
			folio_put(data->trigger);
	}
}

/* Whether all that is in the page cache of an inode was read ahead. */
static bool is_clean(const struct btrfs_reada_inode *held)
{
	return held->clean && held->inode->i_mapping->nrpages <= held->nrpages;
}

static bool lacks_checksums(const struct btrfs_reada_inode *held)
{
	return BTRFS_I(held->inode)->flags & BTRFS_INODE_NODATASUM;
}

static u64 last_reloc_trans_of(const struct btrfs_reada_inode *held)
{
	return READ_ONCE(BTRFS_I(held->inode)->root->fs_info->last_reloc_trans);
}

/*
 * A block group was relocated since the inode is held. Relocation does not wait for reads: what was
 * on their way may have been overwritten since, and there are no checksums that would tell.
 */
static bool may_be_wrong(const struct btrfs_reada_inode *held)
{
	return lacks_checksums(held) && held->last_reloc_trans != last_reloc_trans_of(held);
}

/* Count what is left of what was read ahead as read in vain. */
static void count_unused(struct btrfs_reada_inode *held)
{
	const struct btrfs_root *root = BTRFS_I(held->inode)->root;

	if (held->unused)
		btrfs_reada_wasted(root->fs_info, btrfs_root_id(root), held->ino,
				   max(held->start, held->counted), held->unused);
	held->unused = 0;
}

/* Let go of an inode, without leaving in the page cache what nobody else has asked for. */
static void put_inode(struct btrfs_reada_inode *held)
{
	if (held->inode) {
		const bool is_unused = !held->is_open && is_clean(held);

		count_unused(held);
		/* What is still being read stays only if checksums tell what it will be. */
		if (may_be_wrong(held) || (is_unused && lacks_checksums(held)))
			invalidate_inode_pages2(held->inode->i_mapping);
		else if (is_unused)
			invalidate_mapping_pages(held->inode->i_mapping, 0, -1);
		iput(held->inode);
	}
	*held = (struct btrfs_reada_inode){ };
}

static struct btrfs_reada_encoded **encoded_slot(struct btrfs_reada_data *data, u32 number)
{
	return &data->encoded[number % BTRFS_RUST_DATA_RANGES];
}

/* Let go of an extent, if it was read at all. */
static void put_encoded(const struct btrfs_root *root, struct btrfs_reada_encoded **slot)
{
	struct btrfs_reada_encoded *read = *slot;

	if (!read)
		return;
	if (!read->is_used)
		btrfs_reada_wasted(root->fs_info, btrfs_root_id(root), read->ino, read->offset,
				   read->len);
	wait_for_completion_io(&read->done);
	for (unsigned int i = 0; i < read->nr_pages; i++)
		__free_page(read->pages[i]);
	kvfree(read);
	*slot = NULL;
}

/* End the readahead: nothing is read or held once this returns. @data may be all zeroes. */
void btrfs_reada_data_end(struct btrfs_reada_data *data)
{
	if (!data->root)
		return;
	for (u32 i = 0; i < BTRFS_RUST_DATA_RANGES; i++)
		put_encoded(data->root, &data->encoded[i]);
	for (u32 i = 0; i < BTRFS_RUST_DATA_INODES; i++)
		put_inode(&data->inodes[i]);
	kvfree(data->encoded);
	kvfree(data->inodes);
	folio_put(data->trigger);
	btrfs_rust_data_destroy(&data->plan);
	btrfs_reada_leave(&data->root->fs_info->reada_data, &data->held);
	data->root = NULL;
}

/* Hold the inode of a range. */
static void hold_inode(struct btrfs_reada_data *data, const struct btrfs_rust_range *range)
{
	struct btrfs_reada_inode *held = &data->inodes[range->place];
	struct btrfs_inode *inode;

	if (held->ino == range->ino)
		return;
	put_inode(held);
	held->ino = range->ino;
	inode = btrfs_iget(range->ino, data->root);
	if (IS_ERR(inode))
		return;
	/* Where keys are out of order, this need not be the item that was looked at. */
	if (!S_ISREG(inode->vfs_inode.i_mode)) {
		iput(&inode->vfs_inode);
		return;
	}
	held->inode = &inode->vfs_inode;
	held->clean = inode->vfs_inode.i_mapping->nrpages == 0;
	held->start = U64_MAX;
	held->last_reloc_trans = last_reloc_trans_of(held);
}

/*
 * Start reading @count pages from @index on, in folios as large as the page cache has. The first
 * one gets the mark of page_cache_async_readahead(), unless the last one ends the file.
 *
 * Only page_cache_async_ra() makes large folios. It doubles the last window, up to ra_pages, and
 * rounds the end of the new one down to the lowest bit of ra_pages. So let the last window be half
 * of @count, and ra_pages odd. @trigger merely loses its mark.
 */
static void read_window(struct address_space *mapping, struct folio *trigger, pgoff_t index,
			pgoff_t count)
{
	const pgoff_t last = DIV_ROUND_UP(count, 2);
	struct file_ra_state ra = {
		.start = index - last,
		.size = last,
		.ra_pages = count | 1,
		.order = mapping_max_folio_order(mapping),
	};
	DEFINE_READAHEAD(ractl, NULL, &ra, mapping, index);

	page_cache_async_ra(&ractl, trigger, count);
}

/* Have put_file_data() read nothing ahead when it comes to the page @index. */
static void clear_mark(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);

	if (IS_ERR(folio))
		return;
	folio_clear_readahead(folio);
	folio_put(folio);
}

/* Start reading a range into the page cache. */
static void read_pages(struct btrfs_reada_data *data, struct btrfs_reada_inode *held, u64 offset,
		       u64 end, bool is_cut)
{
	struct address_space *mapping = held->inode->i_mapping;
	const pgoff_t ra_pages = inode_to_bdi(held->inode)->ra_pages;
	const pgoff_t index = offset >> PAGE_SHIFT;
	const pgoff_t count = DIV_ROUND_UP_ULL(end, PAGE_SIZE) - index;
	/* put_file_data() goes on from the mark of the second window, not too far from the end. */
	const pgoff_t second = is_cut ? min(max(ra_pages / 2, 1), count / 2) : 0;
	const unsigned long nrpages = mapping->nrpages;

	if (!ra_pages)
		return;
	for (pgoff_t done = 0; done < count - second && !fatal_signal_pending(current);
	     done += READ_CHUNK) {
		read_window(mapping, data->trigger, index + done,
			    min(count - second - done, READ_CHUNK));
		clear_mark(mapping, index + done);
	}
	if (second)
		read_window(mapping, data->trigger, index + count - second, second);
	held->start = min(held->start, (u64)index << PAGE_SHIFT);
	held->nrpages = mapping->nrpages;
	/* Unless other tasks read or free pages of it at the same time. */
	if (held->nrpages > nrpages) {
		const u64 bytes = (u64)(held->nrpages - nrpages) << PAGE_SHIFT;

		held->unused += bytes;
		btrfs_reada_submitted(data->root->fs_info, btrfs_root_id(data->root), held->ino,
				      (u64)index << PAGE_SHIFT, bytes);
	}
}

static void end_encoded(struct btrfs_bio *bbio)
{
	struct btrfs_reada_encoded *read = bbio->private;
	blk_status_t status = bbio->bio.bi_status;

	bio_put(&bbio->bio);
	if (status)
		WRITE_ONCE(read->status, status);
	/* Orders the status before complete_all(). */
	if (refcount_dec_and_test(&read->pending))
		complete_all(&read->done);
}

static struct btrfs_reada_encoded *alloc_encoded(u64 len)
{
	/* As readahead_gfp_mask(): what is only a guess kills nobody. */
	const gfp_t gfp = GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN | __GFP_ACCOUNT;
	const unsigned int nr_pages = DIV_ROUND_UP_ULL(len, PAGE_SIZE);
	struct btrfs_reada_encoded *read;

	read = kvzalloc_flex(*read, pages, nr_pages, gfp);
	if (!read)
		return NULL;
	read->nr_pages = nr_pages;
	if (btrfs_alloc_page_array(nr_pages, read->pages, gfp)) {
		kvfree(read);
		return NULL;
	}
	return read;
}

/*
 * Start reading an extent as it is on disk. For the inode of the metadata nothing is verified,
 * repaired or counted yet: this is only done for what is used, as if it was read then.
 */
static void read_encoded(struct btrfs_reada_data *data, const struct btrfs_rust_range *range,
			 u64 last_reloc_trans)
{
	struct btrfs_reada_encoded *read = alloc_encoded(range->disk_len);
	struct btrfs_inode *inode = BTRFS_I(data->root->fs_info->btree_inode);
	struct btrfs_bio *bbio = NULL;
	u64 done = 0;

	if (!read)
		return;
	read->ino = range->ino;
	read->offset = range->offset;
	read->bytenr = range->bytenr;
	read->len = range->disk_len;
	read->last_reloc_trans = last_reloc_trans;
	init_completion(&read->done);
	refcount_set(&read->pending, 1);
	put_encoded(data->root, encoded_slot(data, range->number));
	*encoded_slot(data, range->number) = read;

	while (done < read->len) {
		const unsigned int bytes = min_t(u64, read->len - done, PAGE_SIZE);

		if (!bbio) {
			bbio = btrfs_bio_alloc(BIO_MAX_VECS, REQ_OP_READ | REQ_RAHEAD,
					       inode, 0, end_encoded, read);
			bbio->bio.bi_iter.bi_sector = (read->bytenr + done) >> SECTOR_SHIFT;
			refcount_inc(&read->pending);
		}
		if (bio_add_page(&bbio->bio, read->pages[done >> PAGE_SHIFT], bytes, 0) == bytes) {
			done += bytes;
		} else {
			btrfs_submit_bbio(bbio, 0);
			bbio = NULL;
		}
	}
	btrfs_submit_bbio(bbio, 0);
	btrfs_reada_submitted(data->root->fs_info, btrfs_root_id(data->root), read->ino,
			      read->offset, read->len);
	if (refcount_dec_and_test(&read->pending))
		complete_all(&read->done);
}

static void read_range(struct btrfs_reada_data *data, const struct btrfs_rust_range *range,
		       u64 last_reloc_trans)
{
	struct btrfs_reada_inode *held = &data->inodes[range->place];
	u64 end;

	if (!held->inode)
		return;
	end = min_t(u64, range->offset + range->len, i_size_read(held->inode));
	if (range->offset >= end)
		return;
	/* An extent that is longer on disk than what is sent of it is sent as plain data. */
	if (!range->is_encoded || range->offset + range->disk_len > end)
		read_pages(data, held, range->offset, end, range->is_cut);
	else if (READ_ONCE(data->root->fs_info->last_reloc_trans) == last_reloc_trans)
		read_encoded(data, range, last_reloc_trans);
}

/*
 * Start reading the leaves that say who else has an extent, and what its checksums are. Returns how
 * many were not known from the extent before.
 */
static u32 read_leaves(struct btrfs_reada_data *data, u64 bytenr)
{
	struct btrfs_fs_info *fs_info = data->root->fs_info;
	const struct btrfs_rust_key references = btrfs_reada_references(bytenr);
	const struct btrfs_rust_key csums = {
		BTRFS_EXTENT_CSUM_OBJECTID, bytenr, BTRFS_EXTENT_CSUM_KEY
	};
	struct btrfs_root *extent_root;
	struct btrfs_root *csum_root;
	struct btrfs_rust_leaf leaf;
	u32 count = 0;

	/* With more than one of each, an address that is nowhere has none. */
	if (btrfs_fs_incompat(fs_info, EXTENT_TREE_V2))
		return 0;
	extent_root = btrfs_extent_root(fs_info, bytenr);
	csum_root = btrfs_csum_root(fs_info, bytenr);
	if (extent_root && btrfs_rust_locate(&data->references, extent_root, &references, &leaf)) {
		btrfs_reada_leaf(extent_root, &leaf);
		count++;
	}
	if (csum_root && btrfs_rust_locate(&data->csums, csum_root, &csums, &leaf)) {
		btrfs_reada_leaf(csum_root, &leaf);
		count++;
	}
	return count;
}

/* Let go of the first ranges, @passed in all since the beginning, and of inodes before @ino. */
static void put_passed(struct btrfs_reada_data *data, u32 passed, u64 ino)
{
	for (; data->passed != passed; data->passed++)
		put_encoded(data->root, encoded_slot(data, data->passed));

	while (data->inodes[data->first].ino && data->inodes[data->first].ino < ino) {
		put_inode(&data->inodes[data->first]);
		data->first = (data->first + 1) % BTRFS_RUST_DATA_INODES;
	}
}

/* Note that the send has come to @key, and read ahead what is due. */
void btrfs_reada_data_at(struct btrfs_reada_data *data, const struct btrfs_key *key)
{
	const struct btrfs_rust_key position = { key->objectid, key->offset, key->type };
	struct btrfs_fs_info *fs_info;
	struct btrfs_rust_batch batch;
	struct btrfs_rust_range range;
	struct blk_plug plug;
	u64 last_reloc_trans;
	u64 bytes = 0;
	u32 leaves = 0;
	bool is_due;
	u32 passed;

	if (!data->root)
		return;
	is_due = btrfs_rust_data_is_due(&data->plan, &position, data->has_read, &passed);
	data->has_read = false;
	put_passed(data, passed, key->objectid);
	if (!is_due)
		return;

	fs_info = data->root->fs_info;
	down_read(&fs_info->commit_root_sem);
	last_reloc_trans = fs_info->last_reloc_trans;
	batch = btrfs_rust_data_plan(&data->plan, data->root, &position,
				     btrfs_reada_others(&fs_info->reada_data, data->held));
	btrfs_reada_hold(&fs_info->reada_data, &data->held, batch.held);
	blk_start_plug(&plug);
	for (u32 i = 0; i < batch.count; i++) {
		if (!btrfs_rust_data_range(&data->plan, i, &range))
			break;
		data->planned = range.number + 1;
		bytes += range.is_encoded ? range.disk_len : range.len;
		if (leaves < data->max_leaves && !fatal_signal_pending(current) &&
		    !rwsem_is_contended(&fs_info->commit_root_sem))
			leaves += read_leaves(data, range.bytenr);
	}
	blk_finish_plug(&plug);
	up_read(&fs_info->commit_root_sem);

	if (bytes) {
		btrfs_reada_planned(data->root, key->objectid, bytes);
		trace_btrfs_readahead_plan(data->root, key->objectid, bytes, batch.held);
	}
	for (u32 i = 0; i < batch.count; i++) {
		if (btrfs_rust_data_range(&data->plan, i, &range))
			hold_inode(data, &range);
	}
	blk_start_plug(&plug);
	for (u32 i = 0; i < batch.count && !fatal_signal_pending(current); i++) {
		const u32 index = btrfs_rust_data_ordered(&data->plan, i);

		if (btrfs_rust_data_range(&data->plan, index, &range))
			read_range(data, &range, last_reloc_trans);
	}
	blk_finish_plug(&plug);
}

/* Note that the send has read all that it will of the inode @ino. */
void btrfs_reada_data_skip(struct btrfs_reada_data *data, u64 ino)
{
	const struct btrfs_key next = { .objectid = ino + 1 };

	btrfs_reada_data_at(data, &next);
}

/*
 * Note that the send reads data of @inode. Whether it is to @clean the page cache afterwards, and
 * from @start on, holds for what was read ahead, too.
 */
void btrfs_reada_data_use(struct btrfs_reada_data *data, const struct inode *inode, bool *clean,
			  u64 *start)
{
	struct btrfs_reada_inode *held;

	if (!data->root)
		return;
	data->has_read = true;
	held = &data->inodes[data->first];
	if (held->inode != inode || held->is_open)
		return;
	held->is_open = true;
	if (inode->i_mapping->nrpages < held->nrpages)
		btrfs_rust_data_shrink(&data->plan);
	if (is_clean(held)) {
		*clean = true;
		*start = min(*start, held->start);
	}
}

/*
 * Count the folio of @inode at @start as used, up to @end at most, before the send waits for it.
 * A page counts once, also if the send comes to it again.
 */
void btrfs_reada_data_use_folio(struct btrfs_reada_data *data, const struct inode *inode,
				u64 start, u64 end)
{
	struct btrfs_reada_inode *held;
	struct folio *folio;

	if (!data->root)
		return;
	held = &data->inodes[data->first];
	if (held->inode != inode || !held->unused || start < held->start)
		return;
	folio = filemap_get_folio(inode->i_mapping, start >> PAGE_SHIFT);
	/* Gone already. What the page cache then reads again counts as used. */
	if (IS_ERR(folio))
		return;
	start = max(round_down(start, PAGE_SIZE), held->counted);
	end = min3(round_up(end, PAGE_SIZE), (u64)folio_next_pos(folio),
		   start + held->unused);
	if (start < end) {
		held->unused -= end - start;
		held->counted = end;
		btrfs_reada_used(data->root->fs_info, btrfs_root_id(data->root), held->ino, start,
				 end - start, !folio_test_uptodate(folio));
	}
	folio_put(folio);
}

/*
 * Whether @folio of @inode, locked and uptodate, may be wrong. Puts it then, and drops all pages of
 * @inode, which are to be read again.
 */
bool btrfs_reada_data_put_moved(struct btrfs_reada_data *data, const struct inode *inode,
				struct folio *folio)
{
	struct btrfs_reada_inode *held;
	u64 last_reloc_trans;

	if (!data->root)
		return false;
	held = &data->inodes[data->first];
	if (held->inode != inode || !may_be_wrong(held) || fatal_signal_pending(current))
		return false;
	folio_unlock(folio);
	folio_put(folio);
	last_reloc_trans = last_reloc_trans_of(held);
	/* Waits for what is still being read. What another reader has locked stays: try again. */
	if (!invalidate_inode_pages2(inode->i_mapping)) {
		held->last_reloc_trans = last_reloc_trans;
		count_unused(held);
		held->start = U64_MAX;
	}
	cond_resched();
	return true;
}

/* The checksum of the block that is @offset bytes into what was read. */
static void checksum(struct btrfs_fs_info *fs_info, const struct btrfs_reada_encoded *read,
		     u64 offset, u8 *csum)
{
	const u32 step = min(fs_info->sectorsize, PAGE_SIZE);
	phys_addr_t paddrs[BTRFS_MAX_BLOCKSIZE / PAGE_SIZE];

	for (u32 i = 0; i < fs_info->sectorsize / step; i++) {
		struct page *page = read->pages[offset >> PAGE_SHIFT];

		paddrs[i] = page_to_phys(page) + offset_in_page(offset);
		offset += step;
	}
	btrfs_calculate_block_csum_pages(fs_info, paddrs, csum);
}

/* Whether what was read of an extent of @inode has the checksums that it should have. */
static bool is_intact(const struct btrfs_reada_encoded *read, struct btrfs_inode *inode)
{
	struct btrfs_fs_info *fs_info = inode->root->fs_info;
	/* Not to be submitted: it says what checksums to look up. */
	struct btrfs_bio *bbio = btrfs_bio_alloc(0, REQ_OP_READ, inode, 0, NULL, NULL);
	u8 csum[BTRFS_CSUM_SIZE];
	bool ret;

	bbio->bio.bi_iter.bi_sector = read->bytenr >> SECTOR_SHIFT;
	bbio->bio.bi_iter.bi_size = read->len;
	ret = btrfs_lookup_bio_sums(bbio) == 0;
	if (bbio->csum) {
		const u8 *expected = bbio->csum;

		for (u64 offset = 0; ret && offset < read->len; offset += fs_info->sectorsize) {
			checksum(fs_info, read, offset, csum);
			ret = memcmp(csum, expected, fs_info->csum_size) == 0;
			expected += fs_info->csum_size;
		}
		if (bbio->csum != bbio->csum_inline)
			kvfree(bbio->csum);
	}
	bio_put(&bbio->bio);
	return ret;
}

/*
 * Copy the extent of @inode at @bytenr, which takes @len bytes on disk, to @pages. -ENOENT if it
 * was not read ahead, or is not what it should be: it is to be read then, which counts and repairs.
 */
int btrfs_reada_data_encoded(struct btrfs_reada_data *data, struct btrfs_inode *inode, u64 bytenr,
			     u64 len, struct page **pages)
{
	if (!data->root)
		return -ENOENT;
	data->has_read = true;
	for (u32 number = data->passed; number != data->planned; number++) {
		struct btrfs_reada_encoded **slot = encoded_slot(data, number);
		struct btrfs_reada_encoded *read = *slot;
		bool has_to_wait;
		int ret = -ENOENT;

		if (!read || read->bytenr != bytenr || read->len != len)
			continue;
		has_to_wait = !completion_done(&read->done);
		wait_for_completion_io(&read->done);
		if (!read->status &&
		    read->last_reloc_trans == READ_ONCE(data->root->fs_info->last_reloc_trans) &&
		    is_intact(read, inode)) {
			for (unsigned int i = 0; i < read->nr_pages; i++)
				copy_highpage(pages[i], read->pages[i]);
			read->is_used = true;
			btrfs_reada_used(data->root->fs_info, btrfs_root_id(data->root), read->ino,
					 read->offset, read->len, has_to_wait);
			ret = 0;
		}
		put_encoded(data->root, slot);
		return ret;
	}
	return -ENOENT;
}
