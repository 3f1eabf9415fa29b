// SPDX-License-Identifier: GPL-2.0

//! Readahead for a task that lists a directory and looks up its entries, such as `find` or `ls -l`.
//!
//! A listing reads the DIR_INDEX items of a directory in order; [`DirReada::list`] reads their
//! leaves ahead. [`DirReada::add`] notes the inode numbers of the listed entries. The lookup of an
//! entry reads the leaf with its DIR_ITEM, whose key is a hash of the name. If the inode is not in
//! memory, it also reads the leaf with the INODE_ITEM, and C calls [`DirReada::look_up`]. After
//! [`MIN_LOOKUPS`] of them, [`DirReada::plan`] plans the leaves of the next entries. If the task
//! has looked up the entries of the directory before, the plan does not wait for them; see
//! [`Habit`].
//!
//! The next entries are the next ones in the listing, or those with the next inode numbers. Two
//! lookups tell which. When the lookups reach the entries of the last batch, the next batch is
//! planned. So at most two batches are ahead. Batches double up to [`max_batch`]. A batch that
//! the lookups have passed is checked: if more than an eighth of its leaves are unused, the window
//! shrinks, and if more than half of them are, nothing is planned any more.
//!
//! The leaves with DIR_ITEMs are used in random order. They are planned as the lookups double.
//!
//! A task that descends into subdirectories needs the inodes in the next ones, too; see
//! [`Children`]. One that reads the files needs their data, too; see [`Files`].

use kernel::{
    prelude::*,
    sizes::SZ_4M, //
};

use crate::{
    ffi::OptionalVec,
    leaf_reada::LeafReada,
    sort::sort_by_key,
    tree::{
        Key,
        LastLeaf,
        Leaf,
        Tree, //
    },
    window::{
        Disk,
        Others,
        Window,
        FIRST_WINDOW, //
    },
};

mod batch;
mod children;
mod directory;
mod entries;
mod files;
mod hasty;
mod head;
mod names;
mod sequence;

use batch::{
    Batches,
    Usage,
    MAX_LEAVES, //
};
use children::Children;
pub(crate) use children::{
    Directories,
    Entry, //
};
use directory::{
    first_key,
    DIR_INDEX,
    DIR_ITEM,
    INODE_ITEM, //
};
pub(crate) use directory::{
    Directory,
    Habit,
    Kind,
    Reading, //
};
use entries::Entries;
use files::Files;
use hasty::Hasty;
use names::Names;

/// Lookups before the first plan: a task that looks up a single entry reads no more for that.
const MIN_LOOKUPS: usize = 2;

/// Lookups of entries that were not listed, before the first plan, that end the readahead. As many
/// reads in no order end that of files. Once an order is known, as many reads in a row that leave
/// it let it be found again.
const MAX_STRAYS: usize = 32;

/// Maximum number of entries noted at a time, in 1 MiB: `fts` lists 100,000 entries before it looks
/// them up. They take at most a quarter of the window, and so do subdirectories and files.
const MAX_ENTRIES: u64 = 1 << 17;

/// Maximum number of leaves to look for in one plan, for each leaf of the batch.
const SEARCHES_PER_LEAF: usize = 8;

/// Maximum size of a batch, in bytes: the task submits it, with the directory locked.
const MAX_BATCH: u64 = SZ_4M as u64;

/// The bytes of a disk that walks may hold: half of what all readers may, two batches of a send.
fn limit(disk: Disk) -> u64 {
    disk.max_batch()
}

/// The maximum size of a batch of a walk, in bytes. Two of them may be unused at a time.
fn max_batch(disk: Disk) -> u64 {
    (limit(disk) / 2).min(MAX_BATCH)
}

/// Listings of directories with fewer leaves have no readahead of their own.
const MIN_LEAVES: u64 = 4;

/// The tree blocks in memory.
pub(crate) trait Cache {
    /// Returns whether the block at `blockptr` is cached or being read.
    fn has(&self, blockptr: u64) -> bool;
    /// Returns whether it was also read ahead and not used yet.
    fn has_unused(&self, blockptr: u64) -> bool;
}

/// A plan that an event asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// The next batch of [`DirReada::listing`].
    Listing,
    /// [`DirReada::plan`].
    Entries,
    /// [`DirReada::plan_children`].
    Children,
}

/// State of the readahead of one directory.
pub(crate) struct DirReada {
    disk: Disk,
    /// Readahead of the listing; `None` for a small directory.
    listing: Option<LeafReada>,
    entries: Entries,
    names: Names,
    children: Children,
    files: Files,
    /// Set if the order of the lookups is known or expected.
    is_started: bool,
    /// Set if lookups are in the order of the inode numbers, not in that of the listing.
    by_inode: bool,
    /// Position of the entry of the first lookup.
    first: usize,
    /// The number of lookups of listed entries, and of others before the first plan.
    lookups: usize,
    strays: usize,
    /// Set if the lookups have reached the last batch.
    is_due: bool,
    /// The plan that the last event has asked for.
    due: Option<Due>,
    /// Set if nothing is planned any more: most of a batch was unused.
    is_stopped: bool,
    /// Set if a directory before this one was read ahead, and none of its entries was looked up.
    is_refused: bool,
    /// Size of the next batch, in leaves.
    window: Window,
    /// The leaves of the last plan, in submission order.
    leaves: OptionalVec<Leaf>,
    /// The leaves with inodes.
    batches: Batches,
}

