// SPDX-License-Identifier: GPL-2.0

#include <linux/atomic.h>
#include <linux/bug.h>
#include <linux/debugfs.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/string.h>
#include "../../accessors.h"
#include "../../ctree.h"
#include "../../extent_io.h"
#include "../../fs.h"
#include "../../lru_cache.h"
#include "../../reada.h"
#include "../../send_utimes.h"
#include "../../share_cache.h"
#include "../lru.h"
#include "verify.h"

static const char * const names[BTRFS_VERIFY_NR] = {
	[BTRFS_VERIFY_READA_SEARCH]		= "reada_search",
	[BTRFS_VERIFY_READA_MOVE_DOWN]		= "reada_move_down",
	[BTRFS_VERIFY_SHARE_LOOKUP]		= "share_lookup",
	[BTRFS_VERIFY_SHARE_STORE]		= "share_store",
	[BTRFS_VERIFY_SHARE_END]		= "share_end",
	[BTRFS_VERIFY_SHARE_PREV_EXTENT]	= "share_prev_extent",
	[BTRFS_VERIFY_UTIMES_ADD]		= "utimes_add",
	[BTRFS_VERIFY_UTIMES_NEXT]		= "utimes_next",
	[BTRFS_VERIFY_LRU]			= "lru",
	[BTRFS_VERIFY_QUICK_EXTENT]		= "quick_extent",
	[BTRFS_VERIFY_FILE_EXTENT]		= "file_extent",
	[BTRFS_VERIFY_EXTENT_LEAF]		= "extent_leaf",
	[BTRFS_VERIFY_ITEM]			= "item",
};

static struct {
	atomic64_t compared;
	atomic64_t different;
	/* Not comparable: the state changed in between, or a side had no memory. */
	atomic64_t skipped;
} counts[BTRFS_VERIFY_NR];

static struct dentry *verify_file;

/* Count a comparison. Warns about the first difference of each kind. */
void btrfs_verify_count(enum btrfs_verify_what what, bool same)
{
	atomic64_inc(&counts[what].compared);
	if (same)
		return;
	WARN(atomic64_inc_return(&counts[what].different) == 1,
	     "btrfs: Rust differs from C in %s\n", names[what]);
}

static void skip(enum btrfs_verify_what what)
{
	atomic64_inc(&counts[what].skipped);
}

static bool is_same(const struct btrfs_reada_slots *c, const struct btrfs_reada_slots *rust)
{
	return c->count == rust->count &&
	       memcmp(c->slots, rust->slots, c->count * sizeof(c->slots[0])) == 0;
}

void btrfs_verify_select_search(const struct extent_buffer *node, int slot, u8 reada, u64 objectid,
				const struct btrfs_reada_slots *c)
{
	struct btrfs_reada_slots rust, again;

	rust.count = btrfs_rust_select_search(node, slot, reada, objectid, rust.slots);
	btrfs_select_search(node, slot, reada, objectid, &again);
	/* The target block may have been cached or evicted in between. */
	if (is_same(c, &again))
		btrfs_verify_count(BTRFS_VERIFY_READA_SEARCH, is_same(c, &rust));
	else
		skip(BTRFS_VERIFY_READA_SEARCH);
}

void btrfs_verify_select_move_down(const struct extent_buffer *node, int slot, u64 min_gen,
				   const struct btrfs_reada_slots *c)
{
	struct btrfs_reada_slots rust;

	rust.count = btrfs_rust_select_move_down(node, slot, min_gen, rust.slots);
	btrfs_verify_count(BTRFS_VERIFY_READA_MOVE_DOWN, is_same(c, &rust));
}

/* Check that both sides have the same path. */
static void verify_path(const struct btrfs_share_cache *cache, enum btrfs_verify_what what,
			bool same)
{
	for (int level = 0; level < BTRFS_MAX_LEVEL; level++) {
		struct btrfs_rust_share_block rust = { 0 };

		btrfs_rust_share_block(&cache->verify.rust, level, &rust);
		same = same && cache->path[level].bytenr == rust.bytenr &&
		       cache->path[level].is_shared == rust.is_shared;
	}
	btrfs_verify_count(what, same);
}

void btrfs_verify_share_lookup(struct btrfs_share_cache *cache, u64 bytenr, int level, int c)
{
	const int rust = btrfs_rust_share_lookup(&cache->verify.rust, bytenr, level);

	verify_path(cache, BTRFS_VERIFY_SHARE_LOOKUP, c == rust);
}

void btrfs_verify_share_store(struct btrfs_share_cache *cache, u64 bytenr, int level,
			      bool is_shared)
{
	btrfs_rust_share_store(&cache->verify.rust, bytenr, level, is_shared);
	verify_path(cache, BTRFS_VERIFY_SHARE_STORE, true);
}

