// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_leaf_reada)]
mod suite {
    use core::ops::Range;

    use super::super::*;
    use crate::{
        random::Random,
        tree::tests::*,
        window::tests::{
            ALONE,
            DISK,
            WITHOUT_READAHEAD, //
        },
    };

    /// The logical addresses of a batch, in submission order.
    fn addresses(walk: &LeafReada) -> Result<KVVec<u64>> {
        array(walk.leaves.iter().map(|leaf| leaf.ptr.blockptr))
    }

    /// The trees and logical addresses of a batch, in submission order.
    fn trees_and_addresses(walk: &LeafReada) -> Result<KVVec<(u8, u64)>> {
        array(
            walk.leaves
                .iter()
                .map(|leaf| (leaf.tree, leaf.ptr.blockptr)),
        )
    }

    /// Moves a walk to `at`. Returns whether a batch is to be planned.
    fn advance(walk: &mut LeafReada, at: Key) -> bool {
        walk.advance(at, |_| false)
    }

    /// Plans a batch with the walk at `at`.
    fn plan<T: Tree>(walk: &mut LeafReada, left: &T, right: &T, at: Key, others: Others) {
        walk.position = at;
        walk.plan(left, right, others);
    }

    fn walk(leaves: usize) -> Result<LeafReada> {
        LeafReada::with_max_batch(DISK, leaves as u64 * u64::from(DISK.nodesize))
    }

    /// The readahead of a fiemap call for `wanted` extents in a range of keys.
    fn for_extents(
        disk: Disk,
        range: Range<Key>,
        wanted: u32,
        is_first: bool,
    ) -> Result<LeafReada> {
        let extents = FileExtents {
            range,
            wanted,
            is_first,
        };
        LeafReada::for_extents(disk, extents)
    }

    #[test]
    fn max_batch_depends_on_disk_and_memory() -> Result {
        // Rotational, readahead and memory in MiB, node size in KiB, leaves of the largest batch.
        let cases = [
            (false, 4, 4096, 16, 128),
            (false, 4, 256, 16, 81),
            (false, 4, 4096, 64, 32),
            (false, 1, 1, 16, 1),
            (true, 4, 16384, 16, 10485),
            (true, 4, 8192, 16, 5242),
            (true, 4, 256, 16, 163),
            (true, 4, 1 << 24, 16, 16384),
            (true, 1, 1 << 24, 16, 4096),
        ];
        for (rotating, readahead, memory, nodesize, leaves) in cases {
            let disk = Disk {
                rotating,
                readahead: readahead << 10,
                window_kb: 0,
                memory: memory << 10,
                nodesize: nodesize << 10,
            };
            assert_eq!(LeafReada::new(disk)?.window.most(), leaves);
        }
        Ok(())
    }

    #[test]
    fn zero_readahead_plans_nothing() -> Result {
        for disk in WITHOUT_READAHEAD {
            let mut walk = LeafReada::new(disk)?;
            assert!(!advance(&mut walk, key(0)));
            walk.restart(key(0));
            assert!(!advance(&mut walk, key(0)));
            let range = key(0)..Key::MAX;
            assert!(!advance(&mut for_extents(disk, range, 100, true)?, key(0)));
        }
        Ok(())
    }

