/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_DEBUG_H
#define BTRFS_RUST_DEBUG_H

/*
 * Where tree blocks are read ahead, used and released, for the counters of reada_stats.c, which are
 * those of a filesystem and of our own readahead; and of debug.c, which explain how long send and
 * fiemap take with and without CONFIG_BTRFS_RUST, in the file btrfs_counters of debugfs.
 */

#include <linux/bitops.h>
#include "../extent_io.h"
#include "reada_stats.h"

struct btrfs_root;

#ifdef CONFIG_BTRFS_DEBUG
int __init btrfs_counters_init(void);
void btrfs_counters_exit(void);
void btrfs_debug_readahead(struct extent_buffer *eb);
void btrfs_debug_use(struct extent_buffer *eb);
void btrfs_count_search(const struct btrfs_root *root);
#else
static inline void btrfs_debug_readahead(struct extent_buffer *eb) { }
static inline void btrfs_debug_use(struct extent_buffer *eb) { }
static inline void btrfs_count_search(const struct btrfs_root *root) { }
#endif

/* @eb of the tree @root_id is about to be read ahead, for leaf_reada.c if @is_planned. */
static inline void btrfs_count_readahead(struct extent_buffer *eb, u64 root_id, bool is_planned)
{
#ifdef CONFIG_BTRFS_RUST
	if (is_planned)
		btrfs_reada_block_submitted(eb, root_id);
#endif
	btrfs_debug_readahead(eb);
}

/* A search in the tree @root_id has come to @eb. */
static inline void btrfs_count_use(struct extent_buffer *eb, u64 root_id)
{
#ifdef CONFIG_BTRFS_RUST
	if (test_bit(EXTENT_BUFFER_PLANNED, &eb->bflags))
		btrfs_reada_block_used(eb, root_id);
#endif
	btrfs_debug_use(eb);
}

/* @eb is about to be freed. */
static inline void btrfs_count_release(struct extent_buffer *eb)
{
#ifdef CONFIG_BTRFS_RUST
	if (test_bit(EXTENT_BUFFER_PLANNED, &eb->bflags))
		btrfs_reada_block_released(eb);
#endif
}

#endif
