// SPDX-License-Identifier: GPL-2.0

//! Cursors over the nodes of trees.
//!
//! A [`Cursor`] reads nodes and waits for them. It does not read leaves: of a leaf it has the key
//! pointer in the parent, with the first key, the logical address and the generation. Nobody waits
//! for a node while the tree is contended; see [`Unread`].

use core::ops::Deref;

use kernel::prelude::*;

mod last_leaf;

pub(crate) use last_leaf::LastLeaf;

/// Maximum number of nodes on a path, without the leaf: `BTRFS_MAX_LEVEL` - 1.
const MAX_DEPTH: usize = 7;

/// Limit for one plan: pointers skipped plus descents into nodes.
pub(crate) const MAX_STEPS: usize = 8192;

/// Key pointers that a cursor copies from a node at a time: few, as cursors are on the stack.
const PTRS_PER_COPY: usize = 2;

/// A key; `struct btrfs_key`. The order is that of `btrfs_comp_cpu_keys()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Zeroable)]
#[repr(C)]
pub(crate) struct Key {
    /// The object that the item belongs to, for example an inode number.
    pub(crate) objectid: u64,
    /// The type of the item.
    pub(crate) kind: u8,
    /// The offset, whose meaning depends on the type.
    pub(crate) offset: u64,
}

impl Key {
    /// The greatest key.
    pub(crate) const MAX: Self = Self {
        objectid: u64::MAX,
        kind: u8::MAX,
        offset: u64::MAX,
    };

    /// The smallest key greater than this one; [`Key::MAX`] is its own successor.
    pub(crate) fn successor(self) -> Self {
        if self == Self::MAX {
            return self;
        }
        let (offset, carry) = self.offset.overflowing_add(1);
        let (kind, carry) = self.kind.overflowing_add(u8::from(carry));
        Self {
            objectid: self.objectid.saturating_add(u64::from(carry)),
            kind,
            offset,
        }
    }
}

/// A key pointer of a node; `struct btrfs_key_ptr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct KeyPtr {
    /// The first key in the child.
    pub(crate) key: Key,
    /// The logical address of the child, in bytes.
    pub(crate) blockptr: u64,
    /// The generation of the child.
    pub(crate) generation: u64,
}

impl KeyPtr {
    /// Returns whether both point to the same block.
    fn is_same(&self, other: &Self) -> bool {
        self.blockptr == other.blockptr && self.generation == other.generation
    }
}

/// A node above the leaves.
pub(crate) trait Node {
    /// The level, 1 for a parent of leaves.
    fn level(&self) -> u32;
    /// The node size of the filesystem, in bytes.
    fn nodesize(&self) -> u32;
    /// The number of children.
    fn nritems(&self) -> u32;
    /// Copies key pointers from `slot` on. Elements of `ptrs` past the last child are unchanged.
    fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]);
    /// Finds the slot of the child whose first key is `key`, or returns [`Err`] with the first slot
    /// of a greater key; `btrfs_bin_search()`.
    fn search(&self, key: Key) -> Result<u32, u32>;
    /// Returns whether the block at `blockptr` is cached or being read; `find_extent_buffer()`.
    fn is_cached(&self, blockptr: u64) -> bool;

    /// The key pointer in `slot`.
    fn ptr(&self, slot: u32) -> KeyPtr {
        let mut ptr = KeyPtr::default();
        self.copy_ptrs(slot, core::slice::from_mut(&mut ptr));
        ptr
    }

    /// The logical address of the child in `slot`, in bytes; `btrfs_node_blockptr()`.
    fn blockptr(&self, slot: u32) -> u64 {
        self.ptr(slot).blockptr
    }
}

impl<D: Deref<Target: Node>> Node for D {
    fn level(&self) -> u32 {
        (**self).level()
    }
    fn nodesize(&self) -> u32 {
        (**self).nodesize()
    }
    fn nritems(&self) -> u32 {
        (**self).nritems()
    }
    fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
        (**self).copy_ptrs(slot, ptrs);
    }
    fn search(&self, key: Key) -> Result<u32, u32> {
        (**self).search(key)
    }
    fn is_cached(&self, blockptr: u64) -> bool {
        (**self).is_cached(blockptr)
    }
}

