// SPDX-License-Identifier: GPL-2.0

//! What to read ahead of a walk through all of a tree, or of the comparison of two trees.
//!
//! Leaves are planned in batches, from the pointers in their parents. When the walk enters a batch,
//! the next one is planned, so that at most two are in memory unused. Each batch is twice as large
//! as the one before, up to what suits the disk, and but for its first leaves it is read in disk
//! order.

use core::ops::Range;

use kernel::prelude::*;

use crate::{
    reada::{
        Key,
        Node, //
    },
    window::{
        Disk,
        Others,
        Window,
        FIRST_WINDOW,
        MAX_WINDOW, //
    },
};

/// The number of shared pointers to pass over and of nodes to read for one batch, at most.
const MAX_STEPS: usize = 8192;

/// Leaves that the parent of leaves has at least, usually.
const LEAVES_PER_NODE: usize = 128;

/// Who asks for at least `LISTING` extents of a file, and not for its first ones, is likely to ask
/// for the next ones then: `SERIES` times as many are read ahead.
pub(crate) const LISTING: u32 = 32;
const SERIES: u32 = 16;

/// What a file extent takes in a leaf, in bytes: `struct btrfs_item` and
/// `struct btrfs_file_extent_item`.
const FILE_EXTENT_SIZE: u32 = 25 + 53;

/// The greatest number of nodes on a path, leaves left out.
const MAX_DEPTH: usize = 7;

/// The root of a tree.
pub(crate) enum Root<N> {
    /// A node above the leaves.
    Node(N),
    /// A leaf, or no tree at all. It has nothing to read ahead.
    Leaf,
    /// A tree that is not committed yet. It may be looked at later.
    Uncommitted,
}

/// A tree that is walked.
pub(crate) trait Tree {
    /// A node above the leaves.
    type Node: Node;

    /// The root.
    fn root(&self) -> Root<Self::Node>;

    /// Whether a task waits until the tree may change, or the walk is being killed.
    fn is_contended(&self) -> bool;

    /// Reads a child that is not a leaf, and waits for it; `None` on errors.
    ///
    /// Its siblings in the slots `also` will be wanted soon.
    fn child(
        &self,
        node: &Self::Node,
        slot: u32,
        also: impl Iterator<Item = u32>,
    ) -> Option<Self::Node>;
}

/// A leaf to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Its logical address, in bytes.
    pub(crate) blockptr: u64,
    /// Its generation.
    pub(crate) generation: u64,
    /// Its first key.
    pub(crate) key: Key,
    /// Which tree it is in: 0 or 1.
    pub(crate) tree: u8,
}

impl Leaf {
    fn at<N: Node>(node: &N, slot: u32, tree: u8) -> Self {
        Self {
            blockptr: node.blockptr(slot),
            generation: node.generation(slot),
            key: node.key(slot),
            tree,
        }
    }
}

/// A position in a tree, above the leaves.
pub(crate) struct Cursor<'a, T: Tree> {
    tree: &'a T,
    /// The nodes from the root down, each with a slot.
    path: [Option<(T::Node, u32)>; MAX_DEPTH],
    /// How many of them there are: none at the end of the tree.
    depth: usize,
    from: Key,
    /// Whether the leaf that contains `from` is wanted, even if it begins before.
    inside: bool,
    /// Leaves that begin here or later are not wanted.
    end: Key,
}

impl<'a, T: Tree> Cursor<'a, T> {
    /// A cursor in the root, where `from` is; `None` if the tree is not committed.
    pub(crate) fn new(tree: &'a T, from: Key, inside: bool, end: Key) -> Option<Self> {
        let mut cursor = Self {
            tree,
            path: [const { None }; MAX_DEPTH],
            depth: 0,
            from,
            inside,
            end,
        };
        match tree.root() {
            Root::Node(root) => cursor.enter(root)?,
            Root::Leaf => (),
            Root::Uncommitted => return None,
        }
        Some(cursor)
    }

    /// Goes down into a node; `None` if no path is that long.
    fn enter(&mut self, node: T::Node) -> Option<()> {
        let place = self.path.get_mut(self.depth)?;
        let slot = if node.level() > 1 || self.inside {
            partition_point(&node, |key| key <= self.from).saturating_sub(1)
        } else {
            partition_point(&node, |key| key < self.from)
        };
        *place = Some((node, slot));
        self.depth += 1;
        self.leave_ended();
        Some(())
    }

