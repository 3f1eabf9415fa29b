// SPDX-License-Identifier: GPL-2.0

/*
 * The locks and the I/O of reada_walk.rs.
 *
 * What is planned is true while commit_root_sem is held. Once it was dropped, blocks of a tree that
 * is being sent can only have gone away by relocation: snapshots replace no more than the root, and
 * such a tree is not deleted. A tree that is listed by fiemap may change at any commit.
 */

#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/cgroup.h>
#include <linux/ioprio.h>
#include <linux/highmem.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <trace/events/btrfs.h>
#include "../accessors.h"
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../extent_io.h"
#include "../fs.h"
#include "../volumes.h"
#include "reada_stats.h"
#include "reada_walk.h"

/* What reada_walk.rs knows of the format. */
static_assert(sizeof(struct btrfs_item) + sizeof(struct btrfs_file_extent_item) == 25 + 53);

/* Leaves to submit at a time; more are left to a worker, since a disk's queue may be full. */
#define READA_WALK_CHUNK	64

/* Smaller files have so few extents that to look for them takes longer than it saves. */
#define READA_FIEMAP_MIN_SIZE	SZ_128K

/* Leaves of the extent tree to read ahead in one fiemap: extents may be scattered over many. */
#define READA_BACKREF_LEAVES	256

/* Start reading a leaf with the I/O priority @ioprio; 0 is that of the task. */
static bool reada_leaf(struct btrfs_root *root, const struct btrfs_rust_leaf *leaf, u16 ioprio)
{
	const struct btrfs_key key = {
		.objectid = leaf->key.objectid,
		.type = leaf->key.type,
		.offset = leaf->key.offset,
	};
	struct extent_buffer *eb;

	btrfs_readahead_tree_block_ioprio(root->fs_info, leaf->blockptr, btrfs_root_id(root),
					  leaf->generation, 0, &key, ioprio);
	/* That does not say if it had no memory. */
	eb = find_extent_buffer(root->fs_info, leaf->blockptr);
	if (!eb)
		return false;
	free_extent_buffer(eb);
	return true;
}

/*
 * Start reading a leaf of @root that is no part of a batch; false if there was no memory. The
 * caller holds commit_root_sem.
 */
bool btrfs_reada_leaf(struct btrfs_root *root, const struct btrfs_rust_leaf *leaf)
{
	btrfs_reada_planned(root, 0, root->fs_info->nodesize);
	return reada_leaf(root, leaf, 0);
}

/* Note that a batch of leaves was planned. */
static void count_batch(const struct btrfs_root *root, const struct btrfs_rust_batch *batch)
{
	const u64 bytes = (u64)batch->count << root->fs_info->nodesize_bits;

	if (!bytes)
		return;
	btrfs_reada_planned(root, 0, bytes);
	trace_btrfs_readahead_plan(root, 0, bytes, batch->held);
}

/*
 * Start reading up to READA_WALK_CHUNK leaves, fewer if somebody waits for commit_root_sem, which
 * the caller holds.
 */
static void submit_chunk(struct btrfs_reada_walk *walk)
{
	struct btrfs_fs_info *fs_info = walk->left->fs_info;
	const u32 end = min(walk->count, walk->done + READA_WALK_CHUNK);
	struct blk_plug plug;

	lockdep_assert_held_read(&fs_info->commit_root_sem);

	blk_start_plug(&plug);
	while (walk->done < end) {
		struct btrfs_rust_leaf leaf;

		if (!btrfs_rust_walk_leaf(&walk->plan, walk->done, &leaf) ||
		    !reada_leaf(leaf.tree ? walk->right : walk->left, &leaf, walk->ioprio)) {
			walk->was_dropped = true;
			break;
		}
		walk->done++;
		if (rwsem_is_contended(&fs_info->commit_root_sem))
			break;
	}
	blk_finish_plug(&plug);
}

