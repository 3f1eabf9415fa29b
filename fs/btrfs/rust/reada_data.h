/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_READA_DATA_H
#define BTRFS_READA_DATA_H

#include <linux/errno.h>
#include <linux/types.h>
#include "btrfs_rust.h"

struct btrfs_inode;
struct btrfs_key;
struct btrfs_root;
struct folio;
struct inode;
struct page;

#ifdef CONFIG_BTRFS_RUST

struct btrfs_reada_encoded;
struct btrfs_reada_inode;

/* The readahead of the file data that a send of @root will read. */
struct btrfs_reada_data {
	struct btrfs_rust_data plan;
	/* NULL if there is no readahead. */
	struct btrfs_root *root;
	/* The leaves that say who else has an extent, and what its checksums are. */
	struct btrfs_rust_located references;
	struct btrfs_rust_located csums;
	/* How many of them are read for one batch. */
	u32 max_leaves;
	/* Inodes that are held until the send has passed them: a ring, from @first on. */
	struct btrfs_reada_inode *inodes;
	u32 first;
	/* Ranges that are sent as they are on disk: a ring, of numbers from @passed to @planned. */
	struct btrfs_reada_encoded **encoded;
	u32 passed;
	u32 planned;
	/* Of what is counted in fs_info->reada_data, in bytes. */
	u64 held;
	/* Stands for the folio whose mark says that it is time to read ahead. */
	struct folio *trigger;
	/* Whether the send has read data since it was where it was before. */
	bool has_read;
};

void btrfs_reada_data_init(struct btrfs_reada_data *data, struct btrfs_root *root, u64 known,
			   bool sends_encoded);
void btrfs_reada_data_end(struct btrfs_reada_data *data);
void btrfs_reada_data_at(struct btrfs_reada_data *data, const struct btrfs_key *key);
void btrfs_reada_data_skip(struct btrfs_reada_data *data, u64 ino);
void btrfs_reada_data_use(struct btrfs_reada_data *data, const struct inode *inode, bool *clean,
			  u64 *start);
void btrfs_reada_data_use_folio(struct btrfs_reada_data *data, const struct inode *inode,
				u64 start, u64 end);
bool btrfs_reada_data_put_moved(struct btrfs_reada_data *data, const struct inode *inode,
				struct folio *folio);
int btrfs_reada_data_encoded(struct btrfs_reada_data *data, struct btrfs_inode *inode, u64 bytenr,
			     u64 len, struct page **pages);

#else

struct btrfs_reada_data { };

static inline void btrfs_reada_data_end(struct btrfs_reada_data *data)
{
}

static inline void btrfs_reada_data_at(struct btrfs_reada_data *data, const struct btrfs_key *key)
{
}

static inline void btrfs_reada_data_skip(struct btrfs_reada_data *data, u64 ino)
{
}

static inline void btrfs_reada_data_use(struct btrfs_reada_data *data, const struct inode *inode,
					bool *clean, u64 *start)
{
}

static inline void btrfs_reada_data_use_folio(struct btrfs_reada_data *data,
					      const struct inode *inode, u64 start, u64 end)
{
}

static inline bool btrfs_reada_data_put_moved(struct btrfs_reada_data *data,
					      const struct inode *inode, struct folio *folio)
{
	return false;
}

static inline int btrfs_reada_data_encoded(struct btrfs_reada_data *data,
					   struct btrfs_inode *inode, u64 bytenr, u64 len,
					   struct page **pages)
{
	return -ENOENT;
}

#endif

#endif
