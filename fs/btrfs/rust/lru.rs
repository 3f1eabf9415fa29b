// SPDX-License-Identifier: GPL-2.0

//! Keys in least recently used order, each with a value if need be.
//!
//! It takes the place of `lru_cache.c`. The entries live in one slab, linked by index instead of
//! by pointer, under a hash table of as many buckets as the slab has room for: 36 bytes per entry
//! without a value. It allocates with the first entry, and then only when there are twice as many
//! as ever before.

use kernel::{
    alloc::{
        AllocError,
        Flags, //
    },
    prelude::*,
};

/// The end of a list of entries.
const NIL: u32 = u32::MAX;

/// Room for entries that the first allocation makes: a page's worth.
const MIN_CAPACITY: usize = 128;

/// What an entry is found by: the `key` and `gen` of `struct btrfs_lru_cache_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// An inode number.
    pub(crate) ino: u64,
    /// The generation of that inode, which tells apart inodes that reuse a number.
    pub(crate) generation: u64,
}

impl Key {
    fn hash(self) -> u64 {
        // The multiplier of `hash_64()`: 2^64 divided by the golden ratio.
        (self.ino ^ self.generation.rotate_left(32)).wrapping_mul(0x61c8_8646_80b5_83eb)
    }
}

#[derive(Clone, Copy)]
struct Entry<V> {
    key: Key,
    value: V,
    /// The neighbour that was used after this one, or [`NIL`].
    newer: u32,
    /// The neighbour that was used before this one, or [`NIL`].
    older: u32,
    /// The next entry of the same bucket, or of the free list, or [`NIL`].
    next: u32,
}

/// What an entry without a value takes, in bytes, its bucket included.
#[cfg(any(CONFIG_BTRFS_RUST_KUNIT_TEST, CONFIG_BTRFS_RUST_KUNIT_BENCH))]
pub(crate) const ENTRY_SIZE: usize = size_of::<Entry<()>>() + size_of::<u32>();

/// [`Key`]s in least recently used order, the `struct btrfs_lru_cache` of upstream.
///
/// # Invariants
///
/// - Every link is [`NIL`] or an index into `entries`.
/// - No key is there twice; `len` is the number of keys.
/// - Every entry is either on the free list, or on the recency list and on the list of the bucket
///   that its key hashes to.
/// - `buckets` is empty, or has a power of two of elements and `entries` has room for as many.
pub(crate) struct Lru<V = ()> {
    entries: KVVec<Entry<V>>,
    buckets: KVVec<u32>,
    newest: u32,
    oldest: u32,
    free: u32,
    len: usize,
}

impl<V: Copy> Lru<V> {
    /// Makes an empty one, without allocating.
    pub(crate) const fn new() -> Self {
        // INVARIANT: There are no entries and no buckets, and all links are `NIL`.
        Self {
            entries: KVVec::new(),
            buckets: KVVec::new(),
            newest: NIL,
            oldest: NIL,
            free: NIL,
            len: 0,
        }
    }

    /// The number of keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The least recently used key; `btrfs_lru_cache_lru_entry()`.
    pub(crate) fn oldest(&self) -> Option<Key> {
        self.entries
            .get(self.oldest as usize)
            .map(|entry| entry.key)
    }

    /// The most recently used key.
    pub(crate) fn newest(&self) -> Option<Key> {
        self.entries
            .get(self.newest as usize)
            .map(|entry| entry.key)
    }

    /// Makes `key` the most recently used one if it is there, and returns its value;
    /// `btrfs_lru_cache_lookup()`.
    pub(crate) fn touch(&mut self, key: Key) -> Option<V> {
        let found = self.find(key);
        if found == NIL {
            return None;
        }
        if found != self.newest {
            self.unlink(found);
            self.link_newest(found);
        }
        Some(self.entries[found as usize].value)
    }

    /// Adds `key`, which must not be there yet, as the most recently used one.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no room and none can be allocated; nothing has changed then.
    pub(crate) fn insert(&mut self, key: Key, value: V, flags: Flags) -> Result<(), AllocError> {
        if self.len == self.buckets.len() {
            self.grow(flags)?;
        }
        self.insert_within_capacity(key, value)
    }

    /// Adds `key` as the most recently used one and, if there are `max` already, removes the least
    /// recently used one, whose value it returns; `btrfs_lru_cache_store()`. A `max` of 0 is none.
    ///
    /// # Errors
    ///
    /// `EEXIST` if `key` is there, `ENOMEM` if there is no room and none can be allocated; nothing
    /// has changed then.
    pub(crate) fn store(
        &mut self,
        key: Key,
        value: V,
        max: usize,
        flags: Flags,
    ) -> Result<Option<V>> {
        if self.find(key) != NIL {
            return Err(EEXIST);
        }
        let is_full = max > 0 && self.len == max;
        // What is removed leaves the room that the new one needs.
        let removed = self
            .oldest()
            .filter(|_| is_full)
            .and_then(|oldest| self.remove(oldest));
        self.insert(key, value, flags)?;
        Ok(removed)
    }

