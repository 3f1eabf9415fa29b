// SPDX-License-Identifier: GPL-2.0

/* How long the Rust parts take, beside the C that they replace, in one boot. */

#include <kunit/test.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/prandom.h>
#include <linux/sizes.h>
#include "../accessors.h"
#include "../backref.h"
#include "../ctree.h"
#include "../disk-io.h"
#include "../extent_io.h"
#include "../fs.h"
#include "../lru_cache.h"
#include "verify.h"

#define ROUNDS 9
#define OPERATIONS 100000

/* What is timed: does @count operations, and returns a number that depends on all of them. */
typedef u64 (*bench_fn)(void *arg, u32 count);

static u64 time_once(bench_fn run, void *arg)
{
	const u64 start = ktime_get_ns();
	u64 result = run(arg, OPERATIONS);
	const u64 end = ktime_get_ns();

	OPTIMIZER_HIDE_VAR(result);
	return end - start;
}

/*
 * Time both sides in turn and show the least of all rounds, in nanoseconds per operation. Both must
 * do the same, or the times mean nothing.
 */
static void compare(struct kunit *test, const char *what, bench_fn c, bench_fn rust, void *arg)
{
	u64 c_min = U64_MAX;
	u64 rust_min = U64_MAX;

	KUNIT_EXPECT_EQ(test, c(arg, OPERATIONS), rust(arg, OPERATIONS));
	for (int round = 0; round < ROUNDS; round++) {
		c_min = min(c_min, time_once(c, arg));
		rust_min = min(rust_min, time_once(rust, arg));
	}
	c_min = div_u64(c_min * 10, OPERATIONS);
	rust_min = div_u64(rust_min * 10, OPERATIONS);
	kunit_info(test, "%s: C %llu.%llu ns, Rust %llu.%llu ns", what, div_u64(c_min, 10),
		   c_min % 10, div_u64(rust_min, 10), rust_min % 10);
}

struct reada_arg {
	struct extent_buffer *node;
	u8 reada;
};

#define BENCH_NRITEMS 400

static u64 c_reada(void *data, u32 count)
{
	struct reada_arg *arg = data;
	struct btrfs_verify_reada c = { .path.nodes[1] = arg->node, .path.reada = arg->reada };
	u64 sum = 0;

	for (u32 i = 0; i < count; i++) {
		/* VERIFY's note of a slot stands for the call that reads it, which is not timed. */
		c.selected.count = 0;
		btrfs_bench_reada_for_search(&c, 1, i % BENCH_NRITEMS, 0);
		sum += c.selected.count;
	}
	return sum;
}

static u64 rust_reada(void *data, u32 count)
{
	struct reada_arg *arg = data;
	struct btrfs_rust_reada selected = { 0 };
	u64 sum = 0;

	for (u32 i = 0; i < count; i++) {
		btrfs_rust_reada_for_search(arg->node, i % BENCH_NRITEMS, arg->reada, 0, &selected);
		sum += selected.count;
	}
	return sum;
}

static void bench_reada(struct kunit *test)
{
	struct rnd_state random;
	struct reada_arg arg = { 0 };
	struct btrfs_fs_info *fs_info = kunit_kzalloc(test, sizeof(*fs_info), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, fs_info);
	btrfs_init_fs_info(fs_info);
	fs_info->nodesize = SZ_16K;
	fs_info->nodesize_bits = ilog2(SZ_16K);
	fs_info->sectorsize = SZ_4K;
	fs_info->sectorsize_bits = ilog2(SZ_4K);
	arg.node = alloc_dummy_extent_buffer(fs_info, SZ_1G);
	KUNIT_ASSERT_NOT_NULL(test, arg.node);

	prandom_seed_state(&random, 1);
	btrfs_set_header_level(arg.node, 1);
	btrfs_set_header_nritems(arg.node, BENCH_NRITEMS);
	for (int i = 0; i < BENCH_NRITEMS; i++) {
		/* An aged tree: leaves of one node lie within 256 MiB. */
		btrfs_set_node_blockptr(arg.node, i,
					SZ_1G + (prandom_u32_state(&random) % SZ_16K) * SZ_16K);
		btrfs_set_node_ptr_generation(arg.node, i, 1);
	}
	arg.reada = READA_FORWARD;
	compare(test, "readahead decision, forward", c_reada, rust_reada, &arg);
	arg.reada = READA_FORWARD_ALWAYS;
	compare(test, "readahead decision, always", c_reada, rust_reada, &arg);
	free_extent_buffer(arg.node);
}

struct share_arg {
	struct btrfs_root *root;
	struct btrfs_backref_share_check_ctx *ctx;
};

/* A path of three levels, of which each lookup finds a block. */
static u64 bytenr_on(u32 level)
{
	return SZ_1G + level * SZ_16K;
}

