// SPDX-License-Identifier: GPL-2.0

//! The readahead of leaves, for a walk through a tree or for the comparison of two trees.
//!
//! C reports the position of the walk with [`LeafReada::advance`]. Once the walk reaches the mark,
//! the first key of the current batch, [`LeafReada::plan`] makes the next batch. So at most two
//! batches are in memory and unused. C submits the leaves of a batch in chunks of [`CHUNK`] and
//! tells [`LeafReada::report`] how many. For a walk, a worker submits all but the first chunk.
//!
//! The leaves of a batch come from the pointers in their parents, across nodes. A comparison takes
//! the leaves that only one of its trees has. The first 128 KiB of a batch are read in the order of
//! the walk, all others by their address.
//!
//! The first batch has 128 KiB, each further batch is twice as large, up to [`Disk::max_batch`].
//! The walk restarts at its position with a quarter of the size when leaves were dropped (no memory
//! for them, or a relocation), and when the batch that it has entered is in memory no more. A
//! commit, a task that waits for `commit_root_sem`, or an error ends a batch early. If it has no
//! leaf then, the next position of the walk plans again.
//!
//! Fiemap reads a range of keys. Nothing outlives its call and says how far the call before has
//! read ahead. So it probes: a batch is read only if the leaf a little further on is not in memory.

use core::ops::Range;

use kernel::prelude::*;

use crate::{
    tree::{
        turn,
        Cursor,
        Key,
        Leaf,
        Node,
        Tree,
        Turn, //
    },
    window::{
        permute,
        sort_by_address,
        Disk,
        Others,
        Window,
        FIRST_WINDOW,
        MAX_WINDOW, //
    },
};

/// The number of leaves to submit at a time: the queue of a disk may be full.
pub(crate) const CHUNK: usize = 64;

/// The number of shared pointers to pass over and of nodes to read for one batch, at most.
const MAX_STEPS: usize = 8192;

/// The number of leaves below a parent of leaves, at least, as a rule.
const LEAVES_PER_NODE: usize = 128;

/// A fiemap that starts past offset 0 and asks for at least so many extents is probably one of a
/// series: leaves are read ahead for [`SERIES_CALLS`] such calls.
pub(crate) const SERIES_EXTENTS: u32 = 32;
const SERIES_CALLS: u32 = 16;

/// The size of a file extent in a leaf, in bytes: `struct btrfs_item` and
/// `struct btrfs_file_extent_item`.
const FILE_EXTENT_SIZE: u32 = 25 + 53;

/// The file extents of a fiemap call.
pub(crate) struct FileExtents {
    /// Their keys.
    pub(crate) range: Range<Key>,
    /// The number of extents that the call asks for.
    pub(crate) wanted: u32,
    /// The call starts at offset 0.
    pub(crate) is_first: bool,
}

/// The readahead of leaves.
pub(crate) struct LeafReada {
    disk: Disk,
    /// The position of the walk.
    position: Key,
    /// The first key that is not planned yet; none at the end of the trees.
    next: Option<Key>,
    /// The next batch is planned when the walk reaches this key.
    mark: Key,
    /// A batch ends at `next`. Otherwise the walk begins or restarts there, maybe inside a leaf.
    is_started: bool,
    /// The size of the next batch, in leaves, and the number of its leaves in the order of the
    /// walk.
    window: Window,
    in_order: usize,
    /// Leaves that begin here or later are not wanted.
    end: Key,
    /// The number of leaves that may still be read ahead.
    left: usize,
    /// Probe distance, in leaves: a batch is read only if the leaf so far ahead is not in memory.
    probe: Option<u32>,
    /// The current batch, in the order of submission, and the number of leaves submitted.
    leaves: KVVec<Leaf>,
    submitted: usize,
    /// Room for the order of a batch while it is sorted.
    order: KVVec<u32>,
    /// The size of the current batch and of the one before, in bytes.
    held: u64,
    /// The address of the last leaf, in the order of the walk, of the current batch and of the
    /// batch that the walk has entered; 0 for none.
    last: u64,
    entered: u64,
    /// The last such leaf that was found to be in memory no more.
    evicted: u64,
    /// The rest of the current batch is not to be submitted.
    is_dropped: bool,
}

