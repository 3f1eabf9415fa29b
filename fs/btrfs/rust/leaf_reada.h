/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_LEAF_READA_H
#define BTRFS_LEAF_READA_H

#include <linux/types.h>
#include <linux/workqueue.h>
#include <uapi/linux/btrfs_tree.h>
#include "btrfs_rust.h"
#include "debug/verify.h"

struct btrfs_fs_info;
struct btrfs_inode;
struct btrfs_key;
struct btrfs_path;
struct btrfs_reada_total;
struct btrfs_root;
struct cgroup_subsys_state;

#ifdef CONFIG_BTRFS_RUST

/* The readahead of a walk through the commit root of @left, or of its comparison with @right's. */
struct btrfs_leaf_reada {
	struct btrfs_rust_leaf_reada plan;
	/* NULL if the readahead is off. */
	struct btrfs_root *left;
	struct btrfs_root *right;
	/* The leaves to submit next, and the worker that submits them. */
	struct btrfs_rust_leaves chunk;
	struct work_struct work;
	/* The I/O priority of the sender at the last plan, and its cgroup. */
	u16 ioprio;
	struct cgroup_subsys_state *blkcg_css;
	/* The worker owns the plan. */
	bool is_busy;
	bool stop;
	/* The bytes of this reader in fs_info->reada_tree. */
	u64 held;
	/* The generations of the commit roots at the last plan. */
	u64 left_gen;
	u64 right_gen;
	struct btrfs_verify_plan verify;
};

static inline struct btrfs_rust_key btrfs_rust_key(const struct btrfs_key *key)
{
	return (struct btrfs_rust_key){
		.objectid = key->objectid,
		.type = key->type,
		.offset = key->offset,
	};
}

/* A search key just past the extent item of @bytenr: finds the leaf that holds its backrefs. */
static inline struct btrfs_rust_key btrfs_reada_backrefs(u64 bytenr)
{
	return (struct btrfs_rust_key){
		.objectid = bytenr,
		.type = BTRFS_METADATA_ITEM_KEY,
		.offset = U64_MAX,
	};
}

struct btrfs_rust_disk btrfs_reada_disk(const struct btrfs_fs_info *fs_info);
bool btrfs_reada_leaf(struct btrfs_root *root, const struct btrfs_rust_leaf *leaf, u16 ioprio);
bool btrfs_reada_is_missing(struct btrfs_rust_last_leaf *last, struct btrfs_root *root,
			    const struct btrfs_rust_key *key, struct btrfs_rust_leaf *leaf);
void btrfs_reada_find_leaf(struct btrfs_rust_last_leaf *last, struct btrfs_root *root,
			   const struct btrfs_rust_key *key, u32 *budget);
void btrfs_reada_count_batch(const struct btrfs_root *root, const struct btrfs_rust_leaves *batch);
void btrfs_reada_join(struct btrfs_reada_total *total);
void btrfs_reada_hold(struct btrfs_reada_total *total, u64 *held, u64 bytes);
struct btrfs_rust_others btrfs_reada_others(const struct btrfs_reada_total *total, u64 held);
void btrfs_reada_leave(struct btrfs_reada_total *total, u64 *held);

void btrfs_leaf_reada_init(struct btrfs_leaf_reada *reada, struct btrfs_root *left,
			   struct btrfs_root *right);
void btrfs_leaf_reada_end(struct btrfs_leaf_reada *reada);
void btrfs_leaf_reada_advance(struct btrfs_leaf_reada *reada, const struct btrfs_key *key);
void btrfs_leaf_reada_compare(struct btrfs_leaf_reada *reada, const struct btrfs_key *left,
			      const struct btrfs_key *right);

static inline bool btrfs_leaf_reada_is_on(const struct btrfs_leaf_reada *reada)
{
	return reada->left;
}

/* The readahead of a fiemap call: of leaves of the inode, and of leaves of the extent tree. */
struct btrfs_fiemap_reada {
	struct btrfs_rust_leaf_reada plan;
	/* NULL if the readahead is off. */
	struct btrfs_inode *inode;
	/* NULL if no leaves of the extent tree are read ahead. */
	struct btrfs_root *extent_root;
	struct btrfs_rust_last_leaf last_backref;
	/* The file range of the call, in bytes. */
	u64 start;
	u64 end;
	/* The file offset of the next extent to read ahead for, in bytes. */
	u64 next;
	/* The call is for many extents: it looks for missing leaves of the extent tree. */
	bool probes;
	/* Remaining extents to read ahead for. */
	u32 extents;
	/* Leaves of the extent tree to read ahead at a time, and those that remain. */
	u32 max_backref_leaves;
	u32 backref_leaves;
	/* The bytes of this reader in fs_info->reada_tree. */
	u64 held;
};

void btrfs_fiemap_reada_init(struct btrfs_fiemap_reada *reada, struct btrfs_inode *inode,
			     u64 start, u64 end, u32 extents_max);
void btrfs_fiemap_reada_end(struct btrfs_fiemap_reada *reada);
void btrfs_fiemap_reada_advance(struct btrfs_fiemap_reada *reada, u64 offset);
void btrfs_fiemap_reada_backrefs(struct btrfs_fiemap_reada *reada, const struct btrfs_path *path);

#else

struct btrfs_leaf_reada { };

static inline void btrfs_leaf_reada_init(struct btrfs_leaf_reada *reada, struct btrfs_root *left,
					 struct btrfs_root *right)
{
}

static inline void btrfs_leaf_reada_end(struct btrfs_leaf_reada *reada)
{
}

static inline void btrfs_leaf_reada_advance(struct btrfs_leaf_reada *reada,
					    const struct btrfs_key *key)
{
}

/* A macro: an unused argument of an inline function would still change the object code. */
#define btrfs_leaf_reada_compare(reada, left, right) do { } while (0)

static inline bool btrfs_leaf_reada_is_on(const struct btrfs_leaf_reada *reada)
{
	return false;
}

struct btrfs_fiemap_reada { };

static inline void btrfs_fiemap_reada_init(struct btrfs_fiemap_reada *reada,
					   struct btrfs_inode *inode, u64 start, u64 end,
					   u32 extents_max)
{
}

static inline void btrfs_fiemap_reada_end(struct btrfs_fiemap_reada *reada)
{
}

static inline void btrfs_fiemap_reada_advance(struct btrfs_fiemap_reada *reada, u64 offset)
{
}

static inline void btrfs_fiemap_reada_backrefs(struct btrfs_fiemap_reada *reada,
					       const struct btrfs_path *path)
{
}

#endif

#endif
