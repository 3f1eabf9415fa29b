// SPDX-License-Identifier: GPL-2.0

//! Recently scanned extents, to detect repeated data and runs.

use kernel::prelude::*;

use super::Extent;
use crate::hash::hash_64;

/// Binary logarithm of the number of extents remembered.
const EXTENT_BITS: u32 = 12;

/// The last reference to an extent.
#[derive(Clone, Copy, Default)]
struct Seen {
    bytenr: u64,
    ino: u64,
    /// The offset in the file of the first byte of the extent, modulo 2^64.
    start: u64,
    is_repeated: bool,
}

/// A run of extents that are adjacent in a file and on disk.
#[derive(Default)]
struct Run {
    ino: u64,
    /// The end in the file and on disk, and the length in the file, in bytes.
    end: u64,
    disk_end: u64,
    len: u64,
}

/// The extents scanned recently, and the last run.
pub(crate) struct Recent {
    /// Hash table of extents by logical address.
    extents: KVVec<Seen>,
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
            extents: KVVec::from_elem(Seen::default(), 1 << EXTENT_BITS, GFP_KERNEL)?,
            run: Run::default(),
        })
    }

    /// Records that the inode `ino` has data of an extent at `offset`. Returns whether the table
    /// has another reference to the extent. Several parts of the extent at the same place of the
    /// file count as one: what is between was overwritten. A hash collision replaces older data.
    pub(crate) fn is_repeated(&mut self, ino: u64, offset: u64, extent: &Extent) -> bool {
        let bytenr = extent.bytenr;
        let start = offset.wrapping_sub(extent.offset);
        let Some(seen) = self.extents.get_mut(hash_64(bytenr, EXTENT_BITS)) else {
            return false;
        };
        let is_repeated = if (seen.bytenr, seen.ino, seen.start) == (bytenr, ino, start) {
            seen.is_repeated
        } else {
            seen.bytenr == bytenr
        };
        *seen = Seen {
            bytenr,
            ino,
            start,
            is_repeated,
        };
        is_repeated
    }

    /// Records an extent of the inode `ino` at `offset`. Returns the length of the run that it
    /// continues, in bytes, or 0.
    pub(crate) fn continue_run(&mut self, ino: u64, offset: u64, extent: &Extent) -> u64 {
        let (from, disk_len) = if extent.is_compressed {
            (extent.bytenr, extent.disk_len)
        } else {
            (extent.bytenr.saturating_add(extent.offset), extent.len)
        };
        let run = &self.run;
        let before = if (run.ino, run.end, run.disk_end) == (ino, offset, from) {
            run.len
        } else {
            0
        };
        self.run = Run {
            ino,
            end: offset.saturating_add(extent.len),
            disk_end: from.saturating_add(disk_len),
            len: before.saturating_add(extent.len),
        };
        before
    }
}
