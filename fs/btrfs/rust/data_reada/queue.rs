// SPDX-License-Identifier: GPL-2.0

//! Queue of the file ranges planned ahead of a send.

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

use super::EXTENT_DATA_KEY;
use crate::tree::Key;

/// Maximum number of inodes that C holds, and minimum for the number of ranges in a queue.
pub(crate) const MAX_INODES: usize = 2048;

/// Maximum number of ranges in a queue, a power of two.
const MAX_RANGES: u64 = 16_384;

/// A range of a file to read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FileRange {
    /// The inode number.
    pub(crate) ino: u64,
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// The length, in bytes; 0 to read only the leaf with the backrefs of the extent.
    pub(crate) len: u64,
    /// The logical address of the extent, and its size on disk, in bytes.
    pub(crate) bytenr: u64,
    pub(crate) disk_len: u64,
    /// The slot of the inode, from 0 to [`MAX_INODES`] - 1. It is unique among the inodes ahead of
    /// the send and the current inode of the send.
    pub(crate) slot: u32,
    /// Sequence number: the number of ranges planned before it, modulo 2^32.
    pub(crate) number: u32,
    /// The compressed extent is read without decompression.
    pub(crate) is_encoded: bool,
    /// The readahead of the page cache continues after the range.
    pub(crate) is_cut: bool,
}

impl FileRange {
    fn key(&self) -> Key {
        Key {
            objectid: self.ino,
            kind: EXTENT_DATA_KEY,
            offset: self.offset,
        }
    }

    /// The memory that the range takes, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        if self.is_encoded {
            self.disk_len.next_multiple_of(PAGE_SIZE as u64)
        } else {
            self.len.next_multiple_of(PAGE_SIZE as u64)
        }
    }
}

/// The ranges ahead of a send, in send order.
pub(crate) struct Queue {
    /// The ranges passed since the last batch, then the ranges ahead.
    ranges: KVVec<FileRange>,
    /// The maximum number of these ranges.
    most: usize,
    /// Indices of the first range ahead, and of the first range of the last batch.
    first: usize,
    batch: usize,
    /// The total cost of the ranges ahead, in bytes, and the number of their inodes.
    bytes: u64,
    pub(super) inodes: usize,
    /// The number of ranges passed, modulo 2^32.
    passed: u32,
    /// The inode planned last, and its slot.
    last_ino: u64,
    slot: u32,
}

impl Queue {
    /// Creates an empty queue for as many ranges of one page as `window` bytes hold, within limits.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory for the ranges.
    pub(crate) fn new(window: u64) -> Result<Self> {
        let pages = (window / PAGE_SIZE as u64).clamp(MAX_INODES as u64, MAX_RANGES);
        let most = pages.next_power_of_two() as usize;
        Ok(Self {
            ranges: KVVec::with_capacity(most, GFP_KERNEL)?,
            most,
            first: 0,
            batch: 0,
            bytes: 0,
            inodes: 0,
            passed: 0,
            last_ino: 0,
            slot: MAX_INODES as u32 - 1,
        })
    }

    /// The total cost of the ranges ahead, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The maximum number of ranges, a power of two.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The number of ranges passed, modulo 2^32.
    pub(crate) fn passed(&self) -> u32 {
        self.passed
    }

    /// The ranges ahead.
    pub(super) fn ahead(&self) -> &[FileRange] {
        self.ranges.get(self.first..).unwrap_or_default()
    }

    /// The ranges of the last batch.
    pub(crate) fn batch(&self) -> &[FileRange] {
        self.ranges.get(self.batch..).unwrap_or_default()
    }

    /// Takes the next range off the queue, if it begins before `key`.
    pub(crate) fn pass(&mut self, key: Key) -> Option<FileRange> {
        let range = *self.ahead().first().filter(|range| range.key() < key)?;
        self.bytes -= range.cost();
        self.first += 1;
        self.passed = self.passed.wrapping_add(1);
        let next = self.ahead().first();
        self.inodes -= usize::from(next.is_none_or(|next| next.ino != range.ino));
        Some(range)
    }

    /// Starts a batch, and drops the passed ranges.
    pub(crate) fn begin(&mut self) {
        let ahead = self.ahead().len();
        self.ranges.copy_within(self.first.., 0);
        self.ranges.truncate(ahead);
        self.first = 0;
        self.batch = ahead;
    }

    /// Appends a range to the batch, and sets its number and the slot of its inode.
    pub(crate) fn push(&mut self, mut range: FileRange) {
        if self.last_ino != range.ino {
            self.last_ino = range.ino;
            self.slot = (self.slot + 1) % MAX_INODES as u32;
        }
        range.slot = self.slot;
        range.number = self.passed.wrapping_add(self.ahead().len() as u32);
        let last = self.ahead().last();
        let is_new = last.is_none_or(|last| last.ino != range.ino);
        // There is room: the caller has checked is_full().
        if self.ranges.push_within_capacity(range).is_ok() {
            self.inodes += usize::from(is_new);
            self.bytes += range.cost();
        }
    }

    /// Whether the queue takes no more ranges, with `room` as the limit of bytes.
    pub(crate) fn is_full(&self, room: u64) -> bool {
        self.bytes >= room
            // One slot is kept for the current inode of the send.
            || self.inodes >= MAX_INODES - 1
            || self.ranges.len() >= self.most
    }

    /// Whether bytes, inodes and ranges are at most half of their limits.
    pub(crate) fn is_half_empty(&self, room: u64) -> bool {
        self.bytes <= room / 2
            && self.inodes <= MAX_INODES / 2
            && self.ahead().len() <= self.most / 2
    }
}