static void submit_work(struct work_struct *work)
{
	struct btrfs_reada_walk *walk = container_of(work, struct btrfs_reada_walk, work);
	struct btrfs_fs_info *fs_info = walk->left->fs_info;

	/* The bios take this cgroup when they are submitted, and have the I/O priority already. */
	kthread_associate_blkcg(walk->blkcg_css);
	while (walk->done < walk->count && !walk->was_dropped && !READ_ONCE(walk->stop)) {
		down_read(&fs_info->commit_root_sem);
		if (fs_info->last_reloc_trans > walk->last_reloc_trans)
			walk->was_dropped = true;
		else
			submit_chunk(walk);
		up_read(&fs_info->commit_root_sem);
		cond_resched();
	}
	kthread_associate_blkcg(NULL);
	/* Pairs with is_due(). */
	smp_store_release(&walk->is_busy, false);
}

/* The pages that the current task may use: those that tree blocks may be in, and its cgroups'. */
static unsigned long usable_pages(void)
{
	unsigned long pages = totalram_pages() - totalhigh_pages();
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	rcu_read_lock();
	for (memcg = mem_cgroup_from_task(current); memcg; memcg = parent_mem_cgroup(memcg))
		pages = min3(pages, READ_ONCE(memcg->memory.max), READ_ONCE(memcg->memory.high));
	rcu_read_unlock();
#endif
	return pages;
}

/* What limits the readahead of the current task in @fs_info. */
struct btrfs_rust_disk btrfs_reada_disk(const struct btrfs_fs_info *fs_info)
{
	return (struct btrfs_rust_disk) {
		.readahead = fs_info->sb->s_bdi->ra_pages << (PAGE_SHIFT - 10),
		.memory = usable_pages() << (PAGE_SHIFT - 10),
		.window_kb = READ_ONCE(fs_info->reada.window_kb),
		.nodesize = fs_info->nodesize,
		.rotating = fs_info->fs_devices->rotating,
	};
}

/*
 * Prepare the readahead of a walk from the first key on. Without memory for it, if it is switched
 * off, or with CONFIG_BTRFS_RUST_VERIFY, which compares with upstream's readahead, there is none.
 */
void btrfs_reada_walk_init(struct btrfs_reada_walk *walk, struct btrfs_root *left,
			   struct btrfs_root *right)
{
	const struct btrfs_rust_disk disk = btrfs_reada_disk(left->fs_info);

	*walk = (struct btrfs_reada_walk){ .right = right };
	if (IS_ENABLED(CONFIG_BTRFS_RUST_VERIFY) || !READ_ONCE(left->fs_info->reada.tree_enable) ||
	    !btrfs_rust_walk_init(&walk->plan, &disk))
		return;
	INIT_WORK(&walk->work, submit_work);
#ifdef CONFIG_BLK_CGROUP
	walk->blkcg_css = task_get_css(current, io_cgrp_id);
#endif
	walk->left = left;
	btrfs_reada_join(&left->fs_info->reada_tree);
}

/* End the readahead: no more blocks are read once this returns. @walk may be all zeroes. */
void btrfs_reada_walk_end(struct btrfs_reada_walk *walk)
{
	if (!walk->left)
		return;
	WRITE_ONCE(walk->stop, true);
	cancel_work_sync(&walk->work);
#ifdef CONFIG_BLK_CGROUP
	css_put(walk->blkcg_css);
#endif
	btrfs_rust_walk_destroy(&walk->plan);
	btrfs_reada_leave(&walk->left->fs_info->reada_tree, &walk->held);
	walk->left = NULL;
}

/* Whether the walk is in a batch that is in memory no more. */
static bool is_evicted(struct btrfs_reada_walk *walk)
{
	struct btrfs_fs_info *fs_info = walk->left->fs_info;

	if (!walk->probe || xa_load(&fs_info->buffer_tree, walk->probe >> fs_info->nodesize_bits))
		return false;
	walk->evicted = walk->probe;
	return true;
}