    /// The node and the slot that the cursor is at.
    pub(crate) fn head(&self) -> Option<(&T::Node, u32)> {
        let (node, slot) = self.path.get(self.depth.checked_sub(1)?)?.as_ref()?;
        Some((node, *slot))
    }

    pub(crate) fn key(&self) -> Option<Key> {
        self.head().map(|(node, slot)| node.key(slot))
    }

    fn level(&self) -> u32 {
        self.head().map_or(0, |(node, _)| node.level())
    }

    /// Goes to the next slot, of a parent if need be.
    pub(crate) fn advance(&mut self) {
        self.step();
        self.leave_ended();
    }

    fn step(&mut self) {
        let last = self.depth.checked_sub(1);
        if let Some(Some((_, slot))) = last.and_then(|last| self.path.get_mut(last)) {
            *slot += 1;
        }
    }

    fn leave_ended(&mut self) {
        while self
            .head()
            .is_some_and(|(node, slot)| slot >= node.nritems())
        {
            self.depth -= 1;
            self.path[self.depth] = None;
            self.step();
        }
        if self.key().is_some_and(|key| key >= self.end) {
            self.depth = 0;
        }
    }

    /// Goes down to the parents of leaves; `None` at the end, and on errors.
    fn descend_to_leaves(&mut self) -> Option<(&T::Node, u32)> {
        while self.level() > 1 {
            self.descend(None, 0)?;
        }
        self.head()
    }

    /// The node that the cursor went through on a level, and its slot.
    fn on_level(&self, level: u32) -> Option<(&T::Node, u32)> {
        let mut path = self.path.iter().flatten();
        let (node, slot) = path.find(|(node, _)| node.level() == level)?;
        Some((node, *slot))
    }

    /// Goes down to the child that contains `from`, or to the first; `None` on errors. Up to
    /// `ahead` of its siblings that are not in the `other` tree are read ahead.
    pub(crate) fn descend(&mut self, other: Option<&Cursor<'_, T>>, ahead: usize) -> Option<()> {
        let (node, slot) = self.head()?;
        let counterpart = other.and_then(|other| other.on_level(node.level()));
        let also = unshared(node, slot + 1, counterpart).take(ahead);
        let child = self.tree.child(node, slot, also)?;
        if child.level() + 1 != node.level() {
            return None;
        }
        self.enter(child)
    }
}

/// The leaf that was looked for last in a tree where one thing is looked up after the other.
///
/// All zeroes is none.
#[derive(Default, Zeroable)]
pub(crate) struct Located {
    /// The first key in it, or in the part of the tree that could not be read.
    first: Key,
    /// The first key behind that.
    end: Key,
}

impl Located {
    /// The leaf that `key` is in, unless it is the last one. `None` also on errors, once for all
    /// keys in the same part of the tree.
    pub(crate) fn leaf<T: Tree>(&mut self, tree: &T, key: Key) -> Option<Leaf> {
        if (self.first..self.end).contains(&key) {
            return None;
        }
        let mut cursor = Cursor::new(tree, key, true, Key::MAX)?;
        let is_found = cursor.descend_to_leaves().is_some();
        let (node, slot) = cursor.head()?;
        let child = Leaf::at(node, slot, 0);
        cursor.advance();
        self.first = child.key;
        self.end = cursor.key().unwrap_or(Key::MAX);
        is_found.then_some(child)
    }
}

/// Fills `order` with the numbers below `count`, those from `first` on by the address that each
/// has on disk. To sort numbers takes less of the stack than to sort what they stand for.
pub(crate) fn sort_by_address(
    order: &mut KVVec<u32>,
    count: usize,
    first: usize,
    address: impl Fn(usize) -> u64,
) {
    for number in 0..count as u32 {
        if order.push_within_capacity(number).is_err() {
            break;
        }
    }
    if let Some(rest) = order.get_mut(first..) {
        rest.sort_unstable_by_key(|number| address(*number as usize));
    }
}

