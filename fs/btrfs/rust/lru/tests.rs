// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_lru)]
mod suite {
    use super::super::*;
    use crate::random::Random;

    fn key(ino: u64) -> LruKey {
        LruKey { ino, generation: 7 }
    }

    /// A cache of inodes 0 to `count` - 1, the last one the most recently used.
    fn filled(count: u64) -> Result<Lru> {
        let mut lru = Lru::new();
        for ino in 0..count {
            lru.insert(key(ino), (), GFP_KERNEL)?;
        }
        Ok(lru)
    }

    /// The keys from least to most recently used. Fails if the two directions of the list differ.
    fn order(lru: &Lru) -> Result<KVec<LruKey>> {
        let mut keys = KVec::new();
        let (mut index, mut newer) = (lru.oldest, NIL);
        while index != NIL {
            let entry = lru.entries[index as usize];
            if entry.older != newer {
                return Err(EINVAL);
            }
            keys.push(entry.key, GFP_KERNEL)?;
            (index, newer) = (entry.newer, index);
        }
        if lru.newest != newer || keys.len() != lru.len() {
            return Err(EINVAL);
        }
        Ok(keys)
    }

    #[test]
    fn empty_cache_has_no_keys_and_no_memory() {
        let mut lru: Lru = Lru::new();
        lru.remove(key(1));
        assert!(lru.touch(key(1)).is_none());
        assert_eq!(lru.len(), 0);
        assert_eq!(lru.oldest(), None);
        assert_eq!(lru.newest(), None);
        assert_eq!(lru.entries.capacity() + lru.buckets.capacity(), 0);
    }

    #[test]
    fn generations_tell_keys_apart() -> Result {
        let mut lru = filled(2)?;
        // In the same bucket, only a comparison of the generations tells them apart.
        let other = |generation| LruKey { ino: 1, generation };
        let is_near = |generation: &u64| lru.bucket(other(*generation)) == lru.bucket(key(1));
        let other = other((8..).find(is_near).ok_or(EINVAL)?);
        assert!(lru.touch(other).is_none());
        lru.insert(other, (), GFP_KERNEL)?;
        lru.remove(key(1));
        assert!(lru.touch(other).is_some());
        assert!(lru.touch(key(1)).is_none());
        Ok(())
    }

    #[test]
    fn touch_makes_newest() -> Result {
        // The oldest, a middle and the newest entry.
        for ino in 0..3 {
            let mut lru = filled(3)?;
            assert!(lru.touch(key(ino)).is_some());
            assert_eq!(lru.newest(), Some(key(ino)));
            assert_eq!(order(&lru)?.len(), 3);
        }
        Ok(())
    }

    #[test]
    fn remove_from_anywhere() -> Result {
        for ino in 0..3 {
            let mut lru = filled(3)?;
            lru.remove(key(ino));
            assert!(lru.touch(key(ino)).is_none());
            assert_eq!(order(&lru)?.len(), 2);
        }
        Ok(())
    }

    #[test]
    fn steady_state_allocates_nothing() -> Result {
        let mut lru = filled(64)?;
        let (entries, buckets) = (lru.entries.as_ptr(), lru.buckets.as_ptr());
        for ino in 64..100_000 {
            lru.insert(key(ino), (), GFP_KERNEL)?;
            lru.remove(key(ino - 64));
        }
        assert!(lru.entries.as_ptr() == entries && lru.buckets.as_ptr() == buckets);
        assert!(lru.entries.len() <= MIN_CAPACITY);
        assert_eq!(lru.oldest(), Some(key(100_000 - 64)));
        Ok(())
    }

    #[test]
    fn entry_takes_less_than_40_bytes() {
        assert!(ENTRY_SIZE < 40);
    }

    #[test]
    fn insert_without_capacity_changes_nothing() -> Result {
        let mut lru = filled(MIN_CAPACITY as u64)?;
        assert!(lru.insert_within_capacity(key(u64::MAX), ()).is_err());
        assert!(lru.touch(key(u64::MAX)).is_none());
        assert_eq!(order(&lru)?.len(), MIN_CAPACITY);
        lru.insert(key(u64::MAX), (), GFP_KERNEL)?;
        assert_eq!(order(&lru)?.len(), MIN_CAPACITY + 1);
        Ok(())
    }

    #[test]
    fn store_in_a_full_cache_removes_the_oldest() -> Result {
        let mut lru = Lru::new();
        for ino in 0..3 {
            assert_eq!(lru.store(key(ino), ino * 10, 3, GFP_KERNEL)?, None);
        }
        assert_eq!(lru.touch(key(0)), Some(0));
        assert_eq!(lru.store(key(3), 30, 3, GFP_KERNEL)?, Some(10));
        assert_eq!(lru.touch(key(1)), None);
        assert_eq!(lru.touch(key(3)), Some(30));
        assert_eq!(lru.len(), 3);
        Ok(())
    }

    #[test]
    fn store_of_a_cached_key_changes_nothing() -> Result {
        let mut lru = Lru::new();
        for ino in 0..2 {
            lru.store(key(ino), ino, 2, GFP_KERNEL)?;
        }
        assert_eq!(lru.store(key(0), 7, 2, GFP_KERNEL), Err(EEXIST));
        assert_eq!(lru.oldest(), Some(key(0)));
        assert_eq!(lru.remove(key(0)), Some(0));
        assert_eq!(lru.remove(key(0)), None);
        Ok(())
    }

    #[test]
    fn store_without_a_limit_removes_nothing() -> Result {
        let mut lru = Lru::new();
        for ino in 0..1000 {
            assert_eq!(lru.store(key(ino), ino, 0, GFP_KERNEL)?, None);
        }
        assert_eq!(lru.touch(key(0)), Some(0));
        Ok(())
    }

    #[test]
    fn random_operations_match_a_plain_list() -> Result {
        let mut random = Random::new(1);
        let mut lru = Lru::new();
        let mut model: KVec<LruKey> = KVec::new();
        for step in 0..20_000 {
            let key = LruKey {
                ino: random.below(400),
                generation: random.below(2),
            };
            let position = model.iter().position(|other| *other == key);
            if let Some(position) = position {
                let _ = model.remove(position);
            }
            // Phases that mostly add alternate with phases that mostly remove.
            if random.below(10) < if step / 2000 % 2 == 0 { 8 } else { 2 } {
                let found = lru.touch(key).is_some();
                assert_eq!(found, position.is_some());
                if !found {
                    lru.insert(key, (), GFP_KERNEL)?;
                }
                model.push(key, GFP_KERNEL)?;
            } else {
                lru.remove(key);
            }
            assert_eq!(lru.oldest(), model.first().copied());
            assert_eq!(lru.newest(), model.last().copied());
            if step % 100 == 0 {
                assert!(order(&lru)? == model);
            }
        }
        Ok(())
    }
}
