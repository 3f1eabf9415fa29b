// SPDX-License-Identifier: GPL-2.0

/*
 * What Rust calls of btrfs: out-of-line versions of its inline helpers.
 */

#include "../accessors.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "btrfs_rust.h"

static_assert(BTRFS_RUST_READA_NONE == READA_NONE);
static_assert(BTRFS_RUST_READA_BACK == READA_BACK);
static_assert(BTRFS_RUST_READA_FORWARD == READA_FORWARD);
static_assert(BTRFS_RUST_READA_FORWARD_ALWAYS == READA_FORWARD_ALWAYS);
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
 * The commit root of @root, with a reference, unless it is a leaf. commit_root_sem is held.
 *
 * That of a subvolume that was made in the running transaction is not committed, and may change.
 */
struct extent_buffer *btrfs_rust_commit_root(struct btrfs_root *root)
{
	struct extent_buffer *node = root->commit_root;

	if (btrfs_header_level(node) == 0 ||
	    btrfs_header_generation(node) > btrfs_get_last_trans_committed(root->fs_info))
		return NULL;
	refcount_inc(&node->refs);
	return node;
}

/* Read a child and wait for it: with a reference, or NULL on errors. */
struct extent_buffer *btrfs_rust_read_child(struct extent_buffer *node, u32 slot)
{
	struct extent_buffer *child = btrfs_read_node_slot(node, slot);

	return IS_ERR(child) ? NULL : child;
}

void btrfs_rust_readahead_child(struct extent_buffer *node, u32 slot)
{
	if (slot_is_valid(node, slot))
		btrfs_readahead_node_child(node, slot);
}

void btrfs_rust_put_node(struct extent_buffer *node)
{
	free_extent_buffer(node);
}

/* Whether somebody waits for commit_root_sem, which is held. */
bool btrfs_rust_is_contended(struct btrfs_root *root)
{
	return rwsem_is_contended(&root->fs_info->commit_root_sem);
}

/* Start reading the children of @node that were selected. */
void btrfs_rust_readahead(struct extent_buffer *node, const struct btrfs_rust_reada *selected)
{
	for (u32 i = 0; i < selected->count; i++)
		btrfs_readahead_node_child(node, selected->slots[i]);
}