/// The number of keys, from the first on, for which `is_before` holds.
fn partition_point<N: Node>(node: &N, is_before: impl Fn(Key) -> bool) -> u32 {
    let (mut low, mut high) = (0, node.nritems());
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(node.key(middle)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn is_same<N: Node>(node: &N, slot: u32, other: &N, other_slot: u32) -> bool {
    node.blockptr(slot) == other.blockptr(other_slot)
        && node.generation(slot) == other.generation(other_slot)
}

/// The slots of `node` from `slot` on whose children are not also those of `other`, a node of the
/// same level of the other tree, from its slot on.
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
        let key = node.key(*slot);
        while *other_slot < other.nritems() && other.key(*other_slot) < key {
            *other_slot += 1;
        }
        *other_slot >= other.nritems() || !is_same(node, *slot, *other, *other_slot)
    })
}

/// Which of two cursors is to be moved, or both.
enum Turn {
    Left,
    Right,
    Both,
    /// Both, over a subtree that they share.
    Shared,
    End,
}

/// Whose turn it is, as in `btrfs_compare_trees()`.
fn turn<T: Tree>(left: &Cursor<'_, T>, right: &Cursor<'_, T>) -> Turn {
    use core::cmp::Ordering::*;

    let (Some((a, slot_a)), Some((b, slot_b))) = (left.head(), right.head()) else {
        return match (left.depth, right.depth) {
            (0, 0) => Turn::End,
            (_, 0) => Turn::Left,
            (..) => Turn::Right,
        };
    };
    // The higher one goes down first.
    let order = b.level().cmp(&a.level());
    match order.then_with(|| a.key(slot_a).cmp(&b.key(slot_b))) {
        Less => Turn::Left,
        Greater => Turn::Right,
        Equal if is_same(a, slot_a, b, slot_b) => Turn::Shared,
        Equal => Turn::Both,
    }
}

/// The readahead of a walk.
pub(crate) struct Walk {
    /// The first key that has not been looked at; none at the end of the trees.
    next: Option<Key>,
    /// The walk enters the last batch when it gets here.
    trigger: Key,
    is_started: bool,
    /// The size of the next batch, in leaves, and how many of them are read in the order of the
    /// walk.
    batch: Window,
    in_order: usize,
    disk: Disk,
    /// Leaves of the last batch and of the one before, in bytes.
    held: u64,
    end: Key,
    /// How many leaves may still be read ahead.
    left: usize,
    /// How many leaves further on one must be missing for a batch to be read at all.
    lookout: Option<u32>,
    /// The last batch as the walk needs it, and in which order it is to be read; empty if in that
    /// of the walk.
    leaves: KVVec<Leaf>,
    order: KVVec<u32>,
}

impl Walk {
    /// The readahead of a walk through trees on `disk`, with batches of at most `max_batch` bytes
    /// if that is given. It reads nothing if the readahead of `disk` is 0.
    pub(crate) fn new(disk: Disk, max_batch: Option<u64>) -> Result<Self> {
        let max_batch = max_batch.unwrap_or(disk.max_batch()).min(MAX_WINDOW);
        let max_batch = disk.nodes(max_batch).max(1);
        let in_order = disk.nodes(FIRST_WINDOW).clamp(1, max_batch);
        let mut batch = Window::new(in_order as u64, max_batch as u64);
        batch.grow();
        Ok(Self {
            next: (disk.window() > 0).then(Key::default),
            trigger: Key::default(),
            is_started: false,
            batch,
            in_order,
            disk,
            held: 0,
            end: Key::MAX,
            left: usize::MAX,
            lookout: None,
            leaves: KVVec::with_capacity(max_batch + 1, GFP_KERNEL)?,
            order: if max_batch > in_order {
                KVVec::with_capacity(max_batch + 1, GFP_KERNEL)?
            } else {
                KVVec::new()
            },
        })
    }

