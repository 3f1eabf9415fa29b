// SPDX-License-Identifier: GPL-2.0

/*
 * The states of the directories that were listed, for dir_reada.c.
 *
 * The state of a directory does not depend on open files: many programs close a directory before
 * they look up its entries. A filesystem keeps the states of the directories listed last, until
 * they are not used for a while. A state is not found any more if the inode of the directory was
 * freed meanwhile.
 */

#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/refcount.h>
#include <linux/workqueue.h>
#include "../btrfs_inode.h"
#include "../ctree.h"
#include "../fs.h"
#include "dir_reada.h"
#include "leaf_reada.h"
#include "reada_stats.h"

/* Directories of a filesystem, and the time after which an unused one is dropped. */
#define MAX_DIRS	32
#define EXPIRE_TIME	(30 * HZ)
/*
 * The time after which a directory holds no part of the totals. A walk that goes on comes back to
 * it sooner, even on a slow disk, or counts again then.
 */
#define IDLE_TIME	(2 * HZ)
/* Directories that tell what to expect of the next one. */
#define ASKED_DIRS	3

/* Drop a reference. */
void btrfs_dir_reada_put(struct btrfs_dir_reada *reada)
{
	u64 unread;

	if (!refcount_dec_and_test(&reada->refs))
		return;
	btrfs_reada_hold(&reada->fs_info->reada_tree, &reada->held, 0);
	btrfs_reada_hold(&reada->fs_info->reada_data, &reada->held_data, 0);
	unread = btrfs_rust_dir_reada_destroy(&reada->plan);
	if (unread)
		btrfs_reada_wasted(reada->fs_info, reada->root_id, reada->ino, 0, unread);
	kfree(reada);
}

/*
 * Set the bytes of @reada in @total, which are in @held, to @bytes, or to 0 if it is idle. The
 * caller holds the lock of @reada.
 */
void btrfs_dir_reada_hold(const struct btrfs_dir_reada *reada, struct btrfs_reada_total *total,
			  u64 *held, u64 bytes)
{
	lockdep_assert_held(&reada->lock);

	if (jiffies - READ_ONCE(reada->last_use) >= IDLE_TIME)
		bytes = 0;
	if (bytes != *held)
		btrfs_reada_hold(total, held, bytes);
}

/*
 * Take the bytes of a directory that nobody walks any more out of the totals. Another task that has
 * the lock is using the directory.
 */
static void release(struct btrfs_dir_reada *reada)
{
	if (!mutex_trylock(&reada->lock))
		return;
	btrfs_reada_hold(&reada->fs_info->reada_tree, &reada->held, 0);
	btrfs_reada_hold(&reada->fs_info->reada_data, &reada->held_data, 0);
	mutex_unlock(&reada->lock);
}

/* Release the bytes of idle directories, and drop those that were not used for a while. */
static void expire_work(struct work_struct *work)
{
	struct btrfs_dir_readas *dirs = container_of(to_delayed_work(work),
						     struct btrfs_dir_readas, expire);
	struct btrfs_dir_reada *dropped[MAX_DIRS];
	struct btrfs_dir_reada *reada, *next;
	unsigned long delay = IDLE_TIME;
	int count = 0;

	spin_lock(&dirs->lock);
	list_for_each_entry_safe(reada, next, &dirs->list, list) {
		const unsigned long unused = jiffies - reada->last_use;

		if (unused >= EXPIRE_TIME) {
			list_del_init(&reada->list);
			dirs->count--;
			dropped[count++] = reada;
		} else if (unused >= IDLE_TIME) {
			release(reada);
		} else {
			delay = min(delay, IDLE_TIME - unused);
		}
	}
	if (dirs->count)
		queue_delayed_work(system_dfl_wq, &dirs->expire, delay);
	spin_unlock(&dirs->lock);
	while (count)
		btrfs_dir_reada_put(dropped[--count]);
}

void btrfs_dir_readas_init(struct btrfs_fs_info *fs_info)
{
	struct btrfs_dir_readas *dirs = &fs_info->dir_readas;

	spin_lock_init(&dirs->lock);
	INIT_LIST_HEAD(&dirs->list);
	INIT_DELAYED_WORK(&dirs->expire, expire_work);
}

/*
 * Free all, before the devices are closed: tracepoints need them. No directory of the filesystem is
 * in use any more.
 */
void btrfs_dir_readas_destroy(struct btrfs_fs_info *fs_info)
{
	struct btrfs_dir_reada *reada, *next;

	cancel_delayed_work_sync(&fs_info->dir_readas.expire);
	list_for_each_entry_safe(reada, next, &fs_info->dir_readas.list, list)
		btrfs_dir_reada_put(reada);
}

/* Note the task and the time. The caller holds the lock of the list, or @reada is not in it. */
static void note_use(struct btrfs_dir_reada *reada)
{
	WRITE_ONCE(reada->last_use, jiffies);
	reada->tgid = current->tgid;
	reada->pid = current->pid;
}

