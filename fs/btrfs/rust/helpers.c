// SPDX-License-Identifier: GPL-2.0

/* Functions of btrfs in a form that Rust can call. */

#include <linux/err.h>
#include <linux/lockdep.h>
#include <linux/sched/signal.h>
#include <linux/stat.h>
#include <linux/wait_bit.h>
#include "../accessors.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "../reada.h"
#include "../send_utimes.h"
#include "btrfs_rust.h"

static_assert(BTRFS_RUST_READA_NONE == READA_NONE);
static_assert(BTRFS_RUST_READA_BACK == READA_BACK);
static_assert(BTRFS_RUST_READA_FORWARD == READA_FORWARD);
static_assert(BTRFS_RUST_READA_FORWARD_ALWAYS == READA_FORWARD_ALWAYS);
static_assert(BTRFS_RUST_READA_FORWARD_FAR == READA_FORWARD_FAR);
static_assert(BTRFS_RUST_READA_MAX_SLOTS == BTRFS_READA_MAX_SLOTS);
/* for_move_down() in reada.rs selects at most this many nodes. */
static_assert(SZ_128K / BTRFS_MIN_BLOCKSIZE <= BTRFS_READA_MAX_SLOTS);
/* Used in send_utimes.rs. */
static_assert(SEND_MAX_DIR_UTIMES_CACHE_SIZE == 64);
/* Used in share_cache.rs and tree.rs. */
static_assert(BTRFS_MAX_LEVEL == 8);

/* A corrupted nritems must not lead to a slot that the node has no room for. */
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

/* KEY_PTR_SIZE in leaf_reada.rs. */
static_assert(sizeof(struct btrfs_key_ptr) == 33);

/* Copy up to @count key pointers, from @slot on. */
void btrfs_rust_node_ptrs(const struct extent_buffer *node, u32 slot,
			  struct btrfs_rust_key_ptr *ptrs, size_t count)
{
	const u32 end = min(btrfs_header_nritems(node), BTRFS_NODEPTRS_PER_BLOCK(node->fs_info));

	for (; count && slot < end; slot++, ptrs++, count--) {
		struct btrfs_key_ptr ptr;

		read_extent_buffer(node, &ptr, btrfs_node_key_ptr_offset(node, slot), sizeof(ptr));
		*ptrs = (struct btrfs_rust_key_ptr){
			.key.objectid = btrfs_disk_key_objectid(&ptr.key),
			.key.type = btrfs_disk_key_type(&ptr.key),
			.key.offset = btrfs_disk_key_offset(&ptr.key),
			.blockptr = btrfs_stack_key_blockptr(&ptr),
			.generation = btrfs_stack_key_generation(&ptr),
		};
	}
}

/* Find the first key pointer that is not less than @key. Returns true if it is equal. */
bool btrfs_rust_node_search(const struct extent_buffer *node, const struct btrfs_rust_key *key,
			    u32 *slot)
{
	const struct btrfs_key wanted = {
		.objectid = key->objectid,
		.type = key->type,
		.offset = key->offset,
	};
	int found = 0;
	const int ret = btrfs_bin_search(node, 0, &wanted, &found);

	*slot = found;
	return ret == 0;
}

/* Whether the tree block at @bytenr is cached or being read. May sleep. */
bool btrfs_rust_is_cached(const struct extent_buffer *node, u64 bytenr)
{
	struct extent_buffer *eb = find_extent_buffer(node->fs_info, bytenr);

	if (!eb)
		return false;
	free_extent_buffer(eb);
	return true;
}

/* Whether the tree block at @bytenr is no longer cached. */
bool btrfs_rust_is_evicted(const struct btrfs_root *root, u64 bytenr)
{
	struct btrfs_fs_info *fs_info = root->fs_info;

	return !xa_load(&fs_info->buffer_tree, bytenr >> fs_info->nodesize_bits);
}

