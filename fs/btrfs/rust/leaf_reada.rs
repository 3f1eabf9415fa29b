// SPDX-License-Identifier: GPL-2.0

//! Readahead of leaves, for a walk through one tree or the comparison of two trees.
//!
//! C reports the position of the walk to [`LeafReada::advance`]. When the walk reaches the mark,
//! the first key of the current batch, [`LeafReada::plan`] makes the next batch. So at most two
//! batches are ahead of the walk. C submits a batch in chunks of [`CHUNK`] leaves and calls
//! [`LeafReada::report`] after each. For send, a worker submits all but the first.
//!
//! Batches are built from the key pointers in level 1 nodes, and may span several nodes. A
//! comparison reads ahead the leaves that only one of its trees has. The first 128 KiB of a batch
//! are submitted in key order, the rest by logical address.
//!
//! The first batch has 128 KiB. Batches double up to [`Disk::max_batch`]; see [`Window`]. Planning
//! restarts at the current key with a quarter of the size if leaves were dropped (no memory, or
//! another commit root) or the batch that the walk has entered was evicted. A commit, a waiter for
//! `commit_root_sem` or an error ends a batch early. If it is empty, the next key plans again.
//!
//! A comparison also reads a leaf that both trees share, if the changed leaves before it end at
//! different keys. Level 1 does not tell that: such a leaf is not read ahead.
//!
//! Fiemap reads a range of keys. Earlier calls may have read ahead for this one. So it probes: a
//! batch is read only if the leaf at the probe distance is not cached.

use kernel::prelude::*;

use crate::{
    sort::sort_by_key,
    tree::{
        turn,
        Cursor,
        Key,
        Leaf,
        Node,
        Tree,
        Turn,
        Unread,
        MAX_STEPS, //
    },
    window::{
        Disk,
        Others,
        Window,
        FIRST_WINDOW,
        MAX_WINDOW, //
    },
};

mod extents;

pub(crate) use extents::{
    FileExtents,
    SERIES_EXTENTS, //
};

/// Number of leaves to submit at a time: submission may block when the device queue is full.
pub(crate) const CHUNK: usize = 64;

/// Size of `struct btrfs_key_ptr`, in bytes.
const KEY_PTR_SIZE: u32 = 33;

/// State of the readahead of one walk, comparison or fiemap call.
pub(crate) struct LeafReada {
    disk: Disk,
    /// The current key of the walk.
    position: Key,
    /// The first key that is not planned yet; `None` if nothing is left to plan.
    next: Option<Key>,
    /// The next batch is planned when the walk reaches this key.
    mark: Key,
    /// Set if the last batch ended at `next`. Otherwise `next` may lie inside a leaf.
    is_started: bool,
    /// Size of the next batch, in leaves.
    window: Window,
    /// The number of leaves at the start of a batch that are submitted in key order.
    in_order: usize,
    /// Leaves whose first key is at or past this key are not read ahead.
    end: Key,
    /// The number of leaves that may still be read ahead.
    budget: usize,
    /// Probe distance, in leaves: a batch is read only if the leaf this far ahead is not cached.
    probe: Option<u32>,
    /// The current batch in submission order, and the number of its leaves already submitted.
    leaves: KVVec<Leaf>,
    submitted: usize,
    /// The size of the current and the previous batch together, in bytes.
    held: u64,
    /// Logical address of the last leaf, in key order, of the current batch (`last`) and of the
    /// batch that the walk has entered (`entered`); 0 for none.
    last: u64,
    entered: u64,
    /// The last value of `entered` that was found evicted.
    evicted: u64,
    /// Set if the rest of the current batch is given up.
    is_dropped: bool,
}

impl LeafReada {
    /// Creates the readahead of a walk through trees on `disk`. Nothing is read ahead if
    /// [`Disk::window`] is 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the array for the largest batch cannot be allocated.
    pub(crate) fn new(disk: Disk) -> Result<Self> {
        Self::with_max_batch(disk, disk.max_batch())
    }

