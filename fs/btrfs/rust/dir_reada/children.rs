// SPDX-License-Identifier: GPL-2.0

//! Readahead for the next subdirectories of a directory, while a task descends into one after the
//! other.
//!
//! The leaves with the inodes and the entries of subdirectories are planned with those of the other
//! entries. Once they are in memory, they tell the inodes that the lookups in the subdirectories
//! will need, and further directories below them. When the task lists the first subdirectory of a
//! batch, the next batch is planned; those further directories are at each listing.

use kernel::prelude::*;

use super::{
    batch::{
        Batches,
        Usage,
        MAX_LEAVES, //
    },
    directory::{
        first_key,
        DIR_INDEX, //
    },
    Cache,
    DirReada,
    Due,
    Hasty, //
};
use crate::{
    ffi::OptionalVec,
    sort::sort_by_key,
    tree::{
        Cursor,
        LastLeaf,
        Leaf,
        Tree,
        Unread, //
    },
    window::{
        Others,
        Window, //
    },
};

/// Maximum number of subdirectories in a batch.
const MAX_AHEAD: usize = 16;

/// Maximum number of subdirectories noted, in 32 KiB.
const MAX_CHILDREN: usize = 1 << 12;

/// Maximum number of directories below two batches of subdirectories.
const MAX_DEEPER: usize = 1 << 7;

/// Maximum number of entries to look at in a plan, in 16 KiB. Each directory plans the others.
const MAX_SCANNED: usize = 1 << 10;

/// An entry of a directory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Entry {
    /// The inode number.
    pub(crate) ino: u64,
    /// Whether it is a directory.
    pub(crate) is_dir: bool,
}

/// A tree whose cached leaves can be read.
pub(crate) trait Directories: Tree {
    /// Copies the entries of the directory `ino` from the leaf in `slot` of `node`, as many as `to`
    /// has room for. Returns their number; `None` if the leaf is not cached.
    fn entries(&self, node: &Self::Node, slot: u32, ino: u64, to: &mut [Entry]) -> Option<usize>;
}

/// The subdirectories of a directory, in the order of the listing.
pub(super) struct Children {
    inodes: OptionalVec<u64>,
    /// Position after the subdirectory that was listed last, and the number of those listed.
    listed: usize,
    count_listed: usize,
    /// Position of the last batch, of the next subdirectory in it, and of its end.
    mark: usize,
    next: usize,
    end: usize,
    /// Set if the batch is not complete: entries were not in memory, or the plan yielded.
    is_cut: bool,
    /// The number of subdirectories in the next batch.
    count: usize,
    /// Set if most of a batch was unused.
    is_stopped: bool,
    /// Size of the next batch, in leaves.
    window: Window,
    batches: Batches,
    /// Directories below the last two batches, and the number of those below the first one.
    deeper: OptionalVec<u64>,
    old: usize,
    /// Scratch space for the entries of a directory, and the number of them left for a plan.
    entries: OptionalVec<Entry>,
    budget: usize,
}

impl Children {
    pub(super) fn new(window: Window) -> Self {
        Self {
            inodes: OptionalVec::new(),
            listed: 0,
            count_listed: 0,
            mark: 0,
            next: 0,
            end: 0,
            is_cut: false,
            count: 1,
            is_stopped: false,
            window,
            batches: Batches::new(true),
            deeper: OptionalVec::new(),
            old: 0,
            entries: OptionalVec::new(),
            budget: 0,
        }
    }

