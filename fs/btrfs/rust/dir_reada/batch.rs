// SPDX-License-Identifier: GPL-2.0

//! The leaves of the last two batches, and whether they were used.

use kernel::prelude::*;

use super::{
    directory::{
        first_key,
        lists_on,
        reads_on,
        INODE_ITEM, //
    },
    Cache,
    DirReada, //
};
use crate::{
    ffi::OptionalVec,
    tree::{
        Key,
        LastLeaf,
        Leaf,
        Tree,
        Unread, //
    },
};

/// Unused leaves or files of a batch that are always accepted.
const FEW_UNUSED: usize = 3;

/// Maximum number of leaves to read for one inode.
pub(super) const MAX_LEAVES: usize = 4;

/// How much of a batch was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Usage {
    /// At most an eighth is unused.
    Most,
    /// More than an eighth is unused.
    Part,
    /// More than half, and more than [`FEW_UNUSED`], are unused.
    Little,
}

impl Usage {
    /// The usage of `leaves`.
    pub(super) fn of(leaves: &[u64], cache: &impl Cache) -> Self {
        Self::of_count(count_unused(leaves, cache), leaves.len())
    }

    /// The usage of a batch of `count`, of which some are `unused`.
    fn of_count(unused: usize, count: usize) -> Self {
        if unused > FEW_UNUSED && unused * 2 > count {
            Self::Little
        } else if unused * 8 > count {
            Self::Part
        } else {
            Self::Most
        }
    }
}

fn count_unused(leaves: &[u64], cache: &impl Cache) -> usize {
    let unused = leaves.iter().filter(|leaf| cache.has_unused(**leaf));
    unused.count()
}

/// Leaves or files that are judged together, if batches are smaller.
const ENOUGH: usize = 4 * FEW_UNUSED;

/// The leaves or files of batches that the task has passed, and the unused ones of them.
#[derive(Default)]
pub(super) struct Tally {
    unused: usize,
    count: usize,
}

impl Tally {
    /// Adds a batch. Returns its usage, or that of several small batches if that is little.
    pub(super) fn add(&mut self, unused: usize, count: usize) -> Usage {
        self.unused += unused;
        self.count += count;
        if self.count >= ENOUGH {
            let tally = core::mem::take(self);
            if Usage::of_count(tally.unused, tally.count) == Usage::Little {
                return Usage::Little;
            }
        }
        Usage::of_count(unused, count)
    }
}

/// The logical addresses of leaves that were planned.
pub(super) struct Batches {
    /// The last batch.
    pub(super) last: OptionalVec<u64>,
    /// The batch before it, which the task has passed when the next one is planned.
    passed: OptionalVec<u64>,
    /// The leaves of small batches before these.
    tally: Tally,
    /// Whether a task that looks up a directory lists it, too.
    lists: bool,
}

impl Batches {
    /// No batches. Leaves with the entries of directories are planned if the task `lists` them.
    pub(super) fn new(lists: bool) -> Self {
        Self {
            last: OptionalVec::new(),
            passed: OptionalVec::new(),
            tally: Tally::default(),
            lists,
        }
    }

    /// Allocates memory for a batch of `count` leaves. Returns whether there is some.
    pub(super) fn reserve(&mut self, count: usize) -> bool {
        let [last, passed] =
            [&self.last, &self.passed].map(|batch| count.saturating_sub(batch.len()));
        self.last.reserve(last, GFP_KERNEL).is_ok()
            && self.passed.reserve(passed, GFP_KERNEL).is_ok()
    }

    /// Begins a batch. Returns the usage of the batch that the task has passed.
    pub(super) fn begin(&mut self, cache: &impl Cache) -> Usage {
        let unused = count_unused(&self.passed, cache);
        let usage = self.tally.add(unused, self.passed.len());
        core::mem::swap(&mut self.last, &mut self.passed);
        self.last.clear();
        usage
    }

    /// The number of leaves in both batches.
    pub(super) fn len(&self) -> usize {
        self.last.len() + self.passed.len()
    }

    /// The number of leaves in the batch before the last one.
    pub(super) fn passed(&self) -> usize {
        self.passed.len()
    }

    /// Takes back [`Batches::begin`], which has judged the batch that the task has passed.
    pub(super) fn undo(&mut self) {
        core::mem::swap(&mut self.last, &mut self.passed);
        self.passed.clear();
    }

    /// Plans the leaves for `ino`, unless they are in memory or were found before. Errors are those
    /// of [`Batches::plan_leaf`].
    pub(super) fn plan_inode<T: Tree>(
        &mut self,
        tree: &T,
        last: &mut LastLeaf,
        ino: u64,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) -> Result<(), Unread> {
        self.plan_leaf(tree, last, first_key(ino, INODE_ITEM), cache, leaves)?;
        for number in 1..MAX_LEAVES {
            let next = last.end;
            let is_looked_up = number == 1 && reads_on(ino, next);
            let is_listed = self.lists && lists_on(ino, next);
            if !(is_looked_up || is_listed) {
                break;
            }
            self.plan_leaf(tree, last, next, cache, leaves)?;
        }
        Ok(())
    }

    /// Plans the leaf with `key`, unless it is in memory or was found before. The only error is
    /// [`Unread::Busy`]: one that cannot be read is left out.
    pub(super) fn plan_leaf<T: Tree>(
        &mut self,
        tree: &T,
        last: &mut LastLeaf,
        key: Key,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) -> Result<(), Unread> {
        let leaf = match last.find(tree, key) {
            Err(Unread::Failed) => None,
            found => found?,
        };
        let is_new = |leaf: &Leaf| {
            let blockptr = leaf.ptr.blockptr;
            !cache.has(blockptr) && !self.last.contains(&blockptr)
        };
        if let Some(leaf) = leaf.filter(is_new) {
            // Batches::reserve() has allocated memory.
            let _ = self.last.push_within_capacity(leaf.ptr.blockptr);
            let _ = leaves.push_within_capacity(leaf);
        }
        Ok(())
    }
}

impl DirReada {
    /// Whether the lookups have reached the last batch of all.
    pub(super) fn are_passed(&self) -> bool {
        self.is_stopped || (self.is_due && self.entries.are_planned())
    }

    /// Whether nothing is left to read ahead, for entries listed so far.
    pub(crate) fn is_done(&self) -> bool {
        self.is_stopped
            || (self.are_passed() && self.children.are_listed() && self.files.are_done())
    }

    /// The size of the leaves in the last two batches, in bytes, without those that the lookups and
    /// the listings of subdirectories have passed.
    pub(crate) fn held(&self) -> u64 {
        if self.is_stopped {
            return 0;
        }
        let inodes = if self.are_passed() {
            0
        } else {
            self.batches.len()
        };
        (inodes + self.children.held()) as u64 * u64::from(self.disk.nodesize)
    }
}
