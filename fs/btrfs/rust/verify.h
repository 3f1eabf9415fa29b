/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_RUST_VERIFY_H
#define BTRFS_RUST_VERIFY_H

/*
 * CONFIG_BTRFS_RUST_VERIFY: the C code that Rust replaces is built too and runs beside it. The C
 * notes what it would do, Rust's decision is carried out, and both are compared here. It is the
 * other way round for LRU caches, whose entries have one owner, and where fiemap takes a short cut.
 */

#include <linux/types.h>
#include "../ctree.h"
#include "btrfs_rust.h"

/* The C code has its effects, or only notes them in order to be compared. */
#ifdef CONFIG_BTRFS_RUST_VERIFY
#define BTRFS_C_EFFECT(effect, note) (note)
#else
#define BTRFS_C_EFFECT(effect, note) (effect)
#endif

struct btrfs_lru_cache;
struct btrfs_lru_cache_entry;

enum btrfs_verify_what {
	BTRFS_VERIFY_READA_SEARCH,
	BTRFS_VERIFY_READA_MOVE_DOWN,
	BTRFS_VERIFY_SHARE_LOOKUP,
	BTRFS_VERIFY_SHARE_STORE,
	BTRFS_VERIFY_SHARE_END,
	BTRFS_VERIFY_SHARE_PREV_EXTENT,
	BTRFS_VERIFY_UTIMES_CACHE,
	BTRFS_VERIFY_UTIMES_SEND,
	BTRFS_VERIFY_LRU,
	BTRFS_VERIFY_NEXT_EXTENT,
	BTRFS_VERIFY_NR,
};

/* What the C selects: reada_for_search() has only its path to find this by. */
struct btrfs_verify_reada {
	struct btrfs_path path;
	struct btrfs_rust_reada selected;
};

/* The utimes commands that one side has sent, in their order. */
struct btrfs_verify_utimes {
	u64 count;
	u64 hash;
};

void btrfs_verify_count(enum btrfs_verify_what what, bool same);
void btrfs_verify_skip(enum btrfs_verify_what what);
void btrfs_verify_reada(enum btrfs_verify_what what, const struct btrfs_rust_reada *c,
			const struct btrfs_rust_reada *rust);
void btrfs_verify_note_reada(struct btrfs_rust_reada *selected, int slot);
void btrfs_verify_note_search(const struct btrfs_path *path, int slot);
int btrfs_verify_note_utimes(struct btrfs_verify_utimes *sent, u64 ino, u64 gen);
void btrfs_verify_lru_lookup(struct btrfs_lru_cache *cache, u64 key, u64 gen,
			     const struct btrfs_lru_cache_entry *found);
void btrfs_verify_lru_store(struct btrfs_lru_cache *cache, struct btrfs_lru_cache_entry *entry);
void btrfs_verify_lru_remove(struct btrfs_lru_cache *cache,
			     const struct btrfs_lru_cache_entry *entry);
int btrfs_verify_init(void);
void btrfs_verify_exit(void);

#ifdef CONFIG_BTRFS_RUST_KUNIT_BENCH
/* What bench.c calls of the C that Rust replaces. */
struct btrfs_backref_share_check_ctx;

void btrfs_bench_reada_for_search(struct btrfs_verify_reada *c, int level, int slot, u64 objectid);
bool btrfs_bench_share_lookup(struct btrfs_backref_share_check_ctx *ctx, struct btrfs_root *root,
			      u64 bytenr, int level, bool *is_shared);
#endif

#endif
