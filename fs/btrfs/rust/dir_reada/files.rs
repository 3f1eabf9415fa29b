// SPDX-License-Identifier: GPL-2.0

//! Readahead of file data, for a task that reads the files of a directory one after the other, such
//! as `tar` or `grep -r`.
//!
//! C reports reads of the beginning of files. After two reads of listed files whose data is not in
//! memory, the next files are expected to be read, in the order of the listing or of the inode
//! numbers; see [`Sequence`]. [`DirReada::plan_files`] plans the beginnings of them. It looks only
//! at leaves in memory: `dir_reada.rs` reads them ahead for the lookups. When the reads reach the
//! files of the last batch, the next batch is planned. So at most two batches are ahead.

use kernel::{
    prelude::*,
    sizes::{
        SZ_128K,
        SZ_4M, //
    },
};

use super::{
    batch::Usage,
    directory::{
        first_key,
        EXTENT_DATA,
        INODE_ITEM, //
    },
    sequence::Sequence,
    DirReada, //
};
use crate::{
    data_reada::{
        FileRange,
        Items,
        Subvolume, //
    },
    tree::{
        Cursor,
        Key, //
    },
    window::{
        Disk,
        Others,
        Window,
        FIRST_WINDOW, //
    },
};

/// Reads in a row whose data was in memory, but not read ahead, that end the readahead for now.
const MAX_IN_MEMORY: usize = 16;

/// Maximum number of files in a batch, and of files to look at in a plan.
const MAX_FILES: usize = 1 << 8;
pub(super) const MAX_SCANNED: usize = 1 << 9;

/// Maximum size of a batch, and of the beginning of a file, in bytes. The readahead of the page
/// cache reads the rest of the file.
const MAX_BATCH: u64 = SZ_4M as u64;
const MAX_HEAD: u64 = SZ_128K as u64;

/// A file of which `len` bytes were read ahead.
#[derive(Clone, Copy)]
struct Ahead {
    ino: u64,
    len: u64,
}

/// Files that were read ahead together.
struct Batch {
    /// Those that were not read yet.
    unread: KVVec<Ahead>,
    /// The number of files.
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self {
            unread: KVVec::new(),
            count: 0,
        }
    }

    /// Takes the file `ino` out of those not read yet. Returns the bytes read ahead for it.
    fn take(&mut self, ino: u64) -> Option<u64> {
        let found = self.unread.iter().position(|file| file.ino == ino)?;
        let len = self.unread.get(found)?.len;
        let _ = self.unread.remove(found);
        Some(len)
    }

    /// Forgets the files that were not read. Returns their size in bytes.
    fn clear(&mut self) -> u64 {
        let bytes = self.bytes();
        self.unread.clear();
        self.count = 0;
        bytes
    }

    fn bytes(&self) -> u64 {
        self.unread.iter().map(|file| file.len).sum()
    }
}

/// The readahead of the files of a directory.
pub(super) struct Files {
    sequence: Sequence,
    /// Set if most of a batch was not read.
    is_stopped: bool,
    /// Set if the reads have reached the last batch, or if that is not complete.
    is_due: bool,
    /// The number of reads in a row whose data was in memory.
    in_memory: usize,
    /// Position of the last batch.
    mark: usize,
    /// Size of the next batch, in bytes.
    window: Window,
    last: Batch,
    passed: Batch,
    /// Bytes that were read ahead and passed, since the last plan.
    wasted: u64,
    /// The last plan, in submission order.
    ranges: KVVec<FileRange>,
}

impl Files {
    /// No files. Reads are expected in the order of the listing if `are_expected`.
    pub(super) fn new(disk: Disk, are_expected: bool) -> Self {
        let most = disk.max_batch().min(MAX_BATCH);
        Self {
            sequence: Sequence::new(are_expected),
            is_stopped: most == 0,
            is_due: are_expected,
            in_memory: 0,
            mark: 0,
            window: Window::new(FIRST_WINDOW, most),
            last: Batch::new(),
            passed: Batch::new(),
            wasted: 0,
            ranges: KVVec::new(),
        }
    }

