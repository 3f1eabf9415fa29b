// SPDX-License-Identifier: GPL-2.0

/*
 * What Rust calls of btrfs: out-of-line versions of its inline helpers.
 */

#include <linux/err.h>
#include <linux/lockdep.h>
#include <linux/sched/signal.h>
#include <linux/stat.h>
#include "../accessors.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "btrfs_rust.h"

static_assert(BTRFS_RUST_READA_NONE == READA_NONE);
static_assert(BTRFS_RUST_READA_BACK == READA_BACK);
static_assert(BTRFS_RUST_READA_FORWARD == READA_FORWARD);
static_assert(BTRFS_RUST_READA_FORWARD_ALWAYS == READA_FORWARD_ALWAYS);
/* What share_cache.rs and reada_walk.rs know of the format. */
static_assert(BTRFS_MAX_LEVEL == 8);
/* What tree_move_down() reads ahead of the smallest nodes. */
static_assert(SZ_128K / BTRFS_MIN_BLOCKSIZE <= BTRFS_RUST_READA_MAX);

/* Rust promises to read no child that a node has no room for, whatever nritems says. */
static bool slot_is_valid(const struct extent_buffer *node, u32 slot)
{
	return !WARN_ON_ONCE(slot >= BTRFS_NODEPTRS_PER_BLOCK(node->fs_info));
}

u32 btrfs_rust_node_level(const struct extent_buffer *node)
{
	return btrfs_header_level(node);
}

u32 btrfs_rust_node_size(const struct extent_buffer *node)
{
	return node->fs_info->nodesize;
}

u32 btrfs_rust_node_nritems(const struct extent_buffer *node)
{
	return btrfs_header_nritems(node);
}

u64 btrfs_rust_node_blockptr(const struct extent_buffer *node, u32 slot)
{
	return slot_is_valid(node, slot) ? btrfs_node_blockptr(node, slot) : 0;
}

u64 btrfs_rust_node_generation(const struct extent_buffer *node, u32 slot)
{
	return slot_is_valid(node, slot) ? btrfs_node_ptr_generation(node, slot) : 0;
}

struct btrfs_rust_key btrfs_rust_node_key(const struct extent_buffer *node, u32 slot)
{
	struct btrfs_key key = { 0 };

	if (slot_is_valid(node, slot))
		btrfs_node_key_to_cpu(node, &key, slot);
	return (struct btrfs_rust_key){ key.objectid, key.offset, key.type };
}

/* Whether the tree block at @bytenr is in memory or being read. May sleep. */
bool btrfs_rust_is_cached(const struct extent_buffer *node, u64 bytenr)
{
	struct extent_buffer *eb = find_extent_buffer(node->fs_info, bytenr);

	if (!eb)
		return false;
	free_extent_buffer(eb);
	return true;
}

/*
 * The commit root of @root, with a reference; NULL if it is a leaf, and -EAGAIN if it is not
 * committed yet: from switch_commit_roots() to the end of the commit, and for a subvolume of the
 * running transaction. Then it may change. commit_root_sem is held.
 */
struct extent_buffer *btrfs_rust_commit_root(struct btrfs_root *root)
{
	struct extent_buffer *node = root->commit_root;

	lockdep_assert_held_read(&root->fs_info->commit_root_sem);

	if (btrfs_header_generation(node) > btrfs_get_last_trans_committed(root->fs_info))
		return ERR_PTR(-EAGAIN);
	if (btrfs_header_level(node) == 0)
		return NULL;
	refcount_inc(&node->refs);
	return node;
}

/* Read a child that is no leaf and wait for it: with a reference, or NULL on errors. */
struct extent_buffer *btrfs_rust_read_child(struct extent_buffer *node, u32 slot)
{
	struct extent_buffer *child;

	if (btrfs_header_level(node) < 2)
		return NULL;
	child = btrfs_read_node_slot(node, slot);
	return IS_ERR(child) ? NULL : child;
}

void btrfs_rust_readahead_child(struct extent_buffer *node, u32 slot)
{
	if (slot_is_valid(node, slot))
		btrfs_readahead_node_child(node, slot);
}

/* A child that is a leaf, with a reference, if it is in memory and was read; otherwise NULL. */
struct extent_buffer *btrfs_rust_cached_leaf(const struct extent_buffer *node, u32 slot)
{
	struct extent_buffer *leaf;

	if (!slot_is_valid(node, slot))
		return NULL;
	leaf = find_extent_buffer(node->fs_info, btrfs_node_blockptr(node, slot));
	if (!leaf)
		return NULL;
	if (extent_buffer_uptodate(leaf) && btrfs_header_level(leaf) == 0 &&
	    btrfs_header_generation(leaf) == btrfs_node_ptr_generation(node, slot))
		return leaf;
	free_extent_buffer(leaf);
	return NULL;
}

struct btrfs_rust_key btrfs_rust_item_key(const struct extent_buffer *leaf, u32 slot)
{
	struct btrfs_key key = { 0 };

	if (slot < btrfs_header_nritems(leaf))
		btrfs_item_key_to_cpu(leaf, &key, slot);
	return (struct btrfs_rust_key){ key.objectid, key.offset, key.type };
}

static u8 item_type(const struct extent_buffer *leaf, u32 slot)
{
	return btrfs_rust_item_key(leaf, slot).type;
}

/* Whether an inode item is that of a file that has a name. */
bool btrfs_rust_item_is_file(const struct extent_buffer *leaf, u32 slot)
{
	const struct btrfs_inode_item *item;

	if (item_type(leaf, slot) != BTRFS_INODE_ITEM_KEY)
		return false;
	item = btrfs_item_ptr(leaf, slot, struct btrfs_inode_item);
	return S_ISREG(btrfs_inode_mode(leaf, item)) && btrfs_inode_nlink(leaf, item) > 0;
}

/* Read a file extent item. The address is 0 if there is no data on disk to it. */
struct btrfs_rust_extent btrfs_rust_item_extent(const struct extent_buffer *leaf, u32 slot)
{
	const struct btrfs_file_extent_item *item;

	if (item_type(leaf, slot) != BTRFS_EXTENT_DATA_KEY)
		return (struct btrfs_rust_extent){ };
	item = btrfs_item_ptr(leaf, slot, struct btrfs_file_extent_item);
	if (btrfs_file_extent_type(leaf, item) != BTRFS_FILE_EXTENT_REG)
		return (struct btrfs_rust_extent){ };
	return (struct btrfs_rust_extent){
		.bytenr = btrfs_file_extent_disk_bytenr(leaf, item),
		.disk_len = btrfs_file_extent_disk_num_bytes(leaf, item),
		.offset = btrfs_file_extent_offset(leaf, item),
		.len = btrfs_file_extent_num_bytes(leaf, item),
		.generation = btrfs_file_extent_generation(leaf, item),
		.is_compressed = btrfs_file_extent_compression(leaf, item) != BTRFS_COMPRESS_NONE,
	};
}

void btrfs_rust_put_node(struct extent_buffer *node)
{
	free_extent_buffer(node);
}

/* Whether a task waits for commit_root_sem, which is held, or this one is being killed. */
bool btrfs_rust_is_contended(struct btrfs_root *root)
{
	return rwsem_is_contended(&root->fs_info->commit_root_sem) ||
	       fatal_signal_pending(current);
}

/* Start reading the children of @node that were selected. */
void btrfs_rust_readahead(struct extent_buffer *node, const struct btrfs_rust_reada *selected)
{
	for (u32 i = 0; i < selected->count; i++)
		btrfs_readahead_node_child(node, selected->slots[i]);
}
