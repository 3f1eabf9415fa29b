// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_data_reada)]
mod suite {
    use super::super::{
        credit::USED_PER_WASTED,
        *, //
    };
    use crate::{
        random::Random,
        tree::{
            tests::array,
            KeyPtr,
            Root, //
        },
        window::{
            tests::{
                ALONE,
                DISK,
                WITHOUT_READAHEAD, //
            },
            MAX_WINDOW, //
        },
    };
    use core::cell::Cell;
    use kernel::page::PAGE_SIZE;

    /// A tree with one node above the leaves, which are equal parts of one array of items.
    struct Array<'a> {
        items: &'a [(Key, Option<Extent>)],
        width: usize,
        /// Index of the first newer leaf, and the generation of that leaf and those after it.
        /// Leaves before it have generation 1.
        newer: (usize, u64),
        /// Leaves from this index on are not cached.
        cached: Cell<u32>,
        /// The number of leaves scanned.
        read: Cell<u32>,
        /// The root has the node above the leaves as its only child, which is not in memory.
        is_tall: bool,
        /// The root is a leaf with all items.
        is_leaf: bool,
        is_contended: Cell<bool>,
    }

    impl<'a> Array<'a> {
        fn new(items: &'a [(Key, Option<Extent>)], width: usize) -> Self {
            Self {
                items,
                width,
                newer: (0, 2),
                cached: Cell::new(u32::MAX),
                read: Cell::new(0),
                is_tall: false,
                is_leaf: false,
                is_contended: Cell::new(false),
            }
        }
    }

    /// A node on this level.
    struct Parent<'a>(&'a Array<'a>, u32);

    impl Parent<'_> {
        fn first_key(&self, slot: u32) -> Key {
            self.0.items[slot as usize * self.0.width].0
        }
    }

    impl Node for Parent<'_> {
        fn level(&self) -> u32 {
            self.1
        }
        fn nodesize(&self) -> u32 {
            1 << 14
        }
        fn nritems(&self) -> u32 {
            let leaves = self.0.items.len().div_ceil(self.0.width) as u32;
            if self.1 == 1 {
                leaves
            } else {
                1
            }
        }
        fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
            for (slot, ptr) in (slot..self.nritems()).zip(ptrs) {
                let newer = self.0.newer;
                *ptr = KeyPtr {
                    key: self.first_key(slot),
                    blockptr: u64::from(slot),
                    generation: if slot as usize >= newer.0 { newer.1 } else { 1 },
                };
            }
        }
        fn search(&self, key: Key) -> Result<u32, u32> {
            let next = (0..self.nritems()).find(|slot| self.first_key(*slot) >= key);
            match next {
                Some(slot) if self.first_key(slot) == key => Ok(slot),
                next => Err(next.unwrap_or(self.nritems())),
            }
        }
        fn is_cached(&self, _blockptr: u64) -> bool {
            true
        }
    }

    impl Items for &[(Key, Option<Extent>)] {
        fn nritems(&self) -> u32 {
            self.len() as u32
        }
        fn key(&self, slot: u32) -> Key {
            self[slot as usize].0
        }
        fn extent(&self, slot: u32) -> Option<Extent> {
            self[slot as usize].1
        }
        fn is_file(&self, slot: u32) -> bool {
            self[slot as usize].0.offset == 0
        }
    }

    impl<'a> Tree for &'a Array<'a> {
        type Node = Parent<'a>;

        fn root(&self) -> Root<Parent<'a>> {
            if self.is_leaf {
                return Root::Leaf;
            }
            Root::Node(Parent(self, if self.is_tall { 2 } else { 1 }))
        }
        fn is_contended(&self) -> bool {
            self.is_contended.get()
        }
        fn child(
            &self,
            _node: &Parent<'a>,
            _slot: u32,
            _ahead: impl Iterator<Item = u32>,
        ) -> Result<Parent<'a>, Unread> {
            if self.is_contended() {
                return Err(Unread::Busy);
            }
            Ok(Parent(self, 1))
        }
    }

    impl<'a> Subvolume for &'a Array<'a> {
        type Items = &'a [(Key, Option<Extent>)];

        fn leaf(&self, _node: &Parent<'a>, slot: u32) -> Option<Self::Items> {
            if slot >= self.cached.get() {
                return None;
            }
            self.read.set(self.read.get() + 1);
            self.items.chunks(self.width).nth(slot as usize)
        }

        fn only_leaf(&self) -> Option<Self::Items> {
            self.is_leaf.then_some(self.items)
        }
    }

    const K: u64 = 1 << 10;

    fn key(ino: u64, kind: u8, offset: u64) -> Key {
        Key {
            objectid: ino,
            kind,
            offset,
        }
    }

    fn extent(bytenr: u64, len: u64) -> Extent {
        Extent {
            bytenr,
            disk_len: len,
            offset: 0,
            len,
            generation: 2,
            is_compressed: false,
        }
    }

    /// 8 KiB of one extent, from `offset` in the extent on.
    fn part(offset: u64) -> Extent {
        Extent {
            offset,
            ..extent(1 << 20, 8 * K)
        }
    }

    /// A file extent item, or an inode item if `extent` is `None`.
    fn item(ino: u64, offset: u64, extent: Option<Extent>) -> (Key, Option<Extent>) {
        let kind = match extent {
            Some(_) => EXTENT_DATA_KEY,
            None => INODE_ITEM_KEY,
        };
        (key(ino, kind, offset), extent)
    }

    /// Files with one extent of 8 KiB each, in reverse order on disk.
    fn small_files(count: u64) -> Result<KVVec<(Key, Option<Extent>)>> {
        array((0..2 * count).map(|number| {
            let ino = 257 + number / 2;
            let bytenr = (count - number / 2) * 8 * K;
            item(ino, 0, (number % 2 == 1).then_some(extent(bytenr, 8 * K)))
        }))
    }

    /// Plans a batch with the send at `at`.
    fn plan<T: Subvolume>(walk: &mut DataReada, tree: &T, at: Key, others: Others) {
        walk.position = at;
        walk.plan(tree, others);
    }

    /// Walks through a tree as a send does. Returns the planned ranges, in send order.
    fn send(walk: &mut DataReada, tree: &Array<'_>) -> Result<KVVec<FileRange>> {
        let mut planned = KVVec::new();
        for (key, _) in tree.items {
            if walk.advance(*key, true) {
                walk.plan(&tree, ALONE);
                for range in walk.planned() {
                    planned.push(*range, GFP_KERNEL)?;
                }
            }
            assert!(walk.queue.inodes < MAX_INODES);
            assert!(walk.held() < walk.window.most() + 128 * 1024 * K);
        }
        Ok(planned)
    }

    #[test]
    fn scan_ends_at_the_last_inode_number() -> Result {
        let items = [
            item(257, 0, None),
            item(257, 0, Some(extent(1 << 20, 8 * K))),
            item(END.objectid, 0, None),
            item(END.objectid, 0, Some(extent(2 << 20, 8 * K))),
        ];
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        assert_eq!((walk.planned().len(), walk.next), (1, None));
        Ok(())
    }

    #[test]
    fn all_data_is_planned_once_and_in_order() -> Result {
        let items = small_files(3000)?;
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let planned = send(&mut walk, &Array::new(&items, 100))?;
        assert_eq!(planned.len(), 3000);
        for (number, range) in planned.iter().enumerate() {
            assert_eq!(range.ino, 257 + number as u64);
            assert_eq!((range.offset, range.len), (0, 8 * K));
            assert!(!range.is_encoded && !range.is_cut);
        }
        assert_eq!((walk.held(), walk.queue.inodes), (8 * K, 1));
        Ok(())
    }

    #[test]
    fn tree_of_one_leaf_is_planned() -> Result {
        let items = small_files(100)?;
        let mut tree = Array::new(&items, 200);
        tree.is_leaf = true;
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let planned = send(&mut walk, &tree)?;
        assert!(planned.iter().map(|range| range.ino).eq(257..357));
        assert_eq!(walk.next, None);
        Ok(())
    }

    #[test]
    fn window_grows_to_the_limit_of_the_disk() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&tree, items[0].0, ALONE);
        assert_eq!(walk.held(), FIRST_WINDOW);
        // The next batch is due when half of the window is used.
        assert!(!walk.advance(items[15].0, true));
        assert!(walk.advance(items[16].0, true));
        plan(&mut walk, &&tree, items[16].0, ALONE);
        assert_eq!(walk.held(), 2 * FIRST_WINDOW);
        send(&mut walk, &tree)?;
        assert_eq!(walk.window.size(), walk.window.most());
        // Memory in MiB, whether the disk is rotational, window in bytes.
        let cases = [
            (4096, false, 4096 * K),
            (256, false, 2621 * K),
            (4096, true, 41943 * K),
            (1 << 20, true, MAX_WINDOW),
            (1, true, 10 * K),
        ];
        for (memory, rotating, window) in cases {
            let memory = memory << 10;
            let disk = Disk {
                memory,
                rotating,
                ..DISK
            };
            assert_eq!(DataReada::new(disk, 1, Data::Plain)?.window.most(), window);
        }
        Ok(())
    }

    #[test]
    fn inodes_ahead_are_limited_and_have_unique_slots() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        // A window of 40 MiB.
        let disk = Disk {
            rotating: true,
            ..DISK
        };
        let mut walk = DataReada::new(disk, 1, Data::Plain)?;
        walk.window.open();
        plan(&mut walk, &&tree, items[0].0, ALONE);
        assert_eq!(walk.planned().len(), MAX_INODES - 1);
        let mut slots = array(walk.planned().iter().map(|range| range.slot))?;
        assert_eq!(slots[0], 0);
        slots.sort_unstable();
        assert!((0..MAX_INODES as u32 - 1).eq(slots.iter().copied()));
        assert!(!walk.advance(items[MAX_INODES - 3].0, true));
        assert!(walk.advance(items[MAX_INODES - 2].0, true));
        Ok(())
    }

    #[test]
    fn queue_has_room_for_a_window_of_pages() -> Result {
        let page = PAGE_SIZE as u64;
        // A file of pages, in reverse order on disk.
        let items = array((0..20_000).map(|number| {
            let found = extent((1 << 40) - number * page, page);
            item(257, number * page, (number > 0).then_some(found))
        }))?;
        // The window of a rotational disk is 1/100 of 4 GiB.
        let pages = (41_943usize << 10).div_ceil(PAGE_SIZE);
        let ring = pages.clamp(2048, 16_384).next_power_of_two();
        for (rotating, data, ranges, planned) in [
            (false, Data::Unread, 2048, 2048),
            (true, Data::Unread, 2048, 2048),
            (true, Data::Plain, ring, pages),
        ] {
            let mut walk = DataReada::new(Disk { rotating, ..DISK }, 1, data)?;
            walk.window.open();
            plan(&mut walk, &&Array::new(&items, 400), items[0].0, ALONE);
            assert_eq!((walk.max_ranges(), walk.planned().len()), (ranges, planned));
            assert_eq!(walk.order().len(), planned);
            assert!(!walk.advance(items[planned / 2].0, true));
            assert!(walk.advance(items[planned / 2 + 2].0, true));
        }
        Ok(())
    }

    #[test]
    fn old_extents_are_not_planned() -> Result {
        let mut items = small_files(1000)?;
        for (_, extent) in items.iter_mut().skip(1).step_by(4) {
            *extent = extent.map(|extent| Extent {
                generation: 1,
                ..extent
            });
        }
        let mut tree = Array::new(&items, 100);
        tree.newer = (10, 2);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let planned = send(&mut walk, &tree)?;
        // Every other file in the newer half of the leaves.
        assert_eq!(planned.len(), 250);
        assert!(planned
            .iter()
            .all(|range| range.ino >= 257 + 500 && range.ino % 2 == 0));
        Ok(())
    }

    #[test]
    fn uncached_leaves_are_not_waited_for() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        tree.cached.set(1);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        walk.window.open();
        plan(&mut walk, &&tree, items[0].0, ALONE);
        assert_eq!(walk.planned().len(), 50);
        assert!(!walk.advance(items[0].0, true));
        assert!(walk.advance(items[1].0, true));
        plan(&mut walk, &&tree, items[1].0, ALONE);
        assert_eq!(walk.planned().len(), 0);
        tree.cached.set(2);
        assert!(!walk.advance(items[1].0, true));
        assert!(walk.advance(items[2].0, true));
        plan(&mut walk, &&tree, items[2].0, ALONE);
        assert_eq!(walk.planned().len(), 50);
        assert_eq!(walk.planned()[0].ino, 257 + 50);
        Ok(())
    }

    #[test]
    fn plan_that_gives_way_before_a_node_goes_on_later() -> Result {
        let items = small_files(3000)?;
        let mut tree = Array::new(&items, 100);
        tree.is_tall = true;
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let (mut planned, mut plans) = (KVVec::new(), 0);
        for (key, _) in &items {
            if !walk.advance(*key, true) {
                continue;
            }
            tree.is_contended.set(plans % 2 == 0);
            walk.plan(&&tree, ALONE);
            // Not again at the same key.
            let is_due = tree.is_contended.get() && walk.advance(*key, true);
            assert!(!is_due && (plans % 2 == 1 || walk.planned().is_empty()));
            for range in walk.planned() {
                planned.push(range.ino, GFP_KERNEL)?;
            }
            plans += 1;
        }
        assert!(planned.iter().copied().eq(257..3257));
        assert!(plans < 80);
        Ok(())
    }

    #[test]
    fn leaves_without_data_are_scanned_once() -> Result {
        let items = array((0..100_000).map(|number| item(257 + number, 0, None)))?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&tree, items[0].0, ALONE);
        assert_eq!(tree.read.get(), MAX_LEAVES as u32);
        assert!(!walk.advance(items[3099].0, true));
        assert!(walk.advance(items[3100].0, true));
        assert_eq!(send(&mut walk, &tree)?.len(), 0);
        assert_eq!(tree.read.get(), 1000);
        Ok(())
    }

    #[test]
    fn only_the_head_of_a_run_is_planned() -> Result {
        // Extents of 256 KiB that are adjacent in the file, but for a hole after 4 MiB. On disk,
        // they are adjacent as well, or there is a gap after each, or they are in reverse order.
        let heads = [0, 256, 512, 768, 4160, 4416, 4672, 4928];
        // Distance on disk, whether the order is reversed, the number of ranges planned.
        let cases = [(256, false, 8), (260, false, 32), (256, true, 32)];
        for (step, is_reversed, count) in cases {
            let extents = (0..32).map(|number| {
                let hole = if number < 16 { 0 } else { 64 * K };
                let place = if is_reversed { 31 - number } else { number };
                let found = extent((1 << 20) + place * step * K, 256 * K);
                item(257, number * 256 * K + hole, Some(found))
            });
            let items = array(Iterator::chain(
                core::iter::once(item(257, 0, None)),
                extents,
            ))?;
            let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
            walk.window.open();
            let planned = send(&mut walk, &Array::new(&items, 100))?;
            assert_eq!(planned.len(), count);
            for (number, range) in planned.iter().enumerate() {
                assert_eq!((range.len, range.slot), (256 * K, 0));
                let is_run = count < 32;
                assert_eq!(range.is_cut, is_run && number % 4 == 3);
                assert!(!is_run || range.offset == heads[number] * K);
            }
        }
        Ok(())
    }

    #[test]
    fn run_goes_on_in_a_part_of_an_extent() -> Result {
        let part = |offset, len| Extent {
            offset,
            len,
            disk_len: 512 * K,
            ..extent(1 << 20, 0)
        };
        let compressed = |bytenr| Extent {
            disk_len: 16 * K,
            is_compressed: true,
            ..extent(bytenr, 128 * K)
        };
        let mut recent = Recent::new()?;
        assert_eq!(recent.continue_run(257, 0, &part(0, 256 * K)), 0);
        assert_eq!(
            recent.continue_run(257, 256 * K, &part(256 * K, 64 * K)),
            256 * K
        );
        assert_eq!(
            recent.continue_run(257, 320 * K, &part(384 * K, 128 * K)),
            0
        );
        let next = compressed((1 << 20) + 512 * K);
        assert_eq!(recent.continue_run(257, 448 * K, &next), 128 * K);
        let next = compressed((1 << 20) + 528 * K);
        assert_eq!(recent.continue_run(257, 576 * K, &next), 256 * K);
        // Of another inode.
        let next = compressed((1 << 20) + 544 * K);
        assert_eq!(recent.continue_run(258, 704 * K, &next), 0);
        Ok(())
    }

    #[test]
    fn truncated_large_extent_is_marked_as_cut() -> Result {
        let items = [
            item(257, 0, None),
            item(257, 0, Some(extent(1 << 20, 100 << 20))),
        ];
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        let range = walk.planned()[0];
        assert_eq!((range.len, range.is_cut), (FIRST_WINDOW, true));
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        walk.window.open();
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        let range = walk.planned()[0];
        assert_eq!((range.len, range.is_cut), (1024 * K, true));
        assert_eq!(walk.held(), 1024 * K);
        Ok(())
    }

    #[test]
    fn compressed_extents_are_read_as_they_are_sent() -> Result {
        let compressed = |bytenr, disk_len| Extent {
            disk_len,
            is_compressed: true,
            ..extent(bytenr, 128 * K)
        };
        let left = Extent {
            len: 4 * K,
            ..compressed(2 << 20, 16 * K)
        };
        let items = [
            item(257, 0, None),
            // It takes whole pages in memory.
            item(257, 0, Some(compressed(1 << 20, 16 * K - 512))),
            // Longer on disk than the part that is left in the file.
            item(257, 128 * K, Some(left)),
            // An invalid size of a compressed extent.
            item(257, 384 * K, Some(compressed(4 << 20, 132 * K))),
            item(257, 512 * K, Some(extent(5 << 20, 128 * K))),
        ];
        let on_disk = (16 * K).next_multiple_of(PAGE_SIZE as u64);
        for (data, first) in [(Data::Encoded, on_disk), (Data::Plain, 128 * K)] {
            let mut walk = DataReada::new(DISK, 1, data)?;
            walk.window.open();
            plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
            let encoded = walk.planned().iter().map(|range| range.is_encoded);
            assert!(encoded.eq([data == Data::Encoded, false, false]));
            assert_eq!(walk.held(), first + (4 + 128) * K);
        }
        Ok(())
    }

    #[test]
    fn send_without_data_plans_empty_ranges() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Unread)?;
        let mut planned = 0;
        for (key, _) in &items {
            // No data is read, and that is no waste.
            if walk.advance(*key, false) {
                plan(&mut walk, &&tree, *key, ALONE);
                assert!(walk.planned().iter().all(|range| range.len == 0));
                planned += walk.planned().len();
            }
            assert!(walk.held() == 0 && walk.queue.inodes < MAX_INODES);
        }
        assert_eq!(planned, 3000);
        Ok(())
    }

    #[test]
    fn zero_readahead_plans_nothing() -> Result {
        for disk in WITHOUT_READAHEAD {
            assert!(!DataReada::new(disk, 1, Data::Plain)?.advance(key(257, 0, 0), false));
        }
        Ok(())
    }

    #[test]
    fn window_grows_linearly_after_an_eviction() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let mut sizes = KVVec::new();
        for (key, _) in items.iter() {
            if !walk.advance(*key, true) {
                continue;
            }
            // The readahead is evicted once.
            if sizes.len() == 5 && walk.window.size() > 8 * FIRST_WINDOW {
                walk.report_evicted();
            }
            plan(&mut walk, &&tree, *key, ALONE);
            if !walk.planned().is_empty() {
                sizes.push(walk.window.size() / FIRST_WINDOW, GFP_KERNEL)?;
            }
        }
        assert_eq!(&sizes[..9], &[1, 2, 4, 8, 16, 8, 9, 10, 11]);
        Ok(())
    }

    #[test]
    fn other_readers_reduce_the_room() -> Result {
        let items = small_files(3000)?;
        let cases = [
            (0, 4096 * K),
            (3072 * K, 1024 * K),
            (9999 * K, FIRST_WINDOW),
        ];
        for (others, left) in cases {
            let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
            walk.window.open();
            let others = Others {
                held: others,
                count: 0,
            };
            plan(&mut walk, &&Array::new(&items, 100), items[0].0, others);
            assert_eq!(walk.held(), left);
        }
        Ok(())
    }

    #[test]
    fn repeated_data_is_not_planned() -> Result {
        let items = [
            item(257, 0, None),
            item(257, 0, Some(part(0))),
            item(257, 16 * K, Some(part(0))),
            item(257, 32 * K, Some(part(8 * K))),
            item(257, 48 * K, Some(part(8 * K))),
            item(258, 0, None),
            item(258, 0, Some(part(16 * K))),
        ];
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        let offsets = |walk: &DataReada| array(walk.planned().iter().map(|range| range.offset));
        // Whether the send clones the first repetition decides about the others.
        assert_eq!(&offsets(&walk)?[..], &[0]);
        assert!(!walk.advance(items[2].0, true) && walk.advance(items[3].0, false));
        plan(&mut walk, &&Array::new(&items, 100), items[3].0, ALONE);
        assert_eq!(&offsets(&walk)?[..], &[0; 0]);
        assert_eq!((walk.next, walk.reads_repeated), (None, Some(false)));
        // A send that passes the repetition without a stop there does not wait for it again.
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        walk.advance(items[5].0, true);
        assert_eq!(walk.reads_repeated, Some(false));
        Ok(())
    }

    #[test]
    fn rest_of_an_overwritten_extent_is_planned() -> Result {
        let items = [
            item(257, 0, None),
            item(257, 16 * K, Some(part(16 * K))),
            item(257, 24 * K, Some(extent(2 << 20, 8 * K))),
            item(257, 32 * K, Some(part(32 * K))),
        ];
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
        assert_eq!(walk.planned().len(), 3);
        Ok(())
    }

    #[test]
    fn repeated_data_is_planned_while_the_send_reads_it() -> Result {
        // Files with the same data. The send clones it in the middle third.
        let mut items = small_files(6000)?;
        for (_, extent) in items.iter_mut() {
            *extent = extent.map(|found| Extent {
                bytenr: 1 << 20,
                ..found
            });
        }
        let tree = Array::new(&items, 10);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let mut planned = [0; 3];
        for (number, (key, extent)) in items.iter().enumerate() {
            let third = number / 4000;
            // The send has read the extent before.
            if walk.advance(*key, third != 1 && extent.is_none()) {
                plan(&mut walk, &&tree, *key, ALONE);
                planned[third] += walk.planned().len();
            }
        }
        assert!(planned[0] >= 2000);
        assert!(planned[1] < 100);
        assert!(planned[2] > 1200);
        Ok(())
    }

    #[test]
    fn batches_on_rotational_disks_are_sorted_by_address() -> Result {
        let items = small_files(100)?;
        for rotating in [false, true] {
            let mut walk = DataReada::new(Disk { rotating, ..DISK }, 1, Data::Plain)?;
            plan(&mut walk, &&Array::new(&items, 100), items[0].0, ALONE);
            walk.advance(items[20].0, true);
            plan(&mut walk, &&Array::new(&items, 100), items[20].0, ALONE);
            let count = walk.planned().len() as u32;
            assert!(count > 16);
            let order = walk.order().iter().copied();
            if rotating {
                assert!(order.eq((0..count).rev()));
            } else {
                assert!(order.eq(0..count));
            }
        }
        Ok(())
    }

    #[test]
    fn planning_follows_a_send_that_skips_files() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&tree, items[0].0, ALONE);
        assert!(walk.advance(items[2000].0, true));
        assert_eq!((walk.held(), walk.queue.inodes), (0, 0));
        plan(&mut walk, &&tree, items[2000].0, ALONE);
        assert_eq!(walk.planned()[0].ino, 257 + 1000);
        assert_eq!(walk.held(), 2 * FIRST_WINDOW);
        Ok(())
    }

    #[test]
    fn only_linked_regular_files_are_planned() -> Result {
        // In this test, inode items with offset 1 are not of linked regular files.
        let items = array((0..300).map(|number| {
            let ino = 257 + number / 3;
            match number % 3 {
                0 => item(ino, ino % 2, None),
                part => item(ino, part * 64 * K, Some(extent(number << 20, 8 * K))),
            }
        }))?;
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 7), items[0].0, ALONE);
        assert!(walk.planned().len() > 10);
        assert!(walk.planned().iter().all(|range| range.ino % 2 == 0));
        // A send at an extent has already checked that its inode is a file.
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        plan(&mut walk, &&Array::new(&items, 7), items[1].0, ALONE);
        assert_eq!(walk.planned()[0].ino, 257);
        Ok(())
    }

    #[test]
    fn credit_limits_unused_readahead() -> Result {
        let items = small_files(20_000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        let mut planned = 0;
        // The first half is cloned, the second half is read.
        for (number, (key, _)) in items.iter().enumerate() {
            if walk.advance(*key, number > 20_000) {
                plan(&mut walk, &&tree, *key, ALONE);
                planned += walk.planned().len() as u64;
            }
            if number == 20_000 {
                let bytes = planned * 8 * K;
                assert!((2 * walk.window.most()..3 * walk.window.most()).contains(&bytes));
            }
        }
        let ahead = walk.queue.ahead().len();
        assert_eq!(walk.passed() as usize + ahead, planned as usize);
        assert!(planned > 9000);
        Ok(())
    }

    #[test]
    fn waste_after_a_streak_doubles_the_threshold() -> Result {
        let items = small_files(1000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataReada::new(DISK, 1, Data::Plain)?;
        walk.window.open();
        let mut gains = KVVec::new();
        for (number, (key, extent)) in items.iter().enumerate() {
            let before = walk.credit.bytes;
            // The data of the 61st file is not used.
            let is_due = walk.advance(*key, number != 2 * 61);
            if extent.is_none() && number > 0 {
                gains.push(walk.credit.bytes - before, GFP_KERNEL)?;
            }
            if is_due {
                plan(&mut walk, &&tree, *key, ALONE);
            }
        }
        let (cost, little) = (8 * K, 8 * K / USED_PER_WASTED);
        assert!(gains[..50].iter().all(|gain| *gain == cost + little));
        assert!(gains[50..60].iter().all(|gain| *gain == 2 * cost));
        assert_eq!(gains[60], 0);
        assert!(gains[61..161].iter().all(|gain| *gain == cost + little));
        assert_eq!(gains[161], 2 * cost);
        Ok(())
    }

    #[test]
    fn random_trees_match_a_plain_item_scan() -> Result {
        let mut random = Random::new(42);
        for round in 0..50 {
            let mut items = KVVec::new();
            let mut wanted = KVVec::new();
            let (mut ino, mut offset) = (256, 0);
            for number in 0..2000 {
                if number == 0 || random.below(3) == 0 {
                    (ino, offset) = (ino + 1 + random.below(3), 0);
                    items.push(item(ino, 0, None), GFP_KERNEL)?;
                }
                // A hole after each extent, so that there are no runs.
                let len = 4 * K * (1 + random.below(16));
                let generation = 1 + random.below(2);
                let found = Extent {
                    generation,
                    ..extent((number + 1) << 20, len)
                };
                items.push(item(ino, offset, Some(found)), GFP_KERNEL)?;
                if generation == 2 {
                    wanted.push((ino, offset, len), GFP_KERNEL)?;
                }
                offset += len + 4 * K;
            }
            let tree = Array::new(&items, 1 + random.below(150) as usize);
            let rotating = round % 2 == 0;
            let mut walk = DataReada::new(Disk { rotating, ..DISK }, 1, Data::Plain)?;
            let planned = send(&mut walk, &tree)?;
            let planned = planned
                .iter()
                .map(|range| (range.ino, range.offset, range.len));
            assert!(planned.eq(wanted.iter().copied()));
        }
        Ok(())
    }
}
