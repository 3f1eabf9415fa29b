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
	reada->probes = extents_max >= BTRFS_RUST_SERIES_EXTENTS;
	/* A call of a series reads ahead for the next calls, too. */
	reada->extents = reada->probes ? U32_MAX : extents_max;
	if (reada->max_backref_leaves && !btrfs_fs_incompat(fs_info, EXTENT_TREE_V2))
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

/*
 * Return whether the commit root is that of the last commit. A newer one may still change; see
 * btrfs_rust_commit_root().
 */
static bool is_committed(const struct btrfs_root *root)
{
	return btrfs_header_generation(root->commit_root) <=
	       btrfs_get_last_trans_committed(root->fs_info);
}

/* Start reading the leaf of the extent tree that has the backrefs of @bytenr. */
static void submit_backref(struct btrfs_fiemap_reada *reada, u64 bytenr)
{
	const struct btrfs_rust_key key = btrfs_reada_backrefs(bytenr);

	btrfs_reada_find_leaf(&reada->last_backref, reada->extent_root, &key,
			      &reada->backref_leaves);
}

/* Get the key in @slot. Return whether it is that of a file extent to read ahead for. */
static bool is_ahead(const struct btrfs_fiemap_reada *reada, const struct extent_buffer *leaf,
		     u32 slot, struct btrfs_key *key)
{
	btrfs_item_key_to_cpu(leaf, key, slot);
	return key->objectid == btrfs_ino(reada->inode) && key->type == BTRFS_EXTENT_DATA_KEY &&
	       key->offset >= reada->next && key->offset < reada->end;
}

/* The address of the file extent in @slot, with @key, if fiemap looks it up, otherwise 0. */
static u64 disk_bytenr(const struct btrfs_fiemap_reada *reada, const struct extent_buffer *leaf,
		       u32 slot, const struct btrfs_key *key)
{
	const struct btrfs_file_extent_item *item =
		btrfs_item_ptr(leaf, slot, struct btrfs_file_extent_item);

	if (btrfs_file_extent_type(leaf, item) == BTRFS_FILE_EXTENT_INLINE ||
	    key->offset + btrfs_file_extent_num_bytes(leaf, item) <= reada->start)
		return 0;
	return btrfs_file_extent_disk_bytenr(leaf, item);
}

/*
 * Return whether a leaf of the extent tree is missing for the extents in @slot of @leaf, and in
 * each @step further slots.
 */
static bool misses_backrefs(const struct btrfs_fiemap_reada *reada,
			    const struct extent_buffer *leaf, u32 slot, u32 step)
{
	/* That of @reada is for leaves that are being read. */
	struct btrfs_rust_last_leaf last = { };

	for (; slot < btrfs_header_nritems(leaf); slot += step) {
		struct btrfs_rust_leaf found;
		struct btrfs_rust_key search;
		struct btrfs_key key;
		u64 bytenr;

		if (!is_ahead(reada, leaf, slot, &key))
			continue;
		bytenr = disk_bytenr(reada, leaf, slot, &key);
		search = btrfs_reada_backrefs(bytenr);
		if (bytenr && btrfs_reada_is_missing(&last, reada->extent_root, &search, &found))
			return true;
	}
	return false;
}

/*
 * Start reading the leaves of the extent tree for the extents in @leaf. Returns false if it stops
 * before the end of the leaf: at the limit of leaves or extents, at a fatal signal, and if a task
 * waits for commit_root_sem.
 */
static bool submit_backrefs(struct btrfs_fiemap_reada *reada, const struct extent_buffer *leaf)
{
	const struct btrfs_root *root = reada->inode->root;
	bool wants_path = false;
	bool is_done = true;

	for (u32 slot = 0; slot < btrfs_header_nritems(leaf); slot++) {
		const struct btrfs_file_extent_item *item;
		struct btrfs_key key;
		u64 bytenr;

		if (!is_ahead(reada, leaf, slot, &key))
			continue;
		is_done = reada->extents && reada->backref_leaves &&
			  !fatal_signal_pending(current) &&
			  !rwsem_is_contended(&leaf->fs_info->commit_root_sem);
		if (!is_done)
			break;
		reada->next = key.offset + 1;
		bytenr = disk_bytenr(reada, leaf, slot, &key);
		if (!bytenr)
			continue;
		reada->extents--;
		submit_backref(reada, bytenr);
		item = btrfs_item_ptr(leaf, slot, struct btrfs_file_extent_item);
		if (btrfs_file_extent_generation(leaf, item) <=
		    btrfs_root_last_snapshot(&root->root_item))
			wants_path = true;
	}
	/* Fiemap also looks up the path to extents that are not newer than the last snapshot. */
	if (wants_path)
		submit_backref(reada, leaf->start);
	return is_done;
}

/*
 * Return whether leaves are missing for the extents of the leaf 128 KiB past @slot of @node, or
 * halfway to @end: so most leaves look at another one.
 */
static bool misses_backrefs_ahead(const struct btrfs_fiemap_reada *reada,
				  const struct extent_buffer *node, u32 slot, u32 end)
{
	const u32 distance = SZ_128K >> node->fs_info->nodesize_bits;
	struct extent_buffer *leaf =
		btrfs_rust_cached_leaf(node, min(slot + distance, (slot + end - 1) / 2));
	bool ret;

	if (!leaf)
		return false;
	/* Two extents for each call of the shortest series. Odd: each second item may be a hole. */
	ret = misses_backrefs(reada, leaf, 0, BTRFS_RUST_SERIES_EXTENTS / 2 - 1);
	free_extent_buffer(leaf);
	return ret;
}

