/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_DIR_READA_H
#define BTRFS_DIR_READA_H

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/types.h>
#include <uapi/linux/btrfs_tree.h>
#include "btrfs_rust.h"

struct btrfs_dir_reada;
struct btrfs_fs_info;
struct btrfs_inode;
struct btrfs_path;
struct btrfs_reada_total;
struct btrfs_root;
struct file;
struct kiocb;

#ifdef CONFIG_BTRFS_RUST

/* The readahead of a directory that was listed. */
struct btrfs_dir_reada {
	/* Entry in fs_info->dir_readas; protected by its lock, as are last_use, tgid and pid. */
	struct list_head list;
	unsigned long last_use;
	refcount_t refs;
	u64 root_id;
	u64 ino;
	/* The process and the task that have used it last. */
	pid_t tgid;
	pid_t pid;
	/* Reads of files that could not be noted, as another task had the lock. */
	atomic_t missed;
	/* Protects the members below. */
	struct mutex lock;
	struct btrfs_rust_dir_reada plan;
	struct btrfs_fs_info *fs_info;
	/* The bytes of this reader in fs_info->reada_tree, and in fs_info->reada_data. */
	u64 held;
	u64 held_data;
	/* Lookups of its entries were expected when its listing began. */
	bool is_expected;
	/* Its listing was reported to its parent. */
	bool is_reported;
	/* Nothing is left to read ahead; read without the lock. */
	bool is_done;
	/* An entry is a subvolume; read and written without the lock. */
	bool has_subvolumes;
};

/* dir_readas.c */
void btrfs_dir_readas_init(struct btrfs_fs_info *fs_info);
void btrfs_dir_readas_destroy(struct btrfs_fs_info *fs_info);
void btrfs_dir_readas_add(struct btrfs_dir_reada *reada, struct btrfs_inode *dir);
void btrfs_dir_readas_ask(const struct btrfs_inode *dir, struct btrfs_rust_directory *directory);
struct btrfs_dir_reada *btrfs_dir_reada_get(struct btrfs_inode *dir, bool is_use);
void btrfs_dir_reada_use(struct btrfs_dir_reada *reada);
void btrfs_dir_reada_put(struct btrfs_dir_reada *reada);
void btrfs_dir_reada_hold(const struct btrfs_dir_reada *reada, struct btrfs_reada_total *total,
			  u64 *held, u64 bytes);

/* dir_reada.c */
struct btrfs_dir_reada *btrfs_dir_reada_begin(struct btrfs_inode *dir, u64 pos, u64 last_index);
void btrfs_dir_reada_list(struct btrfs_dir_reada *reada, struct btrfs_inode *dir, u64 pos);
void btrfs_dir_reada_add(struct btrfs_dir_reada *reada, const void *buf, int entries, u64 pos);
void btrfs_dir_reada_end(struct btrfs_dir_reada *reada, struct file *file,
			 struct btrfs_path *path);
bool btrfs_dir_reada_look_up(struct btrfs_inode *dir, u64 ino);

/* Note the type of the key of an entry that will be returned. */
static inline void btrfs_dir_reada_note_type(struct btrfs_dir_reada *reada, u8 type)
{
	if (reada && type != BTRFS_INODE_ITEM_KEY)
		WRITE_ONCE(reada->has_subvolumes, true);
}

struct btrfs_rust_others btrfs_dir_reada_others(const struct btrfs_reada_total *total, u64 held);
void btrfs_dir_reada_go_on(struct btrfs_dir_reada *reada, struct btrfs_root *root);

/* file_reada.c */
void btrfs_dir_reada_read(const struct kiocb *iocb);
void btrfs_dir_reada_files(struct btrfs_dir_reada *reada, struct btrfs_root *root);

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

static inline void btrfs_dir_readas_destroy(struct btrfs_fs_info *fs_info)
{
}

static inline void btrfs_dir_reada_note_type(struct btrfs_dir_reada *reada, u8 type)
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

static inline bool btrfs_dir_reada_look_up(struct btrfs_inode *dir, u64 ino)
{
	return false;
}

static inline void btrfs_dir_reada_read(const struct kiocb *iocb)
{
}

#endif

#endif
