// SPDX-License-Identifier: GPL-2.0

/*
 * Readahead of file data for a send, into the page cache. Inodes are held until the send has passed
 * them.
 */

#include <linux/backing-dev.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "data_reada.h"
#include "reada_stats.h"

/* Pages to read at a time. A fatal signal ends the readahead after any of these chunks. */
#define READ_CHUNK	((pgoff_t)(SZ_2M >> PAGE_SHIFT))

struct btrfs_reada_inode {
	u64 ino;
	/* NULL if no data of the inode is read ahead. */
	struct inode *inode;
	/* The start of the readahead and the size of its unused part; whole pages, in bytes. */
	u64 start;
	u64 unused;
	/* Used pages before this file offset are counted already. */
	u64 counted;
	/* Whether the page cache was empty before the readahead; its pages after it. */
	bool clean;
	unsigned long nrpages;
	/* The send has begun to read the inode, and is responsible for its page cache. */
	bool is_open;
	/* fs_info->last_reloc_trans before any data of the inode was read. */
	u64 last_reloc_trans;
};

static unsigned long nr_pages(const struct btrfs_reada_inode *held)
{
	return held->inode->i_mapping->nrpages;
}

/* Whether, by the page counts, only the readahead has filled the page cache of an inode. */
static bool is_clean(const struct btrfs_reada_inode *held)
{
	return held->clean && nr_pages(held) <= held->nrpages;
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
 * Whether the data of the inode has no checksums and may have moved while the inode was held: a
 * block group was relocated, or a commit has replaced the tree. Relocation does not wait for reads
 * in flight, so they may have returned newly written data.
 */
static bool may_be_wrong(const struct btrfs_reada_inode *held)
{
	return lacks_checksums(held) && held->last_reloc_trans != last_reloc_trans_of(held);
}

/* Count the pages that were read ahead and not used as wasted. */
static void count_unused(struct btrfs_reada_inode *held)
{
	const struct btrfs_root *root = BTRFS_I(held->inode)->root;

	if (held->unused)
		btrfs_reada_wasted(root->fs_info, btrfs_root_id(root), held->ino,
				   max(held->start, held->counted), held->unused);
	held->unused = 0;
}

/* Release an inode. Drop its unused pages, unless another task has read pages of it. */
static void put_inode(struct btrfs_reada_inode *held)
{
	if (held->inode) {
		const bool is_unused = !held->is_open && is_clean(held);
		struct address_space *mapping = held->inode->i_mapping;

		count_unused(held);
		if (!may_be_wrong(held) && is_unused)
			invalidate_mapping_pages(mapping, 0, -1);
		/* Pages whose reads are in flight must not stay, unless others use them. */
		if (may_be_wrong(held) ||
		    (is_unused && nr_pages(held) &&
		     (lacks_checksums(held) || !mapping_mapped(mapping)) &&
		     !fatal_signal_pending(current)))
			btrfs_drop_clean_folios(mapping, 0, LLONG_MAX);
		iput(held->inode);
	}
	*held = (struct btrfs_reada_inode){ };
}

/* Returns false without memory. btrfs_page_reada_end() is to be called in any case. */
bool btrfs_page_reada_init(struct btrfs_data_reada *reada)
{
	reada->inodes = kvzalloc_objs(*reada->inodes, BTRFS_RUST_DATA_INODES);
	reada->marked = folio_alloc(GFP_KERNEL, 0);
	return reada->inodes && reada->marked;
}

/* Release all inodes. */
void btrfs_page_reada_end(struct btrfs_data_reada *reada)
{
	for (u32 i = 0; reada->inodes && i < BTRFS_RUST_DATA_INODES; i++)
		put_inode(&reada->inodes[i]);
	kvfree(reada->inodes);
	if (reada->marked)
		folio_put(reada->marked);
}

/*
 * Whether data of an inode can be read ahead. With corrupted key order, the planner may have seen
 * another inode item. Data with fs-verity cannot be verified before the file is open. With
 * REMAP_TREE, a block group may be moved and its place be reused without a change of
 * last_reloc_trans: wrong data is noticed by checksums only.
 */
static bool can_read(const struct btrfs_inode *inode)
{
	return S_ISREG(inode->vfs_inode.i_mode) && !IS_VERITY(&inode->vfs_inode) &&
	       !(inode->flags & BTRFS_INODE_NODATASUM &&
		 btrfs_fs_incompat(inode->root->fs_info, REMAP_TREE));
}

/* Hold the inode of a range. */
void btrfs_page_reada_hold(struct btrfs_data_reada *reada,
			   const struct btrfs_rust_file_range *range)
{
	struct btrfs_reada_inode *held = &reada->inodes[range->slot];
	struct btrfs_inode *inode;

	if (held->ino == range->ino)
		return;
	put_inode(held);
	held->ino = range->ino;
	inode = btrfs_iget(range->ino, reada->root);
	if (IS_ERR(inode))
		return;
	if (!can_read(inode)) {
		iput(&inode->vfs_inode);
		return;
	}
	held->inode = &inode->vfs_inode;
	held->clean = inode->vfs_inode.i_mapping->nrpages == 0;
	held->start = U64_MAX;
	held->last_reloc_trans = last_reloc_trans_of(held);
}

/*
 * Start reading @count pages from @index on, in the largest folios that the page cache supports.
 * The first folio gets the readahead mark, unless the last one ends the file.
 *
 * Only page_cache_async_ra() makes large folios. It doubles the last window, up to ra_pages, and
 * rounds the end of the new one down to the lowest set bit of ra_pages. So let the last window be
 * half of @count, and ra_pages odd. @marked merely loses its readahead mark.
 */
static void read_window(struct address_space *mapping, struct folio *marked, pgoff_t index,
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

	page_cache_async_ra(&ractl, marked, count);
}

/* Keep put_file_data() from starting readahead at the page @index. */
static void clear_mark(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);

	if (IS_ERR(folio))
		return;
	folio_clear_readahead(folio);
	folio_put(folio);
}

