// SPDX-License-Identifier: GPL-2.0

//! How much to read ahead.
//!
//! A window grows as TCP's does. It doubles until memory was short once. From half of that size on,
//! it grows by its first size only.

use core::cmp::min;

use kernel::sizes::{
    SZ_128K,
    SZ_1K,
    SZ_256M, //
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

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kernel::macros::kunit_tests(btrfs_window)]
mod tests {
    use super::*;

    #[test]
    fn windows_suit_disk_and_memory() {
        // Rotational, readahead in KiB, memory in MiB, window in KiB.
        let cases = [
            (false, 4096, 4096, 4096),
            (false, 4096, 256, 2621),
            (false, 128, 4096, 128),
            (false, 0, 4096, 0),
            (false, 4096, 32, 327),
            (false, 1 << 20, 1 << 20, 256 << 10),
            (true, 4096, 1 << 20, 256 << 10),
            (true, 8192, 1 << 20, 256 << 10),
            (true, 4096, 8192, 83886),
            (true, 4096, 32, 327),
            (true, 128, 4096, 8192),
            (true, 0, 4096, 0),
        ];
        for (rotating, readahead, memory, window) in cases {
            let disk = Disk {
                rotating,
                readahead,
                window_kb: 0,
                memory: memory << 10,
                nodesize: 1 << 14,
            };
            assert_eq!(disk.window(), window << 10);
            let batches = if rotating { 1 } else { 2 };
            assert_eq!(disk.max_batch() * batches, window << 10);
        }
    }

    #[test]
    fn windows_have_a_bound() {
        // Rotational, readahead and bound in KiB, window in KiB.
        let cases = [
            (false, 4096, 0, 4096),
            (false, 4096, 1, 1),
            (false, 4096, 4095, 4095),
            (false, 4096, 8192, 4096),
            (false, 4096, u32::MAX, 4096),
            (false, 0, 8192, 0),
            (true, 4096, 8192, 8192),
            (true, 4096, u32::MAX, 256 << 10),
        ];
        for (rotating, readahead, window_kb, window) in cases {
            let disk = Disk {
                rotating,
                readahead,
                window_kb,
                memory: 1 << 30,
                nodesize: 1 << 14,
            };
            assert_eq!(disk.window(), window << 10);
        }
    }

    #[test]
    fn a_window_that_was_too_large_grows_slowly() {
        let mut window = Window::new(8, 64);
        let mut sizes = [0; 5];
        for size in &mut sizes {
            window.grow();
            *size = window.size();
        }
        assert_eq!(sizes, [8, 16, 32, 64, 64]);
        window.shrink();
        assert_eq!(window.size(), 16);
        for size in &mut sizes {
            window.grow();
            *size = window.size();
        }
        assert_eq!(sizes, [32, 40, 48, 56, 64]);
        for _ in 0..3 {
            window.shrink();
        }
        assert_eq!(window.size(), 8);
        window.grow();
        assert_eq!(window.size(), 16);
    }

    #[test]
    fn readers_share_a_limit() {
        let mut window = Window::new(8, 64);
        window.open();
        // What the others hold, their number, and what is left.
        let cases = [
            (0, 0, 64),
            (60, 1, 64),
            (0, 3, 32),
            (100, 1, 28),
            (127, 1, 8),
            (1000, 99, 8),
        ];
        for (held, count, room) in cases {
            let others = Others { held, count };
            assert_eq!(window.room(128, held, others), room);
        }
        // 20 readers that plan one after the other, and never use what they have.
        let mut others = Others::default();
        for _ in 0..20 {
            others.held += window.room(128, others.held, others);
            others.count += 1;
        }
        assert_eq!(others.held, 128 + 18 * 8);
        // Two that use what they have come to share equally.
        let mut sizes = [64, 8];
        for turn in 0..4 {
            let held = sizes[1 - turn % 2];
            sizes[turn % 2] = window.room(72, held, Others { held, count: 1 });
        }
        assert_eq!(sizes, [36, 36]);
    }
}
