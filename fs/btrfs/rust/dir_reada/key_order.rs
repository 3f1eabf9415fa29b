// SPDX-License-Identifier: GPL-2.0

//! Readahead in key order, while a task descends into a tree that is laid out in the order of the
//! walk: a copy, or an unpacked archive.
//!
//! The inode numbers of such a tree ascend along the walk, and its leaves are used in key order. At
//! first, the leaves that come next are only predicted. If at most 1 of 32 is not in memory when
//! the walk has passed them, the next ones are read ahead, in batches that grow as long as they
//! are used. All directories of a walk share this experience; see [`Walk`].

use kernel::prelude::*;

use super::{
    batch::{
        Usage,
        ENOUGH, //
    },
    directory::{
        first_key,
        EXTENT_DATA,
        INODE_ITEM, //
    },
    Cache,
    DirReada, //
};
use crate::{
    ffi::OptionalVec,
    tree::{
        Cursor,
        Key,
        KeyPtr,
        Leaf,
        Tree, //
    },
    window::{
        Others,
        Window, //
    },
};

/// Leaves to predict at a time, before any is read ahead.
const PREDICTED: usize = 8;

/// Two subdirectories with more inode numbers between them are not read ahead in one batch: those
/// may belong to other directories.
const MAX_GAP: u64 = 1 << 12;

/// Maximum number of leaves to judge a walk by.
const MAX_ENOUGH: u32 = 1 << 16;

/// A leaf that was predicted or read ahead.
#[derive(Clone, Copy)]
struct Ahead {
    /// The first inode number in the leaf.
    ino: u64,
    /// The logical address.
    blockptr: u64,
}

/// How a walk has used leaves that come next in key order, in all of its directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walk {
    /// Size of a batch, in leaves; 0 as long as leaves are only predicted.
    pub(crate) size: u32,
    /// The leaves that the walk has passed since they were judged, and the unused ones of them.
    pub(crate) passed: u32,
    pub(crate) unused: u32,
    /// The number of leaves to judge by, if more than [`ENOUGH`].
    pub(crate) enough: u32,
}

impl Walk {
    fn is_reading(&self) -> bool {
        self.size > 0
    }

    /// Adds leaves that the walk has passed. Batches have from `first` to `most` leaves.
    fn pass(&mut self, unused: usize, passed: usize, first: u32, most: u32) {
        self.unused += unused as u32;
        self.passed += passed as u32;
        self.enough = self.enough.max(ENOUGH as u32);
        if self.passed < self.enough {
            return;
        }
        match Usage::of_count(self.unused as usize, self.passed as usize) {
            Usage::Most if self.unused * 32 <= self.passed => {
                self.size = (self.size * 2).clamp(first, most);
            }
            Usage::Most => (),
            Usage::Part if self.size > first => self.shrink(first),
            Usage::Part | Usage::Little => {
                if self.is_reading() {
                    // Predict twice as many leaves before the next try.
                    self.enough = (self.enough * 2).min(MAX_ENOUGH);
                }
                self.size = 0;
            }
        }
        self.passed = 0;
        self.unused = 0;
    }

    fn shrink(&mut self, first: u32) {
        self.size = (self.size / 4).max(first);
    }
}

/// The next leaves of a tree in key order.
pub(super) struct KeyOrder {
    /// The leaves that the walk has not passed, in key order, and whether they were read ahead.
    ahead: OptionalVec<Ahead>,
    is_read: bool,
    /// The walk, as of the last listing.
    pub(super) walk: Walk,
    /// Smallest and greatest size of a batch, in leaves.
    first: u32,
    most: u32,
    /// The subdirectory that was listed last, and the inode number at which to plan again.
    listed: u64,
    mark: u64,
    /// The end of the leaves in `ahead`.
    end: Key,
}

impl KeyOrder {
    /// No leaves. The size of batches is at most that of `window`.
    pub(super) fn new(window: Window) -> Self {
        Self {
            ahead: OptionalVec::new(),
            is_read: false,
            walk: Walk::default(),
            first: window.first() as u32,
            most: window.most() as u32,
            listed: 0,
            mark: 0,
            end: first_key(0, 0),
        }
    }

    /// The number of leaves that were read ahead and that the walk has not passed.
    fn held(&self) -> usize {
        if self.is_read {
            self.ahead.len()
        } else {
            0
        }
    }

    /// Whether to plan when the task has listed the subdirectory `ino`.
    pub(super) fn is_due(&self, ino: u64) -> bool {
        !(self.listed..self.mark).contains(&ino)
    }

    /// Allocates memory for a plan. Returns whether there is some.
    pub(super) fn reserve(&mut self) -> bool {
        let most = (self.most as usize).max(PREDICTED);
        let more = most.saturating_sub(self.ahead.len());
        self.ahead.reserve(more, GFP_KERNEL).is_ok()
    }