/* Whether a walk that has come to @key wants a batch, and the worker is done with the last one. */
static bool is_due(struct btrfs_reada_walk *walk, const struct btrfs_rust_key *key)
{
	/* Pairs with submit_work(). */
	if (!walk->left || smp_load_acquire(&walk->is_busy))
		return false;
	if (walk->was_dropped || is_evicted(walk)) {
		btrfs_rust_walk_restart(&walk->plan, key);
		walk->was_dropped = false;
		walk->count = 0;
	}
	return btrfs_rust_walk_is_due(&walk->plan, key);
}

/* Count a reader among all those of the filesystem. */
void btrfs_reada_join(struct btrfs_reada_total *total)
{
	atomic_inc(&total->readers);
}

/* Change what a reader has @held of what all readers have, in bytes. */
void btrfs_reada_hold(struct btrfs_reada_total *total, u64 *held, u64 bytes)
{
	atomic64_add(bytes - *held, &total->bytes);
	*held = bytes;
}

/* The readers but for one, which has @held. */
struct btrfs_rust_others btrfs_reada_others(const struct btrfs_reada_total *total, u64 held)
{
	return (struct btrfs_rust_others){
		.held = atomic64_read(&total->bytes) - held,
		.count = atomic_read(&total->readers) - 1,
	};
}

/* A reader ends, which has @held. */
void btrfs_reada_leave(struct btrfs_reada_total *total, u64 *held)
{
	btrfs_reada_hold(total, held, 0);
	atomic_dec(&total->readers);
}

static void read_batch(struct btrfs_reada_walk *walk, const struct btrfs_rust_key *key)
{
	struct btrfs_reada_total *total = &walk->left->fs_info->reada_tree;
	struct btrfs_rust_batch batch;

	/* The walk now enters the last batch. */
	walk->probe = walk->count ? btrfs_rust_walk_last(&walk->plan) : 0;
	/* Where nothing stays in memory for long, do not begin anew at each step. */
	if (walk->probe == walk->evicted)
		walk->probe = 0;
	walk->last_reloc_trans = walk->left->fs_info->last_reloc_trans;
	batch = btrfs_rust_walk_plan(&walk->plan, walk->left, walk->right, key,
				     btrfs_reada_others(total, walk->held));
	btrfs_reada_hold(total, &walk->held, batch.held);
	count_batch(walk->left, &batch);
	walk->count = batch.count;
	walk->done = 0;
	walk->ioprio = get_current_ioprio();
	submit_chunk(walk);
	if (walk->done < walk->count && !walk->was_dropped) {
		walk->is_busy = true;
		queue_work(system_dfl_wq, &walk->work);
	}
}

static struct btrfs_rust_key rust_key(const struct btrfs_key *key)
{
	return (struct btrfs_rust_key){ key->objectid, key->offset, key->type };
}

/* Note that the walk has come to @key, and read ahead what is due. */
void btrfs_reada_walk_at(struct btrfs_reada_walk *walk, const struct btrfs_key *key)
{
	const struct btrfs_rust_key position = rust_key(key);

	while (is_due(walk, &position)) {
		down_read(&walk->left->fs_info->commit_root_sem);
		read_batch(walk, &position);
		up_read(&walk->left->fs_info->commit_root_sem);
		/* The next step will do. */
		if (walk->was_dropped)
			break;
	}
}

/*
 * The same for a comparison that has come to @left in one tree and @right in the other, NULL at the
 * end: it is where the tree is that has come less far. The caller holds commit_root_sem.
 */
void btrfs_reada_compare_at(struct btrfs_reada_walk *walk, const struct btrfs_key *left,
			    const struct btrfs_key *right)
{
	struct btrfs_rust_key position;

	if (!left || (right && btrfs_comp_cpu_keys(right, left) < 0))
		left = right;
	if (!left)
		return;
	position = rust_key(left);
	if (is_due(walk, &position))
		read_batch(walk, &position);
}

/*
 * Prepare the readahead of a fiemap from @start to @end, in bytes, for up to @extents_max extents.
 * As for btrfs_reada_walk_init(), there may be none.
 *
 * Who asks for a part at a time mostly goes on where it ended. Nothing that outlives a call could
 * say how far has been read. So the walk looks whether the next leaves are in memory, and if not,
 * it reads more than this call needs.
 */
