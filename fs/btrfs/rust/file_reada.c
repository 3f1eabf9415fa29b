// SPDX-License-Identifier: GPL-2.0

/*
 * Readahead of file data into the page cache, for a task that reads the files of a directory one
 * after the other. dir_reada/files.rs decides what to read.
 */

#include <linux/blkdev.h>
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <trace/events/btrfs.h>
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../fs.h"
#include "data_reada.h"
#include "dir_reada.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/*
 * Plan a batch, and start reading the leaves with its checksums. During a commit, the batch is
 * empty and stays due.
 */
static struct btrfs_rust_dir_files plan_files(struct btrfs_dir_reada *reada,
					      struct btrfs_root *root)
{
	struct btrfs_fs_info *fs_info = root->fs_info;
	const struct btrfs_rust_disk disk = btrfs_reada_disk(fs_info);
	u32 budget = btrfs_rust_window(&disk) >> fs_info->nodesize_bits;
	struct btrfs_rust_last_leaf last = { };
	struct btrfs_rust_dir_files batch = { .held = reada->held_data };
	struct btrfs_rust_others others;
	struct blk_plug plug;
	u64 bytes = 0;

	if (!down_read_trylock(&fs_info->commit_root_sem))
		return batch;
	others = btrfs_dir_reada_others(&fs_info->reada_data, reada->held_data);
	batch = btrfs_rust_dir_reada_plan_files(&reada->plan, root, others);
	blk_start_plug(&plug);
	for (u32 i = 0; i < batch.count; i++) {
		bytes += batch.ranges[i].len;
		if (budget && !rwsem_is_contended(&fs_info->commit_root_sem))
			btrfs_reada_csums(&last, fs_info, batch.ranges[i].bytenr, &budget);
	}
	blk_finish_plug(&plug);
	up_read(&fs_info->commit_root_sem);

	btrfs_dir_reada_hold(reada, &fs_info->reada_data, &reada->held_data, batch.held);
	if (batch.wasted)
		btrfs_reada_wasted(fs_info, reada->root_id, reada->ino, 0, batch.wasted);
	if (bytes) {
		btrfs_reada_planned(root, reada->ino, bytes);
		trace_btrfs_readahead_plan(root, reada->ino, bytes, batch.held);
	}
	return batch;
}

/* Whether the inode @ino is being freed just now. btrfs_iget() would wait for that. */
static bool is_freed(struct btrfs_root *root, u64 ino)
{
	struct btrfs_inode *inode;
	bool ret;

	xa_lock(&root->inodes);
	inode = xa_load(&root->inodes, ino);
	ret = inode && inode_state_read_once(&inode->vfs_inode) & (I_FREEING | I_WILL_FREE);
	xa_unlock(&root->inodes);
	return ret;
}

/*
 * Whether data of an inode can be read ahead without waiting for another task, or for a write whose
 * pages are gone and whose ordered extent is not finished. Relocation does not wait for reads, so
 * data without checksums might be wrong. Data with fs-verity cannot be verified before the file is
 * open.
 */
static bool can_read(struct btrfs_inode *btrfs_inode)
{
	struct inode *inode = &btrfs_inode->vfs_inode;

	return S_ISREG(inode->i_mode) && inode->i_nlink &&
	       !(btrfs_inode->flags & BTRFS_INODE_NODATASUM) && !IS_VERITY(inode) &&
	       !inode->i_mapping->nrpages && !inode_is_locked(inode) &&
	       !atomic_read(&inode->i_dio_count) && RB_EMPTY_ROOT(&btrfs_inode->ordered_tree);
}

/* Start reading the beginning of a file into the page cache. Returns whether there is some. */
static bool read_file(struct btrfs_root *root, const struct btrfs_rust_file_range *range)
{
	struct file_ra_state ra = { };
	struct btrfs_inode *btrfs_inode;
	struct inode *inode;
	bool is_read;
	u64 end;

	if (is_freed(root, range->ino))
		return false;
	btrfs_inode = btrfs_iget(range->ino, root);
	if (IS_ERR(btrfs_inode))
		return false;
	inode = &btrfs_inode->vfs_inode;
	end = min_t(u64, range->len, i_size_read(inode));
	if (end && can_read(btrfs_inode)) {
		ra.ra_pages = DIV_ROUND_UP_ULL(end, PAGE_SIZE);
		page_cache_sync_readahead(inode->i_mapping, &ra, NULL, 0, ra.ra_pages);
	}
	is_read = inode->i_mapping->nrpages && ra.ra_pages;
	if (is_read)
		btrfs_reada_submitted(root->fs_info, btrfs_root_id(root), range->ino, 0,
				      range->len);
	/* The last reference to a deleted inode: do not wait for the transaction that frees it. */
	if (inode->i_nlink)
		iput(inode);
	else
		btrfs_add_delayed_iput(btrfs_inode);
	return is_read;
}

