// SPDX-License-Identifier: GPL-2.0

/*
 * Locking and I/O for the readahead of directories that are listed and whose entries are then
 * looked up. dir_reada.rs decides what to read, and dir_readas.c keeps the states. No task waits
 * for the lock of a state: without it, a listing or a lookup goes on without readahead.
 *
 * The readahead reads the commit root, as fiemap's does. Items that have changed since the last
 * commit are in memory.
 */

#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/unaligned.h>
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../fs.h"
#include "dir_reada.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/* Used in ffi/dir.rs. */
static_assert(DT_DIR == 4);
static_assert(DT_REG == 8);

/*
 * Get the readahead of @dir, of which a part will be listed, from the index @pos on. It is a new
 * one if the listing begins. Returns NULL if there is none: it is off, there is no memory, or the
 * listing has ended.
 */
struct btrfs_dir_reada *btrfs_dir_reada_begin(struct btrfs_inode *dir, u64 pos, u64 last_index)
{
	struct btrfs_fs_info *fs_info = dir->root->fs_info;
	struct btrfs_rust_directory directory = {
		.ino = btrfs_ino(dir),
		.size = i_size_read(&dir->vfs_inode),
		.last_index = last_index,
	};
	struct btrfs_rust_disk disk;
	struct btrfs_dir_reada *reada;

	if (!READ_ONCE(fs_info->reada.dir_enable) || pos > last_index)
		return NULL;
	if (pos > BTRFS_DIR_START_INDEX) {
		reada = btrfs_dir_reada_get(dir, true);
		if (reada)
			return reada;
	}
	reada = kzalloc_obj(*reada, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN);
	if (!reada)
		return NULL;
	refcount_set(&reada->refs, 1);
	mutex_init(&reada->lock);
	reada->root_id = btrfs_root_id(dir->root);
	reada->ino = btrfs_ino(dir);
	reada->fs_info = fs_info;
	disk = btrfs_reada_disk(fs_info);
	btrfs_dir_readas_ask(dir, &directory);
	reada->is_expected = directory.window && !directory.is_refused;
	btrfs_rust_dir_reada_init(&reada->plan, &disk, &directory);
	btrfs_dir_readas_add(reada, dir);
	return reada;
}

static void hold(struct btrfs_dir_reada *reada)
{
	btrfs_dir_reada_hold(reada, &reada->fs_info->reada_tree, &reada->held,
			     btrfs_rust_dir_reada_held(&reada->plan));
	WRITE_ONCE(reada->is_done, btrfs_rust_dir_reada_is_done(&reada->plan));
}

/* The readers of the filesystem besides a directory with @held bytes, which is not counted. */
struct btrfs_rust_others btrfs_dir_reada_others(const struct btrfs_reada_total *total, u64 held)
{
	struct btrfs_rust_others others = btrfs_reada_others(total, held);

	others.count++;
	return others;
}

/*
 * Plan the batch that the last event has asked for, and submit it. Returns false during a commit:
 * the next event asks again.
 */
static bool read_batch(struct btrfs_dir_reada *reada, struct btrfs_root *root)
{
	struct btrfs_rust_leaves batch;

	lockdep_assert_held(&reada->lock);

	/* Listings and lookups do not wait for commits. */
	if (!down_read_trylock(&root->fs_info->commit_root_sem))
		return false;
	batch = btrfs_rust_dir_reada_plan(&reada->plan, root,
					  btrfs_dir_reada_others(&root->fs_info->reada_tree,
								 reada->held));
	btrfs_reada_count_batch(root, &batch);
	btrfs_reada_submit(root, &batch, false);
	up_read(&root->fs_info->commit_root_sem);
	return true;
}

/* Move the listing to the index @pos, and read ahead. */
void btrfs_dir_reada_list(struct btrfs_dir_reada *reada, struct btrfs_inode *dir, u64 pos)
{
	if (!reada || !mutex_trylock(&reada->lock))
		return;
	while (btrfs_rust_dir_reada_list(&reada->plan, pos) &&
	       read_batch(reada, dir->root))
		;
	mutex_unlock(&reada->lock);
}