impl DirReada {
    /// Creates the readahead of a directory whose listing begins.
    pub(crate) fn new(disk: Disk, directory: &Directory) -> Self {
        let leaves = directory.leaves(disk.nodesize);
        let most = disk.nodes(MAX_BATCH) as u64;
        let [names, listing, end] =
            [DIR_ITEM, DIR_INDEX, DIR_INDEX + 1].map(|kind| first_key(directory.ino, kind));
        let (window, by_inode) = match directory.habit {
            Habit::LookedUp { window, by_inode } => (window, by_inode),
            _ => (0, false),
        };
        let is_expected = window > 0;
        let mark = if is_expected { 0 } else { MIN_LOOKUPS };
        Self {
            disk,
            listing: (leaves >= MIN_LEAVES)
                .then(|| LeafReada::for_range(disk, listing..end, leaves.min(most)).ok())
                .flatten(),
            entries: Entries::new(),
            names: Names::new(names, listing, mark),
            children: Children::new(Self::window(disk, window)),
            files: Files::new(disk, directory.reading),
            is_started: is_expected,
            by_inode,
            first: 0,
            lookups: 0,
            strays: 0,
            is_due: is_expected,
            due: None,
            is_stopped: false,
            is_refused: matches!(directory.habit, Habit::Refused),
            window: Self::window(disk, window),
            leaves: OptionalVec::new(),
            batches: Batches::new(is_expected),
        }
    }

    /// A window of at least `expected` leaves, if the disk allows that.
    fn window(disk: Disk, expected: u64) -> Window {
        let first = disk.nodes(FIRST_WINDOW).max(1) as u64;
        let most = disk.nodes(max_batch(disk)).max(1) as u64;
        let mut window = Window::new(first, most);
        window.grow();
        while window.size() < expected.min(window.most()) {
            window.grow();
        }
        window
    }

    /// Moves the listing to the entry with `index`. Returns whether to plan its next batch.
    pub(crate) fn list(&mut self, index: u64) -> bool {
        let offset = index;
        let key = Key {
            offset,
            ..self.names.end
        };
        let listing = self.listing.as_mut();
        let is_due = listing.is_some_and(|listing| listing.advance(key, |_| false));
        self.set_due(is_due, Due::Listing)
    }

    /// Notes whether to plan, and what. Returns whether to plan.
    fn set_due(&mut self, is_due: bool, plan: Due) -> bool {
        self.due = is_due.then_some(plan);
        is_due
    }

    /// Takes the plan that the last event has asked for.
    pub(crate) fn take_due(&mut self) -> Option<Due> {
        self.due.take()
    }

    /// The readahead of the listing.
    pub(crate) fn listing(&mut self) -> Option<&mut LeafReada> {
        self.listing.as_mut()
    }

    /// Notes that the listing has returned the entry with `index` and the inode number `ino`.
    pub(crate) fn add(&mut self, index: u64, ino: u64, kind: Kind) {
        let most = (self.disk.window() / 4 / size_of::<u64>() as u64).min(MAX_ENTRIES) as usize;
        if self.is_stopped || !self.entries.add(index, ino, most) {
            return;
        }
        match kind {
            Kind::Directory => self.children.add(ino, most),
            Kind::File => self.files.add(ino, most),
            Kind::Other => (),
        }
    }

    fn reserve(&mut self, count: usize) -> bool {
        self.leaves.clear();
        self.leaves.reserve(count, GFP_KERNEL).is_ok()
    }

    /// The number of leaves of `window` for a batch, besides `held` leaves of this directory.
    fn room(&self, window: Window, held: usize, others: Others) -> usize {
        let held = (self.disk.nodes(others.held) + held) as u64;
        let limit = self.disk.nodes(limit(self.disk)) as u64;
        window.room(limit, held, others) as usize
    }

    /// Sorts the planned leaves into submission order; `first` of them are used first.
    fn sort(&mut self, first: usize) {
        let in_order = first.min(self.disk.nodes(FIRST_WINDOW));
        if let Some(rest) = self.leaves.get_mut(in_order..) {
            sort_by_key(rest, |leaf| leaf.ptr.blockptr);
        }
    }

    /// Notes that a part of the listing has ended. Returns whether to plan a batch.
    pub(crate) fn end_part(&mut self) -> bool {
        let is_due = self.is_due && self.prepare();
        self.set_due(is_due, Due::Entries)
    }

