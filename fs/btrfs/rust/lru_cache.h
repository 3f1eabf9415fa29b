/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_LRU_CACHE_H
#define BTRFS_RUST_LRU_CACHE_H

/*
 * The interface of ../lru_cache.h on top of lru.rs: entries are embedded as the first element, are
 * allocated with kmalloc(), and freed when they are removed.
 */

#include <linux/sched/mm.h>
#include <linux/slab.h>
#include "btrfs_rust.h"

struct btrfs_lru_cache_entry {
	u64 key;
	u64 gen;
};

struct btrfs_lru_cache {
	struct btrfs_rust_lru rust;
	/* Number of entries, and the maximum, 0 for none. */
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

/* Allocates little and rarely, and never reclaims from a filesystem for it, whatever @gfp is. */
static inline int btrfs_lru_cache_store(struct btrfs_lru_cache *cache,
					struct btrfs_lru_cache_entry *new_entry, gfp_t gfp)
{
	const unsigned int nofs = memalloc_nofs_save();
	void *removed;
	int ret;

	ret = btrfs_rust_lru_store(&cache->rust, new_entry->key, new_entry->gen, new_entry,
				   cache->max_size, &removed);
	memalloc_nofs_restore(nofs);
	if (ret)
		return ret;
	if (!removed)
		cache->size++;
	kfree(removed);
	return 0;
}

static inline void btrfs_lru_cache_remove(struct btrfs_lru_cache *cache,
					  struct btrfs_lru_cache_entry *entry)
{
	btrfs_rust_lru_remove(&cache->rust, entry->key, entry->gen);
	kfree(entry);
	cache->size--;
}

static inline void btrfs_lru_cache_clear(struct btrfs_lru_cache *cache)
{
	void *entry;

	while ((entry = btrfs_rust_lru_remove_oldest(&cache->rust)))
		kfree(entry);
	btrfs_rust_lru_destroy(&cache->rust);
	btrfs_lru_cache_init(cache, cache->max_size);
}

#endif