void btrfs_verify_share_end_many_paths(struct btrfs_share_cache *cache, int level, int result)
{
	btrfs_rust_share_end_many_paths(&cache->verify.rust, level, result);
	verify_path(cache, BTRFS_VERIFY_SHARE_END, true);
}

/* Compare with @c, the result of the C cache or of a walk. Either cache may not have the extent. */
void btrfs_verify_share_prev_extent(const struct btrfs_share_cache *cache, u64 bytenr, int c)
{
	const int rust = btrfs_rust_share_prev_extent(&cache->verify.rust, bytenr);

	if (c >= 0 && rust >= 0)
		btrfs_verify_count(BTRFS_VERIFY_SHARE_PREV_EXTENT, c == rust);
}

void btrfs_verify_share_add_prev_extent(struct btrfs_share_cache *cache, u64 bytenr,
					bool is_shared)
{
	btrfs_rust_share_add_prev_extent(&cache->verify.rust, bytenr, is_shared);
}

/* Check that a search in the commit root finds @slot of @leaf for @key. */
static void verify_search(enum btrfs_verify_what what, struct btrfs_root *root,
			  const struct btrfs_key *key, const struct extent_buffer *leaf, int slot)
{
	struct btrfs_path path = { .search_commit_root = true, .skip_locking = true };
	bool same;

	if (btrfs_search_slot(NULL, root, key, &path, 0, 0) < 0) {
		skip(what);
		return;
	}
	same = path.nodes[0]->start == leaf->start && path.slots[0] == slot;
	btrfs_release_path(&path);
	btrfs_verify_count(what, same);
}

/* Check the result of a search in the leaf of the last extent. */
void btrfs_verify_extent_leaf(struct btrfs_root *root, const struct btrfs_key *key,
			      const struct extent_buffer *leaf, int slot)
{
	verify_search(BTRFS_VERIFY_EXTENT_LEAF, root, key, leaf, slot);
}

/* Check an item that send has read in place. commit_root_sem must still be held. */
void btrfs_verify_item(struct btrfs_root *root, const struct btrfs_path *path)
{
	struct btrfs_key key;

	rwsem_assert_held(&root->fs_info->commit_root_sem);
	btrfs_item_key_to_cpu(path->nodes[0], &key, path->slots[0]);
	verify_search(BTRFS_VERIFY_ITEM, root, &key, path->nodes[0], path->slots[0]);
}

/* Whether @ei is a copy of the file extent item @c in @leaf. */
static bool is_same_extent(const struct extent_buffer *leaf, const struct btrfs_file_extent_item *c,
			   const struct btrfs_file_extent_item *ei)
{
	const u8 type = btrfs_file_extent_type(leaf, c);

	if (type != btrfs_stack_file_extent_type(ei) ||
	    btrfs_file_extent_compression(leaf, c) != btrfs_stack_file_extent_compression(ei) ||
	    btrfs_file_extent_generation(leaf, c) != btrfs_stack_file_extent_generation(ei))
		return false;
	return type == BTRFS_FILE_EXTENT_INLINE ||
	       (btrfs_file_extent_disk_bytenr(leaf, c) == btrfs_stack_file_extent_disk_bytenr(ei) &&
		btrfs_file_extent_offset(leaf, c) == btrfs_stack_file_extent_offset(ei) &&
		btrfs_file_extent_num_bytes(leaf, c) == btrfs_stack_file_extent_num_bytes(ei));
}

/* Compare copies of a key and of its file extent item with the fields in the leaf. */
void btrfs_verify_file_extent(const struct btrfs_path *path, const struct btrfs_key *key,
			      const struct btrfs_file_extent_item *ei)
{
	const struct extent_buffer *leaf = path->nodes[0];
	const int slot = path->slots[0];
	struct btrfs_key found;
	bool same;

	btrfs_item_key_to_cpu(leaf, &found, slot);
	same = btrfs_comp_cpu_keys(key, &found) == 0;
	if (found.type == BTRFS_EXTENT_DATA_KEY)
		same = same && is_same_extent(leaf, btrfs_item_ptr(leaf, slot,
								   struct btrfs_file_extent_item),
					      ei);
	btrfs_verify_count(BTRFS_VERIFY_FILE_EXTENT, same);
}

void btrfs_verify_utimes_init(struct btrfs_send_utimes *utimes)
{
	btrfs_rust_send_utimes_init(&utimes->verify.rust);
	utimes->verify.is_off = false;
}

void btrfs_verify_utimes_destroy(struct btrfs_send_utimes *utimes)
{
	btrfs_rust_send_utimes_destroy(&utimes->verify.rust);
}