/*
 * Read ahead for the extents in the leaves that are in memory, from @slot to @end of @node. End
 * 128 KiB after the last one that missed leaves of the extent tree.
 */
static void follow_leaves(struct btrfs_fiemap_reada *reada, const struct extent_buffer *node,
			  u32 slot, u32 end)
{
	const u32 distance = SZ_128K >> node->fs_info->nodesize_bits;

	for (u32 last = slot + distance; slot < end && slot <= last; slot++) {
		struct extent_buffer *leaf = btrfs_rust_cached_leaf(node, slot);
		const u32 budget = reada->backref_leaves;
		bool is_done;

		if (!leaf)
			return;
		is_done = submit_backrefs(reada, leaf);
		free_extent_buffer(leaf);
		if (!is_done)
			return;
		if (reada->backref_leaves < budget)
			last = slot + distance;
		cond_resched();
	}
}

/*
 * Find the leaf of the inode with @key, and read ahead from there on if leaves of the extent tree
 * are missing: @is_missing says that they are, otherwise look 128 KiB ahead.
 */
static void read_ahead_from(struct btrfs_fiemap_reada *reada, struct btrfs_key key, bool is_missing)
{
	BTRFS_PATH_AUTO_RELEASE(path);
	struct extent_buffer *node;
	struct blk_plug plug;
	int slot, end, ret;

	path.lowest_level = 1;
	path.search_commit_root = true;
	path.skip_locking = true;
	path.nowait = true;
	ret = btrfs_search_slot(NULL, reada->inode->root, &key, &path, 0, 0);
	node = path.nodes[1];
	if (ret < 0 || !node)
		return;
	/* Without an exact match, the key belongs to the slot before, if there is one. */
	slot = max(path.slots[1] - ret, 0);
	key.offset = reada->end;
	if (btrfs_bin_search(node, slot, &key, &end) < 0 || end <= slot)
		return;
	if (!is_missing && !misses_backrefs_ahead(reada, node, slot, end))
		return;
	reada->backref_leaves = reada->max_backref_leaves;
	blk_start_plug(&plug);
	follow_leaves(reada, node, slot, end);
	blk_finish_plug(&plug);
}

/*
 * Read the leaves of the extent tree ahead for the extents from the position of fiemap on: for
 * those in leaves of the inode that are in memory, below the same node, and up to the limit. @path
 * is that of fiemap, at the beginning of a search or at the first item of a leaf.
 *
 * A call that has not read leaves of the inode ahead may be one of a series, and an earlier call
 * may have read ahead for it. So one for many extents looks for missing leaves before, and others
 * read nothing ahead. If all leaves are in memory, a call should do few lookups in vain: one, and
 * for each further leaf of the inode also some in that 128 KiB ahead.
 */
void btrfs_fiemap_reada_backrefs(struct btrfs_fiemap_reada *reada, const struct btrfs_path *path)
{
	const struct extent_buffer *leaf = path->nodes[0];
	const u32 nritems = btrfs_header_nritems(leaf);
	struct btrfs_fs_info *fs_info;
	struct btrfs_key key, last;
	bool is_missing;

	if (!reada->extent_root || (!reada->held && !reada->probes))
		return;
	fs_info = reada->inode->root->fs_info;
	btrfs_item_key_to_cpu(leaf, &key, path->slots[0]);
	btrfs_item_key_to_cpu(leaf, &last, nritems - 1);
	reada->next = max(reada->next, key.offset);
	if (!reada->extents || (last.objectid == key.objectid && last.offset < reada->next))
		return;

	down_read(&fs_info->commit_root_sem);
	/* Lookups in an extent root that is not committed would fail, and not be tried again. */
	if (is_committed(reada->inode->root) && is_committed(reada->extent_root)) {
		/* The call before has looked up one more extent than it has reported. */
		is_missing = reada->held ||
			     misses_backrefs(reada, leaf, path->slots[0] + 2, nritems);
		if (is_missing || path->slots[0] == 0)
			read_ahead_from(reada, key, is_missing);
	}
	up_read(&fs_info->commit_root_sem);
}

/*
 * Submit the leaves of a batch, in the order of the plan. The caller holds commit_root_sem. That is
 * released while a task waits for it. If the commit root has changed meanwhile, and at a fatal
 * signal and on errors, the rest of the batch is given up.
 */
static void submit_leaves(struct btrfs_root *root, const struct btrfs_rust_leaves *batch)
{
	const u64 root_gen = btrfs_header_generation(root->commit_root);
	struct rw_semaphore *sem = &root->fs_info->commit_root_sem;
	struct blk_plug plug;

	blk_start_plug(&plug);
	for (u32 i = 0; i < batch->planned; i++) {
		if (rwsem_is_contended(sem)) {
			up_read(sem);
			cond_resched();
			down_read(sem);
			if (btrfs_header_generation(root->commit_root) != root_gen)
				break;
		}
		if (fatal_signal_pending(current) ||
		    !btrfs_reada_leaf(root, &batch->leaves[i], 0))
			break;
	}
	blk_finish_plug(&plug);
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

		down_read(&fs_info->commit_root_sem);
		batch = btrfs_rust_leaf_reada_plan(&reada->plan, root, NULL,
						   btrfs_reada_others(total, reada->held));
		btrfs_reada_hold(total, &reada->held, batch.held);
		btrfs_reada_count_batch(root, &batch);
		submit_leaves(root, &batch);
		up_read(&fs_info->commit_root_sem);
	}
}
