/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_VERIFY_H
#define BTRFS_RUST_VERIFY_H

/*
 * CONFIG_BTRFS_RUST_VERIFY: the C code that Rust replaces is built and used. C passes its results
 * to the functions below, which call Rust and compare. The first difference of each kind causes a
 * warning.
 */

#include <linux/types.h>
#include <linux/xarray.h>
#include "../btrfs_rust.h"

struct btrfs_data_reada;
struct btrfs_file_extent_item;
struct btrfs_fs_info;
struct btrfs_key;
struct btrfs_leaf_reada;
struct btrfs_lru_cache;
struct btrfs_lru_cache_entry;
struct btrfs_path;
struct btrfs_reada_slots;
struct btrfs_send_utimes;
struct btrfs_share_cache;
struct seq_file;

enum btrfs_verify_what {
	BTRFS_VERIFY_READA_SEARCH,
	BTRFS_VERIFY_READA_MOVE_DOWN,
	BTRFS_VERIFY_SHARE_LOOKUP,
	BTRFS_VERIFY_SHARE_STORE,
	BTRFS_VERIFY_SHARE_END,
	BTRFS_VERIFY_SHARE_PREV_EXTENT,
	BTRFS_VERIFY_UTIMES_ADD,
	BTRFS_VERIFY_UTIMES_NEXT,
	BTRFS_VERIFY_LRU,
	BTRFS_VERIFY_QUICK_EXTENT,
	BTRFS_VERIFY_FILE_EXTENT,
	BTRFS_VERIFY_EXTENT_LEAF,
	BTRFS_VERIFY_ITEM,
	BTRFS_VERIFY_NR,
};

enum btrfs_verify_plan_what {
	BTRFS_VERIFY_PLAN_LEAVES,
	BTRFS_VERIFY_PLAN_DATA,
	BTRFS_VERIFY_PLAN_NR,
};

#ifdef CONFIG_BTRFS_RUST_VERIFY

/* Members of the C structures. */
struct btrfs_verify_share_cache {
	struct btrfs_rust_share_cache rust;
};

struct btrfs_verify_send_utimes {
	struct btrfs_rust_send_utimes rust;
	/* Off since one side had no memory for a directory. */
	bool is_off;
};

/* The Rust cache has entries of its own. */
struct btrfs_verify_lru {
	struct btrfs_rust_lru rust;
	unsigned int size;
	/* The Rust cache has freed an entry to make room, and C has not yet. */
	bool is_freed;
	/* Off since the Rust cache had no memory for an entry. */
	bool is_off;
};

/* The leaves or extents that a send has planned to read ahead or has read, by logical address. */
struct btrfs_verify_plan {
	struct xarray seen;
	bool is_on;
};

int btrfs_verify_init(void);
void btrfs_verify_exit(void);
void btrfs_verify_count(enum btrfs_verify_what what, bool same);
void btrfs_verify_select_search(const struct extent_buffer *node, int slot, u8 reada, u64 objectid,
				const struct btrfs_reada_slots *c);
void btrfs_verify_select_move_down(const struct extent_buffer *node, int slot, u64 min_gen,
				   const struct btrfs_reada_slots *c);
void btrfs_verify_share_lookup(struct btrfs_share_cache *cache, u64 bytenr, int level, int c);
void btrfs_verify_share_store(struct btrfs_share_cache *cache, u64 bytenr, int level,
			      bool is_shared);
void btrfs_verify_share_end_many_paths(struct btrfs_share_cache *cache, int level, int result);
void btrfs_verify_share_prev_extent(const struct btrfs_share_cache *cache, u64 bytenr, int c);
void btrfs_verify_share_add_prev_extent(struct btrfs_share_cache *cache, u64 bytenr,
					bool is_shared);
void btrfs_verify_extent_leaf(struct btrfs_root *root, const struct btrfs_key *key,
			      const struct extent_buffer *leaf, int slot);
void btrfs_verify_item(struct btrfs_root *root, const struct btrfs_path *path);
void btrfs_verify_file_extent(const struct btrfs_path *path, const struct btrfs_key *key,
			      const struct btrfs_file_extent_item *ei);
void btrfs_verify_plan_init(struct btrfs_verify_plan *plan, const struct btrfs_fs_info *fs_info);
void btrfs_verify_plan_end(struct btrfs_verify_plan *plan);
void btrfs_verify_planned(struct btrfs_verify_plan *plan, enum btrfs_verify_plan_what what,
			  u64 bytenr);
