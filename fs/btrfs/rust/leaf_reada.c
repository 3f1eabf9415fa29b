// SPDX-License-Identifier: GPL-2.0

/*
 * Locking and I/O for the readahead of leaves by send. leaf_reada.rs decides what to read.
 *
 * A plan is valid as long as the commit roots are those of the plan. A commit that replaces one
 * frees blocks of its tree. A balance moves blocks, and a subvolume that was set read-only may have
 * files that are still open for writing.
 *
 * The sender submits the first chunk of a batch. A worker submits the others, since the queue of a
 * slow disk may be full. The sender does not touch the plan while the worker owns it.
 */

#include <linux/backing-dev.h>
#include <linux/blkdev.h>
#include <linux/cgroup.h>
#include <linux/highmem.h>
#include <linux/ioprio.h>
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <trace/events/btrfs.h>
#include "../accessors.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "../volumes.h"
#include "debug/debug.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/* Start reading a leaf; @ioprio 0 is the task's I/O priority. Returns false on errors. */
bool btrfs_reada_leaf(struct btrfs_root *root, const struct btrfs_rust_leaf *leaf, u16 ioprio)
{
	const struct btrfs_key key = {
		.objectid = leaf->ptr.key.objectid,
		.type = leaf->ptr.key.type,
		.offset = leaf->ptr.key.offset,
	};
	struct extent_buffer *eb;

	btrfs_readahead_tree_block_ioprio(root->fs_info, leaf->ptr.blockptr, btrfs_root_id(root),
					  leaf->ptr.generation, 0, &key, ioprio);
	/* There is none if there was no memory, or if the submission failed. */
	eb = find_extent_buffer(root->fs_info, leaf->ptr.blockptr);
	if (!eb)
		return false;
	free_extent_buffer(eb);
	return true;
}

/*
 * Find the leaf of @key. Returns whether it is found, is not that of the last lookup, and is
 * neither cached nor being read. The caller holds commit_root_sem.
 */
bool btrfs_reada_is_missing(struct btrfs_rust_last_leaf *last, struct btrfs_root *root,
			    const struct btrfs_rust_key *key, struct btrfs_rust_leaf *leaf)
{
	struct extent_buffer *eb;

	if (!btrfs_rust_find_leaf(last, root, key, leaf))
		return false;
	eb = find_extent_buffer(root->fs_info, leaf->ptr.blockptr);
	if (!eb)
		return true;
	free_extent_buffer(eb);
	return false;
}

/*
 * Start reading the leaf of @key if it is missing. @budget is the number of leaves that may still
 * be read; it becomes 0 on errors. The caller holds commit_root_sem.
 */
void btrfs_reada_find_leaf(struct btrfs_rust_last_leaf *last, struct btrfs_root *root,
			   const struct btrfs_rust_key *key, u32 *budget)
{
	struct btrfs_rust_leaf leaf;

	if (!*budget || !btrfs_reada_is_missing(last, root, key, &leaf))
		return;
	btrfs_reada_planned(root, 0, root->fs_info->nodesize);
	if (btrfs_reada_leaf(root, &leaf, 0))
		(*budget)--;
	else
		*budget = 0;
}

/* Count and trace a planned batch of leaves. */
void btrfs_reada_count_batch(const struct btrfs_root *root, const struct btrfs_rust_leaves *batch)
{
	const u64 bytes = (u64)batch->planned << root->fs_info->nodesize_bits;

	if (!bytes)
		return;
	btrfs_reada_planned(root, 0, bytes);
	trace_btrfs_readahead_plan(root, 0, bytes, batch->held);
}

/* The generation of the commit root of @root, 0 for NULL. The caller holds commit_root_sem. */
static u64 root_generation(const struct btrfs_root *root)
{
	return root ? btrfs_header_generation(root->commit_root) : 0;
}

/* Submit a chunk, or part of it if a task waits for commit_root_sem. The caller holds that. */
static void submit_chunk(struct btrfs_leaf_reada *reada)
{
	struct btrfs_fs_info *fs_info = reada->left->fs_info;
	bool is_dropped = root_generation(reada->left) != reada->left_gen ||
			  root_generation(reada->right) != reada->right_gen;
	struct blk_plug plug;
	u32 done = 0;

	lockdep_assert_held_read(&fs_info->commit_root_sem);

	blk_start_plug(&plug);
	while (!is_dropped && done < reada->chunk.count) {
		const struct btrfs_rust_leaf *leaf = &reada->chunk.leaves[done];

		if (btrfs_reada_leaf(leaf->tree ? reada->right : reada->left, leaf, reada->ioprio))
			done++;
		else
			is_dropped = true;
		if (rwsem_is_contended(&fs_info->commit_root_sem))
			break;
	}
	blk_finish_plug(&plug);
	reada->chunk = btrfs_rust_leaf_reada_report(&reada->plan, done, is_dropped);
}

static void submit_work(struct work_struct *work)
{
	struct btrfs_leaf_reada *reada = container_of(work, struct btrfs_leaf_reada, work);
	struct btrfs_fs_info *fs_info = reada->left->fs_info;

	/* The bios get this cgroup on submission, and the I/O priority of the plan. */
	kthread_associate_blkcg(reada->blkcg_css);
	while (reada->chunk.count && !READ_ONCE(reada->stop)) {
		btrfs_debug_pause_reada(&reada->stop);
		down_read(&fs_info->commit_root_sem);
		submit_chunk(reada);
		up_read(&fs_info->commit_root_sem);
		cond_resched();
	}
	kthread_associate_blkcg(NULL);
	/* Pairs with smp_load_acquire() in advance(). */
	smp_store_release(&reada->is_busy, false);
}

