// SPDX-License-Identifier: GPL-2.0

/*
 * CONFIG_BTRFS_RUST_VERIFY of LRU caches: Rust's follow what those of lru_cache.c do.
 */

#include <linux/sched/mm.h>
#include "../lru_cache.h"
#include "verify.h"

/* Has the Rust cache found the entry that the C one has, if it could store all of them? */
void btrfs_verify_lru_lookup(struct btrfs_lru_cache *cache, u64 key, u64 gen,
			     const struct btrfs_lru_cache_entry *found)
{
	if (!cache->cannot_verify)
		btrfs_verify_count(BTRFS_VERIFY_LRU,
				   btrfs_rust_lru_lookup(&cache->rust, key, gen) == found);
}

/* Store what the C cache has stored, before it removes an entry to make room. */
void btrfs_verify_lru_store(struct btrfs_lru_cache *cache, struct btrfs_lru_cache_entry *entry)
{
	const bool is_full = cache->max_size > 0 && cache->size == cache->max_size;
	unsigned int nofs;
	int ret;

	if (cache->cannot_verify)
		return;
	nofs = memalloc_nofs_save();
	ret = btrfs_rust_lru_store(&cache->rust, entry->key, entry->gen, entry, cache->max_size,
				   &cache->rust_removed);
	memalloc_nofs_restore(nofs);
	if (ret) {
		cache->cannot_verify = true;
		btrfs_verify_skip(BTRFS_VERIFY_LRU);
	} else {
		btrfs_verify_count(BTRFS_VERIFY_LRU, !!cache->rust_removed == is_full);
	}
}

/* The C cache removes an entry: as asked, or to make room, as the Rust one has already. */
void btrfs_verify_lru_remove(struct btrfs_lru_cache *cache,
			     const struct btrfs_lru_cache_entry *entry)
{
	void *removed = cache->rust_removed;

	if (cache->cannot_verify)
		return;
	cache->rust_removed = NULL;
	if (!removed)
		removed = btrfs_rust_lru_remove(&cache->rust, entry->key, entry->gen);
	btrfs_verify_count(BTRFS_VERIFY_LRU, removed == entry);
}
