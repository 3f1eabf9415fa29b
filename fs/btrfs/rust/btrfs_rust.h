/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_H
#define BTRFS_RUST_H

/*
 * The interface between the C and the Rust parts of btrfs. bindgen reads this file, too.
 */

#include <linux/types.h>

struct btrfs_root;
struct extent_buffer;

/* Values of the field reada of struct btrfs_path; helpers.c checks that they match. */
#define BTRFS_RUST_READA_NONE			0
#define BTRFS_RUST_READA_BACK			1
#define BTRFS_RUST_READA_FORWARD		2
#define BTRFS_RUST_READA_FORWARD_ALWAYS		3
#define BTRFS_RUST_READA_FORWARD_FAR		4

/* Maximum number of slots in one selection. */
#define BTRFS_RUST_READA_MAX_SLOTS		33

/* reada.rs: select children of a node to read ahead. Returns the number of @slots. */
u32 btrfs_rust_select_search(const struct extent_buffer *node, int slot, u8 reada, u64 objectid,
			     u16 *slots);
u32 btrfs_rust_select_move_down(const struct extent_buffer *node, int slot, u64 min_gen,
				u16 *slots);

/* A key: struct btrfs_key, but not packed. */
struct btrfs_rust_key {
	u64 objectid;
	u8 type;
	u64 offset;
};

/* A key pointer of a node: struct btrfs_key_ptr in CPU byte order. */
struct btrfs_rust_key_ptr {
	struct btrfs_rust_key key;
	u64 blockptr;
	u64 generation;
};

/* Limits for the readahead of a filesystem, in KiB; the node size is in bytes. */
struct btrfs_rust_disk {
	unsigned long readahead;
	unsigned long memory;
	u32 window_kb;
	u32 nodesize;
	bool rotating;
};

/* The other readers of a filesystem, and the size of their unused readahead in bytes. */
struct btrfs_rust_others {
	u64 held;
	u32 count;
};

/* window.rs: the maximum number of bytes that one reader reads ahead. */
u64 btrfs_rust_window(const struct btrfs_rust_disk *disk);

/* A leaf to read ahead; @tree is the index of its tree in a comparison, 0 or 1. */
struct btrfs_rust_leaf {
	struct btrfs_rust_key_ptr ptr;
	u8 tree;
};

/*
 * The leaves of a batch to submit next, in this order. The rest of the batch follows them in
 * memory, which is valid until the next plan.
 */
struct btrfs_rust_leaves {
	const struct btrfs_rust_leaf *leaves;
	u32 count;
	/* The number of leaves in the batch; the size of it and the previous batch, in bytes. */
	u32 planned;
	u64 held;
};

/* A fiemap call that asks for fewer extents reads ahead for these only. */
#define BTRFS_RUST_SERIES_EXTENTS		32

/* The key range of a fiemap call for @wanted extents; @is_first: it starts at offset 0. */
struct btrfs_rust_file_extents {
	struct btrfs_rust_key start;
	struct btrfs_rust_key end;
	u32 wanted;
	bool is_first;
};

/* Storage for the state of leaf_reada.rs. */
struct btrfs_rust_leaf_reada {
	u64 state[44];
};

/* Storage for the key range of the last leaf looked up, see tree.rs; all zeroes is none. */
struct btrfs_rust_last_leaf {
	u64 state[6];
};

/* leaf_reada.rs */
bool btrfs_rust_leaf_reada_init(struct btrfs_rust_leaf_reada *reada,
				const struct btrfs_rust_disk *disk,
				const struct btrfs_rust_file_extents *extents);
void btrfs_rust_leaf_reada_destroy(struct btrfs_rust_leaf_reada *reada);
bool btrfs_rust_leaf_reada_advance(struct btrfs_rust_leaf_reada *reada,
				   const struct btrfs_root *root,
				   const struct btrfs_rust_key *key);
struct btrfs_rust_leaves btrfs_rust_leaf_reada_plan(struct btrfs_rust_leaf_reada *reada,
						    struct btrfs_root *left,
						    struct btrfs_root *right,
						    struct btrfs_rust_others others);
struct btrfs_rust_leaves btrfs_rust_leaf_reada_report(struct btrfs_rust_leaf_reada *reada,
						      u32 submitted, bool is_dropped);

/* tree.rs */
bool btrfs_rust_find_leaf(struct btrfs_rust_last_leaf *last, struct btrfs_root *root,
			  const struct btrfs_rust_key *key, struct btrfs_rust_leaf *leaf);

/* A file extent, see data_reada.rs; without data on disk, @bytenr is 0. */
struct btrfs_rust_extent {
	u64 bytenr;
	u64 disk_len;
	u64 offset;
	u64 len;
	u64 generation;
	bool is_compressed;
};

/* A range of a file to read ahead; see data_reada/queue.rs. */
struct btrfs_rust_file_range {
	u64 ino;
	u64 offset;
	u64 len;
	u64 bytenr;
	u64 disk_len;
	u32 slot;
	u32 number;
	bool is_encoded;
	bool is_cut;
};

/* Maximum number of inodes held for a send. */
#define BTRFS_RUST_DATA_INODES			2048

/* The position of a send: the ranges passed, and whether the next batch is to be planned. */
struct btrfs_rust_data_position {
	u32 passed;
	bool is_due;
};

/* A batch of ranges in send order; the arrays are valid until the next position. */
struct btrfs_rust_file_ranges {
	const struct btrfs_rust_file_range *ranges;
	/* Indices into @ranges, in submission order. */
	const u32 *order;
	u32 count;
	/* The memory that all ranges ahead of the send take, in bytes. */
	u64 held;
};

/* Storage for the state of data_reada.rs. */
struct btrfs_rust_data_reada {
	u64 state[52];
};