    /// As [`LeafReada::new`], with batches of at most `max_batch` bytes.
    fn with_max_batch(disk: Disk, max_batch: u64) -> Result<Self> {
        let max_batch = disk.nodes(max_batch.min(MAX_WINDOW)).max(1);
        let in_order = disk.nodes(FIRST_WINDOW).clamp(1, max_batch);
        let mut window = Window::new(in_order as u64, max_batch as u64);
        window.grow();
        Ok(Self {
            disk,
            position: Key::default(),
            next: (disk.window() > 0).then(Key::default),
            mark: Key::default(),
            is_started: false,
            window,
            in_order,
            end: Key::MAX,
            budget: usize::MAX,
            probe: None,
            leaves: KVVec::with_capacity(max_batch + 1, GFP_KERNEL)?,
            submitted: 0,
            held: 0,
            last: 0,
            entered: 0,
            evicted: 0,
            is_dropped: false,
        })
    }

    /// Moves the walk to `key`. Returns whether the next batch is to be planned.
    ///
    /// `is_evicted` returns whether the block at a logical address is no longer cached.
    pub(crate) fn advance(&mut self, key: Key, is_evicted: impl FnOnce(u64) -> bool) -> bool {
        if self.is_dropped {
            // Restart only at another key: the caller repeats this call until it returns false.
            if key != self.position {
                self.restart(key);
            }
        } else if self.entered != 0 && self.probe.is_none() && is_evicted(self.entered) {
            self.evicted = self.entered;
            self.restart(key);
        }
        self.position = key;
        !self.is_dropped && self.next.is_some() && key >= self.mark
    }

    /// Restarts planning at `key` with a smaller window: the batch was dropped or evicted.
    fn restart(&mut self, key: Key) {
        self.next = (self.disk.window() > 0).then_some(key);
        self.mark = key;
        self.is_started = false;
        self.is_dropped = false;
        self.last = 0;
        self.entered = 0;
        self.window.shrink();
    }

    /// Leaves of the current batch that are not submitted yet, in submission order, and the number
    /// of them to submit next.
    pub(crate) fn rest(&self) -> (&[Leaf], usize) {
        let rest = self.leaves.get(self.submitted..).unwrap_or_default();
        (rest, rest.len().min(CHUNK))
    }

    /// Records that the first `submitted` leaves of the chunk were submitted. If `is_dropped`, the
    /// rest of the batch is given up.
    pub(crate) fn report(&mut self, submitted: usize, is_dropped: bool) {
        self.submitted = if is_dropped {
            self.leaves.len()
        } else {
            self.submitted.saturating_add(submitted)
        };
        self.is_dropped = is_dropped;
    }