    /// Whether no subdirectory was listed.
    pub(super) fn are_none(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Adds the subdirectory with the inode number `ino`, unless there are `most`.
    pub(super) fn add(&mut self, ino: u64, most: usize) {
        if self.inodes.len() < most.min(MAX_CHILDREN) {
            // Without memory, it is left out.
            let _ = self.inodes.push(ino, GFP_KERNEL);
        }
    }

    /// Notes that the task has listed the subdirectory `ino`. Returns whether to plan a batch.
    pub(super) fn list(&mut self, ino: u64) -> bool {
        self.count_listed += 1;
        let rest = self.inodes.get(self.listed..).unwrap_or_default();
        let Some(skipped) = rest.iter().position(|child| *child == ino) else {
            return false;
        };
        self.listed += skipped + 1;
        self.next = self.next.max(self.listed);
        let is_due = self.next < self.inodes.len() && (self.is_cut || self.listed > self.mark);
        !self.is_stopped && (is_due || !self.deeper.is_empty())
    }

    /// Allocates memory for a batch of `count` leaves. Returns whether there is some.
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        let entries = &mut self.entries;
        let has_entries = entries
            .resize(MAX_SCANNED, Entry::default(), GFP_KERNEL)
            .is_ok();
        let deeper = MAX_DEEPER.saturating_sub(self.deeper.len());
        has_entries
            && self.deeper.reserve(deeper, GFP_KERNEL).is_ok()
            && self.batches.reserve(count)
    }

    /// Begins a batch, or continues the last one. Returns whether to plan it.
    fn begin(&mut self, cache: &impl Cache) -> bool {
        if self.listed <= self.mark || (self.is_cut && self.next < self.end) {
            return true;
        }
        match self.batches.begin(cache) {
            Usage::Most => {
                self.count = (self.count * 2).min(MAX_AHEAD);
                self.window.grow();
            }
            Usage::Part => {
                self.count = 1;
                self.window.shrink();
            }
            Usage::Little => self.is_stopped = true,
        }
        self.forget_deeper(0, self.old);
        self.old = self.deeper.len();
        self.mark = self.next;
        self.end = (self.next + self.count).min(self.inodes.len());
        !self.is_stopped
    }

    /// Plans the leaves with the inodes in the next subdirectories: about `room`, in `leaves`.
    pub(super) fn plan<T: Directories>(
        &mut self,
        tree: &T,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) {
        self.is_cut = false;
        self.budget = MAX_SCANNED;
        self.plan_deeper(tree, room, cache, leaves);
        while self.next < self.end && self.batches.last.len() < room && self.budget > 0 {
            let ino = self.inodes.get(self.next).copied().unwrap_or_default();
            self.is_cut = !self.plan_child(tree, ino, room, cache, leaves);
            if self.is_cut {
                self.plan_listings(tree, room, cache, leaves);
                break;
            }
            self.next += 1;
        }
    }

    /// Plans the leaves with the inodes in the directories further below. Those whose entries are
    /// not in memory are kept for the next listing.
    fn plan_deeper<T: Directories>(
        &mut self,
        tree: &T,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) {
        let (count, old) = (self.deeper.len(), self.old);
        let mut kept = 0;
        for number in 0..count {
            let ino = self.deeper[number];
            let is_full = self.batches.last.len() >= room || self.budget == 0;
            if is_full || !self.plan_child(tree, ino, room, cache, leaves) {
                self.deeper[kept] = ino;
                kept += 1;
            } else if number < old {
                self.old -= 1;
            }
        }
        self.forget_deeper(kept, count);
    }

    /// Removes the directories further below from `first` up to, but not including, `end`.
    fn forget_deeper(&mut self, first: usize, end: usize) {
        self.deeper.copy_within(end.., first);
        self.deeper.truncate(self.deeper.len() - (end - first));
    }

    /// Plans the leaves with the inodes in the directory `ino`. Returns false if a leaf with its
    /// entries is not in memory, or to yield.
    fn plan_child<T: Directories>(
        &mut self,
        tree: &T,
        ino: u64,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) -> bool {
        let Some(entries) = read(tree, ino, self.entries.get_mut(..self.budget)) else {
            return false;
        };
        self.budget -= entries.len();
        sort_by_key(entries, |entry| entry.ino);
        let mut last = LastLeaf::default();
        for entry in entries.iter() {
            if self.batches.last.len() >= room {
                break;
            }
            let batches = &mut self.batches;
            let mut plan = || batches.plan_inode(tree, &mut last, entry.ino, cache, leaves);
            if tree.is_contended() || plan().is_err() {
                return false;
            }
            if entry.is_dir {
                let _ = self.deeper.push_within_capacity(entry.ino);
            }
        }
        true
    }