/* data_reada.rs */
u32 btrfs_rust_data_reada_init(struct btrfs_rust_data_reada *reada,
			       const struct btrfs_rust_disk *disk, u64 min_gen, bool reads_data,
			       bool sends_encoded);
void btrfs_rust_data_reada_destroy(struct btrfs_rust_data_reada *reada);
struct btrfs_rust_data_position
btrfs_rust_data_reada_advance(struct btrfs_rust_data_reada *reada,
			      const struct btrfs_rust_key *key, bool has_read);
struct btrfs_rust_file_ranges btrfs_rust_data_reada_plan(struct btrfs_rust_data_reada *reada,
							 struct btrfs_root *root,
							 struct btrfs_rust_others others);
void btrfs_rust_data_reada_report_evicted(struct btrfs_rust_data_reada *reada);

/* Storage for the state of share_cache.rs; all zeroes is an empty cache. */
struct btrfs_rust_share_cache {
	u64 state[144];
};

/* share_cache.rs: results are 1 for shared, 0 for not shared, -ENOENT for not known. */
int btrfs_rust_share_lookup(struct btrfs_rust_share_cache *cache, u64 bytenr, int level);
void btrfs_rust_share_store(struct btrfs_rust_share_cache *cache, u64 bytenr, int level,
			    bool is_shared);
void btrfs_rust_share_end_many_paths(struct btrfs_rust_share_cache *cache, int level, int result);
int btrfs_rust_share_prev_extent(const struct btrfs_rust_share_cache *cache, u64 bytenr);
void btrfs_rust_share_add_prev_extent(struct btrfs_rust_share_cache *cache, u64 bytenr,
				      bool is_shared);

#ifdef CONFIG_BTRFS_RUST_VERIFY
/* The cached block of one level of the path, and whether it is shared. */
struct btrfs_rust_share_block {
	u64 bytenr;
	bool is_shared;
};

void btrfs_rust_share_block(const struct btrfs_rust_share_cache *cache, int level,
			    struct btrfs_rust_share_block *block);
#endif

/* Storage for the state of lru.rs, with a pointer for each key. */
struct btrfs_rust_lru {
	unsigned long state[10];
};

/* lru.rs; an entry is never NULL. */
void btrfs_rust_lru_init(struct btrfs_rust_lru *lru);
void btrfs_rust_lru_destroy(struct btrfs_rust_lru *lru);
void *btrfs_rust_lru_lookup(struct btrfs_rust_lru *lru, u64 key, u64 gen);
int btrfs_rust_lru_store(struct btrfs_rust_lru *lru, u64 key, u64 gen, void *entry, u32 max_size,
			 void **removed);
void *btrfs_rust_lru_remove(struct btrfs_rust_lru *lru, u64 key, u64 gen);
void *btrfs_rust_lru_remove_oldest(struct btrfs_rust_lru *lru);

/* Storage for the state of send_utimes.rs. */
struct btrfs_rust_send_utimes {
	unsigned long state[10];
};

/* send_utimes.rs */
void btrfs_rust_send_utimes_init(struct btrfs_rust_send_utimes *utimes);
void btrfs_rust_send_utimes_destroy(struct btrfs_rust_send_utimes *utimes);
int btrfs_rust_send_utimes_add(struct btrfs_rust_send_utimes *utimes, u64 ino, u64 gen);
bool btrfs_rust_send_utimes_trim(struct btrfs_rust_send_utimes *utimes, u64 *ino, u64 *gen);
bool btrfs_rust_send_utimes_flush(struct btrfs_rust_send_utimes *utimes, u64 *ino, u64 *gen);

/* The module parameters of debug/debug.c. */
struct btrfs_rust_tunables {
	u8 reada;
	bool share_cache;
	bool utimes_cache;
};

#ifdef CONFIG_BTRFS_DEBUG
struct btrfs_rust_tunables btrfs_rust_tunables(void);
#endif

#ifdef CONFIG_BTRFS_RUST_KUNIT_BENCH
/* lru.rs */
u32 btrfs_rust_lru_entry_size(void);
#endif

/* helpers.c: functions that Rust calls */
u32 btrfs_rust_node_level(const struct extent_buffer *node);
u32 btrfs_rust_node_size(const struct extent_buffer *node);
u32 btrfs_rust_node_nritems(const struct extent_buffer *node);
u64 btrfs_rust_node_blockptr(const struct extent_buffer *node, u32 slot);
void btrfs_rust_node_ptrs(const struct extent_buffer *node, u32 slot,
			  struct btrfs_rust_key_ptr *ptrs, size_t count);
bool btrfs_rust_node_search(const struct extent_buffer *node, const struct btrfs_rust_key *key,
			    u32 *slot);
bool btrfs_rust_is_cached(const struct extent_buffer *node, u64 bytenr);
bool btrfs_rust_is_evicted(const struct btrfs_root *root, u64 bytenr);
struct extent_buffer *btrfs_rust_commit_root(struct btrfs_root *root);
struct extent_buffer *btrfs_rust_commit_leaf(struct btrfs_root *root);
struct extent_buffer *btrfs_rust_read_child(struct extent_buffer *node, u32 slot);
void btrfs_rust_readahead_child(struct extent_buffer *node, u32 slot);
struct extent_buffer *btrfs_rust_cached_leaf(const struct extent_buffer *node, u32 slot);
struct btrfs_rust_key btrfs_rust_item_key(const struct extent_buffer *leaf, u32 slot);
bool btrfs_rust_item_is_file(const struct extent_buffer *leaf, u32 slot);
struct btrfs_rust_extent btrfs_rust_item_extent(const struct extent_buffer *leaf, u32 slot);
void btrfs_rust_put_node(struct extent_buffer *node);
bool btrfs_rust_is_contended(struct btrfs_root *root);

#endif