void btrfs_reada_fiemap_init(struct btrfs_reada_fiemap *fiemap, struct btrfs_inode *inode,
			     u64 start, u64 end, u32 extents_max)
{
	struct btrfs_fs_info *fs_info = inode->root->fs_info;
	const struct btrfs_rust_disk disk = btrfs_reada_disk(fs_info);
	const u64 size = i_size_read(&inode->vfs_inode);
	/* No file has more extents than blocks. Those who only count, with 0, want all. */
	const u64 blocks = (size >> fs_info->sectorsize_bits) + 1;
	const struct btrfs_rust_listing listing = {
		.start = { btrfs_ino(inode), start, BTRFS_EXTENT_DATA_KEY },
		.end = { btrfs_ino(inode), end, BTRFS_EXTENT_DATA_KEY },
		.wanted = min_t(u64, extents_max ?: U32_MAX, blocks),
		.is_first = start == 0,
	};

	*fiemap = (struct btrfs_reada_fiemap){ .start = start, .end = end };
	if (IS_ENABLED(CONFIG_BTRFS_RUST_VERIFY) || size < READA_FIEMAP_MIN_SIZE ||
	    !READ_ONCE(fs_info->reada.tree_enable) ||
	    !btrfs_rust_walk_init_listing(&fiemap->plan, &disk, &listing))
		return;
	fiemap->inode = inode;
	btrfs_reada_join(&fs_info->reada_tree);
	fiemap->backref_leaves = min_t(u64, READA_BACKREF_LEAVES,
				       btrfs_rust_window(&disk) >> fs_info->nodesize_bits);
	fiemap->extents = extents_max < BTRFS_RUST_LISTING ? extents_max : U32_MAX;
	if (extents_max && !btrfs_fs_incompat(fs_info, EXTENT_TREE_V2))
		fiemap->extent_root = btrfs_extent_root(fs_info, 0);
}

void btrfs_reada_fiemap_end(struct btrfs_reada_fiemap *fiemap)
{
	if (!fiemap->inode)
		return;
	btrfs_rust_walk_destroy(&fiemap->plan);
	btrfs_reada_leave(&fiemap->inode->root->fs_info->reada_tree, &fiemap->held);
}

/* Start reading the leaf of the extent tree that has the references to @bytenr. */
static void submit_backref(struct btrfs_reada_fiemap *fiemap, u64 bytenr)
{
	const struct btrfs_rust_key key = btrfs_reada_references(bytenr);
	struct btrfs_rust_leaf leaf;

	if (!fiemap->backref_leaves ||
	    !btrfs_rust_locate(&fiemap->located, fiemap->extent_root, &key, &leaf))
		return;
	if (btrfs_reada_leaf(fiemap->extent_root, &leaf))
		fiemap->backref_leaves--;
	else
		fiemap->backref_leaves = 0;
}

/* Start reading what will be looked up of the extents that are in @eb, a leaf of the inode. */
static void submit_backrefs(struct btrfs_reada_fiemap *fiemap, const struct extent_buffer *eb)
{
	const struct btrfs_root *root = fiemap->inode->root;
	const u64 ino = btrfs_ino(fiemap->inode);
	bool wants_path = false;
	struct blk_plug plug;

	blk_start_plug(&plug);
	for (int slot = 0; slot < btrfs_header_nritems(eb) && fiemap->extents; slot++) {
		const struct btrfs_file_extent_item *item;
		struct btrfs_key key;

		if (rwsem_is_contended(&eb->fs_info->commit_root_sem) ||
		    fatal_signal_pending(current))
			break;
		btrfs_item_key_to_cpu(eb, &key, slot);
		if (key.objectid != ino || key.type != BTRFS_EXTENT_DATA_KEY ||
		    key.offset >= fiemap->end)
			continue;
		item = btrfs_item_ptr(eb, slot, struct btrfs_file_extent_item);
		if (btrfs_file_extent_type(eb, item) == BTRFS_FILE_EXTENT_INLINE ||
		    btrfs_file_extent_disk_bytenr(eb, item) == 0 ||
		    key.offset + btrfs_file_extent_num_bytes(eb, item) <= fiemap->start)
			continue;
		fiemap->extents--;
		submit_backref(fiemap, btrfs_file_extent_disk_bytenr(eb, item));
		if (btrfs_file_extent_generation(eb, item) <=
		    btrfs_root_last_snapshot(&root->root_item))
			wants_path = true;
	}
	/* The path to extents that are older than a snapshot is looked up, too. */
	if (wants_path)
		submit_backref(fiemap, eb->start);
	blk_finish_plug(&plug);
}