    /// Removes `key`, and returns its value if it was there; `btrfs_lru_cache_remove()`.
    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        let found = self.find(key);
        if found == NIL {
            return None;
        }
        self.unlink(found);
        self.unhash(found);
        // INVARIANT: On no other list any more, so the free list may have it.
        self.entries[found as usize].next = self.free;
        self.free = found;
        self.len -= 1;
        Some(self.entries[found as usize].value)
    }

    fn insert_within_capacity(&mut self, key: Key, value: V) -> Result<(), AllocError> {
        let unlinked = Entry {
            key,
            value,
            newer: NIL,
            older: NIL,
            next: NIL,
        };
        if self.len == self.buckets.len() {
            return Err(AllocError);
        }
        let index = if self.free == NIL {
            let index = self.entries.len() as u32;
            self.entries
                .push_within_capacity(unlinked)
                .map_err(|_| AllocError)?;
            index
        } else {
            let index = self.free;
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = unlinked;
            index
        };
        self.link_newest(index);
        self.hash(index);
        self.len += 1;
        Ok(())
    }

    /// Doubles the room.
    fn grow(&mut self, flags: Flags) -> Result<(), AllocError> {
        let capacity = (self.buckets.len() * 2).max(MIN_CAPACITY);
        if capacity > NIL as usize {
            return Err(AllocError);
        }
        let buckets = KVVec::from_elem(NIL, capacity, flags)?;
        self.entries.reserve(capacity - self.entries.len(), flags)?;
        self.buckets = buckets;

        // INVARIANT: `insert()` grows only a set that is full, so the free list is empty and each
        // entry goes back to a bucket.
        for index in 0..self.entries.len() as u32 {
            self.hash(index);
        }
        Ok(())
    }

    fn bucket(&self, key: Key) -> usize {
        // The upper bits are the well mixed ones.
        (key.hash() >> 32) as usize & (self.buckets.len() - 1)
    }

    fn find(&self, key: Key) -> u32 {
        if self.len == 0 {
            return NIL;
        }
        let mut index = self.buckets[self.bucket(key)];
        while index != NIL && self.entries[index as usize].key != key {
            index = self.entries[index as usize].next;
        }
        index
    }

    fn hash(&mut self, index: u32) {
        let bucket = self.bucket(self.entries[index as usize].key);
        self.entries[index as usize].next = self.buckets[bucket];
        self.buckets[bucket] = index;
    }

    fn unhash(&mut self, index: u32) {
        let Entry { key, next, .. } = self.entries[index as usize];
        let bucket = self.bucket(key);
        let mut at = self.buckets[bucket];
        if at == index {
            self.buckets[bucket] = next;
            return;
        }
        while self.entries[at as usize].next != index {
            at = self.entries[at as usize].next;
        }
        self.entries[at as usize].next = next;
    }

    fn link_newest(&mut self, index: u32) {
        let older = self.newest;
        self.entries[index as usize].newer = NIL;
        self.entries[index as usize].older = older;
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { newer, older, .. } = self.entries[index as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kunit_tests(btrfs_lru)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn key(ino: u64) -> Key {
        Key { ino, generation: 7 }
    }

    /// A cache of inodes 0 to `count` - 1, the last one the most recently used.
    fn filled(count: u64) -> Result<Lru> {
        let mut lru = Lru::new();
        for ino in 0..count {
            lru.insert(key(ino), (), GFP_KERNEL)?;
        }
        Ok(lru)
    }

    /// The keys from least to most recently used, read in both directions.
    fn order(lru: &Lru) -> Result<KVec<Key>> {
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
        let other = Key {
            ino: 1,
            generation: 8,
        };
        let mut lru = filled(2)?;
        assert!(lru.touch(other).is_none());
        lru.insert(other, (), GFP_KERNEL)?;
        lru.remove(key(1));
        assert!(lru.touch(other).is_some());
        assert!(lru.touch(key(1)).is_none());
        Ok(())
    }

    #[test]
    fn touch_makes_newest() -> Result {
        // From each of the three kinds of place: oldest, middle, newest.
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
    fn full_cache_refuses_and_is_left_as_it_was() -> Result {
        let mut lru = filled(MIN_CAPACITY as u64)?;
        assert!(lru.insert_within_capacity(key(1000), ()).is_err());
        assert!(lru.touch(key(1000)).is_none());
        assert_eq!(order(&lru)?.len(), MIN_CAPACITY);
        lru.insert(key(1000), (), GFP_KERNEL)?;
        assert_eq!(order(&lru)?.len(), MIN_CAPACITY + 1);
        Ok(())
    }

    #[test]
    fn full_cache_stores_in_place_of_the_oldest() -> Result {
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
    fn store_of_what_is_there_changes_nothing() -> Result {
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
    fn without_a_limit_nothing_goes() -> Result {
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
        let mut model: KVec<Key> = KVec::new();
        for step in 0..20_000 {
            let key = Key {
                ino: random.below(400),
                generation: random.below(2),
            };
            let position = model.iter().position(|other| *other == key);
            if let Some(position) = position {
                let _ = model.remove(position);
            }
            // A phase that mostly adds, then one that mostly removes, and so on.
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