    /// The number of leaves of the current batch; the size of it and the previous one, in bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.leaves.len(), self.held)
    }

    /// Plans the next batch of a walk through `left`, or of its comparison with `right`. The
    /// readahead of `others` limits the size.
    pub(crate) fn plan<T: Tree>(&mut self, left: &T, right: &T, others: Others) {
        let before = self.leaves.len();
        self.enter_batch();
        let Some(from) = self.next else {
            return;
        };
        // If nothing can be planned now, retry at the next key of the walk.
        self.mark = self.position.successor();
        // If the walk has overtaken the readahead, skip the leaves behind it.
        let is_late = self.position > from || !self.is_started;
        let from = if is_late { self.position } else { from };
        let mut left = Cursor::new(left, from, is_late, self.end);
        let mut right = Cursor::new(right, from, is_late, self.end);
        if left.enter_root().is_err() || right.enter_root().is_err() {
            return;
        }
        self.is_started = true;
        let Ok(known) = self.skip_cached(&mut left) else {
            return;
        };
        if let Some(known) = known {
            self.next = known;
            self.mark = known.unwrap_or_default();
            return;
        }
        let held = self.disk.nodes(others.held).saturating_add(before) as u64;
        let batch = self.window.room(2 * self.window.most(), held, others) as usize;
        let gathered = self.gather(&mut left, &mut right, batch.min(self.budget));
        let next = [left.key(), right.key()].into_iter().flatten().min();
        // Before they have descended, the cursors are at a node that contains `from`.
        self.set_next(gathered, next.map(|next| next.max(from)));
        self.held = (before + self.leaves.len()) as u64 * u64::from(self.disk.nodesize);
        self.sort();
    }

    /// Clears the current batch, which the walk has entered, to make room for the next one.
    fn enter_batch(&mut self) {
        // Check each leaf once, so that memory pressure does not restart the walk at each key.
        self.entered = if self.last == self.evicted {
            0
        } else {
            self.last
        };
        self.last = 0;
        self.leaves.clear();
        self.submitted = 0;
    }

    /// Sets the first key of the following batch, and the mark at which it is planned. `next` is
    /// the smaller key of the two cursors.
    fn set_next(&mut self, gathered: Result<(), Option<Key>>, next: Option<Key>) {
        self.budget = self.budget.saturating_sub(self.leaves.len());
        self.next = match gathered {
            _ if self.budget == 0 => None,
            // Skip an unreadable child: the walk hits the same error, or continues past it.
            Err(behind) => behind.or(next),
            Ok(()) => next,
        };
        match (self.leaves.first(), gathered) {
            (Some(first), _) => self.mark = first.ptr.key,
            (None, Err(Some(behind))) => self.mark = behind.max(self.position.successor()),
            (None, _) => (),
        }
    }

    /// Puts the batch into submission order, and grows the window for the next batch.
    fn sort(&mut self) {
        let Some(last) = self.leaves.last() else {
            return;
        };
        self.last = last.ptr.blockptr;
        self.window.grow();
        if let Some(rest) = self.leaves.get_mut(self.in_order..) {
            sort_by_key(rest, |leaf| leaf.ptr.blockptr);
        }
    }

    /// Probes the leaf at the probe distance. If it is cached, no leaf up to it needs readahead:
    /// returns the key past it, `Some(None)` at the end and on errors.
    fn skip_cached<T: Tree>(
        &self,
        cursor: &mut Cursor<'_, T>,
    ) -> Result<Option<Option<Key>>, Unread> {
        let Some(distance) = self.probe else {
            return Ok(None);
        };
        let (node, slot) = match cursor.descend_to_leaves() {
            Err(Unread::Failed) => return Ok(Some(None)),
            found => found?,
        };
        // Fiemap has read the last leaf of the file before.
        let (Ok(past) | Err(past)) = node.search(self.end);
        let furthest = slot.saturating_add(distance);
        let last = furthest.min(past.saturating_sub(2)).max(slot);
        if !node.is_cached(node.ptr(last).blockptr) {
            return Ok(None);
        }
        for _ in slot..=last {
            cursor.advance();
        }
        Ok(Some(cursor.key()))
    }

    /// Collects up to `batch` leaves and moves the cursors past them. On a read error, returns the
    /// key past the unreadable child, `None` at the end of its tree.
    fn gather<T: Tree>(
        &mut self,
        left: &mut Cursor<'_, T>,
        right: &mut Cursor<'_, T>,
        batch: usize,
    ) -> Result<(), Option<Key>> {
        // A low estimate: nodes that are a quarter full.
        let per_node = self.disk.nodesize / 4 / KEY_PTR_SIZE;
        let ahead = 1 + batch / per_node.max(1) as usize;
        let (mut reads, mut passed) = (0, 0);
        while reads + passed < MAX_STEPS {
            let found = self.leaves.len();
            // Reads of nodes block. Once leaves are found, limit how long they delay the walk.
            let is_enough = found > 0 && reads > 2 * ahead;
            let has_moved = found > 0 || passed > 0;
            if found >= batch || is_enough || (has_moved && left.tree().is_contended()) {
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
            let has_taken = (!go_left || self.take(left, right, 0, ahead)?)
                && (!go_right || self.take(right, left, 1, ahead)?);
            if !has_taken {
                break;
            }
        }
        Ok(())
    }

    /// Takes the leaf at the cursor, or descends one level. Returns false if the node below is
    /// [`Unread::Busy`]. Errors are those of [`LeafReada::gather`].
    fn take<T: Tree>(
        &mut self,
        cursor: &mut Cursor<'_, T>,
        other: &Cursor<'_, T>,
        tree: u8,
        ahead: usize,
    ) -> Result<bool, Option<Key>> {
        if cursor.level() > 1 {
            let descended = cursor.descend(Some(other), ahead);
            if descended == Err(Unread::Failed) {
                cursor.advance();
                return Err(cursor.key());
            }
            return Ok(descended.is_ok());
        }
        if let Some(&ptr) = cursor.ptr() {
            // There is room: gather() exceeds `batch` by one leaf at most, which the capacity
            // covers.
            let _ = self.leaves.push_within_capacity(Leaf { ptr, tree });
        }
        cursor.advance();
        Ok(true)
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