    #[test]
    fn uncommitted_tree_delays_the_plan() -> Result {
        let leaves = array((0..100).map(|number| (number * 10, number)))?;
        for waits_for in 0..2 {
            let sides = [tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1)];
            let [left, right] = &sides;
            let mut walk = walk(64)?;
            plan(&mut walk, left, right, key(0), ALONE);
            plan(&mut walk, left, right, key(0), ALONE);
            sides[waits_for].is_committed.set(false);
            assert!(advance(&mut walk, key(80)));
            plan(&mut walk, left, right, key(80), ALONE);
            assert_eq!(walk.leaves.len(), 0);
            // No retry at the same key, but at the next one.
            assert!(!advance(&mut walk, key(80)) && advance(&mut walk, key(81)));
            sides[waits_for].is_committed.set(true);
            plan(&mut walk, left, right, key(81), ALONE);
            assert_eq!(walk.leaves.first().map(|leaf| leaf.ptr.blockptr), Some(24));
        }
        Ok(())
    }

    #[test]
    fn unreadable_parent_is_skipped() -> Result {
        let leaves = array((0..90).map(|number| (number, number)))?;
        let mut parents = parents(&leaves, 30, 0)?;
        // Reading this parent fails, as there are no such leaves.
        parents[1].1 = 91;
        let (tree, none) = (tree(&leaves, &parents, 30), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        let mut planned = KVVec::new();
        for leaf in &leaves {
            while advance(&mut walk, key(leaf.0)) {
                plan(&mut walk, &tree, &none, key(leaf.0), ALONE);
                for leaf in walk.leaves.iter() {
                    planned.push(leaf.ptr.blockptr, GFP_KERNEL)?;
                }
            }
        }
        assert!(planned.iter().copied().eq(Iterator::chain(0..30, 60..90)));
        Ok(())
    }

    #[test]
    fn contention_ends_a_plan_early() -> Result {
        // Two trees with the same leaves and different parents.
        let leaves = array((0..3000).map(|number| (number, number)))?;
        let (old, new) = (parents(&leaves, 10, 0)?, parents(&leaves, 10, OTHER)?);
        let (left, right) = (tree(&leaves, &new, 10), tree(&leaves, &old, 10));
        left.is_contended.set(true);
        let mut walk = walk(64)?;
        let mut plans = 0;
        for leaf in &leaves {
            let before = left.read.get() + right.read.get();
            while advance(&mut walk, key(leaf.0)) {
                plan(&mut walk, &left, &right, key(leaf.0), ALONE);
                plans += 1;
                assert_eq!(walk.leaves.len(), 0);
            }
            assert!(left.read.get() + right.read.get() <= before + 2);
        }
        // Each plan moves past at least one leaf, and each node is read about once.
        assert!(plans < 3100);
        assert!(left.read.get() <= 3000);
        assert!(!advance(&mut walk, key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn plan_that_gives_way_before_a_node_goes_on_later() -> Result {
        let leaves = array((0..300).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 20, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 20), tree(&NONE, &NONE, 1));
        tree.has_parents.set(false);
        let of_file = for_extents(DISK, key(0)..Key::MAX, 100_000, true)?;
        for (mut walk, reads) in [(walk(64)?, 0), (walk(64)?, 2), (of_file, 0)] {
            let (mut planned, mut plans) = (KVVec::new(), 0);
            for at in leaves.iter().flat_map(|leaf| leaf.0..leaf.0 + 10).map(key) {
                while advance(&mut walk, at) {
                    // At first, a task waits after some reads.
                    let (read, is_first) = (tree.read.get(), plans % 2 == 0);
                    tree.contended_at
                        .set(if is_first { read + reads } else { u32::MAX });
                    plan(&mut walk, &tree, &none, at, ALONE);
                    plans += 1;
                    assert!(!is_first || tree.read.get() - read <= reads);
                    if is_first && reads == 0 {
                        // Nothing is planned, until the walk is at another key.
                        assert!(walk.leaves.is_empty() && !advance(&mut walk, at));
                    }
                    tree.is_contended.set(false);
                    for leaf in walk.leaves.iter() {
                        planned.push(leaf.ptr.blockptr, GFP_KERNEL)?;
                    }
                }
            }
            planned.sort_unstable();
            assert!(planned.iter().copied().eq(0..300));
            assert!(plans < 40);
        }
        Ok(())
    }

    #[test]
    fn batch_may_exceed_max_steps() -> Result {
        let leaves = array((0..40_000).map(|number| (number, number)))?;
        let parents = parents(&leaves, 200, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 200), tree(&NONE, &NONE, 1));
        let mut walk = walk(16384)?;
        walk.window.open();
        plan(&mut walk, &tree, &none, key(0), ALONE);
        assert_eq!(walk.size(), (16384, 256 << 20));
        Ok(())
    }

    #[test]
    fn other_readers_reduce_the_batch() -> Result {
        let leaves = array((0..1000).map(|number| (number, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let node = u64::from(DISK.nodesize);
        // All readers share 128 leaves, two batches. Each may have 8 leaves in any case.
        for (others, count) in [(0, 64), (56, 64), (100, 20), (1000, 8)] {
            let mut walk = walk(64)?;
            plan(&mut walk, &tree, &none, key(0), ALONE);
            assert_eq!(walk.held, 8 * node);
            walk.window.open();
            let others = Others {
                held: others * node,
                count: 0,
            };
            plan(&mut walk, &tree, &none, key(0), others);
            assert_eq!(walk.leaves.len(), count);
            assert_eq!(walk.held, (8 + count as u64) * node);
        }
        Ok(())
    }

    #[test]
    fn the_whole_tree_is_planned_once_across_nodes() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, 5000 - number)))?;
        let parents = parents(&leaves, 150, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 150), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        let (mut planned, mut sizes) = (KVVec::new(), KVVec::new());
        for leaf in &leaves {
            if advance(&mut walk, key(leaf.0)) {
                plan(&mut walk, &tree, &none, key(leaf.0), ALONE);
                sizes.push(walk.leaves.len(), GFP_KERNEL)?;
                for leaf in walk.leaves.iter() {
                    planned.push((leaf.ptr.key.objectid, leaf.ptr.blockptr), GFP_KERNEL)?;
                }
            }
        }
        assert_eq!(&sizes[..5], &[8, 16, 32, 64, 64]);
        planned.sort_unstable();
        assert!(planned[..] == leaves[..]);
        assert!(!advance(&mut walk, key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn batch_is_sorted_by_address_after_its_first_128k() -> Result {
        let leaves = array((0..100).map(|number| (number, 1000 - number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        plan(&mut walk, &tree, &none, key(0), ALONE);
        plan(&mut walk, &tree, &none, key(0), ALONE);
        let read = addresses(&walk)?;
        assert_eq!(&read[..8], &[992, 991, 990, 989, 988, 987, 986, 985]);
        assert_eq!(&read[8..], &[977, 978, 979, 980, 981, 982, 983, 984]);
        assert_eq!(walk.last, 977);
        Ok(())
    }

    #[test]
    fn next_batch_is_planned_on_entering_the_last() -> Result {
        let leaves = array((0..100).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        assert!(advance(&mut walk, key(0)));
        plan(&mut walk, &tree, &none, key(0), ALONE);
        // The walk is at the first leaf of this batch: the next one is due at once.
        assert!(advance(&mut walk, key(0)));
        plan(&mut walk, &tree, &none, key(0), ALONE);
        assert!(!advance(&mut walk, key(79)));
        assert!(advance(&mut walk, key(80)));
        // The walk has overtaken its readahead: leaves behind it are not read.
        plan(&mut walk, &tree, &none, key(505), ALONE);
        assert_eq!(walk.leaves[0].ptr.blockptr, 50);
        Ok(())
    }

    #[test]
    fn fiemap_range_limits_the_readahead() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 100, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 100), tree(&NONE, &NONE, 1));
        // Range of keys, extents wanted, whether the call starts at offset 0, leaves read.
        let cases = [
            (15..1001, 10000, true, 1..9),
            (15..31, 10000, true, 1..4),
            (15..9999, 420, true, 1..5),
            (15..9999, 420, false, 1..129),
            (300..9999, 1, false, 30..31),
            (300..9999, 31, false, 30..31),
            (300..9999, 32, false, 30..158),
            (10000..10001, 1, false, 999..1000),
        ];
        for (range, wanted, is_first, expected) in cases {
            let range = key(range.start)..key(range.end);
            let mut walk = for_extents(DISK, range.clone(), wanted, is_first)?;
            assert!(!advance(&mut walk, key(0)) && advance(&mut walk, range.start));
            plan(&mut walk, &tree, &none, range.start, ALONE);
            let read = addresses(&walk)?;
            assert_eq!(&read[..], &array(expected)?[..]);
        }
        Ok(())
    }

    #[test]
    fn fiemap_from_offset_0_reads_no_more_than_wanted() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        // 105 extents fit into half a leaf.
        let mut walk = for_extents(DISK, key(0)..Key::MAX, 10_000, true)?;
        let mut sizes = KVVec::new();
        while advance(&mut walk, key(u64::MAX - 1)) {
            let mark = walk.mark;
            plan(&mut walk, &tree, &none, mark, ALONE);
            sizes.push(walk.leaves.len(), GFP_KERNEL)?;
        }
        assert_eq!(&sizes[..], &[8, 16, 32, 40]);
        Ok(())
    }

    #[test]
    fn series_of_fiemaps_reads_at_least_what_the_filesystem_reads_ahead() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        // Rotational, readahead in KiB, extents wanted, leaves read.
        // 105 extents fit into half a leaf.
        let cases = [
            (false, 4 << 10, 32, 256),
            (true, 4 << 10, 32, 256),
            (false, 1 << 10, 32, 64),
            (true, 1 << 10, 10_500, 100),
        ];
        for (rotating, readahead, wanted, leaves) in cases {
            let disk = Disk {
                rotating,
                readahead,
                ..DISK
            };
            let mut walk = for_extents(disk, key(5)..Key::MAX, wanted, false)?;
            let mut read = 0;
            while advance(&mut walk, key(u64::MAX - 1)) {
                let mark = walk.mark;
                plan(&mut walk, &tree, &none, mark, ALONE);
                read += walk.leaves.len();
            }
            assert_eq!(read, leaves);
        }
        Ok(())
    }

    #[test]
    fn empty_batches_do_not_grow_the_window() -> Result {
        let old = array((0..3000).map(|number| (number, number)))?;
        let new = array((0..3100).map(|number| (number, number)))?;
        let (left, right) = (tree(&new, &NONE, 1), tree(&old, &NONE, 1));
        let mut walk = walk(64)?;
        left.is_contended.set(true);
        for step in 0..5 {
            plan(&mut walk, &left, &right, key(step), ALONE);
            assert_eq!(walk.leaves.len(), 0);
        }
        left.is_contended.set(false);
        for batch in [8, 16] {
            plan(&mut walk, &left, &right, key(5), ALONE);
            assert_eq!(walk.leaves.len(), batch);
        }
        Ok(())
    }

    #[test]
    fn cached_leaves_are_probed_and_skipped() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let (mut tree, none) = (tree(&leaves, &parents, 30), tree(&NONE, &NONE, 1));
        tree.cached = 100;
        let mut walk = for_extents(DISK, key(0)..Key::MAX, 10000, true)?;
        let mut looked = 0;
        let first = leaves.iter().find(|leaf| {
            while advance(&mut walk, key(leaf.0)) && walk.leaves.is_empty() {
                plan(&mut walk, &tree, &none, key(leaf.0), ALONE);
                looked += 1;
            }
            !walk.leaves.is_empty()
        });
        // Each probe skips 9 leaves, or up to the last one of a node. Then a batch of 8 is read.
        assert_eq!((looked, first), (17, Some(&(990, 99))));
        assert!(addresses(&walk)?.iter().copied().eq(99..107));
        Ok(())
    }

    #[test]
    fn last_leaf_of_a_file_is_not_probed() -> Result {
        // The leaves of the file and of the node. Of these, only the last one of the file is
        // cached, and those behind it. The probe distance is 8 leaves.
        for (of_file, count) in [(2, 2), (9, 9), (2, 20), (5, 20), (8, 20), (9, 20)] {
            let address = |number| (number + count + 1 - of_file) % count;
            let leaves = array((0..count).map(|number| (number * 10, address(number))))?;
            let (mut tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
            tree.cached = count + 1 - of_file;
            let file = key(0)..key(of_file * 10);
            let mut walk = for_extents(DISK, file, 10000, true)?;
            plan(&mut walk, &tree, &none, key(0), ALONE);
            let batch = of_file.min(8);
            assert!(addresses(&walk)?
                .iter()
                .copied()
                .eq((0..batch).map(address)));
        }
        Ok(())
    }

    #[test]
    fn restart_plans_a_smaller_batch() -> Result {
        let leaves = array((0..1000).map(|number| (number, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        for (first, batch) in [(0, 8), (8, 16), (24, 32), (56, 64)] {
            plan(&mut walk, &tree, &none, key(first), ALONE);
            assert_eq!(
                (walk.leaves[0].ptr.blockptr, walk.leaves.len()),
                (first, batch)
            );
        }
        walk.restart(key(30));
        assert!(advance(&mut walk, key(30)));
        for (first, batch) in [(30, 16), (46, 32)] {
            plan(&mut walk, &tree, &none, key(30), ALONE);
            assert_eq!(
                (walk.leaves[0].ptr.blockptr, walk.leaves.len()),
                (first, batch)
            );
        }
        for _ in 0..10 {
            walk.restart(key(30));
        }
        plan(&mut walk, &tree, &none, key(30), ALONE);
        assert_eq!(walk.leaves.len(), 8);
        Ok(())
    }

    #[test]
    fn restart_after_the_last_batch_plans_again() -> Result {
        let leaves = array((0..8).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        plan(&mut walk, &tree, &none, key(0), ALONE);
        plan(&mut walk, &tree, &none, key(0), ALONE);
        // The leaf that contains the position is read, too.
        assert!(!advance(&mut walk, key(55)));
        walk.restart(key(55));
        assert!(advance(&mut walk, key(55)));
        plan(&mut walk, &tree, &none, key(55), ALONE);
        assert!(addresses(&walk)?.iter().copied().eq(5..8));
        Ok(())
    }

    #[test]
    fn distant_cursors_plan_all_leaves() -> Result {
        // The second leaf of the right tree is at the end of the left tree.
        let long = array((0..500).map(|number| (number, number)))?;
        let short = array([(0, 9000), (499, 9001)].into_iter())?;
        let (left, right) = (tree(&long, &NONE, 1), tree(&short, &NONE, 1));
        let mut walk = walk(64)?;
        let mut planned = 0;
        for leaf in &long {
            while advance(&mut walk, key(leaf.0)) {
                plan(&mut walk, &left, &right, key(leaf.0), ALONE);
                planned += walk.leaves.len();
            }
        }
        assert_eq!(planned, 502);
        Ok(())
    }

    #[test]
    fn shared_subtrees_are_not_read() -> Result {
        let old = array((0..900).map(|number| (number, number)))?;
        // The new tree has one leaf replaced and two added, with new parents for them.
        let renew = |(number, address)| (number, address + OTHER * u64::from(number == 400));
        let new = Iterator::chain(old.iter().copied().map(renew), [(900, 7), (901, 8)]);
        let new = array(new)?;
        let (parents_old, mut parents_new) = (parents(&old, 30, 0)?, parents(&new, 30, 0)?);
        parents_new[13].1 += OTHER;
        let left = tree(&new, &parents_new, 30);
        let right = tree(&old, &parents_old, 30);
        let mut walk = walk(64)?;
        plan(&mut walk, &left, &right, key(0), ALONE);
        assert_eq!(
            &trees_and_addresses(&walk)?[..],
            &[(0, OTHER + 400), (1, 400), (0, 7), (0, 8)]
        );
        assert_eq!((left.read.get(), right.read.get()), (2, 1));
        // Only the new parent at the end is read ahead.
        assert_eq!((left.ahead.get(), right.ahead.get()), (1, 0));
        assert!(!advance(&mut walk, key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn leaf_that_was_written_again_is_not_shared() -> Result {
        // The new leaf has the key and the address of the old one, and another generation.
        let old = array((0..20).map(|number| (number, number)))?;
        let new = array((0..20).map(|number| (number, number + NEWER * u64::from(number == 7))))?;
        let (left, right) = (tree(&new, &NONE, 1), tree(&old, &NONE, 1));
        let mut walk = walk(64)?;
        plan(&mut walk, &left, &right, key(0), ALONE);
        assert_eq!(&trees_and_addresses(&walk)?[..], &[(0, 7), (1, 7)]);
        Ok(())
    }

    #[test]
    fn trees_of_different_height_are_compared_to_their_ends() -> Result {
        let low = array((0..20).map(|number| (number * 10, number)))?;
        let high = array((0..400).map(|number| (number, 1000 + number)))?;
        let parents = parents(&high, 30, 0)?;
        let (low, high) = (tree(&low, &NONE, 1), tree(&high, &parents, 30));
        for (left, right) in [(&low, &high), (&high, &low)] {
            let mut walk = walk(512)?;
            let mut planned = 0;
            while advance(&mut walk, key(u64::MAX)) {
                plan(&mut walk, left, right, key(0), ALONE);
                planned += walk.leaves.len();
            }
            assert_eq!(planned, 420);
        }
        Ok(())
    }

    #[test]
    fn random_trees_match_a_plain_merge() -> Result {
        let mut random = Random::new(4);
        for _ in 0..300 {
            let mut sides = [KVVec::new(), KVVec::new()];
            for number in 0..random.below(400) {
                let fate = random.below(10);
                for (side, leaves) in sides.iter_mut().enumerate() {
                    // Most leaves are in both trees. Others are in one tree, or differ.
                    if fate > 1 || fate == side as u64 {
                        let address = number + if fate == 2 { 1000 * side as u64 } else { 0 };
                        leaves.push((number, address), GFP_KERNEL)?;
                    }
                }
            }
            let mut expected = KVVec::new();
            for (side, leaves) in sides.iter().enumerate() {
                for leaf in leaves.iter().filter(|leaf| !sides[1 - side].contains(leaf)) {
                    expected.push((leaf.0, side as u8), GFP_KERNEL)?;
                }
            }
            let width = 1 + random.below(40) as usize;
            let up_left = parents(&sides[0], width, 0)?;
            let up_right = parents(&sides[1], width, OTHER)?;
            let (left, right) = (
                tree(&sides[0], &up_left, width),
                tree(&sides[1], &up_right, width),
            );
            let mut walk = walk(1 + random.below(100) as usize)?;
            let mut planned = KVVec::new();
            while advance(&mut walk, key(u64::MAX)) {
                plan(&mut walk, &left, &right, key(0), ALONE);
                for leaf in walk.leaves.iter() {
                    planned.push((leaf.ptr.key.objectid, leaf.tree), GFP_KERNEL)?;
                }
            }
            planned.sort_unstable();
            expected.sort_unstable();
            assert!(planned[..] == expected[..]);
        }
        Ok(())
    }

    #[test]
    fn a_batch_is_submitted_in_chunks() -> Result {
        let leaves = array((0..1000).map(|number| (number, 1000 - number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(512)?;
        walk.window.open();
        plan(&mut walk, &tree, &none, key(0), ALONE);
        let mut submitted = KVVec::new();
        // A waiter for the lock shortens the second chunk.
        for (chunk, count) in [(64, 64), (64, 1), (64, 64), (64, 64)] {
            assert_eq!(walk.rest().1, chunk);
            for leaf in &walk.rest().0[..count] {
                submitted.push(leaf.ptr.blockptr, GFP_KERNEL)?;
            }
            walk.report(count, false);
        }
        while walk.rest().1 > 0 {
            submitted.push(walk.rest().0[0].ptr.blockptr, GFP_KERNEL)?;
            walk.report(1, false);
        }
        assert_eq!(submitted.len(), 512);
        assert!(submitted[..] == addresses(&walk)?[..]);
        Ok(())
    }

    #[test]
    fn a_dropped_batch_is_planned_at_the_next_position() -> Result {
        let leaves = array((0..1000).map(|number| (number, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        walk.window.open();
        assert!(advance(&mut walk, key(0)));
        walk.plan(&tree, &none, ALONE);
        walk.report(3, true);
        assert!(walk.rest().0.is_empty());
        assert!(!advance(&mut walk, key(0)));
        assert!(advance(&mut walk, key(2)));
        walk.plan(&tree, &none, ALONE);
        assert_eq!((walk.leaves[0].ptr.blockptr, walk.leaves.len()), (2, 16));
        Ok(())
    }

    #[test]
    fn an_evicted_batch_is_planned_again() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        let mut asked = KVVec::new();
        // Each leaf is evicted.
        for number in 0..900 {
            let before = asked.len();
            while walk.advance(key(number * 10), |address| {
                let _ = asked.push(address, GFP_KERNEL);
                true
            }) {
                walk.plan(&tree, &none, ALONE);
                // The walk restarts a limited number of times at one position.
                assert!(asked.len() <= before + 3);
            }
        }
        // The last leaves of the batches that the walk has entered.
        assert_eq!(asked[..3], [7, 23, 15]);
        assert!(walk.window.size() <= 32);
        Ok(())
    }
}