    /// Adds the file with the inode number `ino`.
    pub(super) fn add(&mut self, ino: u64) {
        self.mark -= self.sequence.add(ino, self.mark);
    }

    /// Notes a read of the beginning of `ino`, whose page cache `has_data` or not. Returns the
    /// bytes that were read ahead for it.
    fn read(&mut self, ino: u64, has_data: bool) -> u64 {
        let used = self.last.take(ino).or_else(|| self.passed.take(ino));
        if self.is_stopped || self.sequence.is_missing() {
            return used.unwrap_or(0);
        }
        match used {
            Some(_) if has_data => self.in_memory = 0,
            // Memory is short.
            Some(_) => self.window.shrink(),
            None if has_data => self.in_memory += 1,
            None => self.in_memory = 0,
        }
        if self.in_memory > MAX_IN_MEMORY {
            self.sequence.restart();
            self.in_memory = 0;
        } else if self.sequence.is_known() {
            let found = self.sequence.follow(ino);
            self.is_due |= found.is_some_and(|found| found >= self.mark);
        } else if !has_data && self.sequence.start(ino) {
            self.mark = self.sequence.reached();
            self.is_due = true;
        }
        used.unwrap_or(0)
    }

    /// Whether to plan a batch.
    fn are_due(&self) -> bool {
        self.is_due
            && !self.is_stopped
            && self.sequence.is_known()
            && self.sequence.next_file().is_some()
    }

    /// Whether there are no more files to read ahead.
    pub(super) fn are_done(&self) -> bool {
        self.is_stopped || !self.sequence.is_known() || self.sequence.is_at_end()
    }

    /// Sorts files, and allocates memory for a batch, which a plan must not do under
    /// `commit_root_sem`. Returns whether there is some.
    fn reserve(&mut self) -> bool {
        self.sequence.sort();
        self.ranges.clear();
        let unread = MAX_FILES.saturating_sub(self.last.unread.len());
        self.ranges.reserve(MAX_FILES, GFP_KERNEL).is_ok()
            && self.last.unread.reserve(unread, GFP_KERNEL).is_ok()
            && self.passed.unread.reserve(MAX_FILES, GFP_KERNEL).is_ok()
    }

    /// Begins a batch, unless the last one goes on.
    fn begin(&mut self) {
        if self.sequence.reached() < self.mark {
            return;
        }
        match Usage::of_count(self.passed.unread.len(), self.passed.count) {
            // Files without data on disk tell nothing.
            Usage::Most if self.window.size() > 0 && self.last.count == 0 => (),
            Usage::Most => self.window.grow(),
            Usage::Part => self.window.shrink(),
            Usage::Little => {
                self.is_stopped = true;
                self.wasted += self.last.clear();
            }
        }
        self.wasted += self.passed.clear();
        core::mem::swap(&mut self.last, &mut self.passed);
        self.mark = self.sequence.next();
    }

    /// Plans the beginnings of the next files, `room` bytes or a little more.
    fn plan<T: Subvolume>(&mut self, tree: &T, room: u64) {
        let mut bytes = self.last.bytes();
        self.is_due = false;
        for number in 0..MAX_SCANNED {
            let Some(ino) = self.sequence.next_file() else {
                break;
            };
            if bytes >= room || self.last.unread.len() >= MAX_FILES {
                break;
            }
            let must_yield = number > 0 && tree.is_contended();
            let Some(range) = head(tree, ino).filter(|_| !must_yield) else {
                self.is_due = true;
                break;
            };
            self.sequence.advance();
            if range.len == 0 {
                continue;
            }
            bytes += range.len;
            self.last.count += 1;
            // Files::reserve() has allocated memory.
            let len = range.len;
            let _ = self.last.unread.push_within_capacity(Ahead { ino, len });
            let _ = self.ranges.push_within_capacity(range);
        }
        self.ranges.sort_unstable_by_key(|range| range.bytenr);
    }

    /// The size of the files that were read ahead and not read yet, in bytes.
    fn held(&self) -> u64 {
        self.last.bytes() + self.passed.bytes()
    }
}