void btrfs_verify_show_plans(struct seq_file *seq);
void btrfs_verify_leaf_read(struct btrfs_leaf_reada *reada, const struct extent_buffer *leaf);
void btrfs_verify_data_read(struct btrfs_data_reada *reada, const struct btrfs_path *path);
void btrfs_verify_utimes_init(struct btrfs_send_utimes *utimes);
void btrfs_verify_utimes_destroy(struct btrfs_send_utimes *utimes);
void btrfs_verify_utimes_add(struct btrfs_send_utimes *utimes, u64 ino, u64 gen, bool is_known,
			     int c);
bool btrfs_verify_utimes_next(struct btrfs_send_utimes *utimes, bool flush, bool c,
			      const u64 *ino, const u64 *gen);
void btrfs_verify_lru_init(struct btrfs_lru_cache *cache);
void btrfs_verify_lru_clear(struct btrfs_lru_cache *cache);
void btrfs_verify_lru_lookup(struct btrfs_lru_cache *cache, u64 key, u64 gen,
			     const struct btrfs_lru_cache_entry *c);
void btrfs_verify_lru_store(struct btrfs_lru_cache *cache, struct btrfs_lru_cache_entry *entry);
void btrfs_verify_lru_remove(struct btrfs_lru_cache *cache,
			     const struct btrfs_lru_cache_entry *entry);

#else

struct btrfs_verify_share_cache { };

struct btrfs_verify_send_utimes { };

struct btrfs_verify_lru { };

struct btrfs_verify_plan { };

static inline void btrfs_verify_count(enum btrfs_verify_what what, bool same)
{
}

static inline void btrfs_verify_select_search(const struct extent_buffer *node, int slot, u8 reada,
					      u64 objectid, const struct btrfs_reada_slots *c)
{
}

static inline void btrfs_verify_select_move_down(const struct extent_buffer *node, int slot,
						 u64 min_gen, const struct btrfs_reada_slots *c)
{
}

static inline void btrfs_verify_share_lookup(struct btrfs_share_cache *cache, u64 bytenr, int level,
					     int c)
{
}

static inline void btrfs_verify_share_store(struct btrfs_share_cache *cache, u64 bytenr, int level,
					    bool is_shared)
{
}

static inline void btrfs_verify_share_end_many_paths(struct btrfs_share_cache *cache, int level,
						     int result)
{
}

static inline void btrfs_verify_share_prev_extent(const struct btrfs_share_cache *cache, u64 bytenr,
						  int c)
{
}

static inline void btrfs_verify_share_add_prev_extent(struct btrfs_share_cache *cache, u64 bytenr,
						      bool is_shared)
{
}

static inline void btrfs_verify_extent_leaf(struct btrfs_root *root, const struct btrfs_key *key,
					    const struct extent_buffer *leaf, int slot)
{
}

static inline void btrfs_verify_item(struct btrfs_root *root, const struct btrfs_path *path)
{
}

static inline void btrfs_verify_file_extent(const struct btrfs_path *path,
					    const struct btrfs_key *key,
					    const struct btrfs_file_extent_item *ei)
{
}

static inline void btrfs_verify_plan_init(struct btrfs_verify_plan *plan,
					  const struct btrfs_fs_info *fs_info)
{
}

static inline void btrfs_verify_plan_end(struct btrfs_verify_plan *plan)
{
}

static inline void btrfs_verify_planned(struct btrfs_verify_plan *plan,
					enum btrfs_verify_plan_what what, u64 bytenr)
{
}

static inline void btrfs_verify_leaf_read(struct btrfs_leaf_reada *reada,
					  const struct extent_buffer *leaf)
{
}

static inline void btrfs_verify_data_read(struct btrfs_data_reada *reada,
					  const struct btrfs_path *path)
{
}

static inline void btrfs_verify_utimes_init(struct btrfs_send_utimes *utimes)
{
}

static inline void btrfs_verify_utimes_destroy(struct btrfs_send_utimes *utimes)
{
}

static inline void btrfs_verify_utimes_add(struct btrfs_send_utimes *utimes, u64 ino, u64 gen,
					   bool is_known, int c)
{
}

static inline bool btrfs_verify_utimes_next(struct btrfs_send_utimes *utimes, bool flush,
					    bool c, const u64 *ino, const u64 *gen)
{
	return c;
}

static inline void btrfs_verify_lru_init(struct btrfs_lru_cache *cache)
{
}

static inline void btrfs_verify_lru_clear(struct btrfs_lru_cache *cache)
{
}

static inline void btrfs_verify_lru_lookup(struct btrfs_lru_cache *cache, u64 key, u64 gen,
					   const struct btrfs_lru_cache_entry *c)
{
}

static inline void btrfs_verify_lru_store(struct btrfs_lru_cache *cache,
					  struct btrfs_lru_cache_entry *entry)
{
}

static inline void btrfs_verify_lru_remove(struct btrfs_lru_cache *cache,
					   const struct btrfs_lru_cache_entry *entry)
{
}

#endif

#endif