    /// The readahead of a listing of the file extents in a range of keys, of which `wanted` are
    /// asked for at a time; `is_first` says that none were before.
    pub(crate) fn listing(
        disk: Disk,
        range: Range<Key>,
        wanted: u32,
        is_first: bool, //
    ) -> Result<Self> {
        let is_later = !is_first && wanted >= LISTING;
        let extents = wanted.saturating_mul(if is_later { SERIES } else { 1 });
        // A leaf that was split is half full at first, and not much fuller where files were
        // written in no order.
        let per_leaf = (disk.nodesize / 2 / FILE_EXTENT_SIZE).max(1);
        let leaves = u64::from(extents.div_ceil(per_leaf));
        let most = disk.max_batch().min(leaves * u64::from(disk.nodesize));
        let mut walk = Self::new(disk, Some(most))?;
        walk.next = walk.next.map(|_| range.start);
        walk.trigger = range.start;
        walk.end = range.end;
        walk.left = leaves.max(1) as usize;
        if !is_first {
            walk.batch.open();
        }
        let needed = wanted.div_ceil(per_leaf).max(1);
        walk.lookout = Some(needed.min(walk.in_order as u32));
        Ok(walk)
    }

    /// Whether a walk that has come to `key` wants a new batch planned.
    pub(crate) fn is_due(&self, key: Key) -> bool {
        self.next.is_some() && key >= self.trigger
    }

    /// How many leaves the last batch has.
    pub(crate) fn count(&self) -> usize {
        self.leaves.len()
    }

    /// The leaf of the last batch that is to be read after `index` others.
    pub(crate) fn leaf(&self, index: usize) -> Option<&Leaf> {
        let number = if self.order.is_empty() {
            index
        } else {
            *self.order.get(index)? as usize
        };
        self.leaves.get(number)
    }

    /// The leaf of the last batch that the walk needs last.
    pub(crate) fn last(&self) -> Option<&Leaf> {
        self.leaves.last()
    }

    /// The leaves of the last two batches, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Begins anew at `key` and carefully, as not all of the last batch was read, or is in memory
    /// no more.
    pub(crate) fn restart(&mut self, key: Key) {
        self.next = (self.disk.window() > 0).then_some(key);
        self.trigger = key;
        self.is_started = false;
        self.batch.shrink();
    }

    /// Plans the next batch of a walk that has come to `key`, or of a comparison if there are two
    /// trees: leaves that only one of them has, and those of the other that take their place.
    pub(crate) fn plan<T: Tree>(&mut self, left: &T, right: &T, key: Key, others: Others) {
        let last = self.leaves.len();
        self.leaves.clear();
        self.order.clear();
        let Some(from) = self.next else {
            return;
        };
        // Nothing planned is no reason to give up: the next step of the walk tries again.
        self.trigger = key.successor();
        // A walk that has overtaken its readahead does not want what is behind it.
        let is_late = key > from || !self.is_started;
        let from = if is_late { key } else { from };
        let (Some(mut left), Some(mut right)) = (
            Cursor::new(left, from, is_late, self.end),
            Cursor::new(right, from, is_late, self.end),
        ) else {
            return;
        };
        self.is_started = true;
        if let Some(known) = self.look_out(&mut left) {
            self.next = known;
            self.trigger = known.unwrap_or_default();
            return;
        }
        let held = self.disk.nodes(others.held).saturating_add(last) as u64;
        let batch = self.batch.room(2 * self.batch.most(), held, others) as usize;
        let gathered = self.gather(&mut left, &mut right, batch.min(self.left));
        self.left = self.left.saturating_sub(self.leaves.len());
        let next = [left.key(), right.key()].into_iter().flatten().min();
        self.next = match gathered {
            _ if self.left == 0 => None,
            // The walk comes to the same error, or goes on behind it.
            Err(behind) => behind.or(next),
            Ok(()) => next,
        };
        match (self.leaves.first(), gathered) {
            (Some(first), _) => self.trigger = first.key,
            (None, Err(Some(behind))) => self.trigger = behind.max(key.successor()),
            (None, _) => (),
        }
        self.finish(last);
    }

    /// Sets the order of the leaves that were planned after `last` others, and grows the window.
    fn finish(&mut self, last: usize) {
        let count = self.leaves.len();
        self.held = (last + count) as u64 * u64::from(self.disk.nodesize);
        if count > self.in_order {
            let leaves = &self.leaves;
            sort_by_address(&mut self.order, count, self.in_order, |number| {
                leaves[number].blockptr
            });
        }
        if count > 0 {
            self.batch.grow();
        }
    }

