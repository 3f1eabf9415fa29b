// SPDX-License-Identifier: GPL-2.0

//! Trees built from arrays, for the test suites.

use core::cell::Cell;

use super::*;

/// An empty array of leaves or parents.
pub(crate) const NONE: [(u64, u64); 0] = [];
/// Address offset of a second set of parents for the same leaves.
pub(crate) const OTHER: u64 = 1 << 32;

/// Address offset of a child with generation 2. [`OTHER`] is smaller.
pub(crate) const NEWER: u64 = 1 << 40;

/// A node of a tree in an array.
#[derive(Clone, Copy)]
pub(crate) struct Plain<'a> {
    level: u32,
    /// Key and address of each child. The generation is 1, or 2 for an address past [`NEWER`].
    children: &'a [(u64, u64)],
    /// Leaves with a lower address are cached.
    cached: u64,
}

impl Node for Plain<'_> {
    fn level(&self) -> u32 {
        self.level
    }
    fn nodesize(&self) -> u32 {
        1 << 14
    }
    fn nritems(&self) -> u32 {
        self.children.len() as u32
    }
    fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
        let children = self.children.get(slot as usize..).unwrap_or_default();
        for (ptr, child) in ptrs.iter_mut().zip(children) {
            *ptr = KeyPtr {
                key: key(child.0),
                blockptr: child.1 % NEWER,
                generation: 1 + child.1 / NEWER,
            };
        }
    }
    fn search(&self, wanted: Key) -> Result<u32, u32> {
        let found = self
            .children
            .binary_search_by_key(&wanted, |child| key(child.0));
        found.map(|slot| slot as u32).map_err(|slot| slot as u32)
    }
    fn is_cached(&self, blockptr: u64) -> bool {
        blockptr < self.cached
    }
}

/// A key with this objectid.
pub(crate) fn key(objectid: u64) -> Key {
    Key {
        objectid,
        ..Key::default()
    }
}

/// A tree with up to two levels above the leaves. All parents but the last have the same number of
/// leaves. The address of a parent is the index of its first leaf, plus [`OTHER`] in a second set
/// of parents.
pub(crate) struct Array<'a> {
    leaves: &'a [(u64, u64)],
    parents: &'a [(u64, u64)],
    width: usize,
    pub(crate) cached: u64,
    /// The numbers of parents that were read, and read ahead.
    pub(crate) read: Cell<u32>,
    pub(crate) ahead: Cell<u32>,
    pub(crate) is_contended: Cell<bool>,
    /// Whether parents are in memory, and the number of reads after which the tree is contended.
    pub(crate) has_parents: Cell<bool>,
    pub(crate) contended_at: Cell<u32>,
    pub(crate) is_committed: Cell<bool>,
}

impl<'a> Tree for Array<'a> {
    type Node = Plain<'a>;

    fn is_contended(&self) -> bool {
        self.is_contended.get()
    }

    fn root(&self) -> Root<Plain<'a>> {
        if !self.is_committed.get() {
            return Root::Uncommitted;
        }
        let (level, children) = match self.parents {
            [] => (1, self.leaves),
            parents => (2, parents),
        };
        if children.is_empty() {
            return Root::Leaf;
        }
        Root::Node(Plain {
            level,
            children,
            cached: self.cached,
        })
    }

    fn child(
        &self,
        node: &Plain<'a>,
        slot: u32,
        ahead: impl Iterator<Item = u32>,
    ) -> Result<Plain<'a>, Unread> {
        if self.read.get() >= self.contended_at.get() {
            self.is_contended.set(true);
        }
        if self.is_contended() && !self.has_parents.get() {
            return Err(Unread::Busy);
        }
        self.read.set(self.read.get() + 1);
        self.ahead.set(self.ahead.get() + ahead.count() as u32);
        let first = node.ptr(slot).blockptr % OTHER;
        let rest = self.leaves.get(first as usize..);
        let rest = rest.ok_or(Unread::Failed)?;
        Ok(Plain {
            level: node.level - 1,
            children: &rest[..rest.len().min(self.width)],
            cached: self.cached,
        })
    }
}

/// The parents of `leaves`, with `width` leaves each; `base` is added to their addresses.
pub(crate) fn parents(leaves: &[(u64, u64)], width: usize, base: u64) -> Result<KVVec<(u64, u64)>> {
    let numbered = leaves.iter().enumerate().step_by(width);
    array(numbered.map(|(number, leaf)| (leaf.0, base + number as u64)))
}

