// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_send_utimes)]
mod suite {
    use super::super::*;
    use crate::random::Random;

    fn dir(ino: u64) -> LruKey {
        LruKey { ino, generation: 3 }
    }

    fn filled(count: u64) -> Result<DirUtimes> {
        let mut cache = DirUtimes::new();
        for ino in 0..count {
            cache.cache(dir(ino))?;
        }
        Ok(cache)
    }

    /// Takes directories from `next` until there is none.
    fn drain(
        cache: &mut DirUtimes,
        next: fn(&mut DirUtimes) -> Option<LruKey>, //
    ) -> Result<KVec<u64>> {
        let mut inos = KVec::new();
        while let Some(dir) = next(cache) {
            inos.push(dir.ino, GFP_KERNEL)?;
        }
        Ok(inos)
    }

    #[test]
    fn nothing_to_send_when_empty() {
        let mut cache = DirUtimes::new();
        assert_eq!(cache.trim(), None);
        assert_eq!(cache.flush(), None);
    }

    #[test]
    fn trims_down_to_64_least_recently_used_first() -> Result {
        let cases: [(u64, &[u64]); 5] = [
            (1, &[]),
            (63, &[]),
            (64, &[]),
            (65, &[0]),
            (68, &[0, 1, 2, 3]),
        ];
        for (count, expected) in cases {
            let mut cache = filled(count)?;
            let trimmed = drain(&mut cache, DirUtimes::trim)?;
            assert_eq!(&trimmed[..], expected);
        }
        Ok(())
    }

    #[test]
    fn adding_does_not_evict() -> Result {
        let mut cache = filled(1000)?;
        assert_eq!(drain(&mut cache, DirUtimes::flush)?.len(), 1000);
        Ok(())
    }

    #[test]
    fn flushes_most_recently_used_first() -> Result {
        let mut cache = filled(4)?;
        cache.cache(dir(1))?;
        let flushed = drain(&mut cache, DirUtimes::flush)?;
        assert_eq!(&flushed[..], &[1, 3, 2, 0]);
        Ok(())
    }

    #[test]
    fn hit_protects_a_directory_from_trimming() -> Result {
        let mut cache = filled(66)?;
        cache.cache(dir(0))?;
        let trimmed = drain(&mut cache, DirUtimes::trim)?;
        assert_eq!(&trimmed[..], &[1, 2]);
        Ok(())
    }

    #[test]
    fn generations_are_separate_directories() -> Result {
        let mut cache = DirUtimes::new();
        for generation in [1, 2, 1] {
            cache.cache(LruKey { ino: 5, generation })?;
        }
        assert_eq!(drain(&mut cache, DirUtimes::flush)?.len(), 2);
        Ok(())
    }

    #[test]
    fn random_sends_match_a_plain_list() -> Result {
        for seed in 1..20 {
            let mut random = Random::new(seed);
            let mut cache = DirUtimes::new();
            let mut model: KVec<u64> = KVec::new();
            for _ in 0..500 {
                for _ in 0..random.below(6) {
                    let ino = random.below(150);
                    cache.cache(dir(ino))?;
                    model.retain(|other| *other != ino);
                    model.push(ino, GFP_KERNEL)?;
                }
                while let Some(dir) = cache.trim() {
                    assert!(model.len() > MAX_SIZE);
                    assert_eq!(model.remove(0).ok(), Some(dir.ino));
                }
                assert!(model.len() <= MAX_SIZE);
            }
            let flushed = drain(&mut cache, DirUtimes::flush)?;
            assert!(flushed.iter().eq(model.iter().rev()));
        }
        Ok(())
    }
}
