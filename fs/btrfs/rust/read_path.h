/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_READ_PATH_H
#define BTRFS_RUST_READ_PATH_H

/*
 * CONFIG_BTRFS_RUST_READ_PATH: the interfaces of ../reada.h, ../share_cache.h, ../send_utimes.h and
 * ../lru_cache.h, implemented in Rust. The C files of these headers are not built.
 */

#include "../reada.h"
#include "btrfs_rust.h"
#include "lru.h"

/* reada.rs */
static inline void btrfs_select_search(const struct extent_buffer *node, int slot, u8 reada,
				       u64 objectid, struct btrfs_reada_slots *selected)
{
	selected->count = btrfs_rust_select_search(node, slot, reada, objectid, selected->slots);
}

static inline void btrfs_select_move_down(const struct extent_buffer *node, int slot, u64 min_gen,
					  struct btrfs_reada_slots *selected)
{
	selected->count = btrfs_rust_select_move_down(node, slot, min_gen, selected->slots);
}

/* share_cache.rs */
struct btrfs_share_cache {
	struct btrfs_rust_share_cache rust;
};

static inline int btrfs_share_cache_lookup(struct btrfs_share_cache *cache, u64 bytenr, int level)
{
	return btrfs_rust_share_lookup(&cache->rust, bytenr, level);
}

static inline void btrfs_share_cache_store(struct btrfs_share_cache *cache, u64 bytenr, int level,
					   bool is_shared)
{
	btrfs_rust_share_store(&cache->rust, bytenr, level, is_shared);
}

static inline void btrfs_share_cache_end_many_paths(struct btrfs_share_cache *cache, int level,
						    int result)
{
	btrfs_rust_share_end_many_paths(&cache->rust, level, result);
}

static inline int btrfs_share_cache_prev_extent(const struct btrfs_share_cache *cache, u64 bytenr)
{
	return btrfs_rust_share_prev_extent(&cache->rust, bytenr);
}

static inline void btrfs_share_cache_add_prev_extent(struct btrfs_share_cache *cache, u64 bytenr,
						     bool is_shared)
{
	btrfs_rust_share_add_prev_extent(&cache->rust, bytenr, is_shared);
}

/* send_utimes.rs */
struct btrfs_send_utimes {
	struct btrfs_rust_send_utimes rust;
};

static inline void btrfs_send_utimes_init(struct btrfs_send_utimes *utimes)
{
	btrfs_rust_send_utimes_init(&utimes->rust);
}

static inline void btrfs_send_utimes_destroy(struct btrfs_send_utimes *utimes)
{
	btrfs_rust_send_utimes_destroy(&utimes->rust);
}

static inline int btrfs_send_utimes_add(struct btrfs_send_utimes *utimes, u64 ino, u64 gen)
{
	return btrfs_rust_send_utimes_add(&utimes->rust, ino, gen);
}

static inline bool btrfs_send_utimes_trim(struct btrfs_send_utimes *utimes, u64 *ino, u64 *gen)
{
	return btrfs_rust_send_utimes_trim(&utimes->rust, ino, gen);
}

static inline bool btrfs_send_utimes_flush(struct btrfs_send_utimes *utimes, u64 *ino, u64 *gen)
{
	return btrfs_rust_send_utimes_flush(&utimes->rust, ino, gen);
}

/*
 * lru.rs. An entry is the first member of a structure allocated with kmalloc(). The cache frees it
 * on removal.
 */
struct btrfs_lru_cache_entry {
	u64 key;
	u64 gen;
};

struct btrfs_lru_cache {
	struct btrfs_rust_lru rust;
	/* Number of entries; maximum number of entries, 0 for no limit. */
	unsigned int size;
	unsigned int max_size;
};

static inline void btrfs_lru_cache_init(struct btrfs_lru_cache *cache, unsigned int max_size)
{
	btrfs_rust_lru_init(&cache->rust);
	cache->size = 0;
	cache->max_size = max_size;
}

static inline struct btrfs_lru_cache_entry *btrfs_lru_cache_lookup(struct btrfs_lru_cache *cache,
								   u64 key, u64 gen)
{
	return btrfs_rust_lru_lookup(&cache->rust, key, gen);
}

/* Ignores @gfp, see btrfs_rust_lru_add_entry(). */
static inline int btrfs_lru_cache_store(struct btrfs_lru_cache *cache,
					struct btrfs_lru_cache_entry *new_entry, gfp_t gfp)
{
	return btrfs_rust_lru_add_entry(&cache->rust, new_entry->key, new_entry->gen, new_entry,
					cache->max_size, &cache->size);
}

static inline void btrfs_lru_cache_remove(struct btrfs_lru_cache *cache,
					  struct btrfs_lru_cache_entry *entry)
{
	btrfs_rust_lru_free_entry(&cache->rust, entry->key, entry->gen, &cache->size);
}

static inline void btrfs_lru_cache_clear(struct btrfs_lru_cache *cache)
{
	btrfs_rust_lru_clear(&cache->rust, &cache->size);
}

#endif