    /// Looks whether a leaf further on is in memory, so that what comes before it needs no
    /// readahead. If so, returns the key after it, if any; likewise on errors.
    fn look_out<T: Tree>(&self, cursor: &mut Cursor<'_, T>) -> Option<Option<Key>> {
        let distance = self.lookout?;
        let Some((node, slot)) = cursor.descend_to_leaves() else {
            return Some(None);
        };
        let last = node.nritems().saturating_sub(1);
        let last = last.min(slot.saturating_add(distance));
        if !node.is_cached(node.blockptr(last)) {
            return None;
        }
        for _ in slot..=last {
            cursor.advance();
        }
        Some(cursor.key())
    }

    /// Moves the cursors over a batch of up to `batch` leaves. On errors, gives the key behind the
    /// child that could not be read; none at the end of its tree.
    fn gather<T: Tree>(
        &mut self,
        left: &mut Cursor<'_, T>,
        right: &mut Cursor<'_, T>,
        batch: usize,
    ) -> Result<(), Option<Key>> {
        let ahead = 1 + batch / LEAVES_PER_NODE;
        let (mut reads, mut passed) = (0, 0);
        while reads + passed < MAX_STEPS {
            let found = self.leaves.len();
            // Nodes are waited for here: do not wait for many while others wait for the walk.
            let is_enough = found > 0 && reads > 2 * ahead;
            let has_moved = found > 0 || passed > 0;
            if found >= batch || is_enough || (has_moved && left.tree.is_contended()) {
                break;
            }
            let level = left.level().max(right.level());
            let (go_left, go_right) = match turn(left, right) {
                Turn::End => break,
                Turn::Shared => {
                    left.advance();
                    right.advance();
                    passed += 1;
                    continue;
                }
                Turn::Left => (true, false),
                Turn::Right => (false, true),
                Turn::Both => (true, true),
            };
            reads += usize::from(level > 1);
            if go_left {
                self.take(left, right, 0, ahead)?;
            }
            if go_right {
                self.take(right, left, 1, ahead)?;
            }
        }
        Ok(())
    }

    /// Takes the leaf that a cursor is at, or goes down to a parent of leaves. Errors are those of
    /// [`Walk::gather`].
    fn take<T: Tree>(
        &mut self,
        cursor: &mut Cursor<'_, T>,
        other: &Cursor<'_, T>,
        tree: u8,
        ahead: usize,
    ) -> Result<(), Option<Key>> {
        if cursor.level() > 1 {
            return cursor.descend(Some(other), ahead).ok_or_else(|| {
                cursor.advance();
                cursor.key()
            });
        }
        if let Some((node, slot)) = cursor.head() {
            let leaf = Leaf::at(node, slot, tree);
            // There is room: gather() has looked.
            let _ = self.leaves.push_within_capacity(leaf);
        }
        cursor.advance();
        Ok(())
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kernel::macros::kunit_tests(btrfs_reada_walk)]
mod tests {
    use super::*;
    use crate::random::Random;
    use core::cell::Cell;

    /// A node of a tree in an array.
    #[derive(Clone, Copy)]
    struct Plain<'a> {
        level: u32,
        /// Key and address of each child; the generation is always 1.
        children: &'a [(u64, u64)],
        /// Leaves below this address are in memory.
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
        fn blockptr(&self, slot: u32) -> u64 {
            self.children[slot as usize].1
        }
        fn generation(&self, _slot: u32) -> u64 {
            1
        }
        fn key(&self, slot: u32) -> Key {
            key(self.children[slot as usize].0)
        }
        fn is_cached(&self, blockptr: u64) -> bool {
            blockptr < self.cached
        }
    }

    fn key(objectid: u64) -> Key {
        Key {
            objectid,
            ..Key::default()
        }
    }