static u64 c_share(void *data, u32 count)
{
	struct share_arg *arg = data;
	bool is_shared = false;
	u64 sum = 0;

	for (u32 i = 0; i < count; i++) {
		const u32 level = i % 3;

		sum += btrfs_bench_share_lookup(arg->ctx, arg->root, bytenr_on(level), level,
						&is_shared) && !is_shared;
	}
	return sum;
}

static u64 rust_share(void *data, u32 count)
{
	struct share_arg *arg = data;
	u64 sum = 0;

	for (u32 i = 0; i < count; i++) {
		const u32 level = i % 3;

		sum += btrfs_rust_share_lookup(&arg->ctx->share_cache, bytenr_on(level),
					       level) == 0;
	}
	return sum;
}

static void bench_share(struct kunit *test)
{
	struct share_arg arg = {
		.root = kunit_kzalloc(test, sizeof(*arg.root), GFP_KERNEL),
		.ctx = btrfs_alloc_backref_share_check_ctx(),
	};

	KUNIT_ASSERT_NOT_NULL(test, arg.root);
	KUNIT_ASSERT_NOT_NULL(test, arg.ctx);
	arg.root->fs_info = kunit_kzalloc(test, sizeof(*arg.root->fs_info), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, arg.root->fs_info);
	init_rwsem(&arg.root->fs_info->commit_root_sem);
	down_read(&arg.root->fs_info->commit_root_sem);
	arg.ctx->use_path_cache = true;
	for (int level = 0; level < 3; level++) {
		arg.ctx->path_cache_entries[level].bytenr = bytenr_on(level);
		btrfs_rust_share_store(&arg.ctx->share_cache, bytenr_on(level), level, false);
	}
	compare(test, "share lookup", c_share, rust_share, &arg);
	up_read(&arg.root->fs_info->commit_root_sem);
	btrfs_free_backref_share_ctx(arg.ctx);
}

/* A walk that moves from 72 directories to the next: more than the 64 that send remembers. */
static u64 next_dir(struct rnd_state *random, u32 i)
{
	return BTRFS_FIRST_FREE_OBJECTID + i / 1000 * 8 % 100 + prandom_u32_state(random) % 72;
}

static u64 c_lru(void *data, u32 count)
{
	struct btrfs_lru_cache cache;
	struct rnd_state random;
	u64 removed = 0;

	prandom_seed_state(&random, 1);
	btrfs_lru_cache_init(&cache, 0);
	/* The C by itself. */
	cache.cannot_verify = true;
	for (u32 i = 0; i < count; i++) {
		const u64 ino = next_dir(&random, i);
		struct btrfs_lru_cache_entry *entry = btrfs_lru_cache_lookup(&cache, ino, 3);

		if (!entry) {
			entry = kmalloc_obj(*entry);
			if (!entry)
				break;
			entry->key = ino;
			entry->gen = 3;
			if (btrfs_lru_cache_store(&cache, entry, GFP_KERNEL)) {
				kfree(entry);
				break;
			}
		}
		while (cache.size > 64) {
			btrfs_lru_cache_remove(&cache, btrfs_lru_cache_lru_entry(&cache));
			removed++;
		}
	}
	btrfs_lru_cache_clear(&cache);
	return removed;
}

static u64 rust_lru(void *data, u32 count)
{
	struct btrfs_rust_dir_utimes cache;
	struct btrfs_rust_dir dir;
	struct rnd_state random;
	u64 removed = 0;

	prandom_seed_state(&random, 1);
	btrfs_rust_dir_utimes_init(&cache);
	for (u32 i = 0; i < count; i++) {
		dir.ino = next_dir(&random, i);
		dir.generation = 3;
		if (btrfs_rust_dir_utimes_cache(&cache, dir))
			break;
		while (btrfs_rust_dir_utimes_next_to_trim(&cache, &dir)) {
			btrfs_rust_dir_utimes_remove(&cache, dir);
			removed++;
		}
	}
	btrfs_rust_dir_utimes_destroy(&cache);
	return removed;
}

static void bench_lru(struct kunit *test)
{
	compare(test, "LRU operation of send's utimes cache", c_lru, rust_lru, NULL);
	kunit_info(test, "LRU entry: C %zu bytes and nodes of a maple tree, Rust %u bytes",
		   kmalloc_size_roundup(sizeof(struct btrfs_lru_cache_entry)),
		   btrfs_rust_lru_entry_size());
}

static struct kunit_case bench_cases[] = {
	KUNIT_CASE_SLOW(bench_reada),
	KUNIT_CASE_SLOW(bench_share),
	KUNIT_CASE_SLOW(bench_lru),
	{ }
};

static struct kunit_suite bench_suite = {
	.name = "btrfs_bench",
	.test_cases = bench_cases,
};

kunit_test_suite(bench_suite);
