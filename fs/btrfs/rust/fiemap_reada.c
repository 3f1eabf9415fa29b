// SPDX-License-Identifier: GPL-2.0

/*
 * Readahead for fiemap: of the leaves of the inode, and of the leaves of the extent tree in which
 * fiemap looks up the references to its extents. leaf_reada.rs decides about the former.
 *
 * Any commit may change the tree of the inode. So no worker is used: fiemap submits all leaves
 * itself, and gives up the rest of a batch if the commit root has changed.
 */

#include <linux/blkdev.h>
#include <linux/sched/signal.h>
#include <linux/wait_bit.h>
#include "../accessors.h"
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../extent_io.h"
#include "../fs.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/* FILE_EXTENT_SIZE in leaf_reada/extents.rs. */
static_assert(sizeof(struct btrfs_item) + sizeof(struct btrfs_file_extent_item) == 25 + 53);

/* Smaller files have few extents, and planning takes 6% of a call with all leaves in memory. */
#define READA_FIEMAP_MIN_SIZE	SZ_128K

/*
 * Initialize the readahead of a fiemap call from @start to @end, in bytes, for up to @extents_max
 * extents. As for btrfs_leaf_reada_init(), it may stay off.
 *
 * A task that maps a file in several calls mostly continues where the last call ended. The state is
 * lost between calls. So the readahead probes whether the next leaves are cached, and if not, reads
 * more than this call needs.
 */
void btrfs_fiemap_reada_init(struct btrfs_fiemap_reada *reada, struct btrfs_inode *inode,
			     u64 start, u64 end, u32 extents_max)
{
	struct btrfs_fs_info *fs_info = inode->root->fs_info;
	const struct btrfs_rust_disk disk = btrfs_reada_disk(fs_info);
	const u64 size = i_size_read(&inode->vfs_inode);
	/* No file has more extents than blocks. A call with 0 counts extents, and reads all. */
	const u64 blocks = (size >> fs_info->sectorsize_bits) + 1;
	const struct btrfs_rust_file_extents extents = {
		.start.objectid = btrfs_ino(inode),
		.start.type = BTRFS_EXTENT_DATA_KEY,
		.start.offset = start,
		.end.objectid = btrfs_ino(inode),
		.end.type = BTRFS_EXTENT_DATA_KEY,
		.end.offset = end,
		.wanted = min_t(u64, extents_max ?: U32_MAX, blocks),
		.is_first = start == 0,
	};

	*reada = (struct btrfs_fiemap_reada){ .start = start, .end = end };
	if (size < READA_FIEMAP_MIN_SIZE || !READ_ONCE(fs_info->reada.tree_enable) ||
	    !btrfs_rust_leaf_reada_init(&reada->plan, &disk, &extents))
		return;
	reada->inode = inode;
	btrfs_reada_join(&fs_info->reada_tree);
	/* Extents may be scattered: a window of a rotational disk would be too much. */
	reada->max_backref_leaves = min_t(u64, btrfs_rust_window(&disk),
					  (u64)disk.readahead << 10) >> fs_info->nodesize_bits;
	/* The next calls of a series find these leaves cached, and do not read ahead for them. */
	reada->extents = extents_max < BTRFS_RUST_SERIES_EXTENTS ? extents_max : U32_MAX;
	if (extents_max && !btrfs_fs_incompat(fs_info, EXTENT_TREE_V2))
		reada->extent_root = btrfs_extent_root(fs_info, 0);
}

/* End the readahead. @reada may be all zeroes. */
void btrfs_fiemap_reada_end(struct btrfs_fiemap_reada *reada)
{
	if (!reada->inode)
		return;
	btrfs_rust_leaf_reada_destroy(&reada->plan);
	btrfs_reada_leave(&reada->inode->root->fs_info->reada_tree, &reada->held);
}

/* Start reading the leaf of the extent tree that has the backrefs of @bytenr. */
static void submit_backref(struct btrfs_fiemap_reada *reada, u64 bytenr)
{
	const struct btrfs_rust_key key = btrfs_reada_backrefs(bytenr);

	btrfs_reada_find_leaf(&reada->last_backref, reada->extent_root, &key,
			      &reada->backref_leaves);
}

/* The address of the extent in @slot if fiemap will look it up, otherwise 0. */
static u64 extent_to_look_up(const struct btrfs_fiemap_reada *reada,
			     const struct extent_buffer *eb, int slot)
{
	const struct btrfs_file_extent_item *item;
	struct btrfs_key key;

	btrfs_item_key_to_cpu(eb, &key, slot);
	if (key.objectid != btrfs_ino(reada->inode) || key.type != BTRFS_EXTENT_DATA_KEY ||
	    key.offset >= reada->end)
		return 0;
	item = btrfs_item_ptr(eb, slot, struct btrfs_file_extent_item);
	if (btrfs_file_extent_type(eb, item) == BTRFS_FILE_EXTENT_INLINE ||
	    key.offset + btrfs_file_extent_num_bytes(eb, item) <= reada->start)
		return 0;
	return btrfs_file_extent_disk_bytenr(eb, item);
}

