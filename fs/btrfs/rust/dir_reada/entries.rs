// SPDX-License-Identifier: GPL-2.0

//! Entries of a directory that were listed.

use kernel::prelude::*;

use crate::{
    ffi::OptionalVec,
    sort::sort_by_key, //
};

/// A lookup or a read that is at most this many entries further follows the listing, or the inode
/// numbers.
pub(super) const NEAR: usize = 16;

/// Misses after which a lookup is searched in all entries; again when they have doubled.
const MAX_MISSES: usize = 16;

/// Inode numbers of listed entries.
///
/// The last batch has the entries from `entered` to `next`, in the order of inode numbers. The
/// entries from `next` to `sorted` are sorted, too. The others are in the order of the listing.
pub(super) struct Entries {
    pub(super) inodes: OptionalVec<u64>,
    entered: usize,
    next: usize,
    pub(super) sorted: usize,
    /// Set if lookups are in the order of the entries from `next` to `sorted`: they were listed in
    /// this order, or lookups are by inode number.
    is_ordered: bool,
    /// The index of the last entry added.
    pub(super) last_index: u64,
    /// Lookups of entries that were found neither in the batch nor next to it.
    misses: usize,
    /// Position of the first entry to look up, and the one after the last entry looked up.
    first: usize,
    reached: usize,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            inodes: OptionalVec::new(),
            entered: 0,
            next: 0,
            sorted: 0,
            is_ordered: true,
            last_index: 0,
            misses: 0,
            first: 0,
            reached: 0,
        }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// The number of entries from the first one looked up to the last one.
    pub(super) fn reached(&self) -> usize {
        self.reached.saturating_sub(self.first)
    }

    /// Whether all entries were planned.
    pub(super) fn are_planned(&self) -> bool {
        self.next >= self.inodes.len()
    }

    /// Adds the entry with `index` and the inode number `ino`. If there are `most` entries, those
    /// before the last batch are forgotten, if they are many, or the entry is left out. An entry
    /// that was added before is left out, too. Returns whether the entry was added.
    pub(super) fn add(&mut self, index: u64, ino: u64, most: usize) -> bool {
        if index <= self.last_index {
            return false;
        }
        self.last_index = index;
        if self.inodes.len() >= most && self.entered > most / 8 {
            self.forget_passed();
        }
        let is_sorted = self.sorted == self.inodes.len()
            && (self.are_planned() || self.inodes.last() <= Some(&ino));
        // Without memory, entries are left out.
        let is_added = self.inodes.len() < most && self.inodes.push(ino, GFP_KERNEL).is_ok();
        self.sorted += usize::from(is_added && is_sorted);
        is_added
    }

    fn forget_passed(&mut self) {
        let passed = self.entered;
        self.inodes.copy_within(passed.., 0);
        self.inodes.truncate(self.inodes.len() - passed);
        self.sorted = self.sorted.saturating_sub(passed);
        self.next -= passed;
        self.reached = self.reached.saturating_sub(passed);
        self.first = 0;
        self.entered = 0;
    }

    /// The position of an entry before anything is planned.
    pub(super) fn position(&self, ino: u64) -> Option<usize> {
        self.inodes.iter().position(|entry| *entry == ino)
    }

    /// Whether a lookup of the entry at `second` follows the listing after one of that at `first`.
    pub(super) fn is_near(first: usize, second: usize) -> bool {
        (first..=first + NEAR).contains(&second)
    }

    /// Notes a lookup of `ino`. Returns whether it has reached the last batch or the entries after
    /// it. If it is in the batch and `is_lost`, the rest of the batch is planned again. If it is
    /// after the batch, the entries before it are skipped: their inodes were in memory.
    pub(super) fn reach(&mut self, ino: u64, is_lost: impl FnOnce() -> bool) -> bool {
        let batch = self.inodes.get(self.entered..self.next).unwrap_or_default();
        if let Ok(slot) = batch.binary_search(&ino) {
            let found = self.entered + slot;
            if is_lost() {
                self.sorted = self.next;
                self.next = found;
            }
            return self.reach_position(found);
        }
        let sorted = self.inodes.get(self.next..self.sorted).unwrap_or_default();
        if let Ok(slot) = sorted.binary_search(&ino) {
            let found = self.next + slot;
            self.next += if self.is_ordered { slot } else { 0 };
            return self.reach_position(found);
        }
        let rest = self.inodes.get(self.next..).unwrap_or_default();
        let mut near = rest.iter().take(NEAR);
        if let Some(slot) = near.position(|entry| *entry == ino) {
            return self.reach_position(self.next + slot);
        }
        self.misses = self.misses.saturating_add(1);
        // Lookups of the batch before the last one are misses, too: search rarely.
        if self.misses < MAX_MISSES || !self.misses.is_power_of_two() {
            return false;
        }
        let Some(found) = rest.iter().position(|entry| *entry == ino) else {
            return false;
        };
        self.next += found;
        self.reach_position(self.next)
    }

    /// Notes a lookup of the entry at `position`. Returns true.
    pub(super) fn reach_position(&mut self, position: usize) -> bool {
        self.reached = self.reached.max(position + 1);
        true
    }

    /// Continues at the entry at `position`, or, if `by_inode`, at the inode number `ino`.
    pub(super) fn start_at(&mut self, position: usize, ino: u64, by_inode: bool) {
        self.next = position;
        if by_inode {
            self.next = 0;
            self.sort_all();
            self.next = self.inodes.partition_point(|entry| *entry < ino);
        }
        self.entered = self.next;
        self.first = self.next;
    }

    /// Sorts all entries that were not planned.
    pub(super) fn sort_all(&mut self) {
        if self.sorted < self.inodes.len() {
            self.sort(usize::MAX);
            self.is_ordered = true;
        }
    }

    /// Sorts the next `count` entries, if they are not sorted. Returns whether there are any.
    pub(super) fn sort_next(&mut self, count: usize) -> bool {
        if self.sorted <= self.next {
            self.sort(count);
            self.is_ordered = false;
        }
        self.sorted > self.next
    }

    fn sort(&mut self, count: usize) {
        let end = self.next.saturating_add(count).min(self.inodes.len());
        if let Some(part) = self.inodes.get_mut(self.next..end) {
            sort_by_key(part, |ino| *ino);
            self.sorted = end;
        }
    }

    /// Begins a batch at the next entry.
    pub(super) fn begin_batch(&mut self) {
        self.entered = self.next;
    }

    /// Whether the batch has entries.
    pub(super) fn has_begun(&self) -> bool {
        self.next > self.entered
    }

    /// The next entries that are sorted.
    pub(super) fn rest(&self) -> &[u64] {
        self.inodes.get(self.next..self.sorted).unwrap_or_default()
    }

    /// The inode number of the next entry, if that is sorted.
    pub(super) fn next(&self) -> Option<u64> {
        self.rest().first().copied()
    }

    /// Puts the next entry into the batch.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Ends a batch, which may have several sorted parts.
    pub(super) fn end_batch(&mut self) {
        if let Some(batch) = self.inodes.get_mut(self.entered..self.next) {
            sort_by_key(batch, |ino| *ino);
        }
    }
}