    /// Moves the walk to the subdirectory `ino`. If it goes back, it has passed all leaves.
    fn list(&mut self, ino: u64, cache: &impl Cache) {
        let is_back = ino < self.listed;
        self.listed = ino;
        let not_passed = |leaf: &Ahead| !is_back && leaf.ino >= ino;
        let count = self.ahead.iter().position(not_passed);
        let count = count.unwrap_or(self.ahead.len());
        let is_read = self.is_read;
        let is_unused = |leaf: &&Ahead| {
            let is_unread = !is_read && !cache.has(leaf.blockptr);
            is_unread || cache.has_unused(leaf.blockptr)
        };
        let passed = self.ahead.get(..count).unwrap_or_default();
        let unused = passed.iter().filter(is_unused).count();
        self.walk.pass(unused, count, self.first, self.most);
        self.ahead.copy_within(count.., 0);
        self.ahead.truncate(self.ahead.len() - count);
        let last = self.ahead.last();
        let is_lost = is_read && last.is_some_and(|last| !cache.has(last.blockptr));
        if is_lost && self.walk.is_reading() {
            // Leaves were evicted before their use.
            self.walk.shrink(self.first);
        }
        if is_back || is_lost || is_read != self.walk.is_reading() {
            self.is_read = self.walk.is_reading();
            self.ahead.clear();
            self.end = first_key(0, 0);
        }
    }

    /// Plans leaves from the subdirectory listed last on, until `room` are ahead, or up to the
    /// inode `last`. `leaves` has the other leaves of the batch.
    fn plan<T: Tree>(
        &mut self,
        tree: &T,
        last: u64,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) {
        let end = first_key(last, INODE_ITEM).successor();
        let from = first_key(self.listed, INODE_ITEM).max(self.end);
        let others = leaves.len();
        if from < end {
            let mut cursor = Cursor::new(tree, from, true, end);
            if cursor.enter_root().is_ok() {
                self.plan_from(&mut cursor, room, cache, leaves, others);
                self.end = cursor.key().unwrap_or(end).max(from);
            }
        }
        let middle = self.ahead.get(self.ahead.len() / 2);
        let past = self.end.objectid.max(self.listed).saturating_add(1);
        self.mark = middle.map_or(past, |leaf| leaf.ino);
    }

    fn plan_from<T: Tree>(
        &mut self,
        cursor: &mut Cursor<'_, T>,
        room: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
        others: usize,
    ) {
        let is_read = self.is_read;
        let most = if is_read { room } else { PREDICTED };
        // Directories above this one have read leaves ahead, too.
        let mut above = 0;
        for _ in 0..2 * most {
            let is_full = is_read && leaves.len() >= room;
            if is_full || self.ahead.len() + above >= most {
                break;
            }
            // Do not wait for nodes to predict leaves.
            let has_node = cursor.level() == 1 || is_read || self.ahead.is_empty();
            if !has_node || cursor.descend_to_leaves().is_err() || cursor.tree().is_contended() {
                break;
            }
            let Some(&ptr) = cursor.ptr() else { break };
            cursor.advance();
            let planned = leaves.get(..others).unwrap_or_default();
            let is_planned = planned.iter().any(|leaf| leaf.ptr.blockptr == ptr.blockptr);
            if cache.has_unused(ptr.blockptr) {
                above += 1;
            } else if !cache.has(ptr.blockptr) && !is_planned && !is_inner(&ptr, cursor.key()) {
                if is_read && leaves.push_within_capacity(Leaf { ptr, tree: 0 }).is_err() {
                    break;
                }
                // KeyOrder::reserve() has allocated memory.
                let _ = self.ahead.push_within_capacity(Ahead {
                    ino: ptr.key.objectid,
                    blockptr: ptr.blockptr,
                });
            }
        }
    }
}

/// Whether the leaf at `ptr` has only extents of one file: a lookup does not read it. `next` is the
/// first key of the next leaf.
pub(super) fn is_inner(ptr: &KeyPtr, next: Option<Key>) -> bool {
    let key = ptr.key;
    key.kind == EXTENT_DATA && next.is_some_and(|next| next.objectid == key.objectid)
}

impl DirReada {
    /// How the walk has used leaves in key order, as of the last plan for subdirectories.
    pub(crate) fn walk(&self) -> Walk {
        self.key_order.walk
    }

    /// Plans the next leaves in key order.
    pub(super) fn plan_in_key_order<T: Tree>(
        &mut self,
        tree: &T,
        others: Others,
        cache: &impl Cache,
    ) {
        let Some((ino, last)) = self.children.in_order(MAX_GAP) else {
            return;
        };
        self.key_order.list(ino, cache);
        let held = self.batches.len() + self.children.held();
        let window = Window::fixed(self.key_order.first.into(), self.key_order.walk.size.into());
        let room = self.room(window, held, others);
        self.key_order
            .plan(tree, last, room, cache, &mut self.leaves);
    }

    /// The number of leaves that were read ahead in key order for subdirectories to be listed.
    pub(super) fn held_in_key_order(&self) -> usize {
        if self.children.are_listed() {
            return 0;
        }
        self.key_order.held()
    }
}
