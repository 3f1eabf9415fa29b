// SPDX-License-Identifier: GPL-2.0

/*
 * Readahead of file data for a send. data_reada.rs decides what to read; page_reada.c and
 * encoded_reada.c read it.
 */

#include <linux/blkdev.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <trace/events/btrfs.h>
#include "../btrfs_inode.h"
#include "../compression.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../file-item.h"
#include "../fs.h"
#include "../send.h"
#include "data_reada.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/* Used in data_reada.rs. */
static_assert(BTRFS_INODE_ITEM_KEY == 1);
static_assert(BTRFS_EXTENT_DATA_KEY == 108);
static_assert(BTRFS_LAST_FREE_OBJECTID == -256ULL);
static_assert(BTRFS_MAX_COMPRESSED == SZ_128K);

/*
 * Initialize the readahead for a send of @root with BTRFS_SEND_FLAG_* @flags. The send looks up
 * extents newer than @min_gen. The readahead stays off without memory, or if it is disabled.
 */
void btrfs_data_reada_init(struct btrfs_data_reada *reada, struct btrfs_root *root, u64 min_gen,
			   u64 flags)
{
	const struct btrfs_rust_disk disk = btrfs_reada_disk(root->fs_info);
	const bool reads_data = !(flags & BTRFS_SEND_FLAG_NO_FILE_DATA);
	const bool sends_encoded = reads_data && flags & BTRFS_SEND_FLAG_COMPRESSED;

	*reada = (struct btrfs_data_reada){ };
	if (!READ_ONCE(root->fs_info->reada.data_enable))
		return;
	reada->max_ranges = btrfs_rust_data_reada_init(&reada->plan, &disk, min_gen, reads_data,
						       sends_encoded);
	if (!reada->max_ranges)
		return;
	if (sends_encoded)
		reada->encoded = kvzalloc_objs(*reada->encoded, reada->max_ranges);
	if (!btrfs_page_reada_init(reada) || (sends_encoded && !reada->encoded)) {
		btrfs_page_reada_end(reada);
		kvfree(reada->encoded);
		btrfs_rust_data_reada_destroy(&reada->plan);
		return;
	}
	reada->root = root;
	btrfs_verify_plan_init(&reada->verify, root->fs_info);
	if (READ_ONCE(root->fs_info->reada.tree_enable))
		reada->max_leaves = btrfs_rust_window(&disk) >> root->fs_info->nodesize_bits;
	btrfs_reada_join(&root->fs_info->reada_data);
}

/* End the readahead: drop all extents and inodes. @reada may be all zeroes. */
void btrfs_data_reada_end(struct btrfs_data_reada *reada)
{
	if (!reada->root)
		return;
	btrfs_encoded_reada_pass(reada, reada->passed + reada->max_ranges);
	kvfree(reada->encoded);
	btrfs_page_reada_end(reada);
	btrfs_rust_data_reada_destroy(&reada->plan);
	btrfs_verify_plan_end(&reada->verify);
	btrfs_reada_leave(&reada->root->fs_info->reada_data, &reada->held);
	reada->root = NULL;
}

/* Start reading a range; without decompression if send writes the extent encoded. */
static void read_range(struct btrfs_data_reada *reada, const struct btrfs_rust_file_range *range,
		       u64 last_reloc_trans)
{
	const struct inode *inode = btrfs_page_reada_inode(reada, range);
	u64 end;

	if (!inode)
		return;
	end = min_t(u64, range->offset + range->len, i_size_read(inode));
	if (range->offset >= end)
		return;
	/* Send decompresses an extent that is longer on disk than in the file. */
	if (!range->is_encoded || range->offset + range->disk_len > end)
		btrfs_page_reada_read(reada, range, end);
	else if (READ_ONCE(reada->root->fs_info->last_reloc_trans) == last_reloc_trans)
		btrfs_encoded_reada_read(reada, range, last_reloc_trans);
}