/*
 * Note the entries in @buf, struct dir_entry, with an index below @pos: they were listed. Where
 * some are subvolumes, no directories are noted: the number of a subvolume is not that of an inode.
 */
void btrfs_dir_reada_add(struct btrfs_dir_reada *reada, const void *buf, int entries, u64 pos)
{
	if (!reada || !mutex_trylock(&reada->lock))
		return;
	while (entries--) {
		const struct dir_entry *entry = buf;

		if (get_unaligned(&entry->offset) >= pos)
			break;
		if (get_unaligned(&entry->type) != DT_DIR || !READ_ONCE(reada->has_subvolumes))
			btrfs_rust_dir_reada_add(&reada->plan, get_unaligned(&entry->offset),
						 get_unaligned(&entry->ino),
						 get_unaligned(&entry->type));
		buf += sizeof(*entry) + get_unaligned(&entry->name_len);
	}
	mutex_unlock(&reada->lock);
}

/* Tell the parent of a directory that it was listed, and read ahead for the next subdirectories. */
static void report_listing(struct dentry *dentry, bool is_expected)
{
	const struct btrfs_inode *dir = BTRFS_I(d_inode(dentry));
	struct dentry *parent_dentry = dget_parent(dentry);
	struct btrfs_inode *parent = BTRFS_I(d_inode(parent_dentry));
	struct btrfs_dir_reada *reada = NULL;

	/* The root of a subvolume has its parent in another tree. */
	if (parent != dir && parent->root == dir->root)
		reada = btrfs_dir_reada_get(parent, true);
	if (reada && mutex_trylock(&reada->lock)) {
		if (btrfs_rust_dir_reada_list_child(&reada->plan, btrfs_ino(dir), is_expected))
			read_batch(reada, parent->root);
		hold(reada);
		mutex_unlock(&reada->lock);
	}
	if (reada)
		btrfs_dir_reada_put(reada);
	dput(parent_dentry);
}

/* Read ahead for the lookups, and file data, if that is due. The caller holds the lock. */
void btrfs_dir_reada_go_on(struct btrfs_dir_reada *reada, struct btrfs_root *root)
{
	if (btrfs_rust_dir_reada_end_part(&reada->plan))
		read_batch(reada, root);
	if (btrfs_rust_dir_reada_are_files_due(&reada->plan))
		btrfs_dir_reada_files(reada, root);
	hold(reada);
}

/*
 * End a part of the listing. If its entries are being looked up, read ahead for them. @path is
 * released: after an error it may hold locks.
 */
void btrfs_dir_reada_end(struct btrfs_dir_reada *reada, struct file *file,
			 struct btrfs_path *path)
{
	struct btrfs_root *root = BTRFS_I(file_inode(file))->root;
	bool is_reported = true;

	if (!reada)
		return;
	btrfs_release_path(path);
	if (mutex_trylock(&reada->lock)) {
		btrfs_dir_reada_go_on(reada, root);
		is_reported = reada->is_reported;
		reada->is_reported = true;
		mutex_unlock(&reada->lock);
	}
	if (!is_reported)
		report_listing(file->f_path.dentry, reada->is_expected);
	btrfs_dir_reada_put(reada);
}

/*
 * Note the lookup of the inode @ino in @dir, and read ahead. Nothing is done if the inode is in
 * memory, or if another task is looking up an entry of the same directory. Returns whether the
 * caller need not read ahead: this readahead follows the directory, or the inode is in memory.
 */
bool btrfs_dir_reada_look_up(struct btrfs_inode *dir, u64 ino)
{
	struct btrfs_root *root = dir->root;
	struct btrfs_dir_reada *reada;

	if (list_empty(&root->fs_info->dir_readas.list) ||
	    !READ_ONCE(root->fs_info->reada.dir_enable))
		return false;
	if (xa_load(&root->inodes, ino))
		return true;
	reada = btrfs_dir_reada_get(dir, true);
	if (!reada)
		return false;
	if (mutex_trylock(&reada->lock)) {
		if (btrfs_rust_dir_reada_look_up(&reada->plan, root, ino))
			read_batch(reada, root);
		hold(reada);
		mutex_unlock(&reada->lock);
	}
	btrfs_dir_reada_put(reada);
	return true;
}
