// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_share_cache)]
mod suite {
    use super::super::*;
    use crate::random::Random;

    /// A cache with a block at address 100 + level on each level.
    fn path(is_shared: bool) -> ShareCache {
        let mut cache = ShareCache::zeroed();
        for level in (0..MAX_LEVEL).rev() {
            cache.store(100 + level as u64, level, is_shared);
        }
        cache
    }

    #[test]
    fn empty_cache_knows_nothing() {
        let mut cache = ShareCache::zeroed();
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
    fn storing_shared_marks_all_below() {
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
    fn hit_on_shared_marks_new_blocks_below() {
        let mut cache = path(true);
        // As after a switch to another leaf.
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
    fn many_paths_keep_levels_up_to_the_reached_one() {
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
    fn many_paths_without_a_level_clear_all() {
        for reached in [None, Some((MAX_LEVEL, true)), Some((usize::MAX, false))] {
            let mut cache = path(true);
            cache.end_many_paths(reached);
            for level in 0..MAX_LEVEL {
                assert_eq!(cache.lookup(100 + level as u64, level), None);
            }
        }
    }

    #[test]
    fn prev_extents_return_the_stored_result() {
        let mut random = Random::new(9);
        let mut cache = ShareCache::zeroed();
        let mut added = [None; 2 * PREV_EXTENTS];
        let mut known = 0;
        for _ in 0..20_000 {
            let number = random.below(added.len() as u64) as usize;
            // Adjacent extents of 128 KiB.
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
        // The cache holds up to half of the extents, so up to half of the lookups hit.
        assert!(known > 6_000 && known <= 10_500);
    }

    /// A model of the cache: address and result by level.
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
        let mut cache = ShareCache::zeroed();
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
        // The test is meaningful only with both hits and misses.
        assert!(known > 1000 && known < 30_000);
    }
}