/* Find the readahead of @dir in the list. The caller holds the lock of @dirs. */
static struct btrfs_dir_reada *find_reada(struct btrfs_dir_readas *dirs,
					  const struct btrfs_inode *dir)
{
	struct btrfs_dir_reada *reada;

	lockdep_assert_held(&dirs->lock);
	list_for_each_entry(reada, &dirs->list, list) {
		if (reada->ino == btrfs_ino(dir) && reada->root_id == btrfs_root_id(dir->root))
			return reada;
	}
	return NULL;
}

/* Note a use of @reada by the current task. */
void btrfs_dir_reada_use(struct btrfs_dir_reada *reada)
{
	struct btrfs_dir_readas *dirs = &reada->fs_info->dir_readas;

	spin_lock(&dirs->lock);
	note_use(reada);
	/* It may have been dropped meanwhile. */
	if (!list_empty(&reada->list))
		list_move(&reada->list, &dirs->list);
	spin_unlock(&dirs->lock);
}

/*
 * Get a reference to the readahead of @dir, and note a use if @is_use. Returns NULL if there is
 * none.
 */
struct btrfs_dir_reada *btrfs_dir_reada_get(struct btrfs_inode *dir, bool is_use)
{
	struct btrfs_dir_readas *dirs = &dir->root->fs_info->dir_readas;
	struct btrfs_dir_reada *reada;

	if (!test_bit(BTRFS_INODE_DIR_READA, &dir->runtime_flags))
		return NULL;
	spin_lock(&dirs->lock);
	reada = find_reada(dirs, dir);
	if (reada)
		refcount_inc(&reada->refs);
	else
		clear_bit(BTRFS_INODE_DIR_READA, &dir->runtime_flags);
	if (reada && is_use) {
		list_move(&reada->list, &dirs->list);
		note_use(reada);
	}
	spin_unlock(&dirs->lock);
	return reada;
}

/*
 * The directory to drop for another one: that of those without anything to read ahead which was not
 * used for the longest, or of all. A directory is used again when all below it were walked.
 */
static struct btrfs_dir_reada *oldest_reada(struct btrfs_dir_readas *dirs)
{
	struct btrfs_dir_reada *reada;

	lockdep_assert_held(&dirs->lock);
	list_for_each_entry_reverse(reada, &dirs->list, list) {
		if (READ_ONCE(reada->is_done))
			return reada;
	}
	return list_last_entry(&dirs->list, struct btrfs_dir_reada, list);
}

/* Add @reada in place of the one that @dir has, or of the one to drop. */
void btrfs_dir_readas_add(struct btrfs_dir_reada *reada, struct btrfs_inode *dir)
{
	struct btrfs_dir_readas *dirs = &dir->root->fs_info->dir_readas;
	struct btrfs_dir_reada *old;

	note_use(reada);
	refcount_inc(&reada->refs);
	spin_lock(&dirs->lock);
	old = find_reada(dirs, dir);
	if (!old && dirs->count == MAX_DIRS)
		old = oldest_reada(dirs);
	if (old)
		list_del_init(&old->list);
	else if (!dirs->count++)
		queue_delayed_work(system_dfl_wq, &dirs->expire, IDLE_TIME);
	list_add(&reada->list, &dirs->list);
	set_bit(BTRFS_INODE_DIR_READA, &dir->runtime_flags);
	spin_unlock(&dirs->lock);
	if (old)
		btrfs_dir_reada_put(old);
}

/*
 * Ask the directories that this process has used last what to expect of @dir. The last one is often
 * its parent, of which few entries have been looked up yet, and the one before a sibling.
 */
void btrfs_dir_readas_ask(const struct btrfs_inode *dir, struct btrfs_rust_directory *directory)
{
	struct btrfs_dir_readas *dirs = &dir->root->fs_info->dir_readas;
	struct btrfs_dir_reada *others[ASKED_DIRS];
	bool is_same_task[ASKED_DIRS];
	struct btrfs_dir_reada *reada;
	int count = 0;

	spin_lock(&dirs->lock);
	list_for_each_entry(reada, &dirs->list, list) {
		if (reada->root_id != btrfs_root_id(dir->root) || reada->tgid != current->tgid)
			continue;
		refcount_inc(&reada->refs);
		is_same_task[count] = reada->pid == current->pid;
		others[count++] = reada;
		if (count == ASKED_DIRS)
			break;
	}
	spin_unlock(&dirs->lock);
	for (int i = 0; i < count; i++) {
		if (mutex_trylock(&others[i]->lock)) {
			btrfs_rust_dir_reada_habit(&others[i]->plan, dir->root, is_same_task[i],
						   directory);
			mutex_unlock(&others[i]->lock);
		}
		btrfs_dir_reada_put(others[i]);
	}
}
