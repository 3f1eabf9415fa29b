/* SPDX-License-Identifier: GPL-2.0 */

#ifndef BTRFS_DATA_READA_H
#define BTRFS_DATA_READA_H

#include <linux/errno.h>
#include <linux/types.h>
#include "btrfs_rust.h"
#include "debug/verify.h"

struct btrfs_inode;
struct btrfs_key;
struct btrfs_root;
struct folio;
struct inode;
struct page;

#ifdef CONFIG_BTRFS_RUST

struct btrfs_encoded_extent;
struct btrfs_reada_inode;

/* The readahead of the file data that a send of @root will read. */
struct btrfs_data_reada {
	struct btrfs_rust_data_reada plan;
	/* NULL if the readahead is off. */
	struct btrfs_root *root;
	/* The last leaves looked up for backrefs and checksums; the limit of leaves for a batch. */
	struct btrfs_rust_last_leaf last_backref;
	struct btrfs_rust_last_leaf last_csum;
	u32 max_leaves;
	/* Inodes that are held until the send has passed them: a ring that starts at @first. */
	struct btrfs_reada_inode *inodes;
	u32 first;
	/* The maximum number of ranges ahead of the send, a power of two. */
	u32 max_ranges;
	/*
	 * Encoded extents: a ring of @max_ranges, indexed by range numbers from @passed to
	 * @planned. NULL if the send writes none; @passed is not used then.
	 */
	struct btrfs_encoded_extent **encoded;
	u32 passed;
	u32 planned;
	/* The bytes of this reader in fs_info->reada_data. */
	u64 held;
	/* A dummy for the marked folio that page_cache_async_ra() takes. */
	struct folio *marked;
	/* The send has read file data since the last position. */
	bool has_read;
	struct btrfs_verify_plan verify;
};

void btrfs_data_reada_init(struct btrfs_data_reada *reada, struct btrfs_root *root, u64 min_gen,
			   u64 flags);
void btrfs_data_reada_end(struct btrfs_data_reada *reada);
void btrfs_data_reada_advance(struct btrfs_data_reada *reada, const struct btrfs_key *key);
void btrfs_data_reada_skip_inode(struct btrfs_data_reada *reada, u64 ino);
void btrfs_data_reada_use(struct btrfs_data_reada *reada, const struct inode *inode, bool *clean,
			  u64 *start);
void btrfs_data_reada_use_folio(struct btrfs_data_reada *reada, const struct inode *inode,
				u64 start, u64 end);
bool btrfs_data_reada_put_moved(struct btrfs_data_reada *reada, const struct inode *inode,
				struct folio *folio);
int btrfs_data_reada_encoded(struct btrfs_data_reada *reada, struct btrfs_inode *inode, u64 bytenr,
			     u64 len, struct page **pages);

/* page_reada.c */
bool btrfs_page_reada_init(struct btrfs_data_reada *reada);
void btrfs_page_reada_end(struct btrfs_data_reada *reada);
void btrfs_page_reada_hold(struct btrfs_data_reada *reada,
			   const struct btrfs_rust_file_range *range);
void btrfs_page_reada_pass(struct btrfs_data_reada *reada, u64 ino);
struct inode *btrfs_page_reada_inode(const struct btrfs_data_reada *reada,
				     const struct btrfs_rust_file_range *range);
void btrfs_page_reada_read(struct btrfs_data_reada *reada,
			   const struct btrfs_rust_file_range *range, u64 end);

/* encoded_reada.c */
void btrfs_encoded_reada_pass(struct btrfs_data_reada *reada, u32 passed);
void btrfs_encoded_reada_read(struct btrfs_data_reada *reada,
			      const struct btrfs_rust_file_range *range, u64 last_reloc_trans);

#else

struct btrfs_data_reada { };

static inline void btrfs_data_reada_init(struct btrfs_data_reada *reada, struct btrfs_root *root,
					 u64 min_gen, u64 flags)
{
}

static inline void btrfs_data_reada_end(struct btrfs_data_reada *reada)
{
}

static inline void btrfs_data_reada_advance(struct btrfs_data_reada *reada,
					    const struct btrfs_key *key)
{
}

static inline void btrfs_data_reada_skip_inode(struct btrfs_data_reada *reada, u64 ino)
{
}

static inline void btrfs_data_reada_use(struct btrfs_data_reada *reada, const struct inode *inode,
					bool *clean, u64 *start)
{
}

static inline void btrfs_data_reada_use_folio(struct btrfs_data_reada *reada,
					      const struct inode *inode, u64 start, u64 end)
{
}

static inline bool btrfs_data_reada_put_moved(struct btrfs_data_reada *reada,
					      const struct inode *inode, struct folio *folio)
{
	return false;
}

static inline int btrfs_data_reada_encoded(struct btrfs_data_reada *reada,
					   struct btrfs_inode *inode, u64 bytenr, u64 len,
					   struct page **pages)
{
	return -ENOENT;
}

#endif

#endif
