// SPDX-License-Identifier: GPL-2.0

//! Extents and runs of extents that were seen lately.

use kernel::prelude::*;

use crate::hash::hash_64;

/// The number of extents remembered: 2^12.
const EXTENT_BITS: u32 = 12;

/// Extents that follow each other in a file.
#[derive(Default)]
struct Run {
    ino: u64,
    end: u64,
    len: u64,
}

/// Extents and the run that were seen last.
pub(crate) struct Recent {
    /// The address of an extent and the offset in it, by their hash.
    extents: KVVec<(u64, u64)>,
    run: Run,
}

impl Recent {
    /// Nothing was seen.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory for the extents.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            extents: KVVec::from_elem((0, 0), 1 << EXTENT_BITS, GFP_KERNEL)?,
            run: Run::default(),
        })
    }

    /// Notes data at `offset` in the extent at `bytenr`. Returns whether it was seen lately.
    pub(crate) fn is_repeated(&mut self, bytenr: u64, offset: u64) -> bool {
        let data = (bytenr, offset);
        let hash = hash_64(bytenr ^ offset.rotate_left(32), EXTENT_BITS);
        let Some(seen) = self.extents.get_mut(hash) else {
            return false;
        };
        core::mem::replace(seen, data) == data
    }

    /// Notes an extent of the inode `ino`, `len` bytes at `offset`. Returns the length of the run
    /// that it continues, in bytes.
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