    /// Notes that the inode `ino` is looked up and is not in memory. Returns whether to plan.
    pub(crate) fn look_up(&mut self, ino: u64, cache: &impl Cache) -> bool {
        let is_due = self.is_plan_due(ino, cache);
        self.set_due(is_due, Due::Entries)
    }

    fn is_plan_due(&mut self, ino: u64, cache: &impl Cache) -> bool {
        if self.is_stopped {
            return false;
        }
        if !self.is_started {
            return self.start(ino) && self.prepare();
        }
        self.lookups = self.lookups.saturating_add(1);
        let (last, window) = (self.batches.last.last(), &mut self.window);
        let is_lost = || {
            let is_lost = last.is_some_and(|last| !cache.has(*last));
            if is_lost {
                window.shrink();
            }
            is_lost
        };
        self.is_due |= self.entries.reach(ino, is_lost);
        (self.is_due || self.names.are_due(self.lookups)) && self.prepare()
    }

    /// Counts one of the first lookups. Returns whether it is the last of them: then the order of
    /// the lookups is known.
    fn start(&mut self, ino: u64) -> bool {
        let Some(found) = self.entries.position(ino) else {
            self.strays += 1;
            self.is_stopped = self.strays >= MAX_STRAYS;
            return false;
        };
        self.lookups += 1;
        if self.lookups < MIN_LOOKUPS {
            self.first = found;
            return false;
        }
        self.by_inode = !Entries::is_near(self.first, found);
        // A few leaves may be read in any order.
        if self.entries.len() as u64 > self.window.most() {
            let position = self.first.min(found);
            self.entries.start_at(position, ino, self.by_inode);
        }
        self.is_started = true;
        self.is_due = true;
        true
    }

    /// Prepares a plan: sorts entries, and allocates memory, which a plan must not do under
    /// `commit_root_sem`. Returns whether there is something to plan.
    fn prepare(&mut self) -> bool {
        let has_inodes = self.is_due && !self.entries.are_planned();
        if self.is_stopped || !(has_inodes || self.names.are_due(self.lookups)) {
            return false;
        }
        if self.by_inode {
            self.entries.sort_all();
        }
        let batch = self.window.size() as usize + MAX_LEAVES;
        self.reserve(batch + self.name_leaves()) && self.batches.reserve(batch)
    }

    fn name_leaves(&self) -> usize {
        Names::count(self.lookups, self.window.most() as usize)
    }

    /// Plans leaves, if [`DirReada::look_up`] or [`DirReada::end_part`] has just returned true. The
    /// readahead of `others` limits the size.
    pub(crate) fn plan<T: Tree>(&mut self, tree: &T, others: Others, cache: &impl Cache) {
        self.leaves.clear();
        let Some(tree) = &Hasty::new(tree) else {
            return;
        };
        if self.is_due && !self.entries.are_planned() {
            match self.batches.begin(cache) {
                Usage::Most => (),
                Usage::Part => self.window.shrink(),
                Usage::Little => self.is_stopped = true,
            }
            if !self.is_stopped {
                let held = self.batches.len() + self.children.held();
                self.plan_inodes(tree, self.room(self.window, held, others), cache);
            }
        }
        let inodes = self.leaves.len();
        if self.names.are_due(self.lookups) {
            let count = self.name_leaves();
            self.names
                .plan(tree, self.lookups, count, cache, &mut self.leaves);
        }
        self.sort(inodes);
    }

    /// Plans `batch` leaves with the next inodes, or up to [`MAX_LEAVES`] more. Leaves in memory do
    /// not count.
    fn plan_inodes<T: Tree>(&mut self, tree: &Hasty<'_, T>, batch: usize, cache: &impl Cache) {
        let mut last = LastLeaf::default();
        let mut searches = 0;
        self.entries.begin_batch();
        while searches <= batch * SEARCHES_PER_LEAF {
            let Some(ino) = self.entries.next() else {
                // The next entries may have smaller inode numbers.
                last = LastLeaf::default();
                if self.batches.last.len() < batch && self.entries.sort_next(batch) {
                    continue;
                }
                break;
            };
            let key = first_key(ino, INODE_ITEM);
            let is_full = self.batches.last.len() >= batch;
            let must_yield = || self.entries.has_begun() && tree.is_contended();
            // The items of the inode may go on in the next leaf.
            let has_leaves = key >= last.end || last.end.objectid == ino;
            if has_leaves && (is_full || must_yield()) {
                break;
            }
            searches += usize::from(has_leaves);
            let (batches, leaves) = (&mut self.batches, &mut self.leaves);
            let planned = batches.plan_inode(tree, &mut last, ino, cache, leaves);
            if planned.is_err() {
                self.read_nodes(tree, &mut last, batch);
                break;
            }
            self.entries.advance();
        }
        if !self.entries.has_begun() {
            // A node is not in memory, and a task waits: the next lookup plans this batch again.
            self.batches.undo();
            return;
        }
        self.is_due = false;
        self.entries.end_batch();
        if self.batches.last.len() as u64 >= self.window.size() {
            self.window.grow();
        }
    }

    /// The leaves to submit, in this order.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