    /// Plans the leaves with the entries of the rest of the batch.
    fn plan_listings<T: Directories>(
        &mut self,
        tree: &T,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) {
        let mut last = LastLeaf::default();
        for &ino in self.inodes.get(self.next..self.end).unwrap_or_default() {
            if self.batches.last.len() >= room || tree.is_contended() {
                break;
            }
            let _ = self.batches.plan_inode(tree, &mut last, ino, cache, leaves);
            // There may be more DIR_ITEMs before the entries than plan_inode() reads.
            let entries = first_key(ino, DIR_INDEX);
            let batches = &mut self.batches;
            let _ = batches.plan_leaf(tree, &mut last, entries, cache, leaves);
        }
    }

    /// The number of leaves in the last two batches; 0 once the task has listed the last one.
    pub(super) fn held(&self) -> usize {
        if self.are_listed() {
            return 0;
        }
        self.batches.len()
    }

    /// The number of subdirectories that the task has listed.
    pub(super) fn count_listed(&self) -> usize {
        self.count_listed
    }

    /// Whether the task has listed or passed over all subdirectories, or nothing is planned.
    pub(super) fn are_listed(&self) -> bool {
        self.is_stopped || self.listed >= self.inodes.len()
    }
}

impl DirReada {
    /// Notes that the task has listed the subdirectory `ino`, and whether lookups of its entries
    /// are expected. Returns whether to plan a batch for the next ones.
    pub(crate) fn list_child(&mut self, ino: u64, is_expected: bool) -> bool {
        let most = self.children.window.most() as usize + MAX_LEAVES;
        let is_due = self.children.list(ino)
            && is_expected
            && self.is_started
            && !self.is_stopped
            && self.children.reserve(most)
            && self.reserve(most);
        self.set_due(is_due, Due::Children)
    }

    /// Plans leaves, if [`DirReada::list_child`] has just returned true.
    pub(crate) fn plan_children<T: Directories>(
        &mut self,
        tree: &T,
        others: Others,
        cache: &impl Cache,
    ) {
        self.leaves.clear();
        let Some(tree) = &Hasty::new(tree) else {
            return;
        };
        if self.children.begin(cache) {
            // The last batch for subdirectories may go on.
            let held = self.batches.len() + self.children.batches.passed();
            let room = self.room(self.children.window, held, others);
            self.children.plan(tree, room, cache, &mut self.leaves);
        }
        self.sort(self.leaves.len());
    }
}

/// Copies the first entries of the directory `ino`, as many as are in memory and as `to` has room
/// for, and returns them; `None` if there are none in memory, or to yield.
fn read<'a, T: Directories>(
    tree: &T,
    ino: u64,
    to: Option<&'a mut [Entry]>,
) -> Option<&'a mut [Entry]> {
    let [first, end] = [DIR_INDEX, DIR_INDEX + 1].map(|kind| first_key(ino, kind));
    let mut cursor = Cursor::new(tree, first, true, end);
    cursor.enter_root().ok()?;
    let (to, mut found) = (to?, 0);
    while found < to.len() {
        let (node, slot) = match cursor.descend_to_leaves() {
            Ok(found) => found,
            Err(Unread::Busy) => return None,
            Err(Unread::Failed) => break,
        };
        match tree.entries(node, slot, ino, to.get_mut(found..)?) {
            Some(count) if !tree.is_contended() => found += count,
            Some(_) => return None,
            None if found == 0 => return None,
            None => break,
        }
        cursor.advance();
    }
    to.get_mut(..found)
}
