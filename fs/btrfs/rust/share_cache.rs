// SPDX-License-Identifier: GPL-2.0

//! Cache of the sharedness of tree blocks and data extents, for fiemap; replaces `share_cache.c`.
//!
//! Fiemap checks for each extent whether another subvolume or file refers to it. The result for the
//! leaf with the file extent item, and for each node above it, is the same for all extents of that
//! leaf. So the cache keeps the results of one path.
//!
//! Results are valid until a commit, the drop of a root or a new snapshot. C then clears the cache.

use kernel::prelude::*;

use crate::hash::hash_64;

/// Number of levels of a tree; `BTRFS_MAX_LEVEL`.
const MAX_LEVEL: usize = 8;

/// Number of data extents to remember, a power of two. `share_cache.c` remembers
/// `BTRFS_SHARE_CACHE_PREV_EXTENTS`, 8, and scans them. In a file that is deduplicated against
/// itself, more extents than that lie between two references to an extent.
const PREV_EXTENTS: usize = 128;

const _: () = assert!(PREV_EXTENTS.is_power_of_two() && PREV_EXTENTS > 1);

/// The result for a node or leaf.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
struct Block {
    bytenr: u64,
    is_shared: bool,
}

/// The results that `struct btrfs_backref_share_check_ctx` keeps between extents.
///
/// All zeroes is the empty cache: no block and no data extent is at address 0.
#[derive(Zeroable)]
#[repr(C)]
pub(crate) struct ShareCache {
    /// Results by level, 0 for the leaf. The path has no data extents, since their reference counts
    /// can change unnoticed.
    path: [Block; MAX_LEVEL],
    /// Addresses of data extents, each at the index [`slot`](Self::slot). Addresses are multiples
    /// of the sector size; bit 0 is set if the extent is shared.
    prev_extents: [u64; PREV_EXTENTS],
}

impl ShareCache {
    /// Returns whether the block at `bytenr` on `level` is shared, `None` if that is not cached;
    /// `lookup_backref_shared_cache()`.
    pub(crate) fn lookup(&mut self, bytenr: u64, level: usize) -> Option<bool> {
        let block = *self.path.get(level)?;
        if block.bytenr != bytenr {
            return None;
        }
        if block.is_shared {
            // After a switch to another leaf, blocks below may be marked as not shared.
            self.share_below(level);
        }
        Some(block.is_shared)
    }

    /// Stores whether the block at `bytenr` on `level` is shared; `store_backref_shared_cache()`.
    pub(crate) fn store(&mut self, bytenr: u64, level: usize, is_shared: bool) {
        let Some(block) = self.path.get_mut(level) else {
            return;
        };
        *block = Block { bytenr, is_shared };
        if is_shared {
            self.share_below(level);
        }
    }

    /// The cached block of `level`: its address, and whether it is shared.
    #[cfg(CONFIG_BTRFS_RUST_VERIFY)]
    pub(crate) fn block(&self, level: usize) -> Option<(u64, bool)> {
        let block = self.path.get(level)?;
        Some((block.bytenr, block.is_shared))
    }

    /// Ends a check that has found more than one parent of a block, so that there is no single
    /// path; the end of `btrfs_is_data_extent_shared()`.
    ///
    /// `reached` is the last level with a single block and the result of the check, or [`None`] if
    /// there is no such level or the check failed. Blocks above it are cleared.
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

    /// Returns whether the data extent at `bytenr` is shared. `None` if it was not
    /// [added](Self::add_prev_extent), or an extent with the same [`slot`](Self::slot) was added
    /// later.
    pub(crate) fn prev_extent(&self, bytenr: u64) -> Option<bool> {
        let extent = self.prev_extents.get(Self::slot(bytenr))?;
        (extent & !1 == bytenr).then_some(extent & 1 == 1)
    }

    /// Stores whether the data extent at `bytenr` is shared.
    ///
    /// Use it only for an extent that the inode refers to more than once: others are not looked up
    /// again.
    pub(crate) fn add_prev_extent(&mut self, bytenr: u64, is_shared: bool) {
        if let Some(extent) = self.prev_extents.get_mut(Self::slot(bytenr)) {
            *extent = bytenr | u64::from(is_shared);
        }
    }

    /// The index in `prev_extents` for the data extent at `bytenr`.
    fn slot(bytenr: u64) -> usize {
        hash_64(bytenr, PREV_EXTENTS.trailing_zeros())
    }

    /// Marks the blocks below `level` as shared, since they are shared through the block there.
    fn share_below(&mut self, level: usize) {
        for block in self.path.iter_mut().take(level) {
            block.is_shared = true;
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