/// The position of the first item of `leaf` with `key` or a greater key.
fn lower_bound(leaf: &impl Items, key: Key) -> u32 {
    let (mut first, mut end) = (0, leaf.nritems());
    while first < end {
        let middle = first + (end - first) / 2;
        if leaf.key(middle) < key {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    first
}

/// Finds the data at the beginning of the file `ino`, up to [`MAX_HEAD`] bytes. The length is 0 if
/// there is none to read from the disk. `None` if the leaf is not in memory.
fn head<T: Subvolume>(tree: &T, ino: u64) -> Option<FileRange> {
    let [first, end] = [INODE_ITEM, EXTENT_DATA + 1].map(|kind| first_key(ino, kind));
    let mut range = FileRange {
        ino,
        ..FileRange::default()
    };
    let mut cursor = Cursor::new(tree, first, true, end)?;
    while let Some((node, slot)) = cursor.descend_to_leaves() {
        let Some(leaf) = tree.leaf(node, slot) else {
            return (range.len > 0).then_some(range);
        };
        for item in lower_bound(&leaf, first)..leaf.nritems() {
            let key = leaf.key(item);
            let can_be_read = || leaf.is_file(item) && leaf.is_checked(item);
            let is_other = key.kind == INODE_ITEM && !can_be_read();
            if key >= end || is_other || range.len >= MAX_HEAD {
                return Some(range);
            }
            if key.kind != EXTENT_DATA {
                continue;
            }
            let next = |key: &Key| key.offset == range.len;
            let Some(extent) = Some(key).filter(next).and_then(|_| leaf.extent(item)) else {
                return Some(range);
            };
            if range.len == 0 {
                range.bytenr = extent.bytenr;
            }
            range.len = range.len.saturating_add(extent.len).min(MAX_HEAD);
        }
        cursor.advance();
    }
    Some(range)
}

impl DirReada {
    /// Notes that the task reads the beginning of the file `ino`, whose page cache `has_data` or
    /// not. Returns the bytes that were read ahead for it.
    pub(crate) fn read(&mut self, ino: u64, has_data: bool) -> u64 {
        let used = self.files.read(ino, has_data);
        if used > 0 && self.is_started && !self.is_stopped {
            // The readahead has looked up the inode before the task.
            self.lookups = self.lookups.saturating_add(1);
            self.is_due |= self.entries.reach(ino, || false);
        }
        used
    }

    /// Whether to plan file data, after a read or a part of the listing.
    pub(crate) fn are_files_due(&mut self) -> bool {
        self.files.are_due() && self.files.reserve()
    }

    /// Plans file data, if [`DirReada::are_files_due`] has just returned true. The readahead of
    /// `others` limits the size. Returns the size of the data read ahead in vain, in bytes.
    pub(crate) fn plan_files<T: Subvolume>(&mut self, tree: &T, others: Others) -> u64 {
        let files = &mut self.files;
        files.begin();
        if !files.is_stopped {
            let held = others.held.saturating_add(files.passed.bytes());
            let room = files.window.room(2 * self.disk.max_batch(), held, others);
            files.plan(tree, room);
        }
        core::mem::take(&mut files.wasted)
    }

    /// Notes that the data of the file `ino`, which was planned, was not read ahead: it is in
    /// memory, or cannot be read yet.
    pub(crate) fn skip_file(&mut self, ino: u64) {
        let last = &mut self.files.last;
        if last.take(ino).is_some() {
            last.count -= 1;
        }
    }

    /// The file data to read, in this order.
    pub(crate) fn ranges(&self) -> &[FileRange] {
        &self.files.ranges
    }

    /// The size of the file data that was read ahead and is unused, in bytes.
    pub(crate) fn held_data(&self) -> u64 {
        self.files.held()
    }

    /// Whether the task reads the files.
    pub(crate) fn reads_files(&self) -> bool {
        let files = &self.files;
        files.sequence.is_known() && files.sequence.reads() > 0 && !files.is_stopped
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
