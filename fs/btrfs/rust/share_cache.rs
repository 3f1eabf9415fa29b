// SPDX-License-Identifier: GPL-2.0

//! What is known of the sharedness of the blocks that lead to a data extent.
//!
//! Fiemap asks for each extent of a file whether another subvolume or file has it too. The answer
//! for the leaf that holds the file extent item, and for each node above it, is the same for all
//! the extents of that leaf, so one path of answers is kept from one extent to the next. It takes
//! the place of share_cache.c.
//!
//! Answers are believed until a commit, the drop of a root or a new snapshot: C then empties the
//! cache.

use kernel::prelude::*;

use crate::hash::hash_64;

/// The number of levels of a tree; `BTRFS_MAX_LEVEL`.
const MAX_LEVEL: usize = 8;

/// The number of data extents remembered, a power of two. share_cache.c has the last 8,
/// `BTRFS_SHARE_CACHE_PREV_EXTENTS`, and looks through all of them. In a file that is deduplicated
/// against itself an extent comes again after more than that.
const PREV_EXTENTS: usize = 128;

const _: () = assert!(PREV_EXTENTS.is_power_of_two() && PREV_EXTENTS > 1);

/// The answer for a node or leaf.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
struct Block {
    bytenr: u64,
    is_shared: bool,
}

/// The answers that `struct btrfs_backref_share_check_ctx` carries from one extent to the next.
///
/// All zeroes is the empty cache: no block and no data extent is at address 0.
#[derive(Zeroable)]
#[repr(C)]
pub(crate) struct ShareCache {
    /// By level, the leaf first. The data extent below it is not reliable to cache: its reference
    /// count can change unnoticed.
    path: [Block; MAX_LEVEL],
    /// The addresses of data extents, each at its [place](Self::place), plus 1 if it is shared:
    /// they are multiples of the sector size.
    prev_extents: [u64; PREV_EXTENTS],
}

impl ShareCache {
    /// Returns whether the block at `bytenr` on `level` is shared, if that is known;
    /// `lookup_backref_shared_cache()`.
    pub(crate) fn lookup(&mut self, bytenr: u64, level: usize) -> Option<bool> {
        let block = *self.path.get(level)?;
        if block.bytenr != bytenr {
            return None;
        }
        if block.is_shared {
            // Blocks below may still say otherwise after a move to another leaf.
            self.share_below(level);
        }
        Some(block.is_shared)
    }

    /// Remembers whether the block at `bytenr` on `level` is shared;
    /// `store_backref_shared_cache()`.
    pub(crate) fn store(&mut self, bytenr: u64, level: usize, is_shared: bool) {
        let Some(block) = self.path.get_mut(level) else {
            return;
        };
        *block = Block { bytenr, is_shared };
        if is_shared {
            self.share_below(level);
        }
    }

    /// What is remembered of a level: address and answer.
    #[cfg(CONFIG_BTRFS_RUST_VERIFY)]
    pub(crate) fn block(&self, level: usize) -> Option<(u64, bool)> {
        let block = self.path.get(level)?;
        Some((block.bytenr, block.is_shared))
    }

    /// Ends a call in which a block had more than one parent, so that there was not one path; the
    /// end of `btrfs_is_data_extent_shared()`.
    ///
    /// `reached` is the last level that was on one path only and the result of the call, or
    /// [`None`] if there is no such level or the call failed. Blocks above it are forgotten. A
    /// damaged extent tree may have a path of more levels than a tree: then all are forgotten.
    pub(crate) fn end_many_paths(&mut self, reached: Option<(usize, bool)>) {
        let mut forget = 0;
        if let Some((level, is_shared)) = reached {
            if let Some(block) = self.path.get(level) {
                self.store(block.bytenr, level, is_shared);
                forget = level + 1;
            }
        }
        for block in self.path.iter_mut().skip(forget) {
            block.bytenr = 0;
        }
    }

    /// Returns whether the data extent at `bytenr` is shared, if it was
    /// [added](Self::add_prev_extent), and no other one to the same place after it.
    pub(crate) fn prev_extent(&self, bytenr: u64) -> Option<bool> {
        let extent = self.prev_extents.get(Self::place(bytenr))?;
        (extent & !1 == bytenr).then_some(extent & 1 == 1)
    }

    /// Remembers whether the data extent at `bytenr` is shared.
    ///
    /// Only for an extent that the inode refers to more than once: others are not asked for again.
    pub(crate) fn add_prev_extent(&mut self, bytenr: u64, is_shared: bool) {
        if let Some(extent) = self.prev_extents.get_mut(Self::place(bytenr)) {
            *extent = bytenr | u64::from(is_shared);
        }
    }

    /// Where in `prev_extents` the data extent at `bytenr` is, if it is there.
    fn place(bytenr: u64) -> usize {
        hash_64(bytenr, PREV_EXTENTS.trailing_zeros())
    }

    /// Marks the blocks below `level` as shared: what leads to them is.
    fn share_below(&mut self, level: usize) {
        for block in self.path.iter_mut().take(level) {
            block.is_shared = true;
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