/* Plan and read a batch. The caller holds the lock of @reada. */
void btrfs_dir_reada_files(struct btrfs_dir_reada *reada, struct btrfs_root *root)
{
	struct btrfs_rust_dir_files batch;
	struct blk_plug plug;
	u64 held;

	lockdep_assert_held(&reada->lock);

	/* Inodes of a deleted subvolume do not stay in memory. */
	if (!READ_ONCE(root->fs_info->reada.data_enable) || !btrfs_root_refs(&root->root_item))
		return;
	batch = plan_files(reada, root);
	held = batch.held;
	blk_start_plug(&plug);
	for (u32 i = 0; i < batch.count; i++) {
		if (fatal_signal_pending(current) || !read_file(root, &batch.ranges[i]))
			held = btrfs_rust_dir_reada_skip_file(&reada->plan,
							      batch.ranges[i].ino);
	}
	blk_finish_plug(&plug);
	btrfs_dir_reada_hold(reada, &root->fs_info->reada_data, &reada->held_data, held);
}

/*
 * Note a read of @inode, in the directory of @reada. @folio is its first one, or an error. Returns
 * whether this is a use of the readahead: not if the data was in memory before.
 */
static bool note_read(struct btrfs_dir_reada *reada, struct inode *inode,
		      const struct folio *folio)
{
	struct btrfs_root *root = BTRFS_I(inode)->root;
	const u64 ino = btrfs_ino(BTRFS_I(inode));
	struct btrfs_rust_file_use use;
	bool is_use;

	lockdep_assert_held(&reada->lock);

	use = btrfs_rust_dir_reada_read(&reada->plan, ino, !IS_ERR(folio),
					atomic_xchg(&reada->missed, 0));
	is_use = IS_ERR(folio) || use.used;
	if (is_use)
		btrfs_dir_reada_use(reada);
	btrfs_dir_reada_hold(reada, &root->fs_info->reada_data, &reada->held_data, use.held);
	if (use.used && IS_ERR(folio))
		use.wasted += use.used;
	else if (use.used)
		btrfs_reada_used(root->fs_info, btrfs_root_id(root), ino, 0, use.used,
				 !folio_test_uptodate(folio));
	if (use.wasted)
		btrfs_reada_wasted(root->fs_info, btrfs_root_id(root), ino, 0, use.wasted);
	return is_use;
}

/*
 * Note a read of the beginning of a file, and read ahead. A read that must not wait is only noted,
 * if the data is in memory. Otherwise io_uring reads again, but finds the pages that the page cache
 * has begun to read meanwhile: its reads do not start the readahead. In an IOCB_WAITQ read, this
 * may wait for metadata, as the readahead of the page cache does.
 */
static void read_beginning(struct btrfs_dir_reada *reada, struct inode *inode, bool may_wait)
{
	struct folio *folio = filemap_get_folio(inode->i_mapping, 0);
	const bool has_data = !IS_ERR(folio);

	if (!has_data && !may_wait)
		return;
	if (mutex_trylock(&reada->lock)) {
		if (note_read(reada, inode, folio) && may_wait)
			btrfs_dir_reada_go_on(reada, BTRFS_I(inode)->root);
		mutex_unlock(&reada->lock);
	} else if (may_wait) {
		atomic_inc(&reada->missed);
	}
	if (has_data)
		folio_put(folio);
}

/*
 * Note a read of a file. If it is the beginning, and files of the same directory are read one after
 * the other, read the next ones ahead.
 */
void btrfs_dir_reada_read(const struct kiocb *iocb)
{
	const struct file *file = iocb->ki_filp;
	struct inode *inode = file_inode(file);
	const struct btrfs_fs_info *fs_info = inode_to_fs_info(inode);
	struct btrfs_dir_reada *reada = NULL;
	struct btrfs_inode *dir;
	struct dentry *parent;

	if (iocb->ki_pos || iocb->ki_flags & (IOCB_DIRECT | IOCB_NOIO) ||
	    file->f_mode & FMODE_RANDOM || !i_size_read(inode))
		return;
	if (list_empty(&fs_info->dir_readas.list) || !READ_ONCE(fs_info->reada.dir_enable) ||
	    !READ_ONCE(fs_info->reada.data_enable))
		return;
	parent = dget_parent(file->f_path.dentry);
	dir = BTRFS_I(d_inode(parent));
	if (dir->root == BTRFS_I(inode)->root)
		reada = btrfs_dir_reada_get(dir, false);
	dput(parent);
	if (!reada)
		return;
	read_beginning(reada, inode, !(iocb->ki_flags & IOCB_NOWAIT));
	btrfs_dir_reada_put(reada);
}
