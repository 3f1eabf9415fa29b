// SPDX-License-Identifier: GPL-2.0

/*
 * Settings and counters for the readahead of send and fiemap.
 *
 * Path: /sys/fs/btrfs/<uuid>/readahead/
 */

#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sysfs.h>
#include <trace/events/btrfs.h>
#include "../accessors.h"
#include "../ctree.h"
#include "../extent_io.h"
#include "../fs.h"
#include "../volumes.h"
#include "reada_stats.h"

/* With VERIFY, searches select readahead as upstream's do, to be compared, unless this is set. */
static bool tree_enable = !IS_ENABLED(CONFIG_BTRFS_RUST_VERIFY);
module_param_named(readahead_tree_enable, tree_enable, bool, 0644);
MODULE_PARM_DESC(readahead_tree_enable,
		 "Whether send and fiemap plan the readahead of tree blocks, in filesystems mounted later (default on, with CONFIG_BTRFS_RUST_VERIFY off)");

static bool data_enable = true;
module_param_named(readahead_data_enable, data_enable, bool, 0644);
MODULE_PARM_DESC(readahead_data_enable,
		 "Whether send plans the readahead of file data, in filesystems mounted later (default on)");

static unsigned int window_kb;
module_param_named(readahead_window_kb, window_kb, uint, 0644);
MODULE_PARM_DESC(readahead_window_kb,
		 "KiB that a send or fiemap reads ahead at most, in filesystems mounted later (default 0: what disk and memory give)");

/* Returns -ENOMEM without memory; btrfs_reada_destroy() is to be called in any case. */
int btrfs_reada_init(struct btrfs_fs_info *fs_info)
{
	fs_info->reada = (struct btrfs_reada_settings){
		.tree_enable = READ_ONCE(tree_enable),
		.data_enable = READ_ONCE(data_enable),
		.window_kb = READ_ONCE(window_kb),
	};
	fs_info->reada_stats = alloc_percpu(struct btrfs_reada_stats);
	return fs_info->reada_stats ? 0 : -ENOMEM;
}

void btrfs_reada_destroy(struct btrfs_fs_info *fs_info)
{
	free_percpu(fs_info->reada_stats);
}

static void count(const struct btrfs_fs_info *fs_info, enum btrfs_reada_stat stat, u64 ino,
		  u64 bytes)
{
	this_cpu_add(fs_info->reada_stats->bytes[ino != 0][stat], bytes);
}

void btrfs_reada_planned(const struct btrfs_root *root, u64 ino, u64 bytes)
{
	count(root->fs_info, BTRFS_READA_PLANNED, ino, bytes);
}

void btrfs_reada_submitted(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start,
			   u64 len)
{
	count(fs_info, BTRFS_READA_SUBMITTED, ino, len);
	trace_btrfs_readahead_submit(fs_info, root_id, ino, start, len);
}

void btrfs_reada_used(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start, u64 len,
		      bool has_to_wait)
{
	count(fs_info, BTRFS_READA_USED, ino, len);
	if (has_to_wait) {
		count(fs_info, BTRFS_READA_WAITED, ino, len);
		trace_btrfs_readahead_wait(fs_info, root_id, ino, start, len);
	}
}

void btrfs_reada_wasted(const struct btrfs_fs_info *fs_info, u64 root_id, u64 ino, u64 start,
			u64 len)
{
	count(fs_info, BTRFS_READA_WASTED, ino, len);
	trace_btrfs_readahead_waste(fs_info, root_id, ino, start, len);
}

/* Count @eb as submitted for reading, unless it is being read or is still unused. */
void btrfs_reada_block_submitted(struct extent_buffer *eb, u64 root_id)
{
	if (!test_bit(EXTENT_BUFFER_READING, &eb->bflags) &&
	    !test_and_set_bit(EXTENT_BUFFER_PLANNED, &eb->bflags))
		btrfs_reada_submitted(eb->fs_info, root_id, 0, eb->start, eb->len);
}

/* Count the first use of @eb after it was read ahead. */
void btrfs_reada_block_used(struct extent_buffer *eb, u64 root_id)
{
	if (test_and_clear_bit(EXTENT_BUFFER_PLANNED, &eb->bflags))
		btrfs_reada_used(eb->fs_info, root_id, 0, eb->start, eb->len,
				 test_bit(EXTENT_BUFFER_READING, &eb->bflags));
}

/* Count @eb as wasted: it is freed without having been used. */
void btrfs_reada_block_released(struct extent_buffer *eb)
{
	btrfs_reada_wasted(eb->fs_info, extent_buffer_uptodate(eb) ? btrfs_header_owner(eb) : 0, 0,
			   eb->start, eb->len);
}

/* Add the lookups of a fiemap call in the sharedness cache to the counters. */
void btrfs_share_count_end(const struct btrfs_share_stats *stats)
{
	if (!stats->fs_info)
		return;
	this_cpu_add(stats->fs_info->reada_stats->share_hits, stats->hits);
	this_cpu_add(stats->fs_info->reada_stats->share_misses, stats->misses);
}

