// SPDX-License-Identifier: GPL-2.0

//! The order in which a task reads the files of a directory.

use core::cmp::{
    max,
    min, //
};

use kernel::prelude::*;

use super::{
    directory::Reading,
    entries::{
        Entries,
        NEAR, //
    },
    files::MAX_SCANNED,
    MAX_STRAYS, //
};
use crate::{
    ffi::OptionalVec,
    sort::sort_by_key, //
};

/// Reads before the order is known; and those if the files of the directory before were not read.
const MIN_READS: usize = 2;
const MIN_READS_REFUSED: usize = 8;

/// Maximum number of files noted, in 512 KiB.
const MAX_NOTED: usize = 1 << 16;

/// The files of a directory, in the order of the listing, or, from `next` on, of inode numbers.
pub(super) struct Sequence {
    inodes: OptionalVec<u64>,
    /// Set if reads are in the order of the inode numbers, and if `inodes` is.
    by_inode: bool,
    is_sorted: bool,
    /// Set if the order of the reads is known or expected.
    is_known: bool,
    /// Reads to wait for.
    min_reads: usize,
    /// The number of reads in this order, and of others.
    reads: usize,
    strays: usize,
    /// Position of the last read, and of the next file to plan.
    reached: usize,
    next: usize,
}

impl Sequence {
    /// No files. If `reading` is expected, the order is that of the listing.
    pub(super) fn new(reading: Reading) -> Self {
        let min_reads = if reading == Reading::Refused {
            MIN_READS_REFUSED
        } else {
            MIN_READS
        };
        Self {
            inodes: OptionalVec::new(),
            by_inode: false,
            is_sorted: false,
            is_known: reading == Reading::Read,
            min_reads,
            reads: 0,
            strays: 0,
            reached: 0,
            next: 0,
        }
    }

    /// Whether the order of the reads is known or expected; whether they follow none.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }
    pub(super) fn is_missing(&self) -> bool {
        self.strays >= MAX_STRAYS
    }

    /// The number of reads in this order.
    pub(super) fn reads(&self) -> usize {
        self.reads
    }

    /// The position of the last read, and of the next file to plan.
    pub(super) fn reached(&self) -> usize {
        self.reached
    }
    pub(super) fn next(&self) -> usize {
        self.next
    }

    /// The next file to plan.
    pub(super) fn next_file(&self) -> Option<u64> {
        self.inodes.get(self.next).copied()
    }

    /// Marks the next file as planned.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Whether the reads have reached the last file.
    pub(super) fn is_at_end(&self) -> bool {
        self.reached + 1 >= self.inodes.len()
    }

    /// Adds the file with the inode number `ino`. If there are `most`, forgets those that were
    /// read, up to the position `passed`, and returns their number.
    pub(super) fn add(&mut self, ino: u64, passed: usize, most: usize) -> usize {
        let passed = min(self.reached, passed);
        let most = min(most, MAX_NOTED);
        let mut forgotten = 0;
        if self.inodes.len() >= most && passed > most / 8 {
            forgotten = passed;
            self.inodes.copy_within(forgotten.., 0);
            self.inodes.truncate(self.inodes.len() - forgotten);
            self.reached -= forgotten;
            self.next -= forgotten;
        }
        if self.inodes.len() < most {
            // Without memory, it is left out.
            let _ = self.inodes.push(ino, GFP_KERNEL);
            self.is_sorted = false;
        }
        forgotten
    }

    /// Waits for reads in order again.
    pub(super) fn restart(&mut self) {
        self.is_known = false;
        self.is_sorted = false;
        self.reads = 0;
        self.strays = 0;
    }

    /// Notes one of the first reads. Returns whether the order is known now.
    pub(super) fn start(&mut self, ino: u64) -> bool {
        let Some(found) = self.inodes.iter().position(|file| *file == ino) else {
            return self.stray();
        };
        let before = core::mem::replace(&mut self.reached, found);
        // The same file again tells nothing.
        if self.reads > 0 && found == before {
            return false;
        }
        self.reads += 1;
        if self.reads < self.min_reads {
            return false;
        }
        self.by_inode = !Entries::is_near(before, found);
        if self.by_inode && !self.follows_by_inode(before, ino) {
            self.reads = 1;
            return self.stray();
        }
        self.sort();
        let files = self.inodes.iter();
        self.reached = files.take_while(|file| **file != ino).count();
        self.next = self.reached + 1;
        self.is_known = true;
        self.strays = 0;
        true
    }

    /// Counts a read that follows no order. Returns false.
    pub(super) fn stray(&mut self) -> bool {
        self.strays += 1;
        false
    }

    /// Whether `ino` is one of the next inode numbers after that of the file at `before`.
    fn follows_by_inode(&self, before: usize, ino: u64) -> bool {
        let Some(&before) = self.inodes.get(before) else {
            return false;
        };
        let files = self.inodes.iter();
        let between = files.filter(|file| (before..ino).contains(*file));
        (1..=NEAR).contains(&between.count())
    }

    /// Sorts the files that were not planned, if reads are by inode number.
    pub(super) fn sort(&mut self) {
        if self.by_inode && !self.is_sorted {
            let first = if self.is_known { self.next } else { 0 };
            if let Some(rest) = self.inodes.get_mut(first..) {
                sort_by_key(rest, |ino| *ino);
            }
            self.is_sorted = true;
        }
    }

    /// The position of `ino` among the files from `first` on that were planned or come next.
    fn position(&self, ino: u64, first: usize) -> Option<usize> {
        let end = min(self.next + NEAR, self.inodes.len());
        let mut files = self.inodes.get(first..end)?.iter();
        Some(first + files.position(|file| *file == ino)?)
    }

    /// Notes a read in a known order. Returns its position, or `None` if it does not follow that.
    pub(super) fn follow(&mut self, ino: u64) -> Option<usize> {
        let behind = self.reached.saturating_sub(MAX_SCANNED);
        let found = self.position(ino, self.reached);
        let found = found.or_else(|| self.position(ino, behind))?;
        self.strays = 0;
        self.reads += 1;
        self.reached = max(self.reached, found);
        self.next = max(self.next, found + 1);
        Some(found)
    }
}
