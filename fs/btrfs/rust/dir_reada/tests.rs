// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_dir_reada)]
mod suite {
    use core::{
        cell::Cell,
        ops::Range, //
    };

    use super::super::*;
    use crate::{
        random::{
            fail_allocations,
            Random, //
        },
        tree::{
            tests::*,
            KeyPtr,
            Root,
            Unread, //
        },
        window::tests::{
            ALONE,
            DISK,
            WITHOUT_READAHEAD, //
        },
    };

    /// The inode number of the directory. Its DIR_ITEMs are in one leaf.
    const DIR: u64 = 5;

    fn directory(entries: u64) -> Directory {
        Directory {
            ino: DIR,
            size: entries * 20,
            last_index: entries + 1,
            habit: Habit::Unknown,
            reading: Reading::Unknown,
        }
    }

    /// A directory whose listing has returned these inode numbers.
    fn listed(inodes: impl IntoIterator<Item = u64>) -> DirReada {
        let mut reada = DirReada::new(DISK, &directory(1000));
        // No readahead of DIR_ITEMs.
        reada.names.next = reada.names.end;
        add(&mut reada, inodes);
        reada
    }

    /// Lists more entries with these inode numbers.
    fn add(reada: &mut DirReada, inodes: impl IntoIterator<Item = u64>) {
        for ino in inodes {
            let index = reada.entries.last_index + 1;
            reada.add(index, ino, Kind::Other);
        }
    }

    /// Leaves with ten inode numbers each, from 10 on, at addresses 1, 2 and so on.
    fn leaves(count: u64) -> Result<KVVec<(u64, u64)>> {
        array((1..=count).map(|number| (number * 10, number)))
    }

    /// Blocks in memory: those in `unused` were read ahead and not used, and those in `cached`.
    #[derive(Default)]
    struct Blocks {
        unused: Range<u64>,
        cached: Range<u64>,
    }

    impl Cache for Blocks {
        fn has(&self, blockptr: u64) -> bool {
            self.cached.contains(&blockptr)
        }
        fn has_unused(&self, blockptr: u64) -> bool {
            self.unused.contains(&blockptr)
        }
    }

    /// No block was evicted.
    struct Everything;

    impl Cache for Everything {
        fn has(&self, _: u64) -> bool {
            true
        }
        fn has_unused(&self, _: u64) -> bool {
            false
        }
    }

    /// Looks up an inode. Returns whether a batch is to be planned.
    fn look_up(reada: &mut DirReada, ino: u64) -> bool {
        reada.look_up(ino, &Everything)
    }

    /// Plans a batch, of which all leaves so far were used. Returns its addresses.
    fn plan<T: Tree>(reada: &mut DirReada, tree: &T) -> Result<KVVec<u64>> {
        reada.plan(tree, ALONE, &Blocks::default());
        array(reada.leaves().iter().map(|leaf| leaf.ptr.blockptr))
    }

    /// Looks up the inodes and plans when that is due. Returns the addresses of all batches.
    fn walk<T: Tree>(
        reada: &mut DirReada,
        tree: &T,
        inodes: impl IntoIterator<Item = u64>,
    ) -> Result<KVVec<u64>> {
        let mut found = KVVec::new();
        for ino in inodes {
            if look_up(reada, ino) {
                for address in plan(reada, tree)? {
                    found.push(address, GFP_KERNEL)?;
                }
            }
        }
        Ok(found)
    }