/* Pages that the current task may use for tree blocks: low memory, limited by its cgroups. */
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

/* The readahead limits of the current task in @fs_info. */
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
 * Initialize the readahead of a walk through @left, or of its comparison with @right unless that is
 * NULL. It stays off without memory, or if it is disabled.
 */
void btrfs_leaf_reada_init(struct btrfs_leaf_reada *reada, struct btrfs_root *left,
			   struct btrfs_root *right)
{
	const struct btrfs_rust_disk disk = btrfs_reada_disk(left->fs_info);

	*reada = (struct btrfs_leaf_reada){ .right = right };
	if (!READ_ONCE(left->fs_info->reada.tree_enable) ||
	    !btrfs_rust_leaf_reada_init(&reada->plan, &disk, NULL))
		return;
	INIT_WORK(&reada->work, submit_work);
#ifdef CONFIG_BLK_CGROUP
	reada->blkcg_css = task_get_css(current, io_cgrp_id);
#endif
	reada->left = left;
	btrfs_verify_plan_init(&reada->verify, left->fs_info);
	btrfs_reada_join(&left->fs_info->reada_tree);
}

/* End the readahead: no blocks are submitted after this returns. @reada may be all zeroes. */
void btrfs_leaf_reada_end(struct btrfs_leaf_reada *reada)
{
	if (!reada->left)
		return;
	WRITE_ONCE(reada->stop, true);
	cancel_work_sync(&reada->work);
#ifdef CONFIG_BLK_CGROUP
	css_put(reada->blkcg_css);
#endif
	btrfs_rust_leaf_reada_destroy(&reada->plan);
	btrfs_verify_plan_end(&reada->verify);
	btrfs_reada_leave(&reada->left->fs_info->reada_tree, &reada->held);
	reada->left = NULL;
}

/* Add a reader to the readers of the filesystem. */
void btrfs_reada_join(struct btrfs_reada_total *total)
{
	atomic_inc(&total->readers);
}

/* Set the unused readahead of a reader, @held, to @bytes, and update the total. */
void btrfs_reada_hold(struct btrfs_reada_total *total, u64 *held, u64 bytes)
{
	atomic64_add(bytes - *held, &total->bytes);
	*held = bytes;
}

/* The readers of the filesystem without the one that has @held bytes. */
struct btrfs_rust_others btrfs_reada_others(const struct btrfs_reada_total *total, u64 held)
{
	return (struct btrfs_rust_others){
		.held = atomic64_read(&total->bytes) - held,
		.count = atomic_read(&total->readers) - 1,
	};
}

/* Remove a reader from the readers of the filesystem, with its @held bytes. */
void btrfs_reada_leave(struct btrfs_reada_total *total, u64 *held)
{
	btrfs_reada_hold(total, held, 0);
	atomic_dec(&total->readers);
}

/* Plan a batch and submit its first chunk. The caller holds commit_root_sem. */
static void plan_batch(struct btrfs_leaf_reada *reada)
{
	struct btrfs_fs_info *fs_info = reada->left->fs_info;
	struct btrfs_reada_total *total = &fs_info->reada_tree;

	reada->left_gen = root_generation(reada->left);
	reada->right_gen = root_generation(reada->right);
	reada->ioprio = get_current_ioprio();
	reada->chunk = btrfs_rust_leaf_reada_plan(&reada->plan, reada->left, reada->right,
						  btrfs_reada_others(total, reada->held));
	btrfs_reada_hold(total, &reada->held, reada->chunk.held);
	btrfs_reada_count_batch(reada->left, &reada->chunk);
	for (u32 i = 0; i < reada->chunk.planned; i++)
		btrfs_verify_planned(&reada->verify, BTRFS_VERIFY_PLAN_LEAVES,
				     reada->chunk.leaves[i].ptr.blockptr);
	submit_chunk(reada);
	if (reada->chunk.count) {
		reada->is_busy = true;
		queue_work(system_dfl_wq, &reada->work);
	}
}

/* Move the walk to @key. Returns false if no batch is due, or the worker has the last one. */
static bool advance(struct btrfs_leaf_reada *reada, const struct btrfs_key *key)
{
	const struct btrfs_rust_key position = btrfs_rust_key(key);

	/* Pairs with smp_store_release() in submit_work(). */
	return reada->left && !smp_load_acquire(&reada->is_busy) &&
	       btrfs_rust_leaf_reada_advance(&reada->plan, reada->left, &position);
}

/* Move the walk to @key, and read ahead. */
void btrfs_leaf_reada_advance(struct btrfs_leaf_reada *reada, const struct btrfs_key *key)
{
	while (advance(reada, key)) {
		down_read(&reada->left->fs_info->commit_root_sem);
		plan_batch(reada);
		up_read(&reada->left->fs_info->commit_root_sem);
	}
}

/*
 * Move a comparison to the keys @left and @right, NULL at the end of a tree, and read ahead. The
 * position is the smaller of the two keys. The caller holds commit_root_sem.
 */
void btrfs_leaf_reada_compare(struct btrfs_leaf_reada *reada, const struct btrfs_key *left,
			      const struct btrfs_key *right)
{
	if (!left || (right && btrfs_comp_cpu_keys(right, left) < 0))
		left = right;
	if (left && advance(reada, left))
		plan_batch(reada);
}
