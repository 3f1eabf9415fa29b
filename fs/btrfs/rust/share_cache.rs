// SPDX-License-Identifier: GPL-2.0

//! What is known of the sharedness of the blocks that lead to a data extent.
//!
//! Fiemap asks for each extent of a file whether another subvolume or file has it too. The answer
//! for the leaf that holds the file extent item, and for each node above it, is the same for all
//! the extents of that leaf, so one path of answers is kept from one extent to the next. Upstream
//! has this in `lookup_backref_shared_cache()`, `store_backref_shared_cache()` and
//! `btrfs_is_data_extent_shared()`.

use kernel::prelude::*;

/// The number of levels of a tree; `BTRFS_MAX_LEVEL`.
const MAX_LEVEL: usize = 8;

/// The number of data extents remembered; `BTRFS_BACKREF_CTX_PREV_EXTENTS_SIZE`.
const PREV_EXTENTS: usize = 8;

/// The generations that an answer is true for.
#[derive(Clone, Copy)]
pub(crate) struct Generations {
    /// When the last snapshot of the root was made; until the next one, what is not shared stays
    /// so.
    pub(crate) last_snapshot: u64,
    /// When a root was last dropped; until the next time, what is shared stays so.
    pub(crate) last_root_drop: u64,
}

impl Generations {
    fn of(self, is_shared: bool) -> u64 {
        if is_shared {
            self.last_root_drop
        } else {
            self.last_snapshot
        }
    }
}

/// The answer for a node or leaf.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
struct Block {
    bytenr: u64,
    generation: u64,
    is_shared: bool,
}

/// The answer for a data extent.
#[derive(Clone, Copy, Zeroable)]
#[repr(C)]
struct Extent {
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
    /// In the order in which they were found, starting at `next_extent`.
    prev_extents: [Extent; PREV_EXTENTS],
    /// The oldest of `prev_extents`, which the next one replaces.
    next_extent: usize,
}

impl ShareCache {
    /// Returns whether the block at `bytenr` on `level` is shared, if that is known;
    /// `lookup_backref_shared_cache()`.
    pub(crate) fn lookup(
        &mut self,
        bytenr: u64,
        level: usize,
        now: Generations, //
    ) -> Option<bool> {
        let block = *self.path.get(level)?;
        if block.bytenr != bytenr || block.generation != now.of(block.is_shared) {
            return None;
        }
        if block.is_shared {
            // Blocks below may still say otherwise after a move to another leaf.
            self.share_below(level, block.generation);
        }
        Some(block.is_shared)
    }

    /// Remembers whether the block at `bytenr` on `level` is shared;
    /// `store_backref_shared_cache()`.
    pub(crate) fn store(&mut self, bytenr: u64, level: usize, is_shared: bool, now: Generations) {
        let Some(block) = self.path.get_mut(level) else {
            return;
        };
        let generation = now.of(is_shared);
        *block = Block {
            bytenr,
            generation,
            is_shared,
        };
        if is_shared {
            self.share_below(level, generation);
        }
    }

    /// What is remembered of a level: address, generation and answer.
    #[cfg(CONFIG_BTRFS_RUST_VERIFY)]
    pub(crate) fn block(&self, level: usize) -> Option<(u64, u64, bool)> {
        let block = self.path.get(level)?;
        Some((block.bytenr, block.generation, block.is_shared))
    }

    /// Ends a call in which a block had more than one parent, so that there was not one path; the
    /// end of `btrfs_is_data_extent_shared()`.
    ///
    /// `reached` is the last level that was on one path only and the result of the call, or
    /// [`None`] if there is no such level or the call failed. Blocks above it are forgotten.
    pub(crate) fn end_many_paths(&mut self, reached: Option<(usize, bool)>, now: Generations) {
        let mut forget = 0;
        if let Some((level, is_shared)) = reached {
            if let Some(block) = self.path.get(level) {
                self.store(block.bytenr, level, is_shared, now);
            }
            forget = level.saturating_add(1);
        }
        for block in self.path.iter_mut().skip(forget) {
            block.bytenr = 0;
        }
    }

    /// Returns whether the data extent at `bytenr` is shared, if it is one of the last few that
    /// were [added](Self::add_prev_extent).
    pub(crate) fn prev_extent(&self, bytenr: u64) -> Option<bool> {
        self.prev_extents
            .iter()
            .find(|extent| extent.bytenr == bytenr)
            .map(|extent| extent.is_shared)
    }

