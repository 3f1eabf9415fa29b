/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_READA_STATS_H
#define BTRFS_READA_STATS_H

#include <linux/percpu.h>
#include <linux/types.h>

struct btrfs_fs_info;
struct btrfs_root;
struct extent_buffer;

#ifdef CONFIG_BTRFS_RUST

enum btrfs_reada_stat {
	BTRFS_READA_PLANNED,
	BTRFS_READA_SUBMITTED,
	BTRFS_READA_USED,
	BTRFS_READA_WASTED,
	BTRFS_READA_WAITED,
	BTRFS_READA_NR_STATS
};

/* What was read ahead in a filesystem since it was mounted. */
struct btrfs_reada_stats {
	/* Of tree blocks and of file data, in bytes. */
	u64 bytes[2][BTRFS_READA_NR_STATS];
	/* Lookups in the sharedness cache. */
	u64 share_hits;
	u64 share_misses;
};

int btrfs_reada_init(struct btrfs_fs_info *fs_info);
void btrfs_reada_destroy(struct btrfs_fs_info *fs_info);
int btrfs_reada_sysfs_add(struct btrfs_fs_info *fs_info);
void btrfs_reada_sysfs_remove(struct btrfs_fs_info *fs_info);

/* In the following, @ino is the inode whose data it is about, or 0 for a tree block. */
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

#endif

#endif
