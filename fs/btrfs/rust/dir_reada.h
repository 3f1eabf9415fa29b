/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_DIR_READA_H
#define BTRFS_DIR_READA_H

#include <linux/types.h>

struct btrfs_dir_reada;
struct btrfs_fs_info;
struct btrfs_inode;
struct btrfs_path;
struct file;

#ifdef CONFIG_BTRFS_RUST

void btrfs_dir_readas_init(struct btrfs_fs_info *fs_info);
void btrfs_dir_readas_destroy(struct btrfs_fs_info *fs_info);

struct btrfs_dir_reada *btrfs_dir_reada_begin(struct btrfs_inode *dir, u64 pos, u64 last_index);
void btrfs_dir_reada_list(struct btrfs_dir_reada *reada, struct btrfs_inode *dir, u64 pos);
void btrfs_dir_reada_add(struct btrfs_dir_reada *reada, const void *buf, int entries, u64 pos);
void btrfs_dir_reada_end(struct btrfs_dir_reada *reada, struct file *file,
			 struct btrfs_path *path);
void btrfs_dir_reada_look_up(struct btrfs_inode *dir, u64 ino);

#else

static inline struct btrfs_dir_reada *btrfs_dir_reada_begin(struct btrfs_inode *dir, u64 pos,
							    u64 last_index)
{
	return NULL;
}

static inline void btrfs_dir_reada_list(struct btrfs_dir_reada *reada, struct btrfs_inode *dir,
					u64 pos)
{
}

static inline void btrfs_dir_reada_add(struct btrfs_dir_reada *reada, const void *buf, int entries,
				       u64 pos)
{
}

static inline void btrfs_dir_reada_end(struct btrfs_dir_reada *reada, struct file *file,
				       struct btrfs_path *path)
{
}

static inline void btrfs_dir_reada_look_up(struct btrfs_inode *dir, u64 ino)
{
}

#endif

#endif