    /// Remembers whether the data extent at `bytenr` is shared, in place of the oldest one.
    ///
    /// Only for an extent that the inode refers to more than once: others are not asked for again.
    pub(crate) fn add_prev_extent(&mut self, bytenr: u64, is_shared: bool) {
        if let Some(extent) = self.prev_extents.get_mut(self.next_extent) {
            *extent = Extent { bytenr, is_shared };
        }
        self.next_extent = (self.next_extent + 1) % PREV_EXTENTS;
    }

    /// Marks the blocks below `level` as shared: what leads to them is.
    fn share_below(&mut self, level: usize, generation: u64) {
        for block in self.path.iter_mut().take(level) {
            block.is_shared = true;
            block.generation = generation;
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kunit_tests(btrfs_share_cache)]
mod tests {
    use super::*;
    use crate::random::Random;
    use pin_init::zeroed;

    const NOW: Generations = Generations {
        last_snapshot: 10,
        last_root_drop: 20,
    };
    const NEW_SNAPSHOT: Generations = Generations {
        last_snapshot: 11,
        ..NOW
    };
    const NEW_DROP: Generations = Generations {
        last_root_drop: 21,
        ..NOW
    };

    /// A cache with a block at 100 + level on every level.
    fn path(is_shared: bool) -> ShareCache {
        let mut cache: ShareCache = zeroed();
        for level in (0..MAX_LEVEL).rev() {
            cache.store(100 + level as u64, level, is_shared, NOW);
        }
        cache
    }

    #[test]
    fn empty_cache_knows_nothing() {
        let mut cache: ShareCache = zeroed();
        for level in 0..MAX_LEVEL + 2 {
            assert_eq!(cache.lookup(4096, level, NOW), None);
        }
        assert_eq!(cache.prev_extent(4096), None);
    }

    #[test]
    fn one_block_per_level() {
        let mut cache = path(false);
        for level in 0..MAX_LEVEL {
            let bytenr = 100 + level as u64;
            assert_eq!(cache.lookup(bytenr, level, NOW), Some(false));
            assert_eq!(cache.lookup(bytenr + 1, level, NOW), None);
        }
        cache.store(500, 2, false, NOW);
        assert_eq!(cache.lookup(102, 2, NOW), None);
        assert_eq!(cache.lookup(500, 2, NOW), Some(false));
    }

    #[test]
    fn levels_out_of_range_are_ignored() {
        let mut cache = path(false);
        cache.store(500, MAX_LEVEL, true, NOW);
        cache.store(500, usize::MAX, true, NOW);
        assert_eq!(cache.lookup(500, usize::MAX, NOW), None);
        assert_eq!(cache.lookup(100, 0, NOW), Some(false));
    }

    #[test]
    fn snapshot_ends_not_shared_and_drop_ends_shared() {
        for (is_shared, now, known) in [
            (false, NOW, true),
            (false, NEW_SNAPSHOT, false),
            (false, NEW_DROP, true),
            (true, NOW, true),
            (true, NEW_SNAPSHOT, true),
            (true, NEW_DROP, false),
        ] {
            let mut cache = path(is_shared);
            let expected = known.then_some(is_shared);
            assert_eq!(cache.lookup(103, 3, now), expected);
            assert_eq!(cache.lookup(100, 0, now), expected);
        }
    }

    #[test]
    fn storing_shared_shares_all_below() {
        let mut cache = path(false);
        cache.store(500, 3, true, NOW);
        for level in 0..3 {
            assert_eq!(cache.lookup(100 + level as u64, level, NOW), Some(true));
        }
        assert_eq!(cache.lookup(104, 4, NOW), Some(false));
    }

    #[test]
    fn storing_not_shared_changes_nothing_below() {
        let mut cache = path(true);
        cache.store(500, 3, false, NOW);
        assert_eq!(cache.lookup(102, 2, NOW), Some(true));
        assert_eq!(cache.lookup(500, 3, NOW), Some(false));
    }

    #[test]
    fn hit_on_shared_shares_new_blocks_below() {
        let mut cache = path(true);
        // As after a move to another leaf.
        cache.store(500, 0, false, NOW);
        assert_eq!(cache.lookup(500, 0, NOW), Some(false));
        assert_eq!(cache.lookup(102, 2, NOW), Some(true));
        assert_eq!(cache.lookup(500, 0, NOW), Some(true));
        // The bytenr is kept, the generation is that of the hit.
        assert_eq!(cache.lookup(500, 0, NEW_SNAPSHOT), Some(true));
        assert_eq!(cache.lookup(500, 0, NEW_DROP), None);
    }

    #[test]
    fn miss_changes_nothing_below() {
        let mut cache = path(true);
        cache.store(500, 0, false, NOW);
        assert_eq!(cache.lookup(102, 2, NEW_DROP), None);
        assert_eq!(cache.lookup(500, 0, NOW), Some(false));
    }

    #[test]
    fn many_paths_keep_up_to_the_level_reached() {
        for is_shared in [false, true] {
            for reached in 0..MAX_LEVEL {
                let mut cache = path(false);
                cache.end_many_paths(Some((reached, is_shared)), NOW);
                for level in 0..MAX_LEVEL {
                    let expected = match level {
                        level if level > reached => None,
                        _ => Some(is_shared),
                    };
                    assert_eq!(cache.lookup(100 + level as u64, level, NOW), expected);
                }
            }
        }
    }

    #[test]
    fn many_paths_without_a_level_forget_all() {
        let mut cache = path(true);
        cache.end_many_paths(None, NOW);
        for level in 0..MAX_LEVEL {
            assert_eq!(cache.lookup(100 + level as u64, level, NOW), None);
        }
    }

    #[test]
    fn prev_extents_are_first_in_first_out() {
        let mut cache: ShareCache = zeroed();
        for bytenr in 1..=PREV_EXTENTS as u64 + 1 {
            cache.add_prev_extent(bytenr, bytenr % 2 == 0);
            // Asking for the oldest does not keep it.
            let _ = cache.prev_extent(1);
        }
        assert_eq!(cache.prev_extent(1), None);
        for bytenr in 2..=PREV_EXTENTS as u64 + 1 {
            assert_eq!(cache.prev_extent(bytenr), Some(bytenr % 2 == 0));
        }
    }

    /// What is known, by level: address, generation and answer.
    struct Model([Option<(u64, u64, bool)>; MAX_LEVEL]);

    impl Model {
        fn lookup(&mut self, bytenr: u64, level: usize, now: Generations) -> Option<bool> {
            let (cached, generation, is_shared) = self.0[level]?;
            let valid_in = [now.last_snapshot, now.last_root_drop][usize::from(is_shared)];
            if cached != bytenr || generation != valid_in {
                return None;
            }
            if is_shared {
                self.share_below(level, generation);
            }
            Some(is_shared)
        }

        fn store(&mut self, bytenr: u64, level: usize, is_shared: bool, now: Generations) {
            let generation = [now.last_snapshot, now.last_root_drop][usize::from(is_shared)];
            self.0[level] = Some((bytenr, generation, is_shared));
            if is_shared {
                self.share_below(level, generation);
            }
        }

        fn end_many_paths(&mut self, level: usize, is_shared: bool, now: Generations) {
            if let Some((bytenr, _, _)) = self.0[level] {
                self.store(bytenr, level, is_shared, now);
            } else if is_shared {
                self.share_below(level, now.last_root_drop);
            }
            self.0[level + 1..].fill(None);
        }

        fn share_below(&mut self, level: usize, generation: u64) {
            for fact in self.0[..level].iter_mut().flatten() {
                (fact.1, fact.2) = (generation, true);
            }
        }
    }

    #[test]
    fn random_calls_match_a_plain_model() {
        let mut random = Random::new(3);
        let mut now = NOW;
        let mut cache: ShareCache = zeroed();
        let mut model = Model([None; MAX_LEVEL]);
        let mut known = 0;
        for _ in 0..50_000 {
            let bytenr = 1 + random.below(3);
            let level = random.below(MAX_LEVEL as u64) as usize;
            let is_shared = random.below(4) == 0;
            match random.below(40) {
                0 => now.last_snapshot += 1,
                1 => now.last_root_drop += 1,
                2 => {
                    cache.end_many_paths(Some((level, is_shared)), now);
                    model.end_many_paths(level, is_shared, now);
                }
                3..12 => {
                    cache.store(bytenr, level, is_shared, now);
                    model.store(bytenr, level, is_shared, now);
                }
                _ => {
                    let answer = cache.lookup(bytenr, level, now);
                    assert_eq!(answer, model.lookup(bytenr, level, now));
                    known += u32::from(answer.is_some());
                }
            }
        }
        // Neither always nor never known, or the test says little.
        assert!(known > 1000 && known < 30_000);
    }
}