impl LeafReada {
    /// The readahead of a walk through trees on `disk`. It reads nothing if the readahead of
    /// `disk` is 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory for the largest batch.
    pub(crate) fn new(disk: Disk) -> Result<Self> {
        Self::with_max_batch(disk, disk.max_batch())
    }

    /// The same with batches of at most `max_batch` bytes.
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
            left: usize::MAX,
            probe: None,
            leaves: KVVec::with_capacity(max_batch + 1, GFP_KERNEL)?,
            submitted: 0,
            order: if max_batch > in_order {
                KVVec::with_capacity(max_batch + 1, GFP_KERNEL)?
            } else {
                KVVec::new()
            },
            held: 0,
            last: 0,
            entered: 0,
            evicted: 0,
            is_dropped: false,
        })
    }

    /// The readahead of a fiemap call.
    ///
    /// # Errors
    ///
    /// As for [`LeafReada::new`].
    pub(crate) fn for_extents(disk: Disk, extents: FileExtents) -> Result<Self> {
        let is_series = !extents.is_first && extents.wanted >= SERIES_EXTENTS;
        let calls = if is_series { SERIES_CALLS } else { 1 };
        // A leaf that was split is half full at first, and not much fuller where files were
        // written in no order.
        let per_leaf = (disk.nodesize / 2 / FILE_EXTENT_SIZE).max(1);
        let leaves = u64::from(extents.wanted.saturating_mul(calls).div_ceil(per_leaf));
        let max_batch = disk.max_batch().min(leaves * u64::from(disk.nodesize));
        let mut reada = Self::with_max_batch(disk, max_batch)?;
        reada.next = reada.next.map(|_| extents.range.start);
        reada.mark = extents.range.start;
        reada.end = extents.range.end;
        reada.left = leaves.max(1) as usize;
        if !extents.is_first {
            reada.window.open();
        }
        let needed = extents.wanted.div_ceil(per_leaf).max(1);
        reada.probe = Some(needed.min(reada.in_order as u32));
        Ok(reada)
    }

    /// Moves the walk to `key`. Returns whether it wants the next batch.
    ///
    /// `is_evicted` says whether the block at an address is in memory no more.
    pub(crate) fn advance(&mut self, key: Key, is_evicted: impl FnOnce(u64) -> bool) -> bool {
        if self.is_dropped {
            // It is planned again at the next position, not at the same one.
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

    /// Restarts at `key` and carefully: the current batch was dropped or evicted.
    fn restart(&mut self, key: Key) {
        self.next = (self.disk.window() > 0).then_some(key);
        self.mark = key;
        self.is_started = false;
        self.is_dropped = false;
        self.last = 0;
        self.entered = 0;
        self.window.shrink();
    }

    /// The leaves of the current batch that are not submitted, in the order of submission, and the
    /// number of those to submit next.
    pub(crate) fn rest(&self) -> (&[Leaf], usize) {
        let rest = self.leaves.get(self.submitted..).unwrap_or_default();
        (rest, rest.len().min(CHUNK))
    }

    /// Notes that the first `submitted` leaves of the chunk are being read. The rest of the batch
    /// is given up if it `is_dropped`.
    pub(crate) fn report(&mut self, submitted: usize, is_dropped: bool) {
        self.submitted = if is_dropped {
            self.leaves.len()
        } else {
            self.submitted.saturating_add(submitted)
        };
        self.is_dropped = is_dropped;
    }

    /// The number of leaves of the current batch; the size of it and of the one before, in bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.leaves.len(), self.held)
    }

    /// Plans the next batch of a walk through the `left` tree, or of its comparison with the
    /// `right` one.
    pub(crate) fn plan<T: Tree>(&mut self, left: &T, right: &T, others: Others) {
        let before = self.leaves.len();
        self.enter_batch();
        let Some(from) = self.next else {
            return;
        };
        // If nothing can be planned now, the next position of the walk tries again.
        self.mark = self.position.successor();
        // A walk that has overtaken its readahead does not want the leaves behind it.
        let is_late = self.position > from || !self.is_started;
        let from = if is_late { self.position } else { from };
        let (Some(mut left), Some(mut right)) = (
            Cursor::new(left, from, is_late, self.end),
            Cursor::new(right, from, is_late, self.end),
        ) else {
            return;
        };
        self.is_started = true;
        if let Some(known) = self.skip_cached(&mut left) {
            self.next = known;
            self.mark = known.unwrap_or_default();
            return;
        }
        let held = self.disk.nodes(others.held).saturating_add(before) as u64;
        let batch = self.window.room(2 * self.window.most(), held, others) as usize;
        let gathered = self.gather(&mut left, &mut right, batch.min(self.left));
        let next = [left.key(), right.key()].into_iter().flatten().min();
        self.set_next(gathered, next);
        self.held = (before + self.leaves.len()) as u64 * u64::from(self.disk.nodesize);
        self.sort();
    }

    /// Notes that the walk enters the current batch, which makes room for the next one.
    fn enter_batch(&mut self) {
        // Where nothing stays in memory for long, do not restart at each step.
        self.entered = if self.last == self.evicted {
            0
        } else {
            self.last
        };
        self.last = 0;
        self.leaves.clear();
        self.submitted = 0;
    }

    /// Sets where the batch after this one begins, and where it is planned. `next` is the least
    /// position of the cursors.
    fn set_next(&mut self, gathered: Result<(), Option<Key>>, next: Option<Key>) {
        self.left = self.left.saturating_sub(self.leaves.len());
        self.next = match gathered {
            _ if self.left == 0 => None,
            // The walk comes to the same error, or goes on behind it.
            Err(behind) => behind.or(next),
            Ok(()) => next,
        };
        match (self.leaves.first(), gathered) {
            (Some(first), _) => self.mark = first.ptr.key,
            (None, Err(Some(behind))) => self.mark = behind.max(self.position.successor()),
            (None, _) => (),
        }
    }

    /// Puts the batch into the order of submission, and grows the window for the next one.
    fn sort(&mut self) {
        let Some(last) = self.leaves.last() else {
            return;
        };
        self.last = last.ptr.blockptr;
        self.window.grow();
        if self.leaves.len() > self.in_order {
            let leaves = &self.leaves;
            sort_by_address(&mut self.order, leaves.len(), self.in_order, |number| {
                leaves[number].ptr.blockptr
            });
            permute(&mut self.leaves, &mut self.order);
        }
    }

    /// Probes whether the leaf at the probe distance is in memory. Then the leaves before it need
    /// no readahead, and the key after it is returned, if any; likewise on errors.
    fn skip_cached<T: Tree>(&self, cursor: &mut Cursor<'_, T>) -> Option<Option<Key>> {
        let distance = self.probe?;
        let Some((node, slot)) = cursor.descend_to_leaves() else {
            return Some(None);
        };
        let last = node.nritems().saturating_sub(1);
        let last = last.min(slot.saturating_add(distance));
        if !node.is_cached(node.ptr(last).blockptr) {
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
            if go_left {
                self.take(left, right, 0, ahead)?;
            }
            if go_right {
                self.take(right, left, 1, ahead)?;
            }
        }
        Ok(())
    }

    /// Takes the leaf of a cursor, or goes down to a parent of leaves. Errors are those of
    /// [`LeafReada::gather`].
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
        if let Some(&ptr) = cursor.ptr() {
            // gather() has checked that there is room.
            let _ = self.leaves.push_within_capacity(Leaf { ptr, tree });
        }
        cursor.advance();
        Ok(())
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
