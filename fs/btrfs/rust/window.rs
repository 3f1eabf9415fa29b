// SPDX-License-Identifier: GPL-2.0

//! How much to read ahead.
//!
//! A window grows as TCP's does. It doubles until memory was short once. From half of that size on,
//! it grows by its first size only.

use core::cmp::min;

use kernel::{
    prelude::*,
    sizes::{
        SZ_128K,
        SZ_1K,
        SZ_256M, //
    },
};

/// The first size of a window, in bytes.
pub(crate) const FIRST_WINDOW: u64 = SZ_128K as u64;

/// The largest size of a window, in bytes.
pub(crate) const MAX_WINDOW: u64 = SZ_256M as u64;

/// On a rotational disk, a window is this many times the readahead of the filesystem. btrfs sets
/// 4 MiB, which makes [`MAX_WINDOW`].
const ROTATIONAL_FACTOR: u64 = 64;

/// A window takes at most one part in this many of the memory.
const MEMORY_SHARE: u64 = 100;

/// What limits the readahead of a filesystem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Whether seeks are slow.
    pub(crate) rotating: bool,
    /// The readahead that the administrator has set for the filesystem, in KiB; 0 is none.
    pub(crate) readahead: usize,
    /// A bound that the administrator has set for the window of each reader, in KiB; 0 is none.
    pub(crate) window_kb: u32,
    /// The memory that the reader may use, in KiB.
    pub(crate) memory: usize,
    /// The size of a node, in bytes.
    pub(crate) nodesize: u32,
}

impl Disk {
    /// The largest window of a reader, in bytes; 0 switches readahead off.
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

    /// The largest batch of leaves, in bytes. Two batches are in memory at a time. Where seeks are
    /// slow, order on disk matters most, and each batch is a whole window.
    pub(crate) fn max_batch(&self) -> u64 {
        if self.rotating {
            self.window()
        } else {
            self.window() / 2
        }
    }

    /// The number of nodes in `bytes`. The size of a node is a power of two.
    pub(crate) fn nodes(&self, bytes: u64) -> usize {
        (bytes >> self.nodesize.trailing_zeros().min(31)) as usize
    }
}

/// The other readers of a filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Others {
    /// What they have read ahead and not used, in bytes.
    pub(crate) held: u64,
    /// Their number.
    pub(crate) count: u32,
}

/// The size of a window, in the unit of its user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// 0 before the first call of [`Window::grow`].
    size: u64,
    first: u64,
    most: u64,
    /// The window doubles up to this size.
    threshold: u64,
}

impl Window {
    /// A window from `first` to `most`.
    pub(crate) fn new(first: u64, most: u64) -> Self {
        Self {
            size: 0,
            first: min(first, most),
            most,
            threshold: most,
        }
    }

    /// The size now.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The largest size.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// The part of the size that fits into what all readers of the filesystem may hold together,
    /// `limit`. Other readers hold `held` of it. A reader takes no more than its equal share, so
    /// that those that come later get theirs, and no less than the first size.
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

    /// Grows the window to its largest size at once.
    pub(crate) fn open(&mut self) {
        self.size = self.most;
    }

    /// Shrinks the window: what it held was gone before its use.
    pub(crate) fn shrink(&mut self) {
        self.threshold = (self.size / 2).max(self.first);
        self.size = (self.size / 4).max(self.first);
    }
}

/// Fills `order` with the numbers below `count`: the first ones up to `first`, then the others by
/// `address`. It sorts numbers since they take less of the stack than leaves.
pub(crate) fn sort_by_address(
    order: &mut KVVec<u32>,
    count: usize,
    first: usize,
    address: impl Fn(usize) -> u64,
) {
    order.clear();
    for number in 0..count as u32 {
        if order.push_within_capacity(number).is_err() {
            break;
        }
    }
    if let Some(rest) = order.get_mut(first..) {
        rest.sort_unstable_by_key(|number| address(*number as usize));
    }
}

/// Puts `items` into `order`, which has the number of each item once. Changes `order`.
pub(crate) fn permute<T>(items: &mut [T], order: &mut [u32]) {
    for first in 0..order.len() {
        // Items that take each other's place form a cycle.
        let mut to = first;
        loop {
            let from = core::mem::replace(&mut order[to], to as u32) as usize;
            if from == first {
                break;
            }
            items.swap(to, from);
            to = from;
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
pub(crate) mod tests;
