// SPDX-License-Identifier: GPL-2.0

use super::*;

/// No other readers.
pub(crate) const ALONE: Others = Others { held: 0, count: 0 };

/// A non-rotational disk in a machine with 4 GiB of memory.
pub(crate) const DISK: Disk = Disk {
    rotating: false,
    readahead: 4 << 10,
    window_kb: 0,
    memory: 4 << 20,
    nodesize: 1 << 14,
};

/// Disks of both kinds with a readahead of 0.
pub(crate) const WITHOUT_READAHEAD: [Disk; 2] = [
    Disk {
        readahead: 0,
        ..DISK
    },
    Disk {
        rotating: true,
        readahead: 0,
        ..DISK
    },
];

#[kernel::macros::kunit_tests(btrfs_window)]
mod suite {
    use super::super::*;

    #[test]
    fn window_depends_on_disk_and_memory() {
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
    fn window_kb_limits_the_window() {
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
    fn window_grows_linearly_after_shrinking() {
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
        // Amount that the others hold, their number, room for this reader.
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
        // 20 readers plan one after the other and use nothing of their readahead.
        let mut others = Others::default();
        for _ in 0..20 {
            others.held += window.room(128, others.held, others);
            others.count += 1;
        }
        assert_eq!(others.held, 128 + 18 * 8);
        // Two readers that use their readahead converge to equal shares.
        let mut sizes = [64, 8];
        for turn in 0..4 {
            let held = sizes[1 - turn % 2];
            sizes[turn % 2] = window.room(72, held, Others { held, count: 1 });
        }
        assert_eq!(sizes, [36, 36]);
    }
}
