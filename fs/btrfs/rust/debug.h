/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_DEBUG_H
#define BTRFS_RUST_DEBUG_H

/*
 * Counters that explain how long send and fiemap take, with and without CONFIG_BTRFS_RUST. They
 * are in debugfs, in the file btrfs_counters.
 */

struct btrfs_root;
struct extent_buffer;

#ifdef CONFIG_BTRFS_DEBUG
int __init btrfs_counters_init(void);
void btrfs_counters_exit(void);
void btrfs_count_readahead(struct extent_buffer *eb);
void btrfs_count_use(struct extent_buffer *eb);
void btrfs_count_search(const struct btrfs_root *root);
#else
static inline void btrfs_count_readahead(struct extent_buffer *eb) { }
static inline void btrfs_count_use(struct extent_buffer *eb) { }
static inline void btrfs_count_search(const struct btrfs_root *root) { }
#endif

#endif
