// SPDX-License-Identifier: GPL-2.0

#include <linux/atomic.h>
#include <linux/bitops.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include "../../ctree.h"
#include "../../extent_io.h"
#include "../btrfs_rust.h"
#include "debug.h"

static atomic64_t readahead_blocks;
static atomic64_t readahead_used;
/* Maximum number of unused blocks at a time; blocks that are never used stay counted. */
static atomic64_t readahead_unused_max;
static atomic64_t extent_tree_searches;

static struct dentry *counters_file;

/* Count @eb before its readahead, unless it was counted and not used since. */
void btrfs_debug_readahead(struct extent_buffer *eb)
{
	s64 unused;
	s64 max;

	if (test_and_set_bit(EXTENT_BUFFER_READAHEAD, &eb->bflags))
		return;
	unused = atomic64_inc_return(&readahead_blocks) - atomic64_read(&readahead_used);
	max = atomic64_read(&readahead_unused_max);
	while (unused > max && !atomic64_try_cmpxchg(&readahead_unused_max, &max, unused))
		;
}

/* Count the first use of @eb after it was read ahead. */
void btrfs_debug_use(struct extent_buffer *eb)
{
	if (test_and_clear_bit(EXTENT_BUFFER_READAHEAD, &eb->bflags))
		atomic64_inc(&readahead_used);
}

void btrfs_count_search(const struct btrfs_root *root)
{
	if (btrfs_root_id(root) == BTRFS_EXTENT_TREE_OBJECTID)
		atomic64_inc(&extent_tree_searches);
}

static int counters_show(struct seq_file *m, void *v)
{
	seq_printf(m, "readahead_blocks %lld\n", atomic64_read(&readahead_blocks));
	seq_printf(m, "readahead_used %lld\n", atomic64_read(&readahead_used));
	seq_printf(m, "readahead_unused_max %lld\n", atomic64_read(&readahead_unused_max));
	seq_printf(m, "extent_tree_searches %lld\n", atomic64_read(&extent_tree_searches));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

int __init btrfs_counters_init(void)
{
	counters_file = debugfs_create_file("btrfs_counters", 0400, NULL, NULL, &counters_fops);
	return 0;
}

void btrfs_counters_exit(void)
{
	debugfs_remove(counters_file);
}

#ifdef CONFIG_BTRFS_RUST

static bool reada_pause;
module_param(reada_pause, bool, 0644);
MODULE_PARM_DESC(reada_pause, "Whether the workers of the readahead wait (default off)");

/* Wait as long as the parameter is on, but not after @stop is set. */
void btrfs_debug_pause_reada(const bool *stop)
{
	while (READ_ONCE(reada_pause) && !READ_ONCE(*stop))
		msleep(20);
}

/*
 * Tunables: module parameters that switch off single parts, to measure the effect of each. Without
 * the utimes cache, streams have more commands; otherwise only the time changes. With
 * CONFIG_BTRFS_RUST_VERIFY, the C code is used and they change no result.
 */
static struct btrfs_rust_tunables tunables = {
	.reada = BTRFS_RUST_READA_FORWARD_ALWAYS,
	.share_cache = true,
	.utimes_cache = true,
};

static const char * const reada_names[] = { "none", "forward", "always" };
static const u8 reada_modes[] = {
	BTRFS_RUST_READA_NONE,
	BTRFS_RUST_READA_FORWARD,
	BTRFS_RUST_READA_FORWARD_ALWAYS,
};

static int set_reada(const char *value, const struct kernel_param *param)
{
	int found = sysfs_match_string(reada_names, value);

	if (found < 0)
		return found;
	WRITE_ONCE(tunables.reada, reada_modes[found]);
	return 0;
}

static int get_reada(char *buffer, const struct kernel_param *param)
{
	for (int i = 0; i < ARRAY_SIZE(reada_modes); i++) {
		if (reada_modes[i] == READ_ONCE(tunables.reada))
			return sysfs_emit(buffer, "%s\n", reada_names[i]);
	}
	return -EINVAL;
}

static const struct kernel_param_ops reada_ops = {
	.set = set_reada,
	.get = get_reada,
};

module_param_cb(rust_reada, &reada_ops, NULL, 0644);
MODULE_PARM_DESC(rust_reada, "Readahead of searches for all leaves: none, forward or always (default)");

module_param_named(rust_share_cache, tunables.share_cache, bool, 0644);
MODULE_PARM_DESC(rust_share_cache, "Whether fiemap remembers what is shared (default on)");

module_param_named(rust_utimes_cache, tunables.utimes_cache, bool, 0644);
MODULE_PARM_DESC(rust_utimes_cache, "Whether send remembers directories (default on)");

struct btrfs_rust_tunables btrfs_rust_tunables(void)
{
	return (struct btrfs_rust_tunables){
		.reada = READ_ONCE(tunables.reada),
		.share_cache = READ_ONCE(tunables.share_cache),
		.utimes_cache = READ_ONCE(tunables.utimes_cache),
	};
}

#endif /* CONFIG_BTRFS_RUST */
