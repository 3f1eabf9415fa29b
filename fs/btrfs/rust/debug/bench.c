// SPDX-License-Identifier: GPL-2.0

/* Time the Rust parts and the C code that they replace, in one boot. */

#include <kunit/test.h>
#include <linux/ktime.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/prandom.h>
#include <linux/sizes.h>
#include "../../accessors.h"
#include "../../backref.h"
#include "../../ctree.h"
#include "../../disk-io.h"
#include "../../extent_io.h"
#include "../../fs.h"
#include "../../lru_cache.h"
#include "../../reada.h"
#include "../../send_utimes.h"
#include "../../share_cache.h"
#include "verify.h"

#define ROUNDS 9
#define OPERATIONS 100000

/* A timed function: does @count operations, and returns a result that depends on all of them. */
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
 * Time both sides in turn and print the minimum of all rounds, in nanoseconds per operation. The
 * times are comparable only if both sides do the same work, so their results must be equal.
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
	struct btrfs_reada_slots selected;
	u64 sum = 0;

	for (u32 i = 0; i < count; i++) {
		btrfs_select_search(arg->node, i % BENCH_NRITEMS, arg->reada, 0, &selected);
		sum += selected.count;
	}
	return sum;
}

static u64 rust_reada(void *data, u32 count)
{
	struct reada_arg *arg = data;
	u16 slots[BTRFS_RUST_READA_MAX_SLOTS];
	u64 sum = 0;

	for (u32 i = 0; i < count; i++)
		sum += btrfs_rust_select_search(arg->node, i % BENCH_NRITEMS, arg->reada, 0, slots);
	return sum;
}

/* Expect the same slots, in the same order, from both sides at each slot of the node. */
static void compare_slots(struct kunit *test, const struct reada_arg *arg)
{
	struct btrfs_reada_slots c;
	struct btrfs_reada_slots rust;

	for (int slot = 0; slot < BENCH_NRITEMS; slot++) {
		btrfs_select_search(arg->node, slot, arg->reada, 0, &c);
		rust.count = btrfs_rust_select_search(arg->node, slot, arg->reada, 0, rust.slots);
		KUNIT_ASSERT_EQ(test, c.count, rust.count);
		KUNIT_EXPECT_MEMEQ(test, c.slots, rust.slots, c.count * sizeof(c.slots[0]));
	}
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
		/* As in an aged tree, the leaves of one node are within 256 MiB. */
		btrfs_set_node_blockptr(arg.node, i,
					SZ_1G + (prandom_u32_state(&random) % SZ_16K) * SZ_16K);
		btrfs_set_node_ptr_generation(arg.node, i, 1);
	}
	arg.reada = READA_BACK;
	compare_slots(test, &arg);
	arg.reada = READA_FORWARD;
	compare_slots(test, &arg);
	compare(test, "readahead decision, forward", c_reada, rust_reada, &arg);
	arg.reada = READA_FORWARD_ALWAYS;
	compare_slots(test, &arg);
	compare(test, "readahead decision, always", c_reada, rust_reada, &arg);
	free_extent_buffer(arg.node);
}

/* A path of three levels: each lookup finds the block of its level. */
static u64 bytenr_on(u32 level)
{
	return SZ_1G + level * SZ_16K;
}

static u64 c_share(void *data, u32 count)
{
	struct btrfs_share_cache *cache = data;
	u64 sum = 0;

	for (u32 i = 0; i < count; i++)
		sum += btrfs_share_cache_lookup(cache, bytenr_on(i % 3), i % 3) == 0;
	return sum;
}

static u64 rust_share(void *data, u32 count)
{
	struct btrfs_share_cache *cache = data;
	u64 sum = 0;

	for (u32 i = 0; i < count; i++)
		sum += btrfs_rust_share_lookup(&cache->verify.rust, bytenr_on(i % 3), i % 3) == 0;
	return sum;
}

static void bench_share(struct kunit *test)
{
	struct btrfs_share_cache *cache = kunit_kzalloc(test, sizeof(*cache), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, cache);
	for (int level = 0; level < 3; level++) {
		btrfs_share_cache_store(cache, bytenr_on(level), level, false);
		btrfs_rust_share_store(&cache->verify.rust, bytenr_on(level), level, false);
	}
	compare(test, "share lookup", c_share, rust_share, cache);
}

/* A random one of 72 directories, more than the 64 that send caches; the set moves on. */
static u64 next_dir(struct rnd_state *random, u32 i)
{
	return BTRFS_FIRST_FREE_OBJECTID + i / 1000 * 8 % 100 + prandom_u32_state(random) % 72;
}

static u64 c_utimes(void *data, u32 count)
{
	struct btrfs_send_utimes cache;
	struct rnd_state random;
	u64 removed = 0;
	u64 ino;
	u64 gen;

	prandom_seed_state(&random, 1);
	btrfs_send_utimes_init(&cache);
	/* Time the C code alone. */
	cache.verify.is_off = true;
	cache.dirs.verify.is_off = true;
	for (u32 i = 0; i < count; i++) {
		if (btrfs_send_utimes_add(&cache, next_dir(&random, i), 3))
			break;
		while (btrfs_send_utimes_trim(&cache, &ino, &gen))
			removed++;
	}
	btrfs_send_utimes_destroy(&cache);
	return removed;
}

static u64 rust_utimes(void *data, u32 count)
{
	struct btrfs_rust_send_utimes cache;
	struct rnd_state random;
	u64 removed = 0;
	u64 ino;
	u64 gen;

	prandom_seed_state(&random, 1);
	btrfs_rust_send_utimes_init(&cache);
	for (u32 i = 0; i < count; i++) {
		if (btrfs_rust_send_utimes_add(&cache, next_dir(&random, i), 3))
			break;
		while (btrfs_rust_send_utimes_trim(&cache, &ino, &gen))
			removed++;
	}
	btrfs_rust_send_utimes_destroy(&cache);
	return removed;
}

static void bench_utimes(struct kunit *test)
{
	compare(test, "LRU operation of send's utimes cache", c_utimes, rust_utimes, NULL);
	kunit_info(test, "LRU entry: C %zu bytes and nodes of a maple tree, Rust %u bytes",
		   kmalloc_size_roundup(sizeof(struct btrfs_lru_cache_entry)),
		   btrfs_rust_lru_entry_size());
}

static struct kunit_case bench_cases[] = {
	KUNIT_CASE_SLOW(bench_reada),
	KUNIT_CASE_SLOW(bench_share),
	KUNIT_CASE_SLOW(bench_utimes),
	{ }
};

static struct kunit_suite bench_suite = {
	.name = "btrfs_bench",
	.test_cases = bench_cases,
};

kunit_test_suite(bench_suite);
