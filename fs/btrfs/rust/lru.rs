// SPDX-License-Identifier: GPL-2.0

//! LRU cache of keys with optional values; replaces `lru_cache.c`.
//!
//! Entries are elements of one array and are linked by index. A hash table has one bucket for each
//! element that fits into the array. An entry without a value takes 36 bytes. Memory is allocated
//! for the first entry, and whenever the array is full: its capacity then doubles.

use kernel::{
    alloc::{
        AllocError,
        Flags, //
    },
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::hash::hash_64;

/// End of a list, in place of an index.
const NIL: u32 = u32::MAX;

/// Number of entries in the first allocation: a page without values.
const MIN_CAPACITY: usize = (PAGE_SIZE / size_of::<Entry<()>>()).next_power_of_two();

/// The key of an entry: `key` and `gen` of `struct btrfs_lru_cache_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LruKey {
    /// An inode number; in the backref cache of send, the address of a leaf.
    pub(crate) ino: u64,
    /// The generation of the inode, which distinguishes inodes with a reused number.
    pub(crate) generation: u64,
}

#[derive(Clone, Copy)]
struct Entry<V> {
    key: LruKey,
    value: V,
    /// The next more recently used entry, or [`NIL`].
    newer: u32,
    /// The next less recently used entry, or [`NIL`].
    older: u32,
    /// The next entry of the same bucket or of the free list, or [`NIL`].
    next: u32,
}

/// Size of an entry without a value, with its bucket, in bytes.
#[cfg(any(CONFIG_BTRFS_RUST_KUNIT_TEST, CONFIG_BTRFS_RUST_KUNIT_BENCH))]
pub(crate) const ENTRY_SIZE: usize = size_of::<Entry<()>>() + size_of::<u32>();

/// An LRU cache; `struct btrfs_lru_cache`.
///
/// # Invariants
///
/// - Every link is [`NIL`] or an index into `entries`.
/// - Keys are unique; `len` is their number.
/// - Every entry is either on the free list, or on the LRU list and on the list of its key's
///   bucket.
/// - `buckets` is empty, or its length is a power of two and `entries` has at least that capacity.
pub(crate) struct Lru<V = ()> {
    entries: KVVec<Entry<V>>,
    buckets: KVVec<u32>,
    newest: u32,
    oldest: u32,
    free: u32,
    len: usize,
}

impl<V: Copy> Lru<V> {
    /// Creates an empty cache, without allocating.
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
    pub(crate) fn oldest(&self) -> Option<LruKey> {
        self.entries
            .get(self.oldest as usize)
            .map(|entry| entry.key)
    }

    /// The most recently used key.
    pub(crate) fn newest(&self) -> Option<LruKey> {
        self.entries
            .get(self.newest as usize)
            .map(|entry| entry.key)
    }

    /// Looks up `key` and makes it the most recently used one; `btrfs_lru_cache_lookup()`. Returns
    /// its value, or `None` if it is not cached.
    pub(crate) fn touch(&mut self, key: LruKey) -> Option<V> {
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

    /// Adds `key`, which must not be cached yet, as the most recently used one.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if the array is full and cannot grow; the cache is unchanged then.
    pub(crate) fn insert(&mut self, key: LruKey, value: V, flags: Flags) -> Result<(), AllocError> {
        if self.len == self.buckets.len() {
            self.grow(flags)?;
        }
        self.insert_within_capacity(key, value)
    }

    /// Adds `key` as the most recently used one; `btrfs_lru_cache_store()`. If the cache has `max`
    /// keys, removes the least recently used one and returns its value. 0 is no limit.
    ///
    /// # Errors
    ///
    /// `EEXIST` if `key` is cached, `ENOMEM` if the array is full and cannot grow; the cache is
    /// unchanged then.
    pub(crate) fn store(
        &mut self,
        key: LruKey,
        value: V,
        max: usize,
        flags: Flags,
    ) -> Result<Option<V>> {
        if self.find(key) != NIL {
            return Err(EEXIST);
        }
        let is_full = max > 0 && self.len == max;
        // The removed entry leaves room, so insert() does not fail after it.
        let removed = self
            .oldest()
            .filter(|_| is_full)
            .and_then(|oldest| self.remove(oldest));
        self.insert(key, value, flags)?;
        Ok(removed)
    }

    /// Removes `key` and returns its value, or `None` if it is not cached;
    /// `btrfs_lru_cache_remove()`.
    pub(crate) fn remove(&mut self, key: LruKey) -> Option<V> {
        let found = self.find(key);
        if found == NIL {
            return None;
        }
        self.unlink(found);
        self.unhash(found);
        // INVARIANT: unlink() and unhash() have taken the entry off its other lists.
        self.entries[found as usize].next = self.free;
        self.free = found;
        self.len -= 1;
        Some(self.entries[found as usize].value)
    }

    fn insert_within_capacity(&mut self, key: LruKey, value: V) -> Result<(), AllocError> {
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

    /// Doubles the capacity.
    fn grow(&mut self, flags: Flags) -> Result<(), AllocError> {
        let capacity = (self.buckets.len() * 2).max(MIN_CAPACITY);
        if capacity > NIL as usize {
            return Err(AllocError);
        }
        let buckets = KVVec::from_elem(NIL, capacity, flags)?;
        self.entries.reserve(capacity - self.entries.len(), flags)?;
        self.buckets = buckets;

        // INVARIANT: insert() grows only a full cache, so the free list is empty and each entry
        // goes back to a bucket.
        for index in 0..self.entries.len() as u32 {
            self.hash(index);
        }
        Ok(())
    }

    fn bucket(&self, key: LruKey) -> usize {
        let value = key.ino ^ key.generation.rotate_left(32);
        hash_64(value, self.buckets.len().trailing_zeros())
    }

    fn find(&self, key: LruKey) -> u32 {
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
mod tests;
