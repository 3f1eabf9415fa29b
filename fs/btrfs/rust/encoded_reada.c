// SPDX-License-Identifier: GPL-2.0

/*
 * Readahead of compressed extents for a send that does not decompress them. Each extent is read
 * into pages of its own, and copied to the send buffer when the send reaches it.
 */

#include <linux/completion.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include "../bio.h"
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../file-item.h"
#include "../fs.h"
#include "data_reada.h"
#include "reada_stats.h"

/* A compressed extent that is read without decompression. */
struct btrfs_encoded_extent {
	u64 ino;
	u64 offset;
	u64 bytenr;
	u64 len;
	/* fs_info->last_reloc_trans at the plan. */
	u64 last_reloc_trans;
	refcount_t pending;
	blk_status_t status;
	bool is_used;
	struct completion done;
	unsigned int nr_pages;
	struct page *pages[];
};

static struct btrfs_encoded_extent **encoded_slot(struct btrfs_data_reada *reada, u32 number)
{
	return &reada->encoded[number & (reada->max_ranges - 1)];
}

/* Wait for an extent and free it. */
static void put_encoded(const struct btrfs_root *root, struct btrfs_encoded_extent **slot)
{
	struct btrfs_encoded_extent *read = *slot;

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

/* Free the extents of the first @passed ranges of the send. */
void btrfs_encoded_reada_pass(struct btrfs_data_reada *reada, u32 passed)
{
	if (!reada->encoded)
		return;
	for (; reada->passed != passed; reada->passed++)
		put_encoded(reada->root, encoded_slot(reada, reada->passed));
}

static void end_encoded(struct btrfs_bio *bbio)
{
	struct btrfs_encoded_extent *read = bbio->private;
	blk_status_t status = bbio->bio.bi_status;

	bio_put(&bbio->bio);
	if (status)
		WRITE_ONCE(read->status, status);
	/* Orders the status before complete_all(). */
	if (refcount_dec_and_test(&read->pending))
		complete_all(&read->done);
}

static struct btrfs_encoded_extent *alloc_encoded(u64 len)
{
	/* As readahead_gfp_mask(): speculative reads must not invoke the OOM killer. */
	const gfp_t gfp = GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN | __GFP_ACCOUNT;
	const unsigned int nr_pages = DIV_ROUND_UP_ULL(len, PAGE_SIZE);
	struct btrfs_encoded_extent *read;

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
 * Submit the bios of an extent. They are bios of the btree inode, so that the block layer neither
 * verifies nor repairs the data, and counts no errors. is_intact() verifies extents that are used.
 */
static void submit_encoded(struct btrfs_encoded_extent *read, struct btrfs_inode *inode)
{
	struct btrfs_bio *bbio = NULL;
	u64 done = 0;

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
}

/* Start reading an extent without decompression. */
void btrfs_encoded_reada_read(struct btrfs_data_reada *reada,
			      const struct btrfs_rust_file_range *range, u64 last_reloc_trans)
{
	struct btrfs_fs_info *fs_info = reada->root->fs_info;
	struct btrfs_encoded_extent *read = alloc_encoded(range->disk_len);

	if (!read)
		return;
	read->ino = range->ino;
	read->offset = range->offset;
	read->bytenr = range->bytenr;
	read->len = range->disk_len;
	read->last_reloc_trans = last_reloc_trans;
	init_completion(&read->done);
	refcount_set(&read->pending, 1);
	put_encoded(reada->root, encoded_slot(reada, range->number));
	*encoded_slot(reada, range->number) = read;
	submit_encoded(read, BTRFS_I(fs_info->btree_inode));
	btrfs_reada_submitted(fs_info, btrfs_root_id(reada->root), read->ino, read->offset,
			      read->len);
	if (refcount_dec_and_test(&read->pending))
		complete_all(&read->done);
}

/* Calculate the checksum of the block at @offset in the data read. */
static void checksum(struct btrfs_fs_info *fs_info, const struct btrfs_encoded_extent *read,
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

/* Whether the data read of an extent of @inode matches its checksums. */
static bool is_intact(const struct btrfs_encoded_extent *read, struct btrfs_inode *inode)
{
	struct btrfs_fs_info *fs_info = inode->root->fs_info;
	/* This bio is not submitted: it passes the range to btrfs_lookup_bio_sums(). */
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

/* Wait for an extent and copy it to @pages, unless it is damaged or possibly relocated. */
static int copy_encoded(const struct btrfs_data_reada *reada, struct btrfs_encoded_extent *read,
			struct btrfs_inode *inode, struct page **pages)
{
	struct btrfs_fs_info *fs_info = reada->root->fs_info;
	const bool has_to_wait = !completion_done(&read->done);

	wait_for_completion_io(&read->done);
	if (read->status || read->last_reloc_trans != READ_ONCE(fs_info->last_reloc_trans) ||
	    !is_intact(read, inode))
		return -ENOENT;
	for (unsigned int i = 0; i < read->nr_pages; i++)
		copy_highpage(pages[i], read->pages[i]);
	read->is_used = true;
	btrfs_reada_used(fs_info, btrfs_root_id(reada->root), read->ino, read->offset, read->len,
			 has_to_wait);
	return 0;
}

/*
 * Copy the extent of @inode at @bytenr, of @len bytes on disk, to @pages. Returns -ENOENT if it was
 * not read ahead or is damaged. Send then reads it again, and counts and repairs the damage.
 */
int btrfs_data_reada_encoded(struct btrfs_data_reada *reada, struct btrfs_inode *inode, u64 bytenr,
			     u64 len, struct page **pages)
{
	if (!reada->root || !reada->encoded)
		return -ENOENT;
	reada->has_read = true;
	for (u32 number = reada->passed; number != reada->planned; number++) {
		struct btrfs_encoded_extent **slot = encoded_slot(reada, number);
		int ret;

		if (!*slot || (*slot)->bytenr != bytenr || (*slot)->len != len)
			continue;
		ret = copy_encoded(reada, *slot, inode, pages);
		put_encoded(reada->root, slot);
		return ret;
	}
	return -ENOENT;
}