    /// A tree of up to two levels above the leaves, whose leaves are cut up into parents of equal
    /// size. The address of a parent is the number of its first leaf, plus [`OTHER`] for another
    /// one.
    struct Array<'a> {
        leaves: &'a [(u64, u64)],
        parents: &'a [(u64, u64)],
        width: usize,
        cached: u64,
        /// How many parents were read, and how many read ahead.
        read: Cell<u32>,
        ahead: Cell<u32>,
        is_contended: Cell<bool>,
        is_committed: Cell<bool>,
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
            also: impl Iterator<Item = u32>,
        ) -> Option<Plain<'a>> {
            self.read.set(self.read.get() + 1);
            self.ahead.set(self.ahead.get() + also.count() as u32);
            let first = node.blockptr(slot) % OTHER;
            let rest = self.leaves.get(first as usize..)?;
            Some(Plain {
                level: node.level - 1,
                children: &rest[..rest.len().min(self.width)],
                cached: self.cached,
            })
        }
    }

    /// The parents of `leaves`, `width` to each; trees with another `base` have others.
    fn parents(leaves: &[(u64, u64)], width: usize, base: u64) -> Result<KVVec<(u64, u64)>> {
        let numbered = leaves.iter().enumerate().step_by(width);
        array(numbered.map(|(number, leaf)| (leaf.0, base + number as u64)))
    }

    fn tree<'a>(
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
            is_committed: Cell::new(true),
        }
    }

    fn array<T: Copy>(items: impl Iterator<Item = T>) -> Result<KVVec<T>> {
        let mut array = KVVec::new();
        for item in items {
            array.push(item, GFP_KERNEL)?;
        }
        Ok(array)
    }

    /// The addresses of the last batch, as they are to be read.
    fn read_order(walk: &Walk) -> Result<KVVec<u64>> {
        array((0..walk.count()).filter_map(|index| Some(walk.leaf(index)?.blockptr)))
    }

    const NONE: [(u64, u64); 0] = [];
    const ALONE: Others = Others { held: 0, count: 0 };
    const OTHER: u64 = 1 << 32;
    const DISK: Disk = Disk {
        rotating: false,
        readahead: 4 << 10,
        window_kb: 0,
        memory: 4 << 20,
        nodesize: 1 << 14,
    };

    fn walk(leaves: usize) -> Result<Walk> {
        Walk::new(DISK, Some(leaves as u64 * u64::from(DISK.nodesize)))
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
            assert_eq!(Walk::new(disk, None)?.batch.most(), leaves);
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
            let mut walk = Walk::new(disk, None)?;
            assert!(!walk.is_due(key(0)));
            walk.restart(key(0));
            assert!(!walk.is_due(key(0)));
            let range = key(0)..Key::MAX;
            assert!(!Walk::listing(disk, range, 100, true)?.is_due(key(0)));
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
            walk.plan(left, right, key(0), ALONE);
            walk.plan(left, right, key(0), ALONE);
            sides[waits_for].is_committed.set(false);
            assert!(walk.is_due(key(80)));
            walk.plan(left, right, key(80), ALONE);
            assert_eq!(walk.count(), 0);
            // Not in the same step once more, but in the next.
            assert!(!walk.is_due(key(80)) && walk.is_due(key(81)));
            sides[waits_for].is_committed.set(true);
            walk.plan(left, right, key(81), ALONE);
            assert_eq!(walk.leaves.first().map(|leaf| leaf.blockptr), Some(24));
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
            while walk.is_due(key(leaf.0)) {
                walk.plan(&tree, &none, key(leaf.0), ALONE);
                for leaf in walk.leaves.iter() {
                    planned.push(leaf.blockptr, GFP_KERNEL)?;
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
            while walk.is_due(key(leaf.0)) {
                walk.plan(&left, &right, key(leaf.0), ALONE);
                plans += 1;
                assert_eq!(walk.count(), 0);
            }
            assert!(left.read.get() + right.read.get() <= before + 2);
        }
        // Each plan got on by a leaf at least, and each node was read about once.
        assert!(plans < 3100);
        assert!(left.read.get() <= 3000);
        assert!(!walk.is_due(key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn a_batch_may_be_larger_than_what_is_passed_over() -> Result {
        let leaves = array((0..40_000).map(|number| (number, number)))?;
        let parents = parents(&leaves, 200, 0)?;
        let (tree, none) = (tree(&leaves, &parents, 200), tree(&NONE, &NONE, 1));
        let mut walk = walk(16384)?;
        walk.batch.open();
        walk.plan(&tree, &none, key(0), ALONE);
        assert_eq!((walk.count(), walk.held()), (16384, 256 << 20));
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
            walk.plan(&tree, &none, key(0), ALONE);
            assert_eq!(walk.held(), 8 * node);
            walk.batch.open();
            let others = Others {
                held: others * node,
                count: 0,
            };
            walk.plan(&tree, &none, key(0), others);
            assert_eq!(walk.count(), count);
            assert_eq!(walk.held(), (8 + count as u64) * node);
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
            if walk.is_due(key(leaf.0)) {
                walk.plan(&tree, &none, key(leaf.0), ALONE);
                sizes.push(walk.count(), GFP_KERNEL)?;
                for leaf in walk.leaves.iter() {
                    planned.push((leaf.key.objectid, leaf.blockptr), GFP_KERNEL)?;
                }
            }
        }
        assert_eq!(&sizes[..5], &[8, 16, 32, 64, 64]);
        planned.sort_unstable();
        assert!(planned[..] == leaves[..]);
        assert!(!walk.is_due(key(u64::MAX)));
        Ok(())
    }

    #[test]
    fn a_batch_is_read_in_disk_order_but_for_its_beginning() -> Result {
        let leaves = array((0..100).map(|number| (number, 1000 - number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        walk.plan(&tree, &none, key(0), ALONE);
        walk.plan(&tree, &none, key(0), ALONE);
        let read = read_order(&walk)?;
        assert_eq!(&read[..8], &[992, 991, 990, 989, 988, 987, 986, 985]);
        assert_eq!(&read[8..], &[977, 978, 979, 980, 981, 982, 983, 984]);
        assert_eq!(walk.last().map(|leaf| leaf.blockptr), Some(977));
        Ok(())
    }

    #[test]
    fn more_is_planned_when_the_walk_enters_the_last_batch() -> Result {
        let leaves = array((0..100).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        assert!(walk.is_due(key(0)));
        walk.plan(&tree, &none, key(0), ALONE);
        // Its own first leaf is where the walk is: the next one at once.
        assert!(walk.is_due(key(0)));
        walk.plan(&tree, &none, key(0), ALONE);
        assert!(!walk.is_due(key(79)));
        assert!(walk.is_due(key(80)));
        // A walk that went on without its readahead: what it has left behind is not read.
        walk.plan(&tree, &none, key(505), ALONE);
        assert_eq!(walk.leaves[0].blockptr, 50);
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
            let mut walk = Walk::listing(DISK, range.clone(), wanted, is_first)?;
            assert!(!walk.is_due(key(0)) && walk.is_due(range.start));
            walk.plan(&tree, &none, range.start, ALONE);
            let read = read_order(&walk)?;
            assert!(read.iter().copied().eq(expected));
        }
        Ok(())
    }

    #[test]
    fn a_listing_reads_no_more_than_was_asked_for() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        // 105 extents fit into half a leaf.
        let mut walk = Walk::listing(DISK, key(0)..Key::MAX, 10_000, true)?;
        let mut sizes = KVVec::new();
        while walk.is_due(key(u64::MAX - 1)) {
            walk.plan(&tree, &none, walk.trigger, ALONE);
            sizes.push(walk.count(), GFP_KERNEL)?;
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
            walk.plan(&left, &right, key(step), ALONE);
            assert_eq!(walk.count(), 0);
        }
        left.is_contended.set(false);
        for batch in [8, 16] {
            walk.plan(&left, &right, key(5), ALONE);
            assert_eq!(walk.count(), batch);
        }
        Ok(())
    }

    #[test]
    fn what_is_in_memory_is_only_looked_at() -> Result {
        let leaves = array((0..1000).map(|number| (number * 10, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let (mut tree, none) = (tree(&leaves, &parents, 30), tree(&NONE, &NONE, 1));
        tree.cached = 100;
        let mut walk = Walk::listing(DISK, key(0)..Key::MAX, 10000, true)?;
        let mut looked = 0;
        let first = leaves.iter().find(|leaf| {
            while walk.is_due(key(leaf.0)) && walk.leaves.is_empty() {
                walk.plan(&tree, &none, key(leaf.0), ALONE);
                looked += 1;
            }
            !walk.leaves.is_empty()
        });
        // Each time 9 leaves further, or to the end of the node; then 8 are read.
        assert_eq!((looked, first), (14, Some(&(990, 99))));
        assert!(read_order(&walk)?.iter().copied().eq(99..107));
        Ok(())
    }

    #[test]
    fn a_leaf_is_located_once() -> Result {
        // Extents from 100 on, 10 to a leaf.
        let leaves = array((0..100).map(|number| (number * 10 + 100, number)))?;
        let parents = parents(&leaves, 30, 0)?;
        let tree = tree(&leaves, &parents, 30);
        let mut located = Located::default();
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
            // Before all that there is.
            (5, Some(0)),
        ];
        for (objectid, expected) in wanted {
            let leaf = located.leaf(&tree, key(objectid));
            assert_eq!(leaf.map(|leaf| leaf.blockptr), expected);
        }
        Ok(())
    }

    #[test]
    fn what_cannot_be_read_is_tried_once() -> Result {
        let leaves = array((0..90).map(|number| (number, number)))?;
        let mut parents = parents(&leaves, 30, 0)?;
        // There is no such leaf.
        parents[1].1 = 91;
        let tree = tree(&leaves, &parents, 30);
        let mut located = Located::default();
        let mut found = 0;
        for number in 0..90 {
            found += u32::from(located.leaf(&tree, key(number)).is_some());
        }
        assert_eq!((found, tree.read.get()), (60, 61));
        Ok(())
    }

    #[test]
    fn a_batch_that_was_not_read_is_planned_again_and_smaller() -> Result {
        let leaves = array((0..1000).map(|number| (number, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        for (first, batch) in [(0, 8), (8, 16), (24, 32), (56, 64)] {
            walk.plan(&tree, &none, key(first), ALONE);
            assert_eq!((walk.leaves[0].blockptr, walk.count()), (first, batch));
        }
        walk.restart(key(30));
        assert!(walk.is_due(key(30)));
        for (first, batch) in [(30, 16), (46, 32)] {
            walk.plan(&tree, &none, key(30), ALONE);
            assert_eq!((walk.leaves[0].blockptr, walk.count()), (first, batch));
        }
        for _ in 0..10 {
            walk.restart(key(30));
        }
        walk.plan(&tree, &none, key(30), ALONE);
        assert_eq!(walk.count(), 8);
        Ok(())
    }

    #[test]
    fn the_last_batch_is_planned_again_too() -> Result {
        let leaves = array((0..8).map(|number| (number * 10, number)))?;
        let (tree, none) = (tree(&leaves, &NONE, 1), tree(&NONE, &NONE, 1));
        let mut walk = walk(64)?;
        walk.plan(&tree, &none, key(0), ALONE);
        walk.plan(&tree, &none, key(0), ALONE);
        // From within a leaf, which is read too.
        assert!(!walk.is_due(key(55)));
        walk.restart(key(55));
        assert!(walk.is_due(key(55)));
        walk.plan(&tree, &none, key(55), ALONE);
        assert!(read_order(&walk)?.iter().copied().eq(5..8));
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
            while walk.is_due(key(leaf.0)) {
                walk.plan(&left, &right, key(leaf.0), ALONE);
                planned += walk.count();
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
        walk.plan(&left, &right, key(0), ALONE);
        let planned = array(walk.leaves.iter().map(|leaf| (leaf.tree, leaf.blockptr)))?;
        assert_eq!(&planned[..], &[(0, OTHER + 400), (1, 400), (0, 7), (0, 8)]);
        assert_eq!((left.read.get(), right.read.get()), (2, 1));
        // The new parent at the end, and nothing of what is shared.
        assert_eq!((left.ahead.get(), right.ahead.get()), (1, 0));
        assert!(!walk.is_due(key(u64::MAX)));
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
            while walk.is_due(key(u64::MAX)) {
                walk.plan(left, right, key(0), ALONE);
                planned += walk.count();
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
            while walk.is_due(key(u64::MAX)) {
                walk.plan(&left, &right, key(0), ALONE);
                for leaf in walk.leaves.iter() {
                    planned.push((leaf.key.objectid, leaf.tree), GFP_KERNEL)?;
                }
            }
            planned.sort_unstable();
            expected.sort_unstable();
            assert!(planned[..] == expected[..]);
        }
        Ok(())
    }
}