/// The root of a tree.
pub(crate) enum Root<N> {
    /// A node above the leaves.
    Node(N),
    /// A leaf, or no tree at all: there is nothing to read ahead.
    Leaf,
    /// The root is newer than the last commit. A later call may find it committed.
    Uncommitted,
}

/// A tree whose nodes can be read.
pub(crate) trait Tree {
    /// A node above the leaves.
    type Node: Node;

    /// The root.
    fn root(&self) -> Root<Self::Node>;

    /// Whether a task waits for the lock that keeps the tree stable, or a fatal signal is pending.
    fn is_contended(&self) -> bool;

    /// Reads the child node in `slot`, and waits for it unless the tree is contended. Starts
    /// reading the siblings in the slots `ahead`, too.
    fn child(
        &self,
        node: &Self::Node,
        slot: u32,
        ahead: impl Iterator<Item = u32>,
    ) -> Result<Self::Node, Unread>;
}

/// The reason why there is no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// The tree is not committed, or it is contended and the node is not in memory. A later call
    /// may succeed.
    Busy,
    /// The node cannot be read, it is a leaf, or the tree ends there.
    Failed,
}

/// A leaf to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Leaf {
    /// The key pointer in its parent.
    pub(crate) ptr: KeyPtr,
    /// The index of its tree in a comparison: 0 or 1.
    pub(crate) tree: u8,
}

/// A position in a tree: a path of nodes above the leaves.
pub(crate) struct Cursor<'a, T: Tree> {
    tree: &'a T,
    /// The nodes from the root down, each with its current slot.
    path: [Option<(T::Node, u32)>; MAX_DEPTH],
    /// The number of nodes in `path`; 0 at the end of the tree, and before `enter_root()`.
    depth: usize,
    /// Key pointers copied from the last node in `path`, from the slot `first` on.
    ptrs: [KeyPtr; PTRS_PER_COPY],
    first: u32,
    from: Key,
    /// Include a leaf that begins before `from` and contains it.
    inside: bool,
    /// Leaves whose first key is at or past this key are left out.
    end: Key,
}

impl<'a, T: Tree> Cursor<'a, T> {
    /// Creates a cursor, whose path begins with [`Cursor::enter_root`].
    pub(crate) fn new(tree: &'a T, from: Key, inside: bool, end: Key) -> Self {
        Self {
            tree,
            path: [const { None }; MAX_DEPTH],
            depth: 0,
            ptrs: [KeyPtr::default(); PTRS_PER_COPY],
            first: 0,
            from,
            inside,
            end,
        }
    }

    /// Moves to `from` in the root. Returns [`Unread::Busy`] if the tree is not committed.
    pub(crate) fn enter_root(&mut self) -> Result<(), Unread> {
        match self.tree.root() {
            Root::Node(root) => self.enter(root).ok_or(Unread::Busy),
            Root::Leaf => Ok(()),
            Root::Uncommitted => Err(Unread::Busy),
        }
    }

    /// Descends into `node`; `None` if the path is full.
    fn enter(&mut self, node: T::Node) -> Option<()> {
        let entry = self.path.get_mut(self.depth)?;
        let slot = match node.search(self.from) {
            Err(next) if node.level() > 1 || self.inside => next.saturating_sub(1),
            Ok(slot) | Err(slot) => slot,
        };
        *entry = Some((node, slot));
        self.depth += 1;
        self.load();
        self.leave_ended();
        Some(())
    }

    /// Copies key pointers from the slot of the cursor on.
    fn load(&mut self) {
        let last = self.depth.checked_sub(1);
        if let Some(Some((node, slot))) = last.and_then(|last| self.path.get(last)) {
            node.copy_ptrs(*slot, &mut self.ptrs);
            self.first = *slot;
        }
    }

    /// The lowest node of the path and its slot; `None` at the end of the tree.
    pub(crate) fn head(&self) -> Option<(&T::Node, u32)> {
        let (node, slot) = self.path.get(self.depth.checked_sub(1)?)?.as_ref()?;
        Some((node, *slot))
    }

    /// The key pointer in the slot of the cursor.
    pub(crate) fn ptr(&self) -> Option<&KeyPtr> {
        let (_, slot) = self.head()?;
        self.ptrs.get(slot.checked_sub(self.first)? as usize)
    }

    /// The first key of the child in the slot of the cursor.
    pub(crate) fn key(&self) -> Option<Key> {
        self.ptr().map(|ptr| ptr.key)
    }

