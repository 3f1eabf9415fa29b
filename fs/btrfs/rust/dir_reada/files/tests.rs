// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_dir_files)]
mod suite {
    use core::cell::Cell;

    use super::super::{
        super::{
            directory::{
                first_key,
                EXTENT_DATA,
                INODE_ITEM, //
            },
            Cache,
            Directory,
            Habit,
            Kind,
            Reading, //
        },
        *, //
    };
    use crate::{
        data_reada::{
            Extent,
            Items, //
        },
        random::{
            fail_allocations,
            Random, //
        },
        tree::{
            tests::array,
            Key,
            KeyPtr,
            Node,
            Root,
            Tree,
            Unread, //
        },
        window::tests::{
            ALONE,
            DISK,
            WITHOUT_READAHEAD, //
        },
    };

    const K: u64 = 1 << 10;

    /// The inode numbers of the first file and after the last one. Each leaf has ten files.
    const FIRST: u64 = 10;
    const END: u64 = 100_010;

    /// A tree of files, each with one extent of 4 KiB, except [`OTHERS`] and those
    /// from [`LARGE`] on.
    struct Files {
        /// Leaves from this one on are not in memory.
        cached: Cell<u64>,
        is_contended: Cell<bool>,
        /// The root has the node above the leaves as its only child, which is not in memory.
        is_tall: Cell<bool>,
    }

    /// A file with inline data, a directory, a file with a hole at its beginning, one with two
    /// extents, one with a hole between two extents, and one with two extents of 96 KiB.
    const OTHERS: [u64; 6] = [5007, 5008, 5009, 5010, 5011, 5012];

    /// A file without checksums.
    const UNCHECKED: u64 = 5013;

    /// Files from this one on are like the last one of these.
    const LARGE: u64 = 95_000;

    /// The extents of the file `ino`: offset, and length in bytes.
    fn extents(ino: u64) -> [Option<(u64, u64)>; 2] {
        match OTHERS.iter().position(|other| *other == ino) {
            None if ino < LARGE => [Some((0, 4 * K)), None],
            Some(0 | 1) => [None, None],
            Some(2) => [Some((4 * K, 4 * K)), None],
            Some(3) => [Some((0, 4 * K)), Some((4 * K, 4 * K))],
            Some(4) => [Some((0, 4 * K)), Some((8 * K, 4 * K))],
            _ => [Some((0, 96 * K)), Some((96 * K, 96 * K))],
        }
    }

    /// A node on this level.
    struct Parent(u32);

