// SPDX-License-Identifier: GPL-2.0

/* Count what sends have planned to read ahead, and what they read. */

#include <linux/atomic.h>
#include <linux/seq_file.h>
#include "../../accessors.h"
#include "../../ctree.h"
#include "../../extent_io.h"
#include "../../fs.h"
#include "../data_reada.h"
#include "../leaf_reada.h"
#include "verify.h"

static const char * const plan_names[BTRFS_VERIFY_PLAN_NR] = {
	[BTRFS_VERIFY_PLAN_LEAVES]		= "plan_leaves",
	[BTRFS_VERIFY_PLAN_DATA]		= "plan_data",
};

static struct {
	/* Leaves or extents that sends have planned; those of them that they have read. */
	atomic64_t planned;
	atomic64_t used;
	/* Leaves or extents that sends have read without a plan. */
	atomic64_t missed;
} plans[BTRFS_VERIFY_PLAN_NR];

/* Values of struct btrfs_verify_plan's @seen. */
enum { SEEN_PLANNED = 1, SEEN_READ };

/* Plans take memory. They are recorded only with the readahead of whole walks. */
void btrfs_verify_plan_init(struct btrfs_verify_plan *plan, const struct btrfs_fs_info *fs_info)
{
	xa_init(&plan->seen);
	plan->is_on = READ_ONCE(fs_info->reada.tree_enable);
}

void btrfs_verify_plan_end(struct btrfs_verify_plan *plan)
{
	unsigned long index;
	void *entry;

	xa_for_each(&plan->seen, index, entry) {
		xa_erase(&plan->seen, index);
		cond_resched();
	}
	xa_destroy(&plan->seen);
}

/* Returns what was known of the block or extent at @bytenr: 0, SEEN_PLANNED or SEEN_READ. */
static unsigned long change_plan(struct btrfs_verify_plan *plan, u64 bytenr, unsigned long value)
{
	const unsigned long index = bytenr / BTRFS_MIN_BLOCKSIZE;
	const void *entry = xa_load(&plan->seen, index);
	const unsigned long known = entry ? xa_to_value(entry) : 0;

	/* Without memory, the next change counts again. */
	if (known < value)
		xa_store(&plan->seen, index, xa_mk_value(value), GFP_NOFS);
	return known;
}

/* Note that a leaf or an extent is planned. */
void btrfs_verify_planned(struct btrfs_verify_plan *plan, enum btrfs_verify_plan_what what,
			  u64 bytenr)
{
	if (plan->is_on && !change_plan(plan, bytenr, SEEN_PLANNED))
		atomic64_inc(&plans[what].planned);
}

/* Note that a send reads a leaf or an extent. */
static void note_read(struct btrfs_verify_plan *plan, enum btrfs_verify_plan_what what, u64 bytenr)
{
	unsigned long known;

	if (!plan->is_on)
		return;
	known = change_plan(plan, bytenr, SEEN_READ);
	if (known == SEEN_PLANNED)
		atomic64_inc(&plans[what].used);
	else if (!known)
		atomic64_inc(&plans[what].missed);
}

void btrfs_verify_leaf_read(struct btrfs_leaf_reada *reada, const struct extent_buffer *leaf)
{
	if (btrfs_leaf_reada_is_on(reada))
		note_read(&reada->verify, BTRFS_VERIFY_PLAN_LEAVES, leaf->start);
}

/* Note that a send reads the data of the file extent item at @path. */
void btrfs_verify_data_read(struct btrfs_data_reada *reada, const struct btrfs_path *path)
{
	const struct extent_buffer *leaf = path->nodes[0];
	struct btrfs_file_extent_item *ei = btrfs_item_ptr(leaf, path->slots[0],
							   struct btrfs_file_extent_item);

	if (reada->root && btrfs_file_extent_type(leaf, ei) != BTRFS_FILE_EXTENT_INLINE)
		note_read(&reada->verify, BTRFS_VERIFY_PLAN_DATA,
			  btrfs_file_extent_disk_bytenr(leaf, ei));
}

void btrfs_verify_show_plans(struct seq_file *seq)
{
	for (int i = 0; i < BTRFS_VERIFY_PLAN_NR; i++)
		seq_printf(seq, "%s planned %lld used %lld missed %lld\n", plan_names[i],
			   (long long)atomic64_read(&plans[i].planned),
			   (long long)atomic64_read(&plans[i].used),
			   (long long)atomic64_read(&plans[i].missed));
}