/* Start reading a range, up to the offset @end, into the page cache. */
void btrfs_page_reada_read(struct btrfs_data_reada *reada,
			   const struct btrfs_rust_file_range *range, u64 end)
{
	struct btrfs_reada_inode *held = &reada->inodes[range->slot];
	struct address_space *mapping = held->inode->i_mapping;
	const pgoff_t ra_pages = inode_to_bdi(held->inode)->ra_pages;
	const pgoff_t index = range->offset >> PAGE_SHIFT;
	const pgoff_t count = DIV_ROUND_UP_ULL(end, PAGE_SIZE) - index;
	/* put_file_data() continues at the mark of this part, which is not too close to the end. */
	const pgoff_t second = range->is_cut ? min(max(ra_pages / 2, 1), count / 2) : 0;
	const unsigned long nrpages = nr_pages(held);

	if (!ra_pages)
		return;
	for (pgoff_t done = 0; done < count - second && !fatal_signal_pending(current);
	     done += READ_CHUNK) {
		read_window(mapping, reada->marked, index + done,
			    min(count - second - done, READ_CHUNK));
		clear_mark(mapping, index + done);
	}
	if (second)
		read_window(mapping, reada->marked, index + count - second, second);
	held->start = min(held->start, (u64)index << PAGE_SHIFT);
	held->nrpages = nr_pages(held);
	/* An estimate: other tasks may read or free pages of the inode in the meantime. */
	if (held->nrpages > nrpages) {
		const u64 bytes = (u64)(held->nrpages - nrpages) << PAGE_SHIFT;

		held->unused += bytes;
		btrfs_reada_submitted(reada->root->fs_info, btrfs_root_id(reada->root), held->ino,
				      (u64)index << PAGE_SHIFT, bytes);
	}
}

/* Release the inodes before @ino. */
void btrfs_page_reada_pass(struct btrfs_data_reada *reada, u64 ino)
{
	while (reada->inodes[reada->first].ino && reada->inodes[reada->first].ino < ino) {
		put_inode(&reada->inodes[reada->first]);
		reada->first = (reada->first + 1) % BTRFS_RUST_DATA_INODES;
	}
}

/* The inode of a range, or NULL. */
struct inode *btrfs_page_reada_inode(const struct btrfs_data_reada *reada,
				     const struct btrfs_rust_file_range *range)
{
	return reada->inodes[range->slot].inode;
}

/*
 * Report that the send reads data of @inode. If only the readahead has filled the page cache, set
 * @clean and lower @start: the send then drops the pages that were read ahead, too.
 */
void btrfs_data_reada_use(struct btrfs_data_reada *reada, const struct inode *inode, bool *clean,
			  u64 *start)
{
	struct btrfs_reada_inode *held;

	if (!reada->root)
		return;
	reada->has_read = true;
	held = &reada->inodes[reada->first];
	if (held->inode != inode || held->is_open)
		return;
	held->is_open = true;
	if (nr_pages(held) < held->nrpages)
		btrfs_rust_data_reada_report_evicted(&reada->plan);
	if (is_clean(held)) {
		*clean = true;
		*start = min(*start, held->start);
	}
}

/*
 * Count the folio of @inode at @start as used, up to @end at most, before the send waits for it. A
 * page counts once, even if the send reads it again.
 */
void btrfs_data_reada_use_folio(struct btrfs_data_reada *reada, const struct inode *inode,
				u64 start, u64 end)
{
	struct btrfs_reada_inode *held;
	struct folio *folio;

	if (!reada->root)
		return;
	held = &reada->inodes[reada->first];
	if (held->inode != inode || !held->unused || start < held->start)
		return;
	folio = filemap_get_folio(inode->i_mapping, start >> PAGE_SHIFT);
	/* Evicted already. Pages that the page cache reads again count as used. */
	if (IS_ERR(folio))
		return;
	start = max(round_down(start, PAGE_SIZE), held->counted);
	end = min3(round_up(end, PAGE_SIZE), (u64)folio_next_pos(folio),
		   start + held->unused);
	if (start < end) {
		held->unused -= end - start;
		held->counted = end;
		btrfs_reada_used(reada->root->fs_info, btrfs_root_id(reada->root), held->ino, start,
				 end - start, !folio_test_uptodate(folio));
	}
	folio_put(folio);
}

/*
 * If @folio of @inode, locked and uptodate, may have wrong data, put it, drop all clean pages of
 * @inode, and return true: the caller gets the folio again.
 */
bool btrfs_data_reada_put_moved(struct btrfs_data_reada *reada, const struct inode *inode,
				struct folio *folio)
{
	struct btrfs_reada_inode *held;
	u64 last_reloc_trans;

	if (!reada->root)
		return false;
	held = &reada->inodes[reada->first];
	if (held->inode != inode || !may_be_wrong(held))
		return false;
	folio_unlock(folio);
	folio_put(folio);
	last_reloc_trans = last_reloc_trans_of(held);
	btrfs_drop_clean_folios(held->inode->i_mapping, 0, LLONG_MAX);
	held->last_reloc_trans = last_reloc_trans;
	count_unused(held);
	held->start = U64_MAX;
	return true;
}
