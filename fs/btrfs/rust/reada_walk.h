/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_READA_WALK_H
#define BTRFS_READA_WALK_H

#include <linux/types.h>
#include <linux/workqueue.h>
#include <uapi/linux/btrfs_tree.h>
#include "btrfs_rust.h"

struct btrfs_fs_info;
struct btrfs_inode;
struct btrfs_key;
struct btrfs_reada_total;
struct btrfs_root;
struct cgroup_subsys_state;

#ifdef CONFIG_BTRFS_RUST

/* The readahead of a walk through the commit root of @left, or of its comparison with @right's. */
struct btrfs_reada_walk {
	struct btrfs_rust_walk plan;
	/* NULL if there is no readahead. */
	struct btrfs_root *left;
	struct btrfs_root *right;
	/* Reads the last batch, from @done to @count. */
	struct work_struct work;
	/* Whose reads those are: the I/O priority, for each batch, and the cgroup of who walks. */
	u16 ioprio;
	struct cgroup_subsys_state *blkcg_css;
	/* Set while the worker has the plan. */
	bool is_busy;
	bool stop;
	/* Not all of the batch was read: no memory, or blocks were relocated. */
	bool was_dropped;
	u32 count;
	u32 done;
	/* Of what is counted in fs_info->reada_tree, in bytes. */
	u64 held;
	u64 last_reloc_trans;
	/* The last leaf of the batch that the walk is in; 0 if it is in none. */
	u64 probe;
	/* The last one that was in memory no more. */
	u64 evicted;
};

/* What says who has a reference to the extent at @bytenr is not after this key. */
static inline struct btrfs_rust_key btrfs_reada_references(u64 bytenr)
{
	return (struct btrfs_rust_key){ bytenr, U64_MAX, BTRFS_METADATA_ITEM_KEY };
}

struct btrfs_rust_disk btrfs_reada_disk(const struct btrfs_fs_info *fs_info);
bool btrfs_reada_leaf(struct btrfs_root *root, const struct btrfs_rust_leaf *leaf);
void btrfs_reada_join(struct btrfs_reada_total *total);
void btrfs_reada_hold(struct btrfs_reada_total *total, u64 *held, u64 bytes);
struct btrfs_rust_others btrfs_reada_others(const struct btrfs_reada_total *total, u64 held);
void btrfs_reada_leave(struct btrfs_reada_total *total, u64 *held);

void btrfs_reada_walk_init(struct btrfs_reada_walk *walk, struct btrfs_root *left,
			   struct btrfs_root *right);
void btrfs_reada_walk_end(struct btrfs_reada_walk *walk);
void btrfs_reada_walk_at(struct btrfs_reada_walk *walk, const struct btrfs_key *key);
void btrfs_reada_compare_at(struct btrfs_reada_walk *walk, const struct btrfs_key *left,
			    const struct btrfs_key *right);

static inline bool btrfs_reada_walk_runs(const struct btrfs_reada_walk *walk)
{
	return walk->left;
}

/* The readahead of a fiemap: of the leaves of an inode, and of the extent tree. */
struct btrfs_reada_fiemap {
	struct btrfs_rust_walk plan;
	/* NULL if there is no readahead. */
	struct btrfs_inode *inode;
	/* NULL if nobody will look who shares the extents. */
	struct btrfs_root *extent_root;
	struct btrfs_rust_located located;
	/* In bytes. */
	u64 start;
	u64 end;
	/* For how many more extents, and how many more leaves, the extent tree is read ahead. */
	u32 extents;
	u32 backref_leaves;
	/* Of what is counted in fs_info->reada_tree, in bytes. */
	u64 held;
};

void btrfs_reada_fiemap_init(struct btrfs_reada_fiemap *fiemap, struct btrfs_inode *inode,
			     u64 start, u64 end, u32 extents_max);
void btrfs_reada_fiemap_end(struct btrfs_reada_fiemap *fiemap);
void btrfs_reada_fiemap_at(struct btrfs_reada_fiemap *fiemap, u64 offset);

#else

struct btrfs_reada_walk { };

static inline void btrfs_reada_walk_init(struct btrfs_reada_walk *walk, struct btrfs_root *left,
					 struct btrfs_root *right)
{
}

static inline void btrfs_reada_walk_end(struct btrfs_reada_walk *walk)
{
}

static inline void btrfs_reada_walk_at(struct btrfs_reada_walk *walk, const struct btrfs_key *key)
{
}

/* Not a function: even unused, its arguments would change the code around it. */
#define btrfs_reada_compare_at(walk, left, right) do { } while (0)

static inline bool btrfs_reada_walk_runs(const struct btrfs_reada_walk *walk)
{
	return false;
}

struct btrfs_reada_fiemap { };

static inline void btrfs_reada_fiemap_init(struct btrfs_reada_fiemap *fiemap,
					   struct btrfs_inode *inode, u64 start, u64 end,
					   u32 extents_max)
{
}

static inline void btrfs_reada_fiemap_end(struct btrfs_reada_fiemap *fiemap)
{
}

static inline void btrfs_reada_fiemap_at(struct btrfs_reada_fiemap *fiemap, u64 offset)
{
}

#endif

#endif
