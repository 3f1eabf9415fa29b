/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_DEBUG_H
#define BTRFS_RUST_DEBUG_H

/*
 * CONFIG_BTRFS_DEBUG: counters in the debugfs file btrfs_counters. They explain the run time of
 * send and fiemap with and without CONFIG_BTRFS_RUST. The module parameter reada_pause makes the
 * workers of the readahead wait, for tests.
 */

#include <linux/types.h>

struct btrfs_root;
struct extent_buffer;

#ifdef CONFIG_BTRFS_DEBUG
int btrfs_counters_init(void);
void btrfs_counters_exit(void);
void btrfs_debug_readahead(struct extent_buffer *eb);
void btrfs_debug_use(struct extent_buffer *eb);
void btrfs_count_search(const struct btrfs_root *root);
void btrfs_debug_pause_reada(const bool *stop);
#else
static inline void btrfs_debug_readahead(struct extent_buffer *eb) { }
static inline void btrfs_debug_use(struct extent_buffer *eb) { }
static inline void btrfs_count_search(const struct btrfs_root *root) { }
static inline void btrfs_debug_pause_reada(const bool *stop) { }
#endif

#endif