/* Wait for a leaf, and submit what its extents need; false if the tree is not the same any more. */
static bool follow_leaf(struct btrfs_reada_fiemap *fiemap, u32 index, u64 root_gen)
{
	struct btrfs_root *root = fiemap->inode->root;
	struct btrfs_fs_info *fs_info = root->fs_info;
	struct btrfs_tree_parent_check check = { 0 };
	struct btrfs_rust_leaf leaf;
	struct extent_buffer *eb;
	bool is_same;

	if (!btrfs_rust_walk_leaf(&fiemap->plan, index, &leaf))
		return false;
	check.transid = leaf.generation;
	check.owner_root = btrfs_root_id(root);
	down_read(&fs_info->commit_root_sem);
	/* Otherwise the leaf may be no more. */
	is_same = btrfs_header_generation(root->commit_root) == root_gen;
	if (is_same) {
		eb = read_tree_block(fs_info, leaf.blockptr, &check);
		if (!IS_ERR(eb)) {
			submit_backrefs(fiemap, eb);
			free_extent_buffer(eb);
		}
	}
	up_read(&fs_info->commit_root_sem);
	return is_same;
}

/* Note that a fiemap has come to @offset, in bytes, and read ahead what is due. */
void btrfs_reada_fiemap_at(struct btrfs_reada_fiemap *fiemap, u64 offset)
{
	while (fiemap->inode) {
		const struct btrfs_rust_key position = {
			btrfs_ino(fiemap->inode), offset, BTRFS_EXTENT_DATA_KEY
		};
		struct btrfs_root *root = fiemap->inode->root;
		struct btrfs_fs_info *fs_info = root->fs_info;
		struct btrfs_reada_total *total = &fs_info->reada_tree;
		struct btrfs_rust_batch batch;
		struct blk_plug plug;
		u64 root_gen;
		u32 done;

		if (!btrfs_rust_walk_is_due(&fiemap->plan, &position))
			break;
		down_read(&fs_info->commit_root_sem);
		root_gen = btrfs_header_generation(root->commit_root);
		batch = btrfs_rust_walk_plan(&fiemap->plan, root, NULL, &position,
					     btrfs_reada_others(total, fiemap->held));
		btrfs_reada_hold(total, &fiemap->held, batch.held);
		count_batch(root, &batch);
		blk_start_plug(&plug);
		for (done = 0; done < batch.count && !fatal_signal_pending(current); done++) {
			struct btrfs_rust_leaf leaf;

			/* A disk's queue may be full, and the batch large. */
			if (rwsem_is_contended(&fs_info->commit_root_sem)) {
				up_read(&fs_info->commit_root_sem);
				cond_resched();
				down_read(&fs_info->commit_root_sem);
				if (btrfs_header_generation(root->commit_root) != root_gen)
					break;
			}
			if (!btrfs_rust_walk_leaf(&fiemap->plan, done, &leaf) ||
			    !reada_leaf(root, &leaf, 0))
				break;
		}
		blk_finish_plug(&plug);
		up_read(&fs_info->commit_root_sem);

		if (!fiemap->extent_root)
			continue;
		for (u32 i = 0; i < done && fiemap->backref_leaves; i++) {
			if (fatal_signal_pending(current) || !follow_leaf(fiemap, i, root_gen))
				break;
		}
	}
}