/* Start reading the leaves of the extent tree for the extents in @eb, a leaf of the inode. */
static void submit_backrefs(struct btrfs_fiemap_reada *reada, const struct extent_buffer *eb)
{
	const struct btrfs_root *root = reada->inode->root;
	bool wants_path = false;
	struct blk_plug plug;

	blk_start_plug(&plug);
	for (int slot = 0; slot < btrfs_header_nritems(eb) && reada->extents &&
	     reada->backref_leaves; slot++) {
		const struct btrfs_file_extent_item *item;
		u64 bytenr;

		if (rwsem_is_contended(&eb->fs_info->commit_root_sem) ||
		    fatal_signal_pending(current))
			break;
		bytenr = extent_to_look_up(reada, eb, slot);
		if (!bytenr)
			continue;
		reada->extents--;
		submit_backref(reada, bytenr);
		item = btrfs_item_ptr(eb, slot, struct btrfs_file_extent_item);
		if (btrfs_file_extent_generation(eb, item) <=
		    btrfs_root_last_snapshot(&root->root_item))
			wants_path = true;
	}
	/* Fiemap also looks up the path to extents that are not newer than the last snapshot. */
	if (wants_path)
		submit_backref(reada, eb->start);
	blk_finish_plug(&plug);
}

/*
 * Wait for a leaf, and read ahead for its extents. Returns false if the tree has changed. The wait
 * is outside of commit_root_sem: a commit must not wait for this read.
 */
static bool follow_leaf(struct btrfs_fiemap_reada *reada, const struct btrfs_rust_leaf *leaf,
			u64 root_gen)
{
	struct btrfs_root *root = reada->inode->root;
	struct btrfs_fs_info *fs_info = root->fs_info;
	struct extent_buffer *eb;
	bool is_same;

	eb = find_extent_buffer(fs_info, leaf->ptr.blockptr);
	if (!eb)
		return true;
	wait_on_bit_io(&eb->bflags, EXTENT_BUFFER_READING, TASK_KILLABLE);
	down_read(&fs_info->commit_root_sem);
	/* After a commit, the leaf may have been freed. */
	is_same = btrfs_header_generation(root->commit_root) == root_gen;
	if (is_same && extent_buffer_uptodate(eb) && btrfs_header_level(eb) == 0 &&
	    btrfs_header_generation(eb) == leaf->ptr.generation)
		submit_backrefs(reada, eb);
	up_read(&fs_info->commit_root_sem);
	free_extent_buffer(eb);
	return is_same;
}

/*
 * Submit the leaves of a batch, in the order of the plan. The caller holds commit_root_sem. It is
 * released while a task waits for it. Returns the number of leaves submitted: fewer if the commit
 * root has changed meanwhile, at a fatal signal, and on errors.
 */
static u32 submit_leaves(struct btrfs_root *root, const struct btrfs_rust_leaves *batch)
{
	const u64 root_gen = btrfs_header_generation(root->commit_root);
	struct rw_semaphore *sem = &root->fs_info->commit_root_sem;
	struct blk_plug plug;
	u32 submitted = 0;

	blk_start_plug(&plug);
	while (submitted < batch->planned) {
		if (rwsem_is_contended(sem)) {
			up_read(sem);
			cond_resched();
			down_read(sem);
			if (btrfs_header_generation(root->commit_root) != root_gen)
				break;
		}
		if (fatal_signal_pending(current) ||
		    !btrfs_reada_leaf(root, &batch->leaves[submitted], 0))
			break;
		submitted++;
	}
	blk_finish_plug(&plug);
	return submitted;
}

/* Move the fiemap call to @offset, in bytes, and read ahead. */
void btrfs_fiemap_reada_advance(struct btrfs_fiemap_reada *reada, u64 offset)
{
	struct btrfs_rust_key position = { .type = BTRFS_EXTENT_DATA_KEY, .offset = offset };
	struct btrfs_reada_total *total;
	struct btrfs_fs_info *fs_info;
	struct btrfs_root *root;

	if (!reada->inode)
		return;
	root = reada->inode->root;
	fs_info = root->fs_info;
	total = &fs_info->reada_tree;
	position.objectid = btrfs_ino(reada->inode);
	while (btrfs_rust_leaf_reada_advance(&reada->plan, root, &position)) {
		struct btrfs_rust_leaves batch;
		u32 submitted;
		u64 root_gen;

		down_read(&fs_info->commit_root_sem);
		root_gen = btrfs_header_generation(root->commit_root);
		batch = btrfs_rust_leaf_reada_plan(&reada->plan, root, NULL,
						   btrfs_reada_others(total, reada->held));
		btrfs_reada_hold(total, &reada->held, batch.held);
		btrfs_reada_count_batch(root, &batch);
		submitted = submit_leaves(root, &batch);
		up_read(&fs_info->commit_root_sem);

		if (!reada->extent_root)
			continue;
		reada->backref_leaves = reada->max_backref_leaves;
		for (u32 i = 0; i < submitted && reada->backref_leaves; i++) {
			if (fatal_signal_pending(current) ||
			    !follow_leaf(reada, &batch.leaves[i], root_gen))
				break;
		}
	}
}
