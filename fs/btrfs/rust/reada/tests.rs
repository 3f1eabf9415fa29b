// SPDX-License-Identifier: GPL-2.0

#[kernel::macros::kunit_tests(btrfs_reada)]
mod suite {
    use super::super::*;
    use crate::{
        random::Random,
        tree::{
            tests::key,
            Key,
            KeyPtr, //
        },
    };
    use kernel::{
        prelude::*,
        sizes::*, //
    };

    const MIDDLE: u64 = 1 << 40;

    struct Children<'a> {
        level: u32,
        nodesize: u32,
        /// Address, generation and objectid of each child.
        children: &'a [(u64, u64, u64)],
        cached: Option<u64>,
    }

    impl Node for Children<'_> {
        fn level(&self) -> u32 {
            self.level
        }
        fn nodesize(&self) -> u32 {
            self.nodesize
        }
        fn nritems(&self) -> u32 {
            self.children.len() as u32
        }
        fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
            let children = self.children.get(slot as usize..).unwrap_or_default();
            for (ptr, &(blockptr, generation, objectid)) in ptrs.iter_mut().zip(children) {
                *ptr = KeyPtr {
                    key: key(objectid),
                    blockptr,
                    generation,
                };
            }
        }
        fn search(&self, _key: Key) -> Result<u32, u32> {
            Err(0)
        }
        fn is_cached(&self, blockptr: u64) -> bool {
            self.cached == Some(blockptr)
        }
    }

    fn leaves<'a>(children: &'a [(u64, u64, u64)]) -> Children<'a> {
        Children {
            level: 1,
            nodesize: SZ_16K as u32,
            children,
            cached: None,
        }
    }

    fn selected<N: Node>(node: &N, slot: u32, mode: Mode, objectid: u64) -> Result<KVec<u32>> {
        let mut slots = KVec::new();
        for slot in for_search(node, slot, mode, objectid).into_iter().flatten() {
            slots.push(slot, GFP_KERNEL)?;
        }
        Ok(slots)
    }

    #[test]
    fn counts_for_each_mode_level_and_nodesize() -> Result {
        // All children have the same address, so that only the limits end the selection.
        let children = [(MIDDLE, 1, 1); 200];
        // Mode, level, node size in KiB, blocks expected.
        let cases = [
            (Mode::Forward, 1, 4, 17),
            (Mode::Forward, 1, 8, 9),
            (Mode::Forward, 1, 16, 5),
            (Mode::Forward, 1, 32, 3),
            (Mode::Forward, 1, 64, 2),
            (Mode::Back, 1, 4, 17),
            (Mode::Back, 1, 16, 5),
            (Mode::Back, 1, 64, 2),
            (Mode::ForwardAlways, 1, 4, 33),
            (Mode::ForwardAlways, 1, 8, 17),
            (Mode::ForwardAlways, 1, 16, 9),
            (Mode::ForwardAlways, 1, 32, 5),
            (Mode::ForwardAlways, 1, 64, 3),
            (Mode::ForwardAlways, 2, 4, 2),
            (Mode::ForwardAlways, 2, 16, 2),
            (Mode::ForwardAlways, 7, 64, 2),
            (Mode::ForwardFar, 1, 4, 33),
            (Mode::ForwardFar, 1, 16, 9),
            (Mode::ForwardFar, 1, 64, 3),
            (Mode::ForwardFar, 2, 16, 0),
            (Mode::Forward, 2, 16, 0),
            (Mode::Back, 3, 16, 0),
            (Mode::None, 1, 16, 0),
            (Mode::None, 2, 16, 0),
        ];
        for (mode, level, kib, expected) in cases {
            let node = Children {
                level,
                nodesize: kib * SZ_1K as u32,
                ..leaves(&children)
            };
            assert_eq!(selected(&node, 100, mode, 0)?.len(), expected);
        }
        Ok(())
    }

    #[test]
    fn direction_and_ends_of_the_node() -> Result {
        let children = [(MIDDLE, 1, 1); 4];
        let node = leaves(&children);
        let cases: [(Mode, u32, &[u32]); 8] = [
            (Mode::Forward, 0, &[1, 2, 3]),
            (Mode::Forward, 2, &[3]),
            (Mode::Forward, 3, &[]),
            (Mode::ForwardAlways, 1, &[2, 3]),
            (Mode::ForwardAlways, 3, &[]),
            (Mode::Back, 0, &[]),
            (Mode::Back, 1, &[0]),
            (Mode::Back, 3, &[2, 1, 0]),
        ];
        for (mode, slot, expected) in cases {
            assert_eq!(&selected(&node, slot, mode, 0)?[..], expected);
        }
        Ok(())
    }

    #[test]
    fn distance_is_to_the_target_and_inclusive() -> Result {
        for (distance, near) in [(0, true), (65535, true), (65536, true), (65537, false)] {
            for address in [MIDDLE - distance, MIDDLE + distance] {
                let children = [(MIDDLE, 1, 1), (address, 1, 1)];
                let node = leaves(&children);
                assert_eq!(
                    selected(&node, 0, Mode::Forward, 0)?.len(),
                    usize::from(near)
                );
                assert_eq!(selected(&node, 1, Mode::Back, 0)?.len(), usize::from(near));
                assert_eq!(selected(&node, 0, Mode::ForwardAlways, 0)?.len(), 1);
                assert_eq!(selected(&node, 0, Mode::ForwardFar, 0)?.len(), 1);
            }
        }
        // Each child is close to the one before it, but the last one is not close to the target.
        let children = [(0, 1, 1), (SZ_64K as u64, 1, 1), (2 * SZ_64K as u64, 1, 1)];
        assert_eq!(
            &selected(&leaves(&children), 0, Mode::Forward, 0)?[..],
            &[1]
        );
        Ok(())
    }

    #[test]
    fn addresses_at_the_ends_of_u64_do_not_wrap() -> Result {
        let children = [(0, 1, 1), (u64::MAX, 1, 1), (65536, 1, 1)];
        let node = leaves(&children);
        assert_eq!(&selected(&node, 0, Mode::Forward, 0)?[..], &[2]);
        assert_eq!(selected(&node, 1, Mode::Back, 0)?.len(), 0);
        Ok(())
    }

    #[test]
    fn far_children_count_as_scanned() -> Result {
        // Only the child at `near` is close; the 33rd slot after the target is the last one
        // scanned.
        for (near, expected) in [(33, 1), (34, 0)] {
            let mut children = [(u64::MAX, 1, 1); 100];
            children[0].0 = MIDDLE;
            children[near].0 = MIDDLE;
            let node = leaves(&children);
            assert_eq!(selected(&node, 0, Mode::Forward, 0)?.len(), expected);
            children.reverse();
            let node = leaves(&children);
            assert_eq!(selected(&node, 99, Mode::Back, 0)?.len(), expected);
        }
        Ok(())
    }

    #[test]
    fn back_stops_at_another_objectid() -> Result {
        let children = [5, 9, 5, 5, 5].map(|objectid| (MIDDLE, 1, objectid));
        let node = leaves(&children);
        assert_eq!(&selected(&node, 4, Mode::Back, 5)?[..], &[3, 2]);
        assert_eq!(&selected(&node, 4, Mode::Back, 9)?[..], &[]);
        assert_eq!(&selected(&node, 4, Mode::Back, 0)?[..], &[3, 2, 1, 0]);
        assert_eq!(&selected(&node, 0, Mode::Forward, 9)?[..], &[1, 2, 3, 4]);
        Ok(())
    }

    #[test]
    fn cached_target_stops_all_but_forward_always() -> Result {
        let children = [(MIDDLE, 1, 1), (MIDDLE + 1, 1, 1)];
        let node = Children {
            cached: Some(MIDDLE),
            ..leaves(&children)
        };
        assert_eq!(selected(&node, 0, Mode::Forward, 0)?.len(), 0);
        assert_eq!(selected(&node, 0, Mode::ForwardFar, 0)?.len(), 0);
        assert_eq!(selected(&node, 0, Mode::ForwardAlways, 0)?.len(), 1);
        // A cached sibling is taken and counted like any other.
        assert_eq!(&selected(&node, 1, Mode::Back, 0)?[..], &[0]);
        Ok(())
    }

    #[test]
    fn move_down_takes_newer_children_up_to_the_limit() -> Result {
        let mut children = [(MIDDLE, 6, 1); 100];
        for child in children.iter_mut().step_by(2) {
            child.1 = 5;
        }
        // Level, node size in KiB, blocks expected; the limit is checked before a block is added.
        for (level, kib, expected) in [(1, 4, 32), (1, 16, 8), (1, 64, 2), (2, 16, 1), (3, 4, 1)] {
            let node = Children {
                level,
                nodesize: kib * SZ_1K as u32,
                ..leaves(&children)
            };
            assert_eq!(for_move_down(&node, 0, 5).count(), expected);
            assert!(for_move_down(&node, 0, 5).all(|slot| slot % 2 == 1));
        }
        let node = leaves(&children);
        assert_eq!(for_move_down(&node, 0, 6).count(), 0);
        assert_eq!(for_move_down(&node, 99, 0).count(), 0);
        assert_eq!(for_move_down(&node, u32::MAX, 0).count(), 0);
        Ok(())
    }

    /// A model of the selection, as the loop of `reada_for_search()`.
    fn model(node: &Children<'_>, slot: u32, mode: Mode, objectid: u64) -> Result<KVec<u32>> {
        let mut slots = KVec::new();
        let (mut slot, target) = (slot as usize, node.children[slot as usize].0);
        let (mut read, mut scanned) = (0, 0);
        loop {
            if mode == Mode::Back {
                if slot == 0 || (objectid != 0 && node.children[slot - 1].2 != objectid) {
                    break;
                }
                slot -= 1;
            } else {
                slot += 1;
                if slot >= node.children.len() {
                    break;
                }
            }
            let address = node.children[slot].0;
            let near = (address <= target && target - address <= 65536)
                || (address > target && address - target <= 65536);
            if near || matches!(mode, Mode::ForwardAlways | Mode::ForwardFar) {
                slots.push(slot as u32, GFP_KERNEL)?;
                read += u64::from(node.nodesize);
            }
            scanned += 1;
            let most = match (mode, node.level) {
                (Mode::ForwardAlways | Mode::ForwardFar, 1) => 131072,
                (Mode::ForwardAlways, _) => u64::from(node.nodesize),
                _ => 65536,
            };
            if read > most || scanned > 32 {
                break;
            }
        }
        Ok(slots)
    }

    #[test]
    fn random_nodes_match_a_plain_loop() -> Result {
        let mut random = Random::new(2);
        let mut children = [(0, 0, 0); 80];
        for _ in 0..5000 {
            for child in children.iter_mut() {
                *child = (
                    MIDDLE + random.below(48) * 4096,
                    1,
                    1 + u64::from(random.below(20) == 19),
                );
            }
            let count = 1 + random.below(80) as usize;
            let mode = [
                Mode::Back,
                Mode::Forward,
                Mode::ForwardAlways,
                Mode::ForwardFar,
            ][random.below(4) as usize];
            let node = Children {
                nodesize: 4096 << random.below(5),
                level: if mode == Mode::ForwardAlways {
                    1 + random.below(2) as u32
                } else {
                    1
                },
                ..leaves(&children[..count])
            };
            let slot = random.below(count as u64) as u32;
            let objectid = random.below(2);
            let expected = model(&node, slot, mode, objectid)?;
            assert!(selected(&node, slot, mode, objectid)? == expected);
        }
        Ok(())
    }
}