static struct btrfs_fs_info *to_fs_info(struct kobject *kobj)
{
	return container_of(kobj->parent, struct btrfs_fs_devices, fsid_kobj)->fs_info;
}

struct reada_attribute {
	struct kobj_attribute attr;
	/* The offset in struct btrfs_reada_settings, and the largest value that is accepted. */
	size_t offset;
	u32 max;
};

static u32 *to_setting(struct kobject *kobj, struct reada_attribute *attr)
{
	return (void *)&to_fs_info(kobj)->reada + attr->offset;
}

static ssize_t setting_show(struct kobject *kobj, struct kobj_attribute *a, char *buf)
{
	struct reada_attribute *attr = container_of(a, struct reada_attribute, attr);

	return sysfs_emit(buf, "%u\n", READ_ONCE(*to_setting(kobj, attr)));
}

static ssize_t setting_store(struct kobject *kobj, struct kobj_attribute *a, const char *buf,
			     size_t len)
{
	struct reada_attribute *attr = container_of(a, struct reada_attribute, attr);
	u32 value;
	int ret;

	ret = kstrtou32(buf, 10, &value);
	if (ret)
		return ret;
	if (value > attr->max)
		return -EINVAL;
	WRITE_ONCE(*to_setting(kobj, attr), value);
	return len;
}

static struct reada_attribute tree_enable_attr = {
	.attr = __ATTR(tree_enable, 0644, setting_show, setting_store),
	.offset = offsetof(struct btrfs_reada_settings, tree_enable),
	.max = 1,
};

static struct reada_attribute data_enable_attr = {
	.attr = __ATTR(data_enable, 0644, setting_show, setting_store),
	.offset = offsetof(struct btrfs_reada_settings, data_enable),
	.max = 1,
};

static struct reada_attribute window_kb_attr = {
	.attr = __ATTR(window_kb, 0644, setting_show, setting_store),
	.offset = offsetof(struct btrfs_reada_settings, window_kb),
	.max = U32_MAX,
};

static ssize_t stats_show(struct kobject *kobj, struct kobj_attribute *a, char *buf)
{
	static const char * const kinds[] = { "tree", "data" };
	static const char * const stats[] = {
		[BTRFS_READA_PLANNED] = "planned",
		[BTRFS_READA_SUBMITTED] = "submitted",
		[BTRFS_READA_USED] = "used",
		[BTRFS_READA_WASTED] = "wasted",
		[BTRFS_READA_WAITED] = "waited",
	};
	const struct btrfs_fs_info *fs_info = to_fs_info(kobj);
	struct btrfs_reada_stats sum = { };
	int len = 0;
	int cpu;

	for_each_possible_cpu(cpu) {
		const struct btrfs_reada_stats *local = per_cpu_ptr(fs_info->reada_stats, cpu);

		for (int kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
			for (int stat = 0; stat < ARRAY_SIZE(stats); stat++)
				sum.bytes[kind][stat] += READ_ONCE(local->bytes[kind][stat]);
		}
		sum.share_hits += READ_ONCE(local->share_hits);
		sum.share_misses += READ_ONCE(local->share_misses);
	}

	for (int kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
		for (int stat = 0; stat < ARRAY_SIZE(stats); stat++)
			len += sysfs_emit_at(buf, len, "%s_%s_kb %llu\n", kinds[kind], stats[stat],
					     sum.bytes[kind][stat] >> 10);
	}
	len += sysfs_emit_at(buf, len, "share_cache_hits %llu\n", sum.share_hits);
	len += sysfs_emit_at(buf, len, "share_cache_misses %llu\n", sum.share_misses);
	return len;
}

static struct kobj_attribute stats_attr = __ATTR_RO(stats);

static const struct attribute *reada_attrs[] = {
	&tree_enable_attr.attr.attr,
	&data_enable_attr.attr.attr,
	&window_kb_attr.attr.attr,
	&stats_attr.attr,
	NULL,
};

/* Even on errors, btrfs_reada_sysfs_remove() is to be called. */
int btrfs_reada_sysfs_add(struct btrfs_fs_info *fs_info)
{
	fs_info->reada_kobj = kobject_create_and_add("readahead",
						     &fs_info->fs_devices->fsid_kobj);
	if (!fs_info->reada_kobj)
		return -ENOMEM;
	return sysfs_create_files(fs_info->reada_kobj, reada_attrs);
}

void btrfs_reada_sysfs_remove(struct btrfs_fs_info *fs_info)
{
	if (!fs_info->reada_kobj)
		return;
	sysfs_remove_files(fs_info->reada_kobj, reada_attrs);
	kobject_del(fs_info->reada_kobj);
	kobject_put(fs_info->reada_kobj);
	fs_info->reada_kobj = NULL;
}