/*
 * Get the commit root of @root with a reference. Returns NULL if it is a leaf, and -EAGAIN if it is
 * newer than the last commit: from switch_commit_roots() to the end of the commit, and for a
 * subvolume of the running transaction. Such a root may change. The caller holds commit_root_sem.
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

/* As btrfs_rust_commit_root(), but return NULL unless the commit root is a leaf. */
struct extent_buffer *btrfs_rust_commit_leaf(struct btrfs_root *root)
{
	struct extent_buffer *leaf = root->commit_root;

	lockdep_assert_held_read(&root->fs_info->commit_root_sem);

	if (btrfs_header_generation(leaf) > btrfs_get_last_trans_committed(root->fs_info) ||
	    btrfs_header_level(leaf) != 0)
		return NULL;
	refcount_inc(&leaf->refs);
	return leaf;
}

static bool is_contended(struct btrfs_fs_info *fs_info)
{
	return rwsem_is_contended(&fs_info->commit_root_sem) || fatal_signal_pending(current);
}

/*
 * Wait for a child that is being read, but not while commit_root_sem is contended: that is checked
 * in each jiffy. Returns whether the child is up to date.
 */
static bool wait_for_child(const struct extent_buffer *node, u32 slot)
{
	struct extent_buffer *child;
	bool is_uptodate;

	child = find_extent_buffer(node->fs_info, btrfs_node_blockptr(node, slot));
	if (!child)
		return false;
	while (test_bit(EXTENT_BUFFER_READING, &child->bflags) && !is_contended(node->fs_info))
		wait_on_bit_timeout(&child->bflags, EXTENT_BUFFER_READING, TASK_UNINTERRUPTIBLE, 1);
	is_uptodate = extent_buffer_uptodate(child);
	free_extent_buffer(child);
	return is_uptodate;
}

/*
 * Get a child above the leaves, whose read was started before. Returns it with a reference, NULL on
 * errors, and -EAGAIN if it is not up to date and commit_root_sem, which is held, is contended.
 */
struct extent_buffer *btrfs_rust_read_child(struct extent_buffer *node, u32 slot)
{
	struct extent_buffer *child;

	if (btrfs_header_level(node) < 2 || !slot_is_valid(node, slot))
		return NULL;
	if (!wait_for_child(node, slot) && is_contended(node->fs_info))
		return ERR_PTR(-EAGAIN);
	/* This also compares the child with the pointer, and reads other mirrors. */
	child = btrfs_read_node_slot(node, slot);
	return IS_ERR(child) ? NULL : child;
}

void btrfs_rust_readahead_child(struct extent_buffer *node, u32 slot)
{
	if (slot_is_valid(node, slot))
		btrfs_readahead_node_child(node, slot);
}

/* Get a child that is a leaf, with a reference. Returns NULL unless it is cached and up to date. */
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
	return (struct btrfs_rust_key){
		.objectid = key.objectid,
		.type = key.type,
		.offset = key.offset,
	};
}

static u8 item_type(const struct extent_buffer *leaf, u32 slot)
{
	return btrfs_rust_item_key(leaf, slot).type;
}

/* Whether the item is the inode item of a regular file with links, without hashes of fs-verity. */
bool btrfs_rust_item_is_file(const struct extent_buffer *leaf, u32 slot)
{
	const u64 has_verity = (u64)BTRFS_INODE_RO_VERITY << 32;
	const struct btrfs_inode_item *item;

	if (item_type(leaf, slot) != BTRFS_INODE_ITEM_KEY)
		return false;
	item = btrfs_item_ptr(leaf, slot, struct btrfs_inode_item);
	return S_ISREG(btrfs_inode_mode(leaf, item)) && btrfs_inode_nlink(leaf, item) > 0 &&
	       !(btrfs_inode_flags(leaf, item) & has_verity);
}

/* Read a file extent item. @bytenr is 0 unless it is a regular extent with data on disk. */
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

/* Whether a task waits for commit_root_sem, which is held, or a fatal signal is pending. */
bool btrfs_rust_is_contended(struct btrfs_root *root)
{
	return is_contended(root->fs_info);
}