    impl Node for Parent {
        fn level(&self) -> u32 {
            self.0
        }
        fn nodesize(&self) -> u32 {
            1 << 14
        }
        fn nritems(&self) -> u32 {
            if self.0 > 1 {
                return 1;
            }
            ((END - FIRST) / 10) as u32
        }
        fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
            for (slot, ptr) in (slot..self.nritems()).zip(ptrs) {
                *ptr = KeyPtr {
                    key: first_key(FIRST + u64::from(slot) * 10, INODE_ITEM),
                    blockptr: u64::from(slot),
                    generation: 1,
                };
            }
        }
        fn search(&self, key: Key) -> Result<u32, u32> {
            let slot = (key.objectid.saturating_sub(FIRST) / 10) as u32;
            if slot < self.nritems() && key == first_key(FIRST + u64::from(slot) * 10, INODE_ITEM) {
                Ok(slot)
            } else {
                Err((slot + 1).min(self.nritems()))
            }
        }
        fn is_cached(&self, _: u64) -> bool {
            true
        }
    }

    /// The leaf with this number.
    struct Leaf(u64);

    /// Each file has three items: the inode, and two extents, or inline data in their place.
    impl Items for Leaf {
        fn nritems(&self) -> u32 {
            30
        }
        fn key(&self, slot: u32) -> Key {
            let ino = FIRST + self.0 * 10 + u64::from(slot) / 3;
            match slot % 3 {
                0 => first_key(ino, INODE_ITEM),
                number => match extents(ino)[number as usize - 1] {
                    Some((offset, _)) => Key {
                        offset,
                        ..first_key(ino, EXTENT_DATA)
                    },
                    None => Key {
                        offset: u64::from(number) << 20,
                        ..first_key(ino, EXTENT_DATA)
                    },
                },
            }
        }
        fn extent(&self, slot: u32) -> Option<Extent> {
            let ino = FIRST + self.0 * 10 + u64::from(slot) / 3;
            let (_, len) = extents(ino)[(slot % 3) as usize - 1]?;
            Some(Extent {
                // Files have descending addresses.
                bytenr: (END - ino) << 20,
                disk_len: len,
                offset: 0,
                len,
                generation: 1,
                is_compressed: false,
            })
        }
        fn is_checked(&self, slot: u32) -> bool {
            self.key(slot).objectid != UNCHECKED
        }
        fn is_file(&self, slot: u32) -> bool {
            self.key(slot).objectid != OTHERS[1]
        }
    }

    impl Tree for Files {
        type Node = Parent;

        fn root(&self) -> Root<Parent> {
            Root::Node(Parent(1 + u32::from(self.is_tall.get())))
        }
        fn is_contended(&self) -> bool {
            self.is_contended.get()
        }
        fn child(
            &self,
            _: &Parent,
            _: u32,
            _: impl Iterator<Item = u32>,
        ) -> Result<Parent, Unread> {
            if self.is_contended() {
                return Err(Unread::Busy);
            }
            Ok(Parent(1))
        }
        fn read_ahead(&self, _: &Parent, _: u32) {}
    }

    impl Subvolume for Files {
        type Items = Leaf;

        fn leaf(&self, _: &Parent, slot: u32) -> Option<Leaf> {
            let number = u64::from(slot);
            (number < self.cached.get()).then_some(Leaf(number))
        }
        fn only_leaf(&self) -> Option<Leaf> {
            None
        }
    }

    fn tree() -> Files {
        Files {
            cached: Cell::new(u64::MAX),
            is_contended: Cell::new(false),
            is_tall: Cell::new(false),
        }
    }

    fn directory(reading: Reading) -> Directory {
        Directory {
            ino: 5,
            size: 20_000,
            last_index: 1001,
            habit: Habit::Unknown,
            reading,
        }
    }

    /// A directory whose listing has returned these files.
    fn listed_after(reading: Reading, inodes: impl IntoIterator<Item = u64>) -> DirReada {
        let mut reada = DirReada::new(DISK, &directory(reading));
        add(&mut reada, inodes);
        reada
    }

    fn listed(inodes: impl IntoIterator<Item = u64>) -> DirReada {
        listed_after(Reading::Unknown, inodes)
    }

    fn add(reada: &mut DirReada, inodes: impl IntoIterator<Item = u64>) {
        for ino in inodes {
            let index = reada.entries.last_index + 1;
            reada.add(index, ino, Kind::File);
        }
    }

    /// Whether the data of a file was read ahead, and the file not read yet.
    fn is_ahead(reada: &DirReada, ino: u64) -> bool {
        [&reada.files.last, &reada.files.passed]
            .iter()
            .any(|batch| batch.unread.iter().any(|file| file.ino == ino))
    }

    /// Reads a file that is not in memory, unless it was read ahead. Returns whether to plan.
    fn read(reada: &mut DirReada, ino: u64) -> bool {
        let has_data = is_ahead(reada, ino);
        reada.read(ino, has_data, 0);
        reada.are_files_due()
    }

    /// Plans a batch. Returns its files, in the order of their inode numbers.
    fn plan(reada: &mut DirReada, tree: &Files) -> Result<KVVec<u64>> {
        reada.plan_files(tree, ALONE);
        let addresses = reada.ranges().iter().map(|range| range.bytenr);
        assert!(addresses.is_sorted());
        array(reada.ranges().iter().rev().map(|range| range.ino))
    }

    /// Reads files, and plans when that is due. Returns the number of files read ahead.
    fn walk(reada: &mut DirReada, inodes: impl IntoIterator<Item = u64>) -> Result<usize> {
        let mut found = 0;
        for ino in inodes {
            if read(reada, ino) {
                found += plan(reada, &tree())?.len();
            }
        }
        Ok(found)
    }

    #[test]
    fn two_reads_start_the_readahead() -> Result {
        let mut reada = listed(10..1000);
        // A file that was not listed does not count, nor does one in memory.
        assert!(!read(&mut reada, 10) && !read(&mut reada, 20_000));
        assert!(reada.read(11, true, 0) == 0 && !reada.are_files_due());
        // The same file again does not count either.
        assert!(!read(&mut reada, 10));
        assert!(read(&mut reada, 12));
        assert!(plan(&mut reada, &tree())?.iter().copied().eq(13..45));
        assert_eq!(reada.held_data(), 128 * K);
        // The reads reach the batch: the next one is due, and then no other.
        assert!(read(&mut reada, 13));
        assert!(plan(&mut reada, &tree())?.iter().copied().eq(45..109));
        assert!((14..45).all(|ino| !read(&mut reada, ino)));
        assert!(read(&mut reada, 45));
        assert_eq!(plan(&mut reada, &tree())?.first(), Some(&109));
        Ok(())
    }

    #[test]
    fn each_file_is_read_ahead_once() -> Result {
        for step in [1, 3] {
            let mut reada = listed((10..5000).step_by(step));
            let found = walk(&mut reada, (10..5000).step_by(step))?;
            assert_eq!(found, (10..5000).step_by(step).count() - MIN_ALONE);
            assert_eq!((reada.held_data(), reada.files.wasted), (0, 0));
        }
        Ok(())
    }

    /// Files that are read before the first plan.
    const MIN_ALONE: usize = 2;

    #[test]
    fn reads_are_in_the_order_of_the_listing_or_of_the_inodes() -> Result {
        let inodes = || (0..200).flat_map(|number| [10 + number, 1010 + number]);
        let mut reada = listed(inodes());
        assert!(!read(&mut reada, 10) && read(&mut reada, 1010));
        assert_eq!(plan(&mut reada, &tree())?.get(..2), Some(&[11, 12][..]));
        let mut reada = listed(inodes().rev());
        assert!(!read(&mut reada, 10) && read(&mut reada, 11));
        assert!(plan(&mut reada, &tree())?.iter().copied().eq(12..44));
        // Files that are listed later come in this order, too.
        add(&mut reada, (300..400).rev());
        walk(&mut reada, 12..210)?;
        assert!((300..310).all(|ino| reada.read(ino, true, 0) > 0));
        Ok(())
    }

    #[test]
    fn reads_without_order_start_nothing() {
        let mut reada = listed(10..5000);
        assert!((0..100).all(|number| !read(&mut reada, 10 + number * 1499 % 4990)));
        assert!(!read(&mut reada, 10) && !read(&mut reada, 11));
        // Reads that leave the order wait for another one.
        let mut reada = listed(10..5000);
        assert!(!read(&mut reada, 10) && read(&mut reada, 11));
        assert!(plan(&mut reada, &tree()).is_ok_and(|files| files.len() == 32));
        assert!((0..32).all(|number| !read(&mut reada, 4999 - number * 40)));
        assert!(!read(&mut reada, 3000) && read(&mut reada, 3001));
        assert!(plan(&mut reada, &tree()).is_ok_and(|files| files.first() == Some(&3002)));
    }

    #[test]
    fn files_in_memory_end_the_readahead_for_now() -> Result {
        let mut reada = listed(10..1000);
        walk(&mut reada, 10..12)?;
        (12..44).for_each(|ino| reada.skip_file(ino));
        assert_eq!((reada.held_data(), reada.files.last.count), (0, 0));
        let end = 12 + MAX_IN_MEMORY as u64 + 1;
        assert!((12..end).all(|ino| reada.read(ino, true, 0) == 0));
        assert!(!reada.are_files_due() && reada.reading() == Reading::Unknown);
        assert!(!read(&mut reada, 500) && read(&mut reada, 501));
        Ok(())
    }

    #[test]
    fn unread_files_shrink_the_window_and_stop_the_readahead() -> Result {
        // Of 32 files, some are not read. The size of the batch after the next one, in KiB.
        for (unread, size) in [(0, 512), (4, 512), (5, 128), (16, 128), (17, 0)] {
            let mut reada = listed(10..1000);
            assert_eq!(walk(&mut reada, 10..13)?, 32 + 64);
            walk(&mut reada, 13..44 - unread)?;
            assert!(read(&mut reada, 44));
            reada.plan_files(&tree(), ALONE);
            // At the stop, the last batch is given up, too.
            let rest = if size == 0 { 64 * 4 * K - 4 * K } else { 0 };
            assert_eq!(reada.take_wasted_data(), unread * 4 * K + rest);
            let planned: u64 = reada.ranges().iter().map(|range| range.len).sum();
            assert_eq!(planned, size.min(512) * K);
            assert_eq!(reada.is_files_stopped(), size == 0);
        }
        Ok(())
    }

    impl DirReada {
        fn is_files_stopped(&self) -> bool {
            self.files.is_stopped
        }
    }

    #[test]
    fn evicted_data_shrinks_the_window() -> Result {
        let mut reada = listed(10..1000);
        walk(&mut reada, 10..13)?;
        let size = reada.files.window.size();
        assert_eq!(reada.read(13, false, 0), 4 * K);
        assert!(reada.files.window.size() < size);
        Ok(())
    }

    #[test]
    fn leaves_that_are_not_in_memory_are_tried_again() -> Result {
        let tree = tree();
        tree.cached.set(2);
        let mut reada = listed(10..1000);
        assert!(!read(&mut reada, 10) && read(&mut reada, 11));
        assert!(plan(&mut reada, &tree)?.iter().copied().eq(12..30));
        assert!(read(&mut reada, 12) && plan(&mut reada, &tree)?.is_empty());
        tree.cached.set(u64::MAX);
        assert!(read(&mut reada, 13));
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&30));
        walk(&mut reada, 14..30)?;
        // A waiting commit ends a plan after its first file.
        tree.is_contended.set(true);
        assert!(read(&mut reada, 30));
        assert_eq!(plan(&mut reada, &tree)?.len(), 1);
        // It does not wait for a node.
        tree.is_tall.set(true);
        assert!(read(&mut reada, 31));
        assert!(plan(&mut reada, &tree)?.is_empty());
        tree.is_contended.set(false);
        assert!(read(&mut reada, 32));
        assert_eq!(plan(&mut reada, &tree)?.first(), Some(&95));
        Ok(())
    }

    #[test]
    fn beginnings_of_files_are_planned() -> Result {
        let mut reada = listed(5000..5020);
        assert!(!read(&mut reada, 5000) && read(&mut reada, 5001));
        reada.plan_files(&tree(), ALONE);
        let len = |ino| {
            let range = reada.ranges().iter().find(|range| range.ino == ino);
            range.map(|range| range.len / K)
        };
        assert_eq!(
            OTHERS.map(len),
            [None, None, None, Some(8), Some(4), Some(128)]
        );
        assert_eq!([5006, UNCHECKED].map(len), [Some(4), None]);
        Ok(())
    }

    #[test]
    fn expected_reads_are_planned_at_the_end_of_the_listing() -> Result {
        let mut reada = listed_after(Reading::Read, 10..500);
        assert!(reada.are_files_due() && reada.reading() == Reading::Unknown);
        assert!(plan(&mut reada, &tree())?.iter().copied().eq(10..42));
        assert_eq!(reada.reading(), Reading::Refused);
        walk(&mut reada, 10..500)?;
        assert_eq!(reada.reading(), Reading::Read);
        for disk in WITHOUT_READAHEAD {
            let mut files = super::super::Files::new(disk, Reading::Read);
            files.add(10, usize::MAX);
            assert_eq!(files.are_due(), files.window.most() > 0);
        }
        Ok(())
    }

    #[test]
    fn files_that_are_not_read_are_not_expected() -> Result {
        // What is known of a directory, and what is known after it, without reads and with some.
        for (before, unread, read_after) in [
            (Reading::Unknown, Reading::Unknown, Reading::Read),
            (Reading::Read, Reading::Refused, Reading::Read),
            (Reading::Refused, Reading::Refused, Reading::Read),
        ] {
            let mut reada = listed_after(before, 10..500);
            if reada.are_files_due() {
                plan(&mut reada, &tree())?;
            }
            assert_eq!(reada.reading(), unread);
            walk(&mut reada, 10..17)?;
            // After a refusal, eight reads start the readahead.
            let is_planned = reada.held_data() > 0;
            assert_eq!(is_planned, before != Reading::Refused);
            walk(&mut reada, 17..500)?;
            assert_eq!(reada.reading(), read_after);
        }
        // Most of what was read ahead is left, or all of it was in memory.
        let mut reada = listed(10..500);
        walk(&mut reada, 10..13)?;
        assert_eq!(reada.reading(), Reading::Refused);
        let mut reada = listed_after(Reading::Refused, 10..500);
        reada.read(10, true, 0);
        assert_eq!(reada.reading(), Reading::Unknown);
        Ok(())
    }

    #[test]
    fn files_of_a_parent_may_be_read_later() -> Result {
        // The task may be on its way through a subdirectory.
        let mut reada = listed_after(Reading::Read, 10..500);
        reada.add(10_000, 1000, Kind::Directory);
        assert!(reada.are_files_due());
        plan(&mut reada, &tree())?;
        assert_eq!(reada.reading(), Reading::Unknown);
        use Reading::{Read, Refused, Unknown};
        assert_eq!(
            [
                (Unknown, Read),
                (Read, Unknown),
                (Read, Refused),
                (Refused, Unknown)
            ]
            .map(|(first, second)| first.and(second)),
            [Read, Read, Refused, Refused]
        );
        Ok(())
    }

    #[test]
    fn a_jump_begins_again_and_many_jumps_stop_the_readahead() -> Result {
        let mut reada = listed(10..80_000);
        walk(&mut reada, 10..1000)?;
        let held = reada.held_data();
        assert!(held > 0 && reada.take_wasted_data() == 0);
        // Reads far behind are strays; then two of them begin another order, with a small window.
        assert_eq!(walk(&mut reada, (20_000..20_032).rev())?, 0);
        assert_eq!((reada.held_data(), reada.take_wasted_data()), (0, held));
        assert_eq!(walk(&mut reada, 20_100..20_103)?, 32 + 64);
        for number in 0..40 {
            let first = 30_000 + number * 200;
            walk(&mut reada, (first..first + 34).rev())?;
            walk(&mut reada, first + 100..first + 102)?;
        }
        assert!(reada.is_files_stopped() && reada.held_data() == 0);
        Ok(())
    }

    #[test]
    fn files_that_are_read_earn_jumps() -> Result {
        let mut reada = listed(10..80_000);
        for number in 0..20 {
            let first = 1000 + number * 2000;
            walk(&mut reada, first..first + 400)?;
            assert!(!reada.is_files_stopped() && reada.held_data() > 0);
            walk(&mut reada, (first + 1000..first + 1034).rev())?;
        }
        Ok(())
    }

    #[test]
    fn an_early_jump_begins_again() -> Result {
        for jump in [12, 20, 50, 100, 200, 400, 800] {
            let mut reada = listed(10..80_000);
            walk(&mut reada, 10..jump)?;
            walk(&mut reada, (20_000..20_032).rev())?;
            assert_eq!(walk(&mut reada, 20_100..20_103)?, 32 + 64);
        }
        Ok(())
    }

    #[test]
    fn reads_behind_or_in_memory_keep_the_order() -> Result {
        let mut reada = listed(10..80_000);
        walk(&mut reada, 10..20)?;
        for ino in 20..120 {
            // One more reader, and a file that is read again and again.
            read(&mut reada, 50_000 + ino * 20);
            reada.read(30_000, true, 0);
            reada.read(19, true, 0);
            walk(&mut reada, [ino])?;
        }
        assert!(reada.take_wasted_data() == 0 && reada.held_data() > 0);
        // Files in memory do not end it as long as files are ahead.
        (1000..1020).for_each(|ino| assert_eq!(reada.read(ino, true, 0), 0));
        assert!(reada.held_data() > 0);
        // Nor does a file that is read again, as long as the next ones were not listed.
        let mut reada = listed(10..50);
        walk(&mut reada, 10..50)?;
        (0..100).for_each(|_| assert_eq!(reada.read(49, true, 0), 0));
        add(&mut reada, 50..100);
        assert!(read(&mut reada, 50));
        Ok(())
    }

    #[test]
    fn large_files_of_which_half_are_read_stop_the_readahead() -> Result {
        let mut reada = listed(LARGE..LARGE + 100);
        walk(&mut reada, LARGE..LARGE + 20)?;
        assert!(!reada.is_files_stopped() && reada.take_wasted_data() == 0);
        let found = walk(&mut reada, (LARGE + 20..LARGE + 100).step_by(2))?;
        assert!(reada.is_files_stopped() && (8..24).contains(&found));
        // From the first batch on, which is one file.
        let mut reada = listed(LARGE..LARGE + 100);
        walk(&mut reada, LARGE..LARGE + 2)?;
        let found = walk(&mut reada, (LARGE + 3..LARGE + 100).step_by(2))?;
        assert!(reada.is_files_stopped() && (12..18).contains(&found));
        Ok(())
    }

    #[test]
    fn reads_that_were_not_noted_do_not_count_as_unread() -> Result {
        // Of 32 files, 19 are not read. At most 8 of them may have been missed.
        for (missed, is_stopped) in [(0, true), (2, true), (3, false), (1000, false)] {
            let mut reada = listed(10..1000);
            walk(&mut reada, 10..25)?;
            reada.read(44, true, missed / 2);
            reada.read(45, true, missed - missed / 2);
            assert!(reada.are_files_due());
            plan(&mut reada, &tree())?;
            assert_eq!(reada.is_files_stopped(), is_stopped);
            // They count once: of the next 64 files, 33 are not read.
            if !is_stopped {
                walk(&mut reada, 46..75)?;
                reada.read(109, true, 0);
                assert!(reada.are_files_due());
                plan(&mut reada, &tree())?;
                assert!(reada.is_files_stopped());
            }
        }
        let mut reada = listed(10..1000);
        walk(&mut reada, 10..13)?;
        reada.read(44, true, 1000);
        assert!(reada.are_files_due());
        plan(&mut reada, &tree())?;
        assert!(reada.is_files_stopped());
        Ok(())
    }

    #[test]
    fn reads_count_as_lookups() -> Result {
        let mut reada = listed(10..1000);
        struct Everything;
        impl Cache for Everything {
            fn has(&self, _: u64) -> bool {
                true
            }
            fn has_unused(&self, _: u64) -> bool {
                false
            }
        }
        assert!(!reada.look_up(10, &Everything) && reada.look_up(11, &Everything));
        reada.plan(&tree(), ALONE, &Everything);
        assert!(!reada.end_part());
        walk(&mut reada, 10..13)?;
        let lookups = reada.lookups;
        assert!(reada.read(14, true, 0) > 0);
        assert_eq!(reada.lookups, lookups + 1);
        Ok(())
    }

    #[test]
    fn files_that_were_read_make_room() -> Result {
        let mut reada = listed([]);
        for ino in 10..10 + (1 << 16) {
            reada.files.add(ino, usize::MAX);
        }
        let first = walk(&mut reada, 10..30_000)?;
        reada.files.add(90_000, usize::MAX);
        let second = walk(&mut reada, 30_000..65_546)?;
        // Three of OTHERS have no data at their beginning, and one file has no checksums.
        assert_eq!(first + second, (1 << 16) + 1 - MIN_ALONE - 4);
        assert!(!reada.files.are_done());
        assert!(!read(&mut reada, 90_000) && reada.files.are_done());
        Ok(())
    }

    /// Plans a batch, of which some files cannot be read. Returns the bytes of the others.
    fn plan_at_random(random: &mut Random, reada: &mut DirReada, tree: &Files) -> Result<u64> {
        reada.plan_files(tree, ALONE);
        fail_allocations(false);
        let mut bytes = 0;
        for range in array(reada.ranges().iter().copied())? {
            if random.below(16) == 0 {
                reada.skip_file(range.ino);
            } else {
                bytes += range.len;
            }
        }
        Ok(bytes)
    }

    /// Lists and reads files from `start` on, mostly in order. Returns the bytes read ahead.
    fn read_at_random(random: &mut Random, disk: Disk, start: u64) -> Result<u64> {
        let tree = tree();
        let mut reada = DirReada::new(disk, &directory(Reading::Unknown));
        let (mut listed, mut next) = (start, start);
        let (mut submitted, mut used, mut wasted) = (0, 0, 0);
        for _ in 0..2000 {
            tree.is_contended.set(random.below(8) == 0);
            tree.is_tall.set(random.below(2) == 0);
            // Leaves that are not in memory end a batch.
            tree.cached.set((next - FIRST) / 10 + random.below(400));
            fail_allocations(random.below(16) == 0);
            if random.below(8) == 0 {
                let part = listed..listed + random.below(100);
                listed = part.end;
                add(&mut reada, part);
            } else {
                next += 1 + random.below(32) / 31 * random.below(60);
                next = if next > listed { start } else { next };
                // Some files are evicted, or were in memory before.
                let has_data = is_ahead(&reada, next) != (random.below(32) == 0);
                used += reada.read(next, has_data, random.below(64) as usize / 63);
            }
            if reada.are_files_due() {
                submitted += plan_at_random(random, &mut reada, &tree)?;
            }
            fail_allocations(false);
            wasted += reada.take_wasted_data();
            assert_eq!(submitted, used + wasted + reada.held_data());
            assert!(reada.held_data() <= limit(disk) + FIRST_WINDOW);
        }
        Ok(submitted)
    }

    #[test]
    fn random_reads_are_accounted_for() -> Result {
        let mut random = Random::new(13);
        let mut submitted = 0;
        for _ in 0..60 {
            let disk = Disk {
                rotating: random.below(2) == 0,
                window_kb: 1 << random.below(14),
                ..DISK
            };
            // The special files are in the middle, and the last ones are large.
            let start = [10, 4000, LARGE - 1000][random.below(3) as usize];
            submitted += read_at_random(&mut random, disk, start)?;
        }
        assert!(submitted > 10_000 * K);
        Ok(())
    }
}