    #[test]
    fn two_lookups_start_the_readahead() -> Result {
        let leaves = leaves(100)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..1000);
        // An inode that was not listed does not count.
        assert!(!look_up(&mut reada, 10) && !look_up(&mut reada, 2000));
        assert!(look_up(&mut reada, 11));
        assert_eq!(*plan(&mut reada, &tree)?, [1, 2, 3, 4, 5, 6, 7, 8]);
        // The lookups are in the batch: the next one is due, and then no other.
        assert!(look_up(&mut reada, 12));
        assert_eq!(plan(&mut reada, &tree)?.len(), 16);
        assert!(!look_up(&mut reada, 13));
        assert!(!look_up(&mut reada, 79));
        assert!(look_up(&mut reada, 90));
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&25));
        Ok(())
    }

    #[test]
    fn leaves_that_are_used_later_are_read_by_address() {
        let mut reada = listed(10..1000);
        assert!(reada.reserve(20));
        for blockptr in (1..=20).rev() {
            let ptr = KeyPtr {
                blockptr,
                ..KeyPtr::default()
            };
            assert!(reada
                .leaves
                .push_within_capacity(Leaf { ptr, tree: 0 })
                .is_ok());
        }
        reada.sort(16);
        let found = reada.leaves().iter().map(|leaf| leaf.ptr.blockptr);
        // 128 KiB are used first.
        assert!(found.eq(Iterator::chain((13..=20).rev(), 1..=12)));
    }

    #[test]
    fn each_leaf_is_read_once() -> Result {
        let leaves = leaves(3000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed((10..30000).step_by(3));
        let mut found = walk(&mut reada, &tree, (10..30000).step_by(3))?;
        found.sort_unstable();
        assert!(found.iter().copied().eq(1..3000));
        Ok(())
    }

    #[test]
    fn order_of_lookups_is_that_of_the_listing_or_of_the_inodes() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        // Listed in an order of leaves 1, 501, 2, 502 and so on.
        let inodes = || (0..500).flat_map(|number| [10 + number * 10, 5010 + number * 10]);
        let mut reada = listed(inodes());
        assert!(!look_up(&mut reada, 10) && look_up(&mut reada, 5010));
        // The leaves of the first entries, sorted in parts.
        assert_eq!(*plan(&mut reada, &tree)?, [1, 501, 2, 3, 4, 5, 502, 503]);
        let mut reada = listed(inodes());
        assert!(!look_up(&mut reada, 10) && look_up(&mut reada, 400));
        // Lookups are by inode number, and those before this one are done.
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&40));
        assert_eq!(reada.entries.sorted, 1000);
        Ok(())
    }

    #[test]
    fn lookups_of_a_later_part_of_the_listing_go_on() -> Result {
        let leaves = leaves(100)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..50);
        assert!(!reada.end_part());
        assert_eq!(*walk(&mut reada, &tree, 10..50)?, [1, 2, 3, 4]);
        add(&mut reada, 50..80);
        // The lookups have reached the last batch, so the next one is planned at once.
        assert!(reada.end_part());
        assert_eq!(*plan(&mut reada, &tree)?, [5, 6, 7]);
        assert!(!reada.end_part());
        Ok(())
    }

    #[test]
    fn inodes_in_memory_are_passed_over() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..10000);
        walk(&mut reada, &tree, [10, 11])?;
        assert_eq!(
            *walk(&mut reada, &tree, [5000])?.first().ok_or(EINVAL)?,
            500
        );
        Ok(())
    }

    #[test]
    fn unused_leaves_shrink_the_window_and_stop_the_readahead() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        // The size of the next batch; 0 if there is none.
        for (unused, size) in [(0, 64), (1, 64), (2, 16), (4, 16), (5, 0)] {
            let mut reada = listed(10..10000);
            walk(&mut reada, &tree, 10..13)?;
            // The lookups reach the second batch, so the first one is checked.
            assert!(look_up(&mut reada, 100));
            let blocks = Blocks {
                unused: 9 - unused..9,
                ..Blocks::default()
            };
            reada.plan(&tree, ALONE, &blocks);
            assert_eq!(reada.leaves().is_empty(), size == 0);
            assert!(size == 0 || reada.window.size() == size);
            assert_eq!(look_up(&mut reada, 2000), size > 0);
        }
        Ok(())
    }

    #[test]
    fn evicted_batch_is_planned_again() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..10000);
        walk(&mut reada, &tree, 10..12)?;
        assert!(reada.look_up(30, &Blocks::default()));
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&3));
        Ok(())
    }

    #[test]
    fn names_are_planned_as_lookups_double() -> Result {
        let leaves = array((0..400).map(|number| (number * 10, number)))?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(5000..6000);
        (reada.names.next, reada.names.end) = (key(10), key(2000));
        let mut found = KVVec::new();
        for ino in 5000..5100 {
            let count = if look_up(&mut reada, ino) {
                plan(&mut reada, &tree)?
                    .iter()
                    .filter(|address| **address < 399)
                    .count()
            } else {
                0
            };
            found.push(count, GFP_KERNEL)?;
        }
        let planned = |lookup: usize| found.get(lookup - 1).copied();
        assert_eq!([1, 2, 4, 8].map(planned), [0, 16, 32, 64].map(Some));
        // All of them once, from the first to the last.
        assert_eq!(found.iter().sum::<usize>(), 199);
        // Those in memory are left out.
        reada.names.next = key(10);
        while !look_up(&mut reada, 5100) {}
        reada.plan(&tree, ALONE, &Everything);
        assert!(reada.leaves().is_empty());
        Ok(())
    }

    #[test]
    fn names_of_a_large_directory_are_planned_as_lookups_go_on() -> Result {
        let leaves = array((0..4500).map(|number| (number * 10, number)))?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(40_000..41_000);
        (reada.names.next, reada.names.end) = (key(10), key(30_000));
        let mut last = 0;
        for lookup in 1..1000 {
            let next = reada.names.next;
            if look_up(&mut reada, 39_999 + lookup) {
                plan(&mut reada, &tree)?;
            }
            if reada.names.next > next {
                // Twice as many lookups, or one for each leaf of the largest batch.
                assert_eq!(lookup - last, last.clamp(2, 64));
                last = lookup;
            }
        }
        assert!(last >= 896);
        Ok(())
    }

    #[test]
    fn nothing_is_planned_without_readahead_or_tree() -> Result {
        let leaves = leaves(100)?;
        for disk in WITHOUT_READAHEAD {
            let mut reada = DirReada::new(disk, &directory(1000));
            add(&mut reada, 10..100);
            assert!((10..100).all(|ino| !look_up(&mut reada, ino) && !reada.list(ino)));
        }
        let tree = tree(&leaves, &NONE, 1);
        tree.is_committed.set(false);
        let mut reada = listed(10..1000);
        assert!(!look_up(&mut reada, 10) && look_up(&mut reada, 11));
        assert!(plan(&mut reada, &tree)?.is_empty());
        // The next lookup tries again.
        tree.is_committed.set(true);
        assert!(look_up(&mut reada, 12));
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&1));
        Ok(())
    }

    #[test]
    fn entries_take_a_quarter_of_the_window() -> Result {
        let disk = Disk {
            readahead: 128,
            ..DISK
        };
        let most = (128 << 10) / 4 / 8;
        let leaves = leaves(2000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = DirReada::new(disk, &directory(1 << 20));
        add(&mut reada, 10..1 << 20);
        assert_eq!(reada.entries.len(), most);
        // Entries that were looked up make room. Repeated ones are left out.
        let mut reada = DirReada::new(disk, &directory(1 << 20));
        add(&mut reada, 10..10 + most as u64);
        walk(&mut reada, &tree, 10..10 + most as u64)?;
        let last = reada.entries.last_index;
        reada.add(last, 20_000, Kind::Other);
        assert_eq!(reada.entries.inodes.last(), Some(&(9 + most as u64)));
        reada.add(last + 1, 6000, Kind::Other);
        assert_eq!(reada.entries.inodes.last(), Some(&6000));
        assert!(reada.entries.len() < most && look_up(&mut reada, 6000));
        assert_eq!(*plan(&mut reada, &tree)?, [600]);
        Ok(())
    }

    #[test]
    fn files_take_a_quarter_of_the_window() -> Result {
        let disk = Disk {
            readahead: 128,
            ..DISK
        };
        let end = 10 + 2 * (128 << 10) / 4 / 8;
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = DirReada::new(disk, &directory(1 << 20));
        for ino in 10..end {
            reada.add(ino, ino, Kind::File);
            walk(&mut reada, &tree, [ino])?;
        }
        // Entries that were looked up make room, but these files were not read.
        assert_eq!(reada.entries.last_index, end - 1);
        for (first, is_due) in [(end - 10, false), (10, true)] {
            reada.read(first, false, 0);
            reada.read(first + 1, false, 0);
            assert_eq!(reada.are_files_due(), is_due);
        }
        Ok(())
    }

    #[test]
    fn a_walk_holds_half_of_what_all_readers_may() -> Result {
        let leaves = leaves(3000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..30000);
        let mut most = 0;
        for ino in 10..29000 {
            walk(&mut reada, &tree, [ino])?;
            most = most.max(reada.held());
        }
        assert_eq!(most, DISK.max_batch());
        Ok(())
    }

    #[test]
    fn lookups_of_other_entries_end_the_readahead() {
        let mut reada = listed(10..1000);
        assert!((0..MAX_STRAYS as u64).all(|number| !look_up(&mut reada, 2000 + number)));
        assert!(!look_up(&mut reada, 10) && !look_up(&mut reada, 11) && reada.is_stopped);
    }

    #[test]
    fn nothing_is_held_at_the_end() -> Result {
        let leaves = leaves(100)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..200);
        walk(&mut reada, &tree, 10..12)?;
        assert_eq!(reada.held(), 8 << 14);
        walk(&mut reada, &tree, 12..90)?;
        assert_eq!(reada.held(), 19 << 14);
        assert!(!reada.is_done());
        walk(&mut reada, &tree, 90..91)?;
        assert_eq!(reada.held(), 0);
        assert!(reada.is_done());
        Ok(())
    }

    #[test]
    fn listing_is_read_ahead_up_to_its_end() -> Result {
        // DIR_INDEX items of the directory begin in the leaf at address 4, and end there.
        let leaves = array((0..40).map(|number| (DIR * 10 + number, number)))?;
        let tree = tree(&leaves, &NONE, 1);
        let directory = Directory {
            ino: DIR * 10 + 4,
            ..directory(10000)
        };
        let mut reada = DirReada::new(DISK, &directory);
        assert!(reada.list(2));
        let listing = reada.listing().ok_or(EINVAL)?;
        listing.plan(&tree, &crate::tree::tests::tree(&NONE, &NONE, 1), ALONE);
        let (leaves, _) = listing.rest();
        assert!(leaves.iter().map(|leaf| leaf.ptr.blockptr).eq([4]));
        // A small directory has no readahead of its listing.
        assert!(DirReada::new(DISK, &self::directory(10))
            .listing()
            .is_none());
        Ok(())
    }

    /// All leaves were read ahead and are unused.
    const ALL_UNUSED: Blocks = Blocks {
        unused: 0..u64::MAX,
        cached: 0..0,
    };

    /// A directory whose listing has returned many entries, after others with this habit.
    fn listed_after(habit: Habit) -> DirReada {
        let directory = Directory {
            habit,
            ..directory(1000)
        };
        let mut reada = DirReada::new(DISK, &directory);
        add(&mut reada, 500..2000);
        reada
    }

    #[test]
    fn next_directory_is_read_as_the_last_one() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        // A listing without lookups, and one with unused leaves.
        let mut reada = listed(10..500);
        assert_eq!(reada.habit(&Everything), Habit::Unknown);
        walk(&mut reada, &tree, 10..500)?;
        assert_eq!(reada.habit(&ALL_UNUSED), Habit::Unknown);
        let habit = reada.habit(&Everything);
        let window = reada.window.size();
        let by_inode = false;
        assert_eq!(habit, Habit::LookedUp { window, by_inode });
        // The next directory is read at once, and not in small batches.
        let mut next = listed_after(habit);
        assert!(next.end_part());
        assert_eq!(plan(&mut next, &tree)?.len(), window as usize);
        Ok(())
    }

    #[test]
    fn parent_tells_of_the_lookups_so_far() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..5000);
        walk(&mut reada, &tree, [10])?;
        assert_eq!(reada.habit(&Everything), Habit::Unknown);
        // Most leaves of the last batch are unused yet.
        walk(&mut reada, &tree, 11..14)?;
        let habit = reada.habit(&ALL_UNUSED);
        assert!(matches!(habit, Habit::LookedUp { .. }));
        // Lookups of subdirectories that are then listed do not count.
        for ino in 2000..2003 {
            reada.children.add(ino, usize::MAX);
            reada.list_child(ino, false);
        }
        assert_eq!(reada.habit(&ALL_UNUSED), Habit::Unknown);
        walk(&mut reada, &tree, 14..16)?;
        assert!(matches!(reada.habit(&ALL_UNUSED), Habit::LookedUp { .. }));
        // A lookup far ahead passes over entries without lookups.
        walk(&mut reada, &tree, [3000])?;
        assert_eq!(reada.habit(&ALL_UNUSED), Habit::Unknown);
        // The larger window counts: few entries of a parent have been looked up.
        let larger = Habit::LookedUp {
            window: 100,
            by_inode: true,
        };
        assert_eq!((habit.and(larger), larger.and(habit)), (larger, larger));
        Ok(())
    }

    #[test]
    fn directory_without_lookups_keeps_others_from_readahead() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let habit = Habit::LookedUp {
            window: 64,
            by_inode: false,
        };
        let mut reada = listed_after(habit);
        assert!(reada.end_part());
        plan(&mut reada, &tree)?;
        assert_eq!(reada.habit(&Everything), Habit::Unknown);
        assert_eq!(reada.habit(&ALL_UNUSED), Habit::Refused);
        // It counts more than a directory with lookups.
        let (unknown, refused) = (Habit::Unknown, Habit::Refused);
        assert_eq!((habit.and(refused), refused.and(habit)), (refused, refused));
        assert_eq!((habit.and(unknown), unknown.and(habit)), (habit, habit));
        let mut next = listed_after(refused);
        assert!(!next.end_part());
        assert_eq!(next.habit(&Everything), Habit::Refused);
        // Lookups of its own entries start it.
        assert!(!look_up(&mut next, 500) && look_up(&mut next, 501));
        assert!(matches!(next.habit(&Everything), Habit::LookedUp { .. }));
        Ok(())
    }

    #[test]
    fn leaves_in_memory_do_not_count() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..10000);
        assert!(!look_up(&mut reada, 10) && look_up(&mut reada, 11));
        let blocks = Blocks {
            cached: 3..50,
            ..Blocks::default()
        };
        reada.plan(&tree, ALONE, &blocks);
        let found = reada.leaves().iter().map(|leaf| leaf.ptr.blockptr);
        assert!(found.eq([1, 2, 50, 51, 52, 53, 54, 55]));
        Ok(())
    }

    #[test]
    fn leaf_with_the_rest_of_an_inode_is_read() {
        let next = |kind, offset| Key {
            objectid: 7,
            kind,
            offset,
        };
        let cases = [
            // INODE_REF, XATTR_ITEM, EXTENT_DATA.
            (next(12, 5), true),
            (next(24, 9), true),
            (next(108, 0), true),
            (next(108, 4096), false),
            (next(DIR_ITEM, 9), false),
            (key(8), false),
        ];
        for (first, is_read) in cases {
            assert_eq!(directory::reads_on(7, first), is_read);
        }
        // DIR_ITEM and DIR_INDEX items of a subdirectory.
        for (kind, is_listed) in [(24, false), (84, true), (96, true), (108, false)] {
            assert_eq!(directory::lists_on(7, next(kind, 9)), is_listed);
        }
        assert!(!directory::lists_on(6, next(96, 9)));
    }

    #[test]
    fn entries_in_any_order_are_all_read() -> Result {
        let leaves = leaves(2000)?;
        let tree = tree(&leaves, &NONE, 1);
        // One entry for each leaf, in an order without runs.
        let inodes = || (0..2000u64).map(|number| 10 + number * 7 % 2000 * 10);
        let mut reada = listed(inodes());
        let mut known = KVVec::new();
        for _ in 0..=2000 {
            known.push(false, GFP_KERNEL)?;
        }
        let mut late = 0;
        for ino in inodes() {
            if look_up(&mut reada, ino) {
                for address in plan(&mut reada, &tree)? {
                    known[address as usize] = true;
                }
            }
            late += usize::from(!known[ino as usize / 10]);
        }
        // All leaves but those of the first lookups are planned before their lookup.
        assert!(late < 16);
        Ok(())
    }

    #[test]
    fn plans_yield_and_respect_other_readers() -> Result {
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        let mut reada = listed(10..10000);
        walk(&mut reada, &tree, 10..13)?;
        assert!(look_up(&mut reada, 90));
        let others = Others {
            held: 128 << 14,
            count: 0,
        };
        reada.plan(&tree, others, &Blocks::default());
        assert_eq!(reada.leaves().len(), 8);
        tree.is_contended.set(true);
        assert!(look_up(&mut reada, 260));
        assert_eq!(plan(&mut reada, &tree)?.len(), 1);
        Ok(())
    }

    #[test]
    fn plan_that_gives_way_before_a_node_goes_on_later() -> Result {
        let leaves = leaves(1000)?;
        let parents = parents(&leaves, 40, 0)?;
        let tree = tree(&leaves, &parents, 40);
        tree.has_parents.set(false);
        let mut reada = listed(10..10000);
        walk(&mut reada, &tree, 10..13)?;
        // The lookups reach the second batch. Its leaves are judged when they have passed it.
        let blocks = Blocks {
            unused: 9..25,
            cached: 0..0,
        };
        tree.is_contended.set(true);
        for ino in 90..93 {
            assert!(look_up(&mut reada, ino));
            reada.plan(&tree, ALONE, &blocks);
            assert!(reada.leaves().is_empty());
        }
        tree.is_contended.set(false);
        assert!(look_up(&mut reada, 93));
        reada.plan(&tree, ALONE, &blocks);
        let mut batch = array(reada.leaves().iter().map(|leaf| leaf.ptr.blockptr))?;
        batch.sort_unstable();
        assert!(batch.iter().copied().eq(25..57));
        assert!(!look_up(&mut reada, 94));
        Ok(())
    }

    #[test]
    fn plan_waits_for_few_nodes() -> Result {
        // Two entries are below each node, and the nodes are read ahead together.
        let leaves = leaves(1000)?;
        let parents = parents(&leaves, 10, 0)?;
        let tree = tree(&leaves, &parents, 10);
        let inodes = || (0..200).map(|number| 10 + number / 2 * 37 % 100 * 100 + number % 2 * 10);
        // Nodes that are read ahead arrive before the next lookup.
        tree.is_slow.set(true);
        let mut reada = listed(inodes());
        let (mut found, mut late) = (KVVec::new(), 0);
        for ino in inodes() {
            if look_up(&mut reada, ino) {
                for address in plan(&mut reada, &tree)? {
                    found.push(address, GFP_KERNEL)?;
                }
            }
            late += usize::from(!found.contains(&(ino / 10)));
            assert!(tree.waits.take() <= 2);
            tree.reading.take();
        }
        found.sort_unstable();
        assert!(found
            .iter()
            .copied()
            .eq((0..100).flat_map(|number| [1 + number * 10, 2 + number * 10])));
        assert!(late < 16);
        Ok(())
    }

    #[test]
    fn names_that_gave_way_are_planned_at_the_next_lookup() -> Result {
        let leaves = array((0..400).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 20, 0)?;
        let tree = tree(&leaves, &parents, 20);
        tree.has_parents.set(false);
        let mut reada = listed(5000..6000);
        (reada.names.next, reada.names.end) = (key(505), key(2000));
        tree.is_contended.set(true);
        assert!(!look_up(&mut reada, 5000) && look_up(&mut reada, 5001));
        assert!(plan(&mut reada, &tree)?.is_empty());
        tree.is_contended.set(false);
        assert!(look_up(&mut reada, 5002));
        // The first leaf has the inodes.
        assert!(plan(&mut reada, &tree)?
            .iter()
            .copied()
            .eq(Iterator::chain(399..400, 50..74)));
        Ok(())
    }

    /// A tree, and the entries of directories in it: directory, inode number, whether it is a
    /// directory.
    struct Dirs<'a> {
        tree: Array<'a>,
        entries: &'a [(u64, u64, bool)],
        /// Whether the leaves with entries are in memory.
        are_cached: Cell<bool>,
    }

    impl<'a> Tree for Dirs<'a> {
        type Node = Plain<'a>;

        fn root(&self) -> Root<Plain<'a>> {
            self.tree.root()
        }
        fn is_contended(&self) -> bool {
            self.tree.is_contended()
        }
        fn child(
            &self,
            node: &Plain<'a>,
            slot: u32,
            ahead: impl Iterator<Item = u32>,
        ) -> Result<Plain<'a>, Unread> {
            self.tree.child(node, slot, ahead)
        }
        fn read_ahead(&self, node: &Plain<'a>, slot: u32) {
            self.tree.read_ahead(node, slot);
        }
    }

    impl Directories for Dirs<'_> {
        fn entries(&self, _: &Self::Node, _: u32, dir: u64, to: &mut [Entry]) -> Option<usize> {
            let found = self.entries.iter().filter(|entry| entry.0 == dir);
            let mut count = 0;
            for (to, &(_, ino, is_dir)) in to.iter_mut().zip(found) {
                *to = Entry { ino, is_dir };
                count += 1;
            }
            self.are_cached.get().then_some(count)
        }
    }

    /// The subdirectories from 10 to 29, each with ten entries in one leaf, from 1000 on.
    const CHILDREN: Range<u64> = 10..30;

    fn entries() -> Result<KVVec<(u64, u64, bool)>> {
        array((0..200).map(|number| (10 + number / 10, 1000 + number, number == 19)))
    }

    fn dirs<'a>(leaves: &'a [(u64, u64)], entries: &'a [(u64, u64, bool)]) -> Dirs<'a> {
        Dirs {
            tree: tree(leaves, &NONE, 1),
            entries,
            are_cached: Cell::new(true),
        }
    }

    /// A directory with these subdirectories, whose entries are being looked up.
    fn descended() -> DirReada {
        let mut reada = listed_after(Habit::LookedUp {
            window: 8,
            by_inode: false,
        });
        for ino in CHILDREN {
            let index = reada.entries.last_index + 1;
            reada.add(index, ino, Kind::Directory);
        }
        reada
    }

    /// Plans a batch for subdirectories. Returns its addresses.
    fn plan_children(reada: &mut DirReada, dirs: &Dirs<'_>) -> Result<KVVec<u64>> {
        reada.plan_children(dirs, ALONE, &Blocks::default());
        array(reada.leaves().iter().map(|leaf| leaf.ptr.blockptr))
    }

    #[test]
    fn next_subdirectories_are_read_in_growing_batches() -> Result {
        let (leaves, entries) = (leaves(1000)?, entries()?);
        let dirs = dirs(&leaves, &entries);
        let mut reada = descended();
        // A directory elsewhere does not count.
        assert!(!reada.list_child(7, true));
        assert!(reada.list_child(10, true));
        // Entries of 11 and 12, and nothing of the subdirectory that is being listed.
        assert_eq!(*plan_children(&mut reada, &dirs)?, [101, 102]);
        // The last entry of 11 is a directory. That has no entries.
        assert!(reada.list_child(11, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [103, 104, 105, 106]);
        assert!(!reada.list_child(12, true));
        assert!(reada.list_child(13, true));
        assert_eq!(plan_children(&mut reada, &dirs)?.len(), 8);
        assert_eq!(reada.held(), 12 << 14);
        assert!(!reada.list_child(14, true) && !reada.is_done());
        // Subdirectories in memory are passed over.
        assert!(!reada.list_child(29, true));
        assert_eq!(reada.held(), 0);
        // Listings without lookups do not start it.
        let mut reada = descended();
        assert!(!reada.list_child(10, false) && reada.list_child(11, true));
        // A leaf with entries of two subdirectories is read once.
        let entries = [(11, 1000, false), (12, 1001, false)];
        let dirs = self::dirs(&leaves, &entries);
        let mut reada = descended();
        assert!(reada.list_child(10, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [100]);
        Ok(())
    }

    #[test]
    fn what_is_due_is_that_of_the_last_event() -> Result {
        let mut reada = descended();
        assert!(reada.list(2));
        assert_eq!(
            (reada.take_due(), reada.take_due()),
            (Some(Due::Listing), None)
        );
        assert!(reada.list(2) && reada.end_part());
        assert_eq!(reada.take_due(), Some(Due::Entries));
        assert!(reada.list(2) && look_up(&mut reada, 10));
        assert_eq!(reada.take_due(), Some(Due::Entries));
        assert!(reada.list(2) && reada.list_child(10, true));
        assert_eq!(reada.take_due(), Some(Due::Children));
        assert!(reada.list(2) && !reada.list_child(7, true));
        assert_eq!(reada.take_due(), None);
        Ok(())
    }

    #[test]
    fn entries_that_are_not_in_memory_are_read_first() -> Result {
        let (leaves, entries) = (leaves(1000)?, entries()?);
        let dirs = dirs(&leaves, &entries);
        let mut reada = descended();
        dirs.are_cached.set(false);
        assert!(reada.list_child(10, true));
        // The leaf of the subdirectories 11 and 12.
        assert_eq!(*plan_children(&mut reada, &dirs)?, [1]);
        dirs.are_cached.set(true);
        assert!(reada.list_child(11, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [102]);
        // A plan that yields goes on at the next listing.
        assert!(reada.list_child(12, true));
        dirs.tree.is_contended.set(true);
        assert!(plan_children(&mut reada, &dirs)?.is_empty());
        dirs.tree.is_contended.set(false);
        assert!(reada.list_child(13, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [104, 105, 106]);
        // Directories further below are kept until their entries are in memory.
        let entries = [(11, 1000, true), (1000, 2000, false)];
        let dirs = self::dirs(&leaves, &entries);
        let mut reada = descended();
        assert!(reada.list_child(10, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [100]);
        dirs.are_cached.set(false);
        assert!(reada.list_child(11, true));
        plan_children(&mut reada, &dirs)?;
        dirs.are_cached.set(true);
        assert!(reada.list_child(12, true));
        assert_eq!(plan_children(&mut reada, &dirs)?.first(), Some(&200));
        Ok(())
    }

    #[test]
    fn plan_for_subdirectories_does_not_wait_for_a_node() -> Result {
        let (leaves, entries) = (leaves(1000)?, entries()?);
        let parents = parents(&leaves, 20, 0)?;
        let mut dirs = dirs(&leaves, &entries);
        dirs.tree = tree(&leaves, &parents, 20);
        dirs.tree.has_parents.set(false);
        let mut reada = descended();
        dirs.tree.is_contended.set(true);
        assert!(reada.list_child(10, true));
        assert!(plan_children(&mut reada, &dirs)?.is_empty());
        dirs.tree.is_contended.set(false);
        assert!(reada.list_child(11, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [102]);
        Ok(())
    }

    #[test]
    fn plan_for_subdirectories_waits_for_few_nodes() -> Result {
        let leaves = leaves(1000)?;
        // Each entry is below another node.
        let entries = array((0..40).map(|number| (11 + number / 8, 1000 + number * 100, false)))?;
        let parents = parents(&leaves, 10, 0)?;
        let mut dirs = dirs(&leaves, &entries);
        dirs.tree = tree(&leaves, &parents, 10);
        dirs.tree.is_slow.set(true);
        let mut reada = descended();
        let mut waits = 0;
        for ino in 10..15 {
            if reada.list_child(ino, true) {
                plan_children(&mut reada, &dirs)?;
                let count = dirs.tree.waits.take();
                assert!(count <= 2);
                waits += count;
                dirs.tree.reading.take();
            }
        }
        assert!(waits > 2);
        Ok(())
    }

    #[test]
    fn subdirectories_take_a_quarter_of_the_window() -> Result {
        let disk = Disk {
            window_kb: 64,
            ..DISK
        };
        let end = 10 + (64 << 10) / 4 / 8;
        let leaves = leaves(1000)?;
        let tree = tree(&leaves, &NONE, 1);
        // Entries that were looked up make room, but these directories were not listed.
        for (listed, is_due) in [(end - 2, true), (end - 1, false)] {
            let mut reada = DirReada::new(disk, &directory(1 << 20));
            for ino in 10..end + 100 {
                reada.add(ino, ino, Kind::Directory);
                walk(&mut reada, &tree, [ino])?;
            }
            assert_eq!(reada.list_child(listed, true), is_due);
        }
        Ok(())
    }

    #[test]
    fn directories_further_below_are_read() -> Result {
        let leaves = leaves(1000)?;
        let entries = [(11, 1000, true), (1000, 2000, true), (2000, 3000, false)];
        let dirs = dirs(&leaves, &entries);
        let mut reada = descended();
        let mut found = KVVec::new();
        for ino in 10..14 {
            if reada.list_child(ino, true) {
                for address in plan_children(&mut reada, &dirs)? {
                    found.push(address, GFP_KERNEL)?;
                }
            }
        }
        assert_eq!(*found, [100, 200, 300]);
        // A directory that contains itself is read once for each listing.
        let entries = [(11, 11, true)];
        let dirs = self::dirs(&leaves, &entries);
        let mut reada = descended();
        for ino in 10..20 {
            if reada.list_child(ino, true) {
                assert!(plan_children(&mut reada, &dirs)?.len() <= 1);
            }
        }
        Ok(())
    }

    #[test]
    fn unused_leaves_end_the_readahead_for_subdirectories() -> Result {
        let leaves = leaves(2000)?;
        // Ten leaves for each subdirectory.
        let entries = array((0..200).map(|number| (10 + number / 10, 1000 + number * 10, false)))?;
        let dirs = dirs(&leaves, &entries);
        let mut reada = descended();
        let mut batches = 0;
        for ino in CHILDREN {
            if reada.list_child(ino, true) {
                reada.plan_children(&dirs, ALONE, &ALL_UNUSED);
                batches += usize::from(!reada.leaves().is_empty());
            }
        }
        // The first batch is passed when the third one is due.
        assert_eq!((batches, reada.children.held()), (2, 0));
        // The readahead for the entries themselves goes on.
        assert!(!reada.is_stopped);
        Ok(())
    }

    #[test]
    fn batch_of_subdirectories_is_limited() -> Result {
        let leaves = leaves(4000)?;
        // A subdirectory with more leaves than a batch, and one with more entries than a plan.
        let entries = array((0..100).map(|number| (11, 1000 + number * 10, false)))?;
        let dirs = dirs(&leaves, &entries);
        let mut reada = descended();
        assert!(reada.list_child(10, true));
        assert_eq!(plan_children(&mut reada, &dirs)?.len(), 16);
        let entries = array((0..2000).map(|number| (11, 1000 + number / 100, false)))?;
        let dirs = self::dirs(&leaves, &entries);
        let mut reada = descended();
        assert!(reada.list_child(10, true));
        assert_eq!(*plan_children(&mut reada, &dirs)?, [100, 101]);
        // Of the second subdirectory, the entries that are left.
        let entry = |number: u64| {
            (
                11 + number / 700,
                1000 + number / 700 * 1000 + number % 700 / 20,
                false,
            )
        };
        let entries = array((0..1400).map(entry))?;
        let dirs = self::dirs(&leaves, &entries);
        let mut reada = descended();
        assert!(reada.list_child(10, true));
        assert_eq!(
            *plan_children(&mut reada, &dirs)?,
            [100, 101, 102, 103, 200, 201]
        );
        Ok(())
    }

    /// Checks a batch of leaves, each of which is to be read once, and not in memory.
    fn check(reada: &DirReada, disk: Disk, blocks: &Blocks) -> Result {
        let planned = reada.leaves().iter().map(|leaf| leaf.ptr.blockptr);
        let mut planned = array(planned)?;
        planned.sort_unstable();
        assert!(planned.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(!planned.iter().any(|address| blocks.has(*address)));
        // Entries and subdirectories may each hold two batches of the first size in any case.
        let limit = disk.nodes(limit(disk));
        let first = disk.nodes(FIRST_WINDOW).min(limit).max(1);
        assert!(disk.nodes(reada.held()) <= limit + 2 * first + MAX_LEAVES);
        Ok(())
    }

    /// A task that walks a directory. Of its entries, every fourth is a directory.
    struct Walker<'a> {
        reada: DirReada,
        listing: &'a [u64],
        /// The number of entries listed, and the entries to look up and to list next.
        listed: usize,
        next: usize,
        child: usize,
    }

    impl Walker<'_> {
        /// Lists up to `count` entries.
        fn list(&mut self, count: usize, dirs: &Dirs<'_>, blocks: &Blocks) -> bool {
            for &ino in self.listing[self.listed..].iter().take(count) {
                self.listed += 1;
                let kind = match self.listed % 4 {
                    0 => Kind::Directory,
                    _ => Kind::Other,
                };
                self.reada.add(2 + self.listed as u64, ino, kind);
            }
            let is_due = self.reada.end_part();
            if is_due {
                self.reada.plan(dirs, ALONE, blocks);
            }
            is_due
        }

        /// Lists a subdirectory, `step` after the last one.
        fn descend(&mut self, step: usize, dirs: &Dirs<'_>, blocks: &Blocks) -> bool {
            self.child = (self.child + 4 * step).min(self.listed / 4 * 4);
            let Some(&ino) = self.listing[..self.child].last() else {
                return false;
            };
            let is_due = self.reada.list_child(ino, true);
            if is_due {
                self.reada.plan_children(dirs, ALONE, blocks);
            }
            is_due
        }

        /// Looks up an entry, `step` after the last one, or an inode that was not listed.
        fn look_up(&mut self, step: usize, dirs: &Dirs<'_>, blocks: &Blocks) -> bool {
            self.next = (self.next + step) % (self.listed + 20);
            let ino = self.listing.get(self.next).copied().unwrap_or(1);
            let is_due = self.reada.look_up(ino, blocks);
            if is_due {
                self.reada.plan(dirs, ALONE, blocks);
            }
            is_due
        }
    }

    /// Walks a directory, mostly in the order of the listing, in a tree with `count` leaves.
    /// Returns the number of leaves planned.
    fn walk_at_random(
        random: &mut Random,
        disk: Disk,
        dirs: &Dirs<'_>,
        count: u64, //
    ) -> Result<usize> {
        let listing = array((0..2000).map(|number| random.below(count * 10 + 20) + number))?;
        let mut walker = Walker {
            reada: DirReada::new(disk, &directory(random.below(5000))),
            listing: &listing,
            listed: 0,
            next: 0,
            child: 0,
        };
        let mut planned = 0;
        for _ in 0..1000 {
            let cached = random.below(count);
            let blocks = Blocks {
                unused: 0..random.below(count + 1) * (random.below(64) / 63),
                cached: cached..cached + random.below(20),
            };
            dirs.tree.is_contended.set(random.below(4) == 0);
            dirs.tree.has_parents.set(random.below(2) == 0);
            dirs.are_cached.set(random.below(2) == 0);
            let step = 1 + (random.below(16) / 15 * random.below(40)) as usize;
            fail_allocations(random.below(8) == 0);
            let is_planned = match random.below(6) {
                0 => walker.list(random.below(60) as usize, dirs, &blocks),
                1 => walker.descend(step, dirs, &blocks),
                _ => walker.look_up(step, dirs, &blocks),
            };
            fail_allocations(false);
            if is_planned {
                check(&walker.reada, disk, &blocks)?;
                planned += walker.reada.leaves().len();
            }
        }
        Ok(planned)
    }

    #[test]
    fn random_walks_stay_within_their_limits() -> Result {
        let mut random = Random::new(11);
        let mut planned = 0;
        for _ in 0..60 {
            let count = 1 + random.below(1500);
            let width = 1 + random.below(60) as usize;
            let leaves = leaves(count)?;
            let parents = parents(&leaves, width, 0)?;
            let mut ino = || random.below(count * 10 + 20);
            let entries = array((0..200).map(|number| (ino(), ino(), number % 4 == 0)))?;
            let mut dirs = dirs(&leaves, &entries);
            dirs.tree = tree(&leaves, &parents, width);
            let disk = Disk {
                rotating: random.below(2) == 0,
                window_kb: 1 << random.below(14),
                ..DISK
            };
            planned += walk_at_random(&mut random, disk, &dirs, count)?;
        }
        assert!(planned > 1000);
        Ok(())
    }
}
