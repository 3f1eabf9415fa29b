// SPDX-License-Identifier: GPL-2.0

//! Recently scanned extents, to detect repeated data and runs.

use kernel::prelude::*;

use crate::hash::hash_64;

/// Binary logarithm of the number of extents remembered.
const EXTENT_BITS: u32 = 12;

/// A run of adjacent extents of a file.
#[derive(Default)]
struct Run {
    ino: u64,
    end: u64,
    len: u64,
}

/// The extents scanned recently, and the last run.
pub(crate) struct Recent {
    /// Hash table of the logical address of an extent and the offset in it.
    extents: KVVec<(u64, u64)>,
    run: Run,
}

impl Recent {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the table cannot be allocated.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            extents: KVVec::from_elem((0, 0), 1 << EXTENT_BITS, GFP_KERNEL)?,
            run: Run::default(),
        })
    }

    /// Records data at `offset` in the extent at `bytenr`. Returns whether the table had it
    /// already; a hash collision replaces older data.
    pub(crate) fn is_repeated(&mut self, bytenr: u64, offset: u64) -> bool {
        let data = (bytenr, offset);
        let hash = hash_64(bytenr ^ offset.rotate_left(32), EXTENT_BITS);
        let Some(seen) = self.extents.get_mut(hash) else {
            return false;
        };
        core::mem::replace(seen, data) == data
    }

    /// Records an extent of the inode `ino`, `len` bytes at `offset`. Returns the length of the run
    /// that it continues, in bytes, or 0.
    pub(crate) fn continue_run(&mut self, ino: u64, offset: u64, len: u64) -> u64 {
        let before = if self.run.ino == ino && self.run.end == offset {
            self.run.len
        } else {
            0
        };
        self.run = Run {
            ino,
            end: offset.saturating_add(len),
            len: before.saturating_add(len),
        };
        before
    }
}
