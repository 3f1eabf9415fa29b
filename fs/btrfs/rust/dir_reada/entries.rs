// SPDX-License-Identifier: GPL-2.0

//! Entries of a directory that were listed.

use kernel::prelude::*;

/// A lookup that is at most this many entries behind the previous one follows the listing.
const NEAR: usize = 16;

/// Inode numbers of listed entries.
///
/// The last batch has the entries from `entered` to `next`, in the order of inode numbers. The
/// entries from `next` to `sorted` are sorted, too. The others are in the order of the listing.
pub(super) struct Entries {
    pub(super) inodes: KVVec<u64>,
    entered: usize,
    next: usize,
    pub(super) sorted: usize,
    /// The index of the last entry added.
    pub(super) last_index: u64,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            inodes: KVVec::new(),
            entered: 0,
            next: 0,
            sorted: 0,
            last_index: 0,
        }
    }

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether all entries were planned.
    pub(super) fn are_planned(&self) -> bool {
        self.next >= self.inodes.len()
    }

    /// Adds the entry with `index` and the inode number `ino`. If there are `most` entries, those
    /// before the last batch are forgotten, or the entry is left out. An entry that was added
    /// before is left out, too.
    pub(super) fn add(&mut self, index: u64, ino: u64, most: usize) {
        if index <= self.last_index {
            return;
        }
        self.last_index = index;
        if self.inodes.len() >= most {
            self.forget_passed();
        }
        let is_sorted = self.sorted == self.inodes.len()
            && (self.are_planned() || self.inodes.last() <= Some(&ino));
        if self.inodes.len() < most && self.inodes.push(ino, GFP_KERNEL_ACCOUNT).is_ok() {
            self.sorted += usize::from(is_sorted);
        }
    }

    fn forget_passed(&mut self) {
        let passed = self.entered;
        self.inodes.copy_within(passed.., 0);
        self.inodes.truncate(self.inodes.len() - passed);
        self.sorted = self.sorted.saturating_sub(passed);
        self.next -= passed;
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

    /// Makes the batch of `ino` the last one, if `ino` is in it, and plans its rest again, if
    /// `is_lost`. Or skips the entries before `ino`: their inodes were in memory. Returns whether
    /// `ino` was found.
    pub(super) fn reach(&mut self, ino: u64, is_lost: impl FnOnce() -> bool) -> bool {
        let batch = self.inodes.get(self.entered..self.next).unwrap_or_default();
        if let Ok(slot) = batch.binary_search(&ino) {
            if is_lost() {
                self.next = self.entered + slot;
            }
            return true;
        }
        let sorted = self.inodes.get(self.next..self.sorted).unwrap_or_default();
        let rest = self.inodes.get(self.next..).unwrap_or_default();
        let found = sorted.binary_search(&ino).ok().or_else(|| {
            let mut near = rest.iter().take(NEAR);
            near.position(|entry| *entry == ino)
        });
        self.next += found.unwrap_or(0);
        found.is_some()
    }

    /// Continues at the entry at `position`, or, if `by_inode`, at the inode number `ino`.
    pub(super) fn start_at(&mut self, position: usize, ino: u64, by_inode: bool) {
        self.next = position;
        if by_inode {
            self.next = 0;
            self.sort(usize::MAX);
            self.next = self.inodes.partition_point(|entry| *entry < ino);
        }
        self.entered = self.next;
    }

    /// Sorts the next entries: at least `count`, if there are as many.
    pub(super) fn sort(&mut self, count: usize) {
        let end = self.next.saturating_add(count).min(self.inodes.len());
        if self.sorted < end {
            if let Some(part) = self.inodes.get_mut(self.next..end) {
                part.sort_unstable();
            }
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

    /// The inode number of the next entry, if that is sorted.
    pub(super) fn next(&self) -> Option<u64> {
        let sorted = self.inodes.get(self.next..self.sorted)?;
        sorted.first().copied()
    }

    /// Puts the next entry into the batch.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }
}
