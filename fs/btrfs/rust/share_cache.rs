// SPDX-License-Identifier: GPL-2.0

//! What is known of the sharedness of the blocks that lead to a data extent.
//!
//! Fiemap asks for each extent of a file whether another subvolume or file has it too. The answer
//! for the leaf that holds the file extent item, and for each node above it, is the same for all
//! the extents of that leaf, so one path of answers is kept from one extent to the next. Upstream
//! has this in `lookup_backref_shared_cache()`, `store_backref_shared_cache()` and
//! `btrfs_is_data_extent_shared()`.
//!
//! Answers are believed until a commit, the drop of a root or a new snapshot: C then empties the
//! cache. Upstream keeps a generation with each, of the last drop or of the last snapshot. But two
//! roots may be dropped in one generation, and a snapshot has its number before it is made.

use kernel::prelude::*;

/// The number of levels of a tree; `BTRFS_MAX_LEVEL`.
const MAX_LEVEL: usize = 8;

/// The number of data extents remembered, a power of two. Upstream has the last 8,
/// `BTRFS_BACKREF_CTX_PREV_EXTENTS_SIZE`, and looks through all of them; in a file that is
/// deduplicated against itself an extent comes again after more than that.
const PREV_EXTENTS: usize = 128;

/// The high bits of its product with a number depend on all bits of that; `GOLDEN_RATIO_64`.
const GOLDEN_RATIO: u64 = 0x61C8_8646_80B5_83EB;

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
    /// [`None`] if there is no such level or the call failed. Blocks above it are forgotten.
    pub(crate) fn end_many_paths(&mut self, reached: Option<(usize, bool)>) {
        let mut forget = 0;
        if let Some((level, is_shared)) = reached {
            if let Some(block) = self.path.get(level) {
                self.store(block.bytenr, level, is_shared);
            }
            forget = level.saturating_add(1);
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
        let hash = bytenr.wrapping_mul(GOLDEN_RATIO);
        (hash >> (u64::BITS - PREV_EXTENTS.trailing_zeros())) as usize
    }

    /// Marks the blocks below `level` as shared: what leads to them is.
    fn share_below(&mut self, level: usize) {
        for block in self.path.iter_mut().take(level) {
            block.is_shared = true;
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kunit_tests(btrfs_share_cache)]
mod tests {
    use super::*;
    use crate::random::Random;
    use pin_init::zeroed;

    /// A cache with a block at 100 + level on every level.
    fn path(is_shared: bool) -> ShareCache {
        let mut cache: ShareCache = zeroed();
        for level in (0..MAX_LEVEL).rev() {
            cache.store(100 + level as u64, level, is_shared);
        }
        cache
    }

    #[test]
    fn empty_cache_knows_nothing() {
        let mut cache: ShareCache = zeroed();
        for level in 0..MAX_LEVEL + 2 {
            assert_eq!(cache.lookup(4096, level), None);
        }
        assert_eq!(cache.prev_extent(4096), None);
    }

    #[test]
    fn one_block_per_level() {
        let mut cache = path(false);
        for level in 0..MAX_LEVEL {
            let bytenr = 100 + level as u64;
            assert_eq!(cache.lookup(bytenr, level), Some(false));
            assert_eq!(cache.lookup(bytenr + 1, level), None);
        }
        cache.store(500, 2, false);
        assert_eq!(cache.lookup(102, 2), None);
        assert_eq!(cache.lookup(500, 2), Some(false));
    }

    #[test]
    fn levels_out_of_range_are_ignored() {
        let mut cache = path(false);
        cache.store(500, MAX_LEVEL, true);
        cache.store(500, usize::MAX, true);
        assert_eq!(cache.lookup(500, usize::MAX), None);
        assert_eq!(cache.lookup(100, 0), Some(false));
    }

    #[test]
    fn storing_shared_shares_all_below() {
        let mut cache = path(false);
        cache.store(500, 3, true);
        for level in 0..3 {
            assert_eq!(cache.lookup(100 + level as u64, level), Some(true));
        }
        assert_eq!(cache.lookup(104, 4), Some(false));
    }

    #[test]
    fn storing_not_shared_changes_nothing_below() {
        let mut cache = path(true);
        cache.store(500, 3, false);
        assert_eq!(cache.lookup(102, 2), Some(true));
        assert_eq!(cache.lookup(500, 3), Some(false));
    }

    #[test]
    fn hit_on_shared_shares_new_blocks_below() {
        let mut cache = path(true);
        // As after a move to another leaf.
        cache.store(500, 0, false);
        assert_eq!(cache.lookup(500, 0), Some(false));
        assert_eq!(cache.lookup(102, 2), Some(true));
        assert_eq!(cache.lookup(500, 0), Some(true));
    }

    #[test]
    fn miss_changes_nothing_below() {
        let mut cache = path(true);
        cache.store(500, 0, false);
        assert_eq!(cache.lookup(202, 2), None);
        assert_eq!(cache.lookup(500, 0), Some(false));
    }

    #[test]
    fn many_paths_keep_up_to_the_level_reached() {
        for is_shared in [false, true] {
            for reached in 0..MAX_LEVEL {
                let mut cache = path(false);
                cache.end_many_paths(Some((reached, is_shared)));
                for level in 0..MAX_LEVEL {
                    let expected = match level {
                        level if level > reached => None,
                        _ => Some(is_shared),
                    };
                    assert_eq!(cache.lookup(100 + level as u64, level), expected);
                }
            }
        }
    }

    #[test]
    fn many_paths_without_a_level_forget_all() {
        let mut cache = path(true);
        cache.end_many_paths(None);
        for level in 0..MAX_LEVEL {
            assert_eq!(cache.lookup(100 + level as u64, level), None);
        }
    }

    #[test]
    fn prev_extents_are_not_mistaken() {
        let mut random = Random::new(9);
        let mut cache: ShareCache = zeroed();
        let mut added = [None; 2 * PREV_EXTENTS];
        let mut known = 0;
        for _ in 0..20_000 {
            let number = random.below(added.len() as u64) as usize;
            // Of 128 KiB, as they follow each other in a file.
            let bytenr = (1 + number as u64) << 17;
            let answer = cache.prev_extent(bytenr);
            if answer.is_some() {
                assert_eq!(answer, added[number]);
                known += 1;
            } else {
                let is_shared = random.below(2) == 0;
                cache.add_prev_extent(bytenr, is_shared);
                added[number] = Some(is_shared);
                assert_eq!(cache.prev_extent(bytenr), Some(is_shared));
            }
        }
        // Half of them at most, and not much less: all places are used.
        assert!(known > 6_000 && known <= 10_500);
    }

    /// What is known, by level: address and answer.
    struct Model([Option<(u64, bool)>; MAX_LEVEL]);

    impl Model {
        fn lookup(&mut self, bytenr: u64, level: usize) -> Option<bool> {
            let (cached, is_shared) = self.0[level]?;
            if cached != bytenr {
                return None;
            }
            if is_shared {
                self.share_below(level);
            }
            Some(is_shared)
        }

        fn store(&mut self, bytenr: u64, level: usize, is_shared: bool) {
            self.0[level] = Some((bytenr, is_shared));
            if is_shared {
                self.share_below(level);
            }
        }

        fn end_many_paths(&mut self, level: usize, is_shared: bool) {
            if let Some((bytenr, _)) = self.0[level] {
                self.store(bytenr, level, is_shared);
            } else if is_shared {
                self.share_below(level);
            }
            self.0[level + 1..].fill(None);
        }

        fn share_below(&mut self, level: usize) {
            for (_, is_shared) in self.0[..level].iter_mut().flatten() {
                *is_shared = true;
            }
        }
    }

    #[test]
    fn random_calls_match_a_plain_model() {
        let mut random = Random::new(3);
        let mut cache: ShareCache = zeroed();
        let mut model = Model([None; MAX_LEVEL]);
        let mut known = 0;
        for _ in 0..50_000 {
            let bytenr = 1 + random.below(3);
            let level = random.below(MAX_LEVEL as u64) as usize;
            let is_shared = random.below(4) == 0;
            match random.below(40) {
                0 => {
                    cache.end_many_paths(Some((level, is_shared)));
                    model.end_many_paths(level, is_shared);
                }
                1..10 => {
                    cache.store(bytenr, level, is_shared);
                    model.store(bytenr, level, is_shared);
                }
                _ => {
                    let answer = cache.lookup(bytenr, level);
                    assert_eq!(answer, model.lookup(bytenr, level));
                    known += u32::from(answer.is_some());
                }
            }
        }
        // Neither always nor never known, or the test says little.
        assert!(known > 1000 && known < 30_000);
    }
}
