// SPDX-License-Identifier: GPL-2.0

//! Size of the readahead window.
//!
//! A window grows like a TCP congestion window. It doubles until memory is short for the first
//! time. From half of that size on, it grows by its first size.

use core::cmp::min;

use kernel::sizes::{
    SZ_128K,
    SZ_1K,
    SZ_256M, //
};

/// Initial size of a window, in bytes.
pub(crate) const FIRST_WINDOW: u64 = SZ_128K as u64;

/// Maximum size of a window, in bytes.
pub(crate) const MAX_WINDOW: u64 = SZ_256M as u64;

/// A window on a rotational disk is this many times the readahead of the filesystem. The 4 MiB that
/// btrfs sets make [`MAX_WINDOW`].
const ROTATIONAL_FACTOR: u64 = 64;

/// A window takes at most 1/100 of the memory.
const MEMORY_SHARE: u64 = 100;

/// Limits for the readahead of a filesystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Whether a device is rotational, so that seeks are slow.
    pub(crate) rotating: bool,
    /// The readahead of the filesystem, `ra_pages` of its `struct backing_dev_info`, in KiB; 0 for
    /// none.
    pub(crate) readahead: usize,
    /// The administrator's limit for the window of each reader, in KiB; 0 for no limit.
    pub(crate) window_kb: u32,
    /// The memory available to the reader, in KiB.
    pub(crate) memory: usize,
    /// The node size, in bytes.
    pub(crate) nodesize: u32,
}

impl Disk {
    /// The maximum window of a reader, in bytes; 0 switches readahead off.
    pub(crate) fn window(&self) -> u64 {
        let factor = if self.rotating { ROTATIONAL_FACTOR } else { 1 };
        let readahead = (self.readahead as u64).saturating_mul(factor);
        let kib = min(readahead, self.memory as u64 / MEMORY_SHARE);
        let kib = match self.window_kb {
            0 => kib,
            bound => min(kib, u64::from(bound)),
        };
        kib.saturating_mul(SZ_1K as u64).min(MAX_WINDOW)
    }

    /// The maximum batch of leaves, in bytes. Two batches may be unused at a time. Order on disk
    /// matters most where seeks are slow, so a batch is a whole window there.
    pub(crate) fn max_batch(&self) -> u64 {
        if self.rotating {
            self.window()
        } else {
            self.window() / 2
        }
    }

    /// The number of nodes in `bytes`. The node size is a power of two.
    pub(crate) fn nodes(&self, bytes: u64) -> usize {
        (bytes >> self.nodesize.trailing_zeros().min(31)) as usize
    }
}

/// The other readers of a filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// The size of their unused readahead, in bytes.
    pub(crate) held: u64,
    /// The number of these readers.
    pub(crate) count: u32,
}

/// Window size, in the unit of its user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// 0 before the first call of [`Window::grow`].
    size: u64,
    first: u64,
    most: u64,
    /// Size up to which the window doubles; `ssthresh` of TCP.
    threshold: u64,
}

impl Window {
    /// Creates a window that grows from `first` to `most`.
    pub(crate) fn new(first: u64, most: u64) -> Self {
        Self {
            size: 0,
            first: min(first, most),
            most,
            threshold: most,
        }
    }

    /// The current size.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The maximum size.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The part of the window that fits into `limit`, which all readers of the filesystem share;
    /// `held` of it is in use. No reader takes more than an equal share, so that later readers get
    /// theirs. Each may take the initial size in any case.
    pub(crate) fn room(&self, limit: u64, held: u64, others: Others) -> u64 {
        let share = limit / (u64::from(others.count) + 1);
        let left = limit.saturating_sub(held);
        min(self.size, min(share, left).max(self.first))
    }

    /// Grows the window for the next batch.
    pub(crate) fn grow(&mut self) {
        self.size = if self.size < self.threshold {
            (self.size * 2).clamp(self.first, self.threshold)
        } else {
            min(self.size + self.first, self.most)
        };
    }

    /// Grows the window to its maximum size at once.
    pub(crate) fn open(&mut self) {
        self.size = self.most;
    }

    /// Shrinks the window: data was evicted before its use.
    pub(crate) fn shrink(&mut self) {
        self.threshold = (self.size / 2).max(self.first);
        self.size = (self.size / 4).max(self.first);
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
pub(crate) mod tests;