/// A tree with these leaves and parents, `width` leaves to a parent.
pub(crate) fn tree<'a>(
    leaves: &'a [(u64, u64)],
    parents: &'a [(u64, u64)],
    width: usize, //
) -> Array<'a> {
    Array {
        leaves,
        parents,
        width,
        cached: 0,
        read: Cell::new(0),
        ahead: Cell::new(0),
        is_contended: Cell::new(false),
        has_parents: Cell::new(true),
        contended_at: Cell::new(u32::MAX),
        is_committed: Cell::new(true),
    }
}

/// Collects `items` into an array.
pub(crate) fn array<T: Copy>(items: impl Iterator<Item = T>) -> Result<KVVec<T>> {
    let mut array = KVVec::new();
    for item in items {
        array.push(item, GFP_KERNEL)?;
    }
    Ok(array)
}

#[kernel::macros::kunit_tests(btrfs_tree)]
mod suite {
    use super::*;

    #[test]
    fn no_key_is_between_a_key_and_its_successor() {
        let key = |objectid, kind, offset| Key {
            objectid,
            kind,
            offset,
        };
        let cases = [
            (key(256, 1, 0), key(256, 1, 1)),
            (key(256, 1, u64::MAX), key(256, 2, 0)),
            (key(256, u8::MAX, u64::MAX), key(257, 0, 0)),
            (key(u64::MAX, u8::MAX, 0), key(u64::MAX, u8::MAX, 1)),
            (Key::MAX, Key::MAX),
        ];
        for (key, successor) in cases {
            assert_eq!(key.successor(), successor);
        }
    }

    #[test]
    fn successive_lookups_find_a_leaf_once() -> Result {
        // Extents from 100 on, 10 to a leaf.
        let leaves = array((0..100).map(|number| (number * 10 + 100, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let tree = tree(&leaves, &parents, 30);
        let mut last = LastLeaf::default();
        let wanted = [
            (100, Some(0)),
            (109, None),
            (110, Some(1)),
            (399, Some(29)),
            (400, Some(30)),
            (405, None),
            (399, Some(29)),
            (99999, Some(99)),
            (u64::MAX - 1, None),
            // Before the first key of the tree.
            (5, Some(0)),
        ];
        for (objectid, expected) in wanted {
            let leaf = last.find(&tree, key(objectid));
            assert_eq!(
                leaf.map(|leaf| leaf.map(|leaf| leaf.ptr.blockptr)),
                Ok(expected)
            );
        }
        Ok(())
    }

    /// A tree whose nodes are all on level 2.
    struct Endless;

    impl Tree for Endless {
        type Node = Plain<'static>;

        fn root(&self) -> Root<Plain<'static>> {
            Root::Node(Plain {
                level: 2,
                children: &[(0, 0)],
                cached: 0,
            })
        }
        fn is_contended(&self) -> bool {
            false
        }
        fn child(
            &self,
            node: &Plain<'static>,
            _slot: u32,
            _ahead: impl Iterator<Item = u32>,
        ) -> Result<Plain<'static>, Unread> {
            Ok(*node)
        }
    }

    #[test]
    fn child_on_another_level_is_not_entered() -> Result {
        let mut cursor = Cursor::new(&Endless, key(0), true, Key::MAX);
        assert!(cursor.enter_root().is_ok());
        assert_eq!(cursor.descend(None, 0), Err(Unread::Failed));
        Ok(())
    }

    #[test]
    fn unreadable_parent_is_tried_once() -> Result {
        let leaves = array((0..90).map(|number| (number, number)))?;
        let mut parents = parents(&leaves, 30, 0)?;
        // Reading this parent fails, as there are no such leaves.
        parents[1].1 = 91;
        let tree = tree(&leaves, &parents, 30);
        let mut last = LastLeaf::default();
        let mut found = 0;
        for number in 0..90 {
            found += u32::from(last.find(&tree, key(number)) != Ok(None));
        }
        assert_eq!((found, tree.read.get()), (60, 61));
        Ok(())
    }

    #[test]
    fn lookup_that_gave_way_is_repeated() -> Result {
        let leaves = array((0..90).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let tree = tree(&leaves, &parents, 30);
        tree.has_parents.set(false);
        let mut last = LastLeaf::default();
        let mut find = |objectid| {
            let leaf = last.find(&tree, key(objectid));
            leaf.map(|leaf| leaf.map(|leaf| leaf.ptr.blockptr))
        };
        assert_eq!(find(305), Ok(Some(30)));
        tree.is_contended.set(true);
        assert_eq!(find(605), Err(Unread::Busy));
        // The last leaf is still known.
        assert_eq!(find(306), Ok(None));
        tree.is_contended.set(false);
        assert_eq!(find(605), Ok(Some(60)));
        assert_eq!(tree.read.get(), 2);
        Ok(())
    }
}
