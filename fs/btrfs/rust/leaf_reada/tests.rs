// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_leaf_reada)]
mod suite {
    use super::super::*;
    use crate::{
        random::Random,
        tree::tests::*,
        window::tests::{
            ALONE,
            DISK, //
        },
    };

    /// The addresses of a batch, in the order of submission.
    fn addresses(walk: &LeafReada) -> Result<KVVec<u64>> {
        array(walk.leaves.iter().map(|leaf| leaf.ptr.blockptr))
    }

    /// Moves a walk to `at`; whether it wants a batch.
    fn advance(walk: &mut LeafReada, at: Key) -> bool {
        walk.advance(at, |_| false)
    }

    /// Plans a batch at `at`.
    fn plan<T: Tree>(walk: &mut LeafReada, left: &T, right: &T, at: Key, others: Others) {
        walk.position = at;
        walk.plan(left, right, others);
    }

    fn walk(leaves: usize) -> Result<LeafReada> {
        LeafReada::with_max_batch(DISK, leaves as u64 * u64::from(DISK.nodesize))
    }

    /// The readahead of `wanted` file extents in a range of keys.
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
    fn batches_suit_the_disk() -> Result {
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
    fn without_readahead_nothing_is_planned() -> Result {
        for rotating in [false, true] {
            let disk = Disk {
                rotating,
                readahead: 0,
                ..DISK
            };
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
    fn a_commit_delays_the_plan() -> Result {
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
            // Not in the same step once more, but in the next.
            assert!(!advance(&mut walk, key(80)) && advance(&mut walk, key(81)));
            sides[waits_for].is_committed.set(true);
            plan(&mut walk, left, right, key(81), ALONE);
            assert_eq!(walk.leaves.first().map(|leaf| leaf.ptr.blockptr), Some(24));
        }
        Ok(())
    }

    #[test]
    fn an_error_is_passed_by() -> Result {
        let leaves = array((0..90).map(|number| (number, number)))?;
        let mut parents = parents(&leaves, 30, 0)?;
        // There is no such leaf.
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
    fn who_waits_for_the_tree_does_not_wait_for_long() -> Result {
        // Two trees with the same leaves, but no node of the one is one of the other.
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
        // Each plan got on by a leaf at least, and each node was read about once.
        assert!(plans < 3100);
        assert!(left.read.get() <= 3000);
        assert!(!advance(&mut walk, key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn a_batch_may_be_larger_than_what_is_passed_over() -> Result {
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
    fn other_readers_leave_less() -> Result {
        let leaves = array((0..1000).map(|number| (number, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let node = u64::from(DISK.nodesize);
        // Two batches of 64 leaves are the limit for all, and 8 are for each.
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
    fn a_batch_is_read_in_disk_order_but_for_its_beginning() -> Result {
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
    fn more_is_planned_when_the_walk_enters_the_last_batch() -> Result {
        let leaves = array((0..100).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        assert!(advance(&mut walk, key(0)));
        plan(&mut walk, &tree, &none, key(0), ALONE);
        // Its own first leaf is where the walk is: the next one at once.
        assert!(advance(&mut walk, key(0)));
        plan(&mut walk, &tree, &none, key(0), ALONE);
        assert!(!advance(&mut walk, key(79)));
        assert!(advance(&mut walk, key(80)));
        // A walk that went on without its readahead: what it has left behind is not read.
        plan(&mut walk, &tree, &none, key(505), ALONE);
        assert_eq!(walk.leaves[0].ptr.blockptr, 50);
        Ok(())
    }

    #[test]
    fn a_range_ends_where_it_was_said_to() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 30), tree(&NONE, &NONE, 1));
        // The range, how many extents are wanted, whether they are the first, and what is read.
        let cases = [
            (15..1001, 10000, true, 1..9),
            (15..31, 10000, true, 1..4),
            (15..9999, 420, true, 1..5),
            (15..9999, 420, false, 1..65),
            (300..9999, 1, false, 30..31),
            (300..9999, 31, false, 30..31),
            (300..9999, 32, false, 30..35),
            (10000..10001, 1, false, 999..1000),
        ];
        for (range, wanted, is_first, expected) in cases {
            let range = key(range.start)..key(range.end);
            let mut walk = for_extents(DISK, range.clone(), wanted, is_first)?;
            assert!(!advance(&mut walk, key(0)) && advance(&mut walk, range.start));
            plan(&mut walk, &tree, &none, range.start, ALONE);
            let read = addresses(&walk)?;
            assert!(read.iter().copied().eq(expected));
        }
        Ok(())
    }

    #[test]
    fn a_listing_reads_no_more_than_was_asked_for() -> Result {
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
    fn only_what_was_read_makes_batches_grow() -> Result {
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
    fn what_is_in_memory_is_only_looked_at() -> Result {
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
        // Each time 9 leaves further, or to the end of the node; then 8 are read.
        assert_eq!((looked, first), (14, Some(&(990, 99))));
        assert!(addresses(&walk)?.iter().copied().eq(99..107));
        Ok(())
    }

    #[test]
    fn a_batch_that_was_not_read_is_planned_again_and_smaller() -> Result {
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
    fn the_last_batch_is_planned_again_too() -> Result {
        let leaves = array((0..8).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        plan(&mut walk, &tree, &none, key(0), ALONE);
        plan(&mut walk, &tree, &none, key(0), ALONE);
        // From within a leaf, which is read too.
        assert!(!advance(&mut walk, key(55)));
        walk.restart(key(55));
        assert!(advance(&mut walk, key(55)));
        plan(&mut walk, &tree, &none, key(55), ALONE);
        assert!(addresses(&walk)?.iter().copied().eq(5..8));
        Ok(())
    }

    #[test]
    fn one_side_may_be_far_behind() -> Result {
        // After its first leaf, the right tree goes on where the left one ends.
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
        // One leaf is another, and there are more at the end; their parents are others too.
        let renew = |(number, address)| (number, address + OTHER * u64::from(number == 400));
        let new = Iterator::chain(old.iter().copied().map(renew), [(900, 7), (901, 8)]);
        let new = array(new)?;
        let (parents_old, mut parents_new) = (parents(&old, 30, 0)?, parents(&new, 30, 0)?);
        parents_new[13].1 += OTHER;
        let left = tree(&new, &parents_new, 30);
        let right = tree(&old, &parents_old, 30);
        let mut walk = walk(64)?;
        plan(&mut walk, &left, &right, key(0), ALONE);
        let planned = array(
            walk.leaves
                .iter()
                .map(|leaf| (leaf.tree, leaf.ptr.blockptr)),
        )?;
        assert_eq!(&planned[..], &[(0, OTHER + 400), (1, 400), (0, 7), (0, 8)]);
        assert_eq!((left.read.get(), right.read.get()), (2, 1));
        // The new parent at the end, and nothing of what is shared.
        assert_eq!((left.ahead.get(), right.ahead.get()), (1, 0));
        assert!(!advance(&mut walk, key(u64::MAX)));
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
    fn random_trees_are_compared_as_a_plain_merge_does() -> Result {
        let mut random = Random::new(4);
        for _ in 0..300 {
            let mut sides = [KVVec::new(), KVVec::new()];
            for number in 0..random.below(400) {
                let fate = random.below(10);
                for (side, leaves) in sides.iter_mut().enumerate() {
                    // Most are in both trees, others in one, and some are not the same in both.
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
        // A task that waits makes the second chunk a short one.
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
        // Nothing stays in memory.
        for number in 0..900 {
            let before = asked.len();
            while walk.advance(key(number * 10), |address| {
                let _ = asked.push(address, GFP_KERNEL);
                true
            }) {
                walk.plan(&tree, &none, ALONE);
            }
            // The walk does not restart at one position for good.
            assert!(asked.len() <= before + 3);
        }
        // The last leaves of the batches that the walk has entered.
        assert_eq!(asked[..3], [7, 23, 15]);
        assert!(walk.window.size() <= 32);
        Ok(())
    }
}