    /// The level of the lowest node; 0 at the end of the tree.
    pub(crate) fn level(&self) -> u32 {
        self.head().map_or(0, |(node, _)| node.level())
    }

    /// The tree of the cursor.
    pub(crate) fn tree(&self) -> &'a T {
        self.tree
    }

    /// Moves to the next slot; after the last slot of a node, to the next slot of its parent.
    pub(crate) fn advance(&mut self) {
        self.step();
        self.leave_ended();
    }

    fn step(&mut self) {
        let last = self.depth.checked_sub(1);
        if let Some(Some((_, slot))) = last.and_then(|last| self.path.get_mut(last)) {
            *slot += 1;
        }
        if self.ptr().is_none() {
            self.load();
        }
    }

    fn leave_ended(&mut self) {
        while self
            .head()
            .is_some_and(|(node, slot)| slot >= node.nritems())
        {
            self.depth -= 1;
            self.path[self.depth] = None;
            self.first = u32::MAX;
            self.step();
        }
        if self.key().is_some_and(|key| key >= self.end) {
            self.depth = 0;
        }
    }

    /// Descends to the parents of leaves. [`Unread::Failed`] at the end of the tree, too.
    pub(crate) fn descend_to_leaves(&mut self) -> Result<(&T::Node, u32), Unread> {
        while self.level() > 1 {
            self.descend(None, 0)?;
        }
        self.head().ok_or(Unread::Failed)
    }

    /// The node of the path on `level`, and its slot.
    fn on_level(&self, level: u32) -> Option<(&T::Node, u32)> {
        let mut path = self.path.iter().flatten();
        let (node, slot) = path.find(|(node, _)| node.level() == level)?;
        Some((node, *slot))
    }

    /// Descends one level, to the slot of `from` or the first slot. Reads ahead up to `ahead`
    /// siblings that the `other` tree does not have.
    pub(crate) fn descend(
        &mut self,
        other: Option<&Cursor<'_, T>>,
        ahead: usize,
    ) -> Result<(), Unread> {
        let (node, slot) = self.head().ok_or(Unread::Failed)?;
        let counterpart = other.and_then(|other| other.on_level(node.level()));
        let also = unshared(node, slot + 1, counterpart).take(ahead);
        let child = self.tree.child(node, slot, also)?;
        if child.level() + 1 != node.level() {
            return Err(Unread::Failed);
        }
        self.enter(child).ok_or(Unread::Failed)
    }
}

/// The slots of `node`, from `slot` on, whose children are not shared with `other`: a node of the
/// other tree on the same level, and its slot.
fn unshared<'n, N: Node>(
    node: &'n N,
    slot: u32,
    other: Option<(&'n N, u32)>,
) -> impl Iterator<Item = u32> + 'n {
    let mut other = other;
    (slot..node.nritems()).filter(move |slot| {
        let Some((other, other_slot)) = &mut other else {
            return true;
        };
        let ptr = node.ptr(*slot);
        while *other_slot < other.nritems() {
            let counterpart = other.ptr(*other_slot);
            if counterpart.key >= ptr.key {
                return !ptr.is_same(&counterpart);
            }
            *other_slot += 1;
        }
        true
    })
}

/// The next cursor to move in the comparison of two trees.
pub(crate) enum Turn {
    /// The first cursor.
    Left,
    /// The second cursor.
    Right,
    /// Both cursors.
    Both,
    /// Both cursors, past a subtree that the trees share.
    Shared,
    /// None: both trees are at their end.
    End,
}

/// Chooses the cursor to move next, in the key order of `btrfs_compare_trees()`.
pub(crate) fn turn<T: Tree>(left: &Cursor<'_, T>, right: &Cursor<'_, T>) -> Turn {
    use core::cmp::Ordering::*;

    let (Some(a), Some(b)) = (left.ptr(), right.ptr()) else {
        return match (left.depth, right.depth) {
            (0, 0) => Turn::End,
            (_, 0) => Turn::Left,
            (..) => Turn::Right,
        };
    };
    // The cursor on the higher level descends first.
    let order = right.level().cmp(&left.level());
    match order.then_with(|| a.key.cmp(&b.key)) {
        Less => Turn::Left,
        Greater => Turn::Right,
        Equal if a.is_same(b) => Turn::Shared,
        Equal => Turn::Both,
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
pub(crate) mod tests;
