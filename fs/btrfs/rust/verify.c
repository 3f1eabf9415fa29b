// SPDX-License-Identifier: GPL-2.0

#include <linux/atomic.h>
#include <linux/bug.h>
#include <linux/debugfs.h>
#include <linux/hash.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include "verify.h"

static const char * const names[BTRFS_VERIFY_NR] = {
	[BTRFS_VERIFY_READA_SEARCH]		= "reada_search",
	[BTRFS_VERIFY_READA_MOVE_DOWN]		= "reada_move_down",
	[BTRFS_VERIFY_SHARE_LOOKUP]		= "share_lookup",
	[BTRFS_VERIFY_SHARE_STORE]		= "share_store",
	[BTRFS_VERIFY_SHARE_END]		= "share_end",
	[BTRFS_VERIFY_SHARE_PREV_EXTENT]	= "share_prev_extent",
	[BTRFS_VERIFY_UTIMES_CACHE]		= "utimes_cache",
	[BTRFS_VERIFY_UTIMES_SEND]		= "utimes_send",
	[BTRFS_VERIFY_LRU]			= "lru",
	[BTRFS_VERIFY_NEXT_EXTENT]		= "next_extent",
};

static struct {
	atomic64_t compared;
	atomic64_t different;
	/* Not comparable: the state that the decision depends on changed in between. */
	atomic64_t skipped;
} counts[BTRFS_VERIFY_NR];

static struct dentry *verify_file;

/* Count a comparison, and warn if it is the first of its kind to find a difference. */
void btrfs_verify_count(enum btrfs_verify_what what, bool same)
{
	atomic64_inc(&counts[what].compared);
	if (same)
		return;
	WARN(atomic64_inc_return(&counts[what].different) == 1,
	     "btrfs: Rust differs from C in %s\n", names[what]);
}

void btrfs_verify_skip(enum btrfs_verify_what what)
{
	atomic64_inc(&counts[what].skipped);
}

void btrfs_verify_reada(enum btrfs_verify_what what, const struct btrfs_rust_reada *c,
			const struct btrfs_rust_reada *rust)
{
	btrfs_verify_count(what, c->count == rust->count &&
			   memcmp(c->slots, rust->slots, c->count * sizeof(c->slots[0])) == 0);
}

/* Stands for btrfs_readahead_node_child() in the C code. */
void btrfs_verify_note_reada(struct btrfs_rust_reada *selected, int slot)
{
	if (!WARN_ON_ONCE(selected->count >= BTRFS_RUST_READA_MAX))
		selected->slots[selected->count++] = slot;
}

/* The same in reada_for_search(), whose @path is part of a struct btrfs_verify_reada. */
void btrfs_verify_note_search(const struct btrfs_path *path, int slot)
{
	struct btrfs_verify_reada *c;

	c = container_of((struct btrfs_path *)path, struct btrfs_verify_reada, path);
	btrfs_verify_note_reada(&c->selected, slot);
}

/* Stands for send_utimes() in the C code. Returns 0, as a command that could be sent. */
int btrfs_verify_note_utimes(struct btrfs_verify_utimes *sent, u64 ino, u64 gen)
{
	sent->count++;
	sent->hash = (sent->hash ^ ino) * GOLDEN_RATIO_64;
	sent->hash = (sent->hash ^ gen) * GOLDEN_RATIO_64;
	return 0;
}

static int btrfs_rust_verify_show(struct seq_file *seq, void *unused)
{
	for (int i = 0; i < BTRFS_VERIFY_NR; i++)
		seq_printf(seq, "%s compared %lld different %lld skipped %lld\n", names[i],
			   (long long)atomic64_read(&counts[i].compared),
			   (long long)atomic64_read(&counts[i].different),
			   (long long)atomic64_read(&counts[i].skipped));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(btrfs_rust_verify);

int __init btrfs_verify_init(void)
{
	verify_file = debugfs_create_file("btrfs_rust_verify", 0400, NULL, NULL,
					  &btrfs_rust_verify_fops);
	return 0;
}

void __cold btrfs_verify_exit(void)
{
	debugfs_remove(verify_file);
}
