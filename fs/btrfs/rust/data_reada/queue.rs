// SPDX-License-Identifier: GPL-2.0

//! The ranges of files that are ahead of a send.

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};

use super::EXTENT_DATA_KEY;
use crate::tree::Key;

/// The most inodes to hold.
pub(crate) const MAX_INODES: usize = 256;

/// The most ranges ahead of the send.
pub(crate) const MAX_RANGES: usize = 2048;

/// A range of a file to read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct FileRange {
    /// The inode.
    pub(crate) ino: u64,
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) len: u64,
    /// The logical address of its extent, and the size of the extent on disk, in bytes.
    pub(crate) bytenr: u64,
    pub(crate) disk_len: u64,
    /// A number from 0 to [`MAX_INODES`] - 1 of its inode. It is unique among the inodes ahead of
    /// the send and the one that the send is at.
    pub(crate) slot: u32,
    /// The number of ranges planned before it.
    pub(crate) number: u32,
    /// The extent is to be read as it is on disk.
    pub(crate) is_encoded: bool,
    /// The page cache is to go on by itself after it.
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

    /// Its size in memory, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        if self.is_encoded {
            self.disk_len.next_multiple_of(PAGE_SIZE as u64)
        } else {
            self.len
        }
    }
}

/// The ranges ahead of a send, in its order.
pub(crate) struct Queue {
    /// Those that the send has passed since the last batch come first.
    ranges: KVVec<FileRange>,
    /// The first range ahead, and the first of the last batch.
    first: usize,
    batch: usize,
    /// The cost and the inodes of the ranges ahead.
    bytes: u64,
    pub(super) inodes: usize,
    /// The number of ranges passed.
    passed: u32,
    /// The inode planned last, and its slot.
    last_ino: u64,
    slot: u32,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory for [`MAX_RANGES`].
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            ranges: KVVec::with_capacity(MAX_RANGES, GFP_KERNEL)?,
            first: 0,
            batch: 0,
            bytes: 0,
            inodes: 0,
            passed: 0,
            last_ino: 0,
            slot: MAX_INODES as u32 - 1,
        })
    }

    /// The bytes ahead.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of ranges passed.
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

    /// Passes the next range, if it is before `key`.
    pub(crate) fn pass(&mut self, key: Key) -> Option<FileRange> {
        let range = *self.ahead().first().filter(|range| range.key() < key)?;
        self.bytes -= range.cost();
        self.first += 1;
        self.passed = self.passed.wrapping_add(1);
        let next = self.ahead().first();
        self.inodes -= usize::from(next.is_none_or(|next| next.ino != range.ino));
        Some(range)
    }

    /// Begins a batch.
    pub(crate) fn begin(&mut self) {
        let ahead = self.ahead().len();
        self.ranges.copy_within(self.first.., 0);
        self.ranges.truncate(ahead);
        self.first = 0;
        self.batch = ahead;
    }

    /// Adds a range to the batch, and gives it its number and the slot of its inode.
    pub(crate) fn push(&mut self, mut range: FileRange) {
        if self.last_ino != range.ino {
            self.last_ino = range.ino;
            self.slot = (self.slot + 1) % MAX_INODES as u32;
        }
        range.slot = self.slot;
        range.number = self.passed.wrapping_add(self.ahead().len() as u32);
        let last = self.ahead().last();
        let is_new = last.is_none_or(|last| last.ino != range.ino);
        // is_full() was asked before.
        if self.ranges.push_within_capacity(range).is_ok() {
            self.inodes += usize::from(is_new);
            self.bytes += range.cost();
        }
    }

    /// There is no room for a range more, of `room` bytes.
    pub(crate) fn is_full(&self, room: u64) -> bool {
        self.bytes >= room
            // One slot is that of the inode that the send is at.
            || self.inodes >= MAX_INODES - 1
            || self.ranges.len() >= MAX_RANGES
    }

    /// At most half of all room is used.
    pub(crate) fn is_half_empty(&self, room: u64) -> bool {
        self.bytes <= room / 2
            && self.inodes <= MAX_INODES / 2
            && self.ahead().len() <= MAX_RANGES / 2
    }
}