/* Start reading the leaves with the backrefs and, if data is read, the checksums of an extent. */
static void read_leaves(struct btrfs_data_reada *reada, const struct btrfs_rust_file_range *range,
			u32 *budget)
{
	struct btrfs_fs_info *fs_info = reada->root->fs_info;
	const struct btrfs_rust_key backrefs = btrfs_reada_backrefs(range->bytenr);
	const struct btrfs_rust_key csums = {
		.objectid = BTRFS_EXTENT_CSUM_OBJECTID,
		.type = BTRFS_EXTENT_CSUM_KEY,
		.offset = range->bytenr,
	};
	struct btrfs_root *extent_root;
	struct btrfs_root *csum_root;

	/* EXTENT_TREE_V2 has no such roots for an address outside of all block groups. */
	if (btrfs_fs_incompat(fs_info, EXTENT_TREE_V2))
		return;
	extent_root = btrfs_extent_root(fs_info, range->bytenr);
	if (extent_root)
		btrfs_reada_find_leaf(&reada->last_backref, extent_root, &backrefs, budget);
	csum_root = range->len ? btrfs_csum_root(fs_info, range->bytenr) : NULL;
	if (csum_root)
		btrfs_reada_find_leaf(&reada->last_csum, csum_root, &csums, budget);
}

/* Count a batch, and start reading the leaves for it. The caller holds commit_root_sem. */
static void prepare_batch(struct btrfs_data_reada *reada,
			  const struct btrfs_rust_file_ranges *batch)
{
	struct btrfs_fs_info *fs_info = reada->root->fs_info;
	u32 budget = reada->max_leaves;
	struct blk_plug plug;
	u64 bytes = 0;

	blk_start_plug(&plug);
	for (u32 i = 0; i < batch->count; i++) {
		const struct btrfs_rust_file_range *range = &batch->ranges[i];

		bytes += range->is_encoded ? range->disk_len : range->len;
		if (range->len)
			btrfs_verify_planned(&reada->verify, BTRFS_VERIFY_PLAN_DATA, range->bytenr);
		if (budget && !fatal_signal_pending(current) &&
		    !rwsem_is_contended(&fs_info->commit_root_sem))
			read_leaves(reada, range, &budget);
	}
	blk_finish_plug(&plug);

	if (bytes) {
		const u64 ino = batch->ranges[0].ino;

		reada->planned = batch->ranges[batch->count - 1].number + 1;
		btrfs_reada_planned(reada->root, ino, bytes);
		trace_btrfs_readahead_plan(reada->root, ino, bytes, batch->held);
	}
}

/* Start reading a batch. */
static void read_batch(struct btrfs_data_reada *reada, const struct btrfs_rust_file_ranges *batch,
		       u64 last_reloc_trans)
{
	struct blk_plug plug;

	for (u32 i = 0; i < batch->count && batch->ranges[i].len; i++)
		btrfs_page_reada_hold(reada, &batch->ranges[i]);
	blk_start_plug(&plug);
	for (u32 i = 0; i < batch->count && !fatal_signal_pending(current); i++)
		read_range(reada, &batch->ranges[batch->order[i]], last_reloc_trans);
	blk_finish_plug(&plug);
}

/* Move the send to @key, and read ahead. */
void btrfs_data_reada_advance(struct btrfs_data_reada *reada, const struct btrfs_key *key)
{
	const struct btrfs_rust_key next = btrfs_rust_key(key);
	struct btrfs_rust_data_position position;
	struct btrfs_rust_file_ranges batch;
	struct btrfs_fs_info *fs_info;
	u64 last_reloc_trans;

	if (!reada->root)
		return;
	position = btrfs_rust_data_reada_advance(&reada->plan, &next, reada->has_read);
	reada->has_read = false;
	btrfs_encoded_reada_pass(reada, position.passed);
	btrfs_page_reada_pass(reada, key->objectid);
	if (!position.is_due)
		return;

	fs_info = reada->root->fs_info;
	down_read(&fs_info->commit_root_sem);
	last_reloc_trans = fs_info->last_reloc_trans;
	batch = btrfs_rust_data_reada_plan(&reada->plan, reada->root,
					   btrfs_reada_others(&fs_info->reada_data, reada->held));
	btrfs_reada_hold(&fs_info->reada_data, &reada->held, batch.held);
	prepare_batch(reada, &batch);
	up_read(&fs_info->commit_root_sem);
	read_batch(reada, &batch, last_reloc_trans);
}

/* Move the send past the inode @ino, all of whose data it has read. */
void btrfs_data_reada_skip_inode(struct btrfs_data_reada *reada, u64 ino)
{
	const struct btrfs_key next = { .objectid = ino + 1 };

	btrfs_data_reada_advance(reada, &next);
}
