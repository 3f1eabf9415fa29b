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

u64 btrfs_rust_node_objectid(const struct extent_buffer *node, u32 slot)
{
	struct btrfs_disk_key key;

	if (!slot_is_valid(node, slot))
		return 0;
	btrfs_node_key(node, &key, slot);
	return btrfs_disk_key_objectid(&key);
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

/* Start reading the children of @node that were selected. */
void btrfs_rust_readahead(struct extent_buffer *node, const struct btrfs_rust_reada *selected)
{
	for (u32 i = 0; i < selected->count; i++)
		btrfs_readahead_node_child(node, selected->slots[i]);
}