/* @is_known: the C cache had the directory, so neither side needed memory. */
void btrfs_verify_utimes_add(struct btrfs_send_utimes *utimes, u64 ino, u64 gen, bool is_known,
			     int c)
{
	int rust;

	if (utimes->verify.is_off)
		return;
	rust = btrfs_rust_send_utimes_add(&utimes->verify.rust, ino, gen);
	if (is_known || (!c && !rust)) {
		btrfs_verify_count(BTRFS_VERIFY_UTIMES_ADD, c == rust);
	} else {
		utimes->verify.is_off = true;
		skip(BTRFS_VERIFY_UTIMES_ADD);
	}
}

/* Compare the next directory. Returns @c, whether C has found one: @ino and @gen. */
bool btrfs_verify_utimes_next(struct btrfs_send_utimes *utimes, bool flush, bool c,
			      const u64 *ino, const u64 *gen)
{
	u64 rust_ino = 0;
	u64 rust_gen = 0;
	bool rust;

	if (utimes->verify.is_off)
		return c;
	if (flush)
		rust = btrfs_rust_send_utimes_flush(&utimes->verify.rust, &rust_ino, &rust_gen);
	else
		rust = btrfs_rust_send_utimes_trim(&utimes->verify.rust, &rust_ino, &rust_gen);
	btrfs_verify_count(BTRFS_VERIFY_UTIMES_NEXT,
			   c == rust && (!c || (*ino == rust_ino && *gen == rust_gen)));
	return c;
}

void btrfs_verify_lru_init(struct btrfs_lru_cache *cache)
{
	btrfs_rust_lru_init(&cache->verify.rust);
	cache->verify.size = 0;
	cache->verify.is_freed = false;
	cache->verify.is_off = false;
}

/* Empty the Rust cache; the C cache is empty already. */
void btrfs_verify_lru_clear(struct btrfs_lru_cache *cache)
{
	btrfs_rust_lru_clear(&cache->verify.rust, &cache->verify.size);
	btrfs_verify_lru_init(cache);
}

/* Return whether the Rust cache has an entry. Moves it to the end, as a lookup in C does. */
static bool has_entry(struct btrfs_lru_cache *cache, u64 key, u64 gen)
{
	const struct btrfs_lru_cache_entry *rust;

	rust = btrfs_rust_lru_lookup(&cache->verify.rust, key, gen);
	return rust && rust->key == key && rust->gen == gen;
}

void btrfs_verify_lru_lookup(struct btrfs_lru_cache *cache, u64 key, u64 gen,
			     const struct btrfs_lru_cache_entry *c)
{
	if (!cache->verify.is_off)
		btrfs_verify_count(BTRFS_VERIFY_LRU,
				   has_entry(cache, key, gen) == !!c &&
				   cache->verify.size == cache->size);
}

/* Called after C has stored @entry, and before it removes another entry to make room. */
void btrfs_verify_lru_store(struct btrfs_lru_cache *cache, struct btrfs_lru_cache_entry *entry)
{
	const bool is_full = cache->max_size > 0 && cache->size == cache->max_size;
	struct btrfs_verify_lru *verify = &cache->verify;
	struct btrfs_lru_cache_entry *copy;
	int ret = -ENOMEM;

	if (verify->is_off)
		return;
	copy = kmemdup(entry, sizeof(*entry), GFP_NOFS);
	if (copy)
		ret = btrfs_rust_lru_add_entry(&verify->rust, entry->key, entry->gen, copy,
					       cache->max_size, &verify->size);
	if (ret) {
		kfree(copy);
		verify->is_off = true;
	}
	verify->is_freed = is_full;
	if (ret == -ENOMEM)
		skip(BTRFS_VERIFY_LRU);
	else
		btrfs_verify_count(BTRFS_VERIFY_LRU,
				   !ret && verify->size == cache->size + !is_full);
}

/*
 * Called before C removes an entry, on request or to make room. For the latter, the Rust cache has
 * freed its entry already.
 */
void btrfs_verify_lru_remove(struct btrfs_lru_cache *cache,
			     const struct btrfs_lru_cache_entry *entry)
{
	struct btrfs_verify_lru *verify = &cache->verify;
	bool has;

	if (verify->is_off)
		return;
	has = has_entry(cache, entry->key, entry->gen);
	btrfs_verify_count(BTRFS_VERIFY_LRU, has == !verify->is_freed);
	if (has)
		btrfs_rust_lru_free_entry(&verify->rust, entry->key, entry->gen, &verify->size);
	verify->is_freed = false;
}

static int btrfs_rust_verify_show(struct seq_file *seq, void *unused)
{
	for (int i = 0; i < BTRFS_VERIFY_NR; i++)
		seq_printf(seq, "%s compared %lld different %lld skipped %lld\n", names[i],
			   (long long)atomic64_read(&counts[i].compared),
			   (long long)atomic64_read(&counts[i].different),
			   (long long)atomic64_read(&counts[i].skipped));
	btrfs_verify_show_plans(seq);
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
