/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_LRU_H
#define BTRFS_RUST_LRU_H

/*
 * lru.rs for entries that were allocated with kmalloc(). The cache owns them. @size is the number
 * of entries in @lru.
 */

#include <linux/sched/mm.h>
#include <linux/slab.h>
#include "btrfs_rust.h"

/*
 * Add @entry. If the cache has @max_size entries, free the least recently used one; 0 is no limit.
 * Memory is allocated in NOFS scope, and only when the cache grows. Returns 0, -EEXIST if the key
 * is cached, or -ENOMEM.
 */
static inline int btrfs_rust_lru_add_entry(struct btrfs_rust_lru *lru, u64 key, u64 gen,
					   void *entry, unsigned int max_size, unsigned int *size)
{
	const unsigned int nofs = memalloc_nofs_save();
	void *removed;
	int ret;

	ret = btrfs_rust_lru_store(lru, key, gen, entry, max_size, &removed);
	memalloc_nofs_restore(nofs);
	if (ret)
		return ret;
	if (!removed)
		(*size)++;
	kfree(removed);
	return 0;
}

/* Remove and free the entry of a key, which is cached. */
static inline void btrfs_rust_lru_free_entry(struct btrfs_rust_lru *lru, u64 key, u64 gen,
					     unsigned int *size)
{
	kfree(btrfs_rust_lru_remove(lru, key, gen));
	(*size)--;
}

/* Remove and free all entries. The cache is as after btrfs_rust_lru_init(). */
static inline void btrfs_rust_lru_clear(struct btrfs_rust_lru *lru, unsigned int *size)
{
	void *entry;

	while ((entry = btrfs_rust_lru_remove_oldest(lru)))
		kfree(entry);
	btrfs_rust_lru_destroy(lru);
	btrfs_rust_lru_init(lru);
	*size = 0;
}

#endif
