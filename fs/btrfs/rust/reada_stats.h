/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_READA_STATS_H
#define BTRFS_READA_STATS_H

#include <linux/bitops.h>
#include <linux/percpu.h>
#include <linux/types.h>
#include "../extent_io.h"
#include "debug/debug.h"

struct btrfs_fs_info;
struct btrfs_root;

#ifdef CONFIG_BTRFS_RUST

enum btrfs_reada_stat {
	BTRFS_READA_PLANNED,
	BTRFS_READA_SUBMITTED,
	BTRFS_READA_USED,
	BTRFS_READA_WASTED,
	BTRFS_READA_WAITED,
	BTRFS_READA_NR_STATS
};

/* Readahead counters of a filesystem since its mount. */
struct btrfs_reada_stats {
	/* Bytes of tree blocks, then of file data. */
	u64 bytes[2][BTRFS_READA_NR_STATS];
	/* Lookups in the sharedness cache. */
	u64 share_hits;
	u64 share_misses;
};

int btrfs_reada_init(struct btrfs_fs_info *fs_info);
void btrfs_reada_destroy(struct btrfs_fs_info *fs_info);
int btrfs_reada_sysfs_add(struct btrfs_fs_info *fs_info);
void btrfs_reada_sysfs_remove(struct btrfs_fs_info *fs_info);

/* In the following, @ino is the inode of file data, or 0 for a tree block. */
void btrfs_reada_planned(const struct btrfs_root *root, u64 ino, u64 bytes);
void btrfs_reada_submitted(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start,
			   u64 len);
void btrfs_reada_used(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start, u64 len,
		      bool has_to_wait);
void btrfs_reada_wasted(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start,
			u64 len);

void btrfs_reada_block_submitted(struct extent_buffer *eb, u64 root_id);
void btrfs_reada_block_used(struct extent_buffer *eb, u64 root_id);
void btrfs_reada_block_released(struct extent_buffer *eb);

/* Whether @eb was read ahead in a planned batch and is still unused. */
static inline bool btrfs_reada_is_unused(const struct extent_buffer *eb)
{
	return test_bit(EXTENT_BUFFER_PLANNED, &eb->bflags);
}

/* Lookups in the sharedness cache by one fiemap call; @fs_info is NULL without any. */
struct btrfs_share_stats {
	const struct btrfs_fs_info *fs_info;
	u64 hits;
	u64 misses;
};

/* Count a lookup. Per-CPU counters here would take a tenth of the time of a cached fiemap. */
static inline void btrfs_share_count(struct btrfs_share_stats *stats,
				     const struct btrfs_fs_info *fs_info, int result)
{
	stats->fs_info = fs_info;
	if (result >= 0)
		stats->hits++;
	else
		stats->misses++;
}

void btrfs_share_count_end(const struct btrfs_share_stats *stats);

#else

static inline int btrfs_reada_init(struct btrfs_fs_info *fs_info)
{
	return 0;
}

static inline void btrfs_reada_destroy(struct btrfs_fs_info *fs_info)
{
}

static inline int btrfs_reada_sysfs_add(struct btrfs_fs_info *fs_info)
{
	return 0;
}

static inline void btrfs_reada_sysfs_remove(struct btrfs_fs_info *fs_info)
{
}

static inline void btrfs_reada_block_submitted(struct extent_buffer *eb, u64 root_id)
{
}

static inline void btrfs_reada_block_used(struct extent_buffer *eb, u64 root_id)
{
}

static inline void btrfs_reada_block_released(struct extent_buffer *eb)
{
}

static inline bool btrfs_reada_is_unused(const struct extent_buffer *eb)
{
	return false;
}

struct btrfs_share_stats { };

static inline void btrfs_share_count(struct btrfs_share_stats *stats,
				     const struct btrfs_fs_info *fs_info, int result)
{
}

static inline void btrfs_share_count_end(const struct btrfs_share_stats *stats)
{
}

#endif

/* Count @eb of the tree @root_id before its readahead; @is_planned: for a planned batch. */
static inline void btrfs_count_readahead(struct extent_buffer *eb, u64 root_id, bool is_planned)
{
	if (is_planned)
		btrfs_reada_block_submitted(eb, root_id);
	btrfs_debug_readahead(eb);
}

/* Count @eb as used: a search in the tree @root_id has reached it. */
static inline void btrfs_count_use(struct extent_buffer *eb, u64 root_id)
{
	if (btrfs_reada_is_unused(eb))
		btrfs_reada_block_used(eb, root_id);
	btrfs_debug_use(eb);
}

/* Count @eb as wasted before it is freed, if it is unused. */
static inline void btrfs_count_release(struct extent_buffer *eb)
{
	if (btrfs_reada_is_unused(eb))
		btrfs_reada_block_released(eb);
}

#endif
