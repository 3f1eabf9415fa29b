// SPDX-License-Identifier: GPL-2.0

//! Readahead of file data, for a task that reads the files of a directory one after the other, such
//! as `tar` or `grep -r`.
//!
//! C reports reads of the beginning of files. After two reads of listed files whose data is not in
//! memory, the next files are expected to be read, in the order of the listing or of the inode
//! numbers; see [`Sequence`]. [`DirReada::plan_files`] plans the beginnings of them. It looks only
//! at leaves in memory: `dir_reada.rs` reads them ahead for the lookups. When the reads reach the
//! files of the last batch, the next batch is planned. So at most two batches are ahead.

use kernel::prelude::*;

use super::{
    batch::{
        Tally,
        Usage, //
    },
    directory::Reading,
    head::head,
    limit,
    max_batch,
    sequence::Sequence,
    DirReada, //
};
use crate::{
    data_reada::{
        FileRange,
        Subvolume, //
    },
    ffi::OptionalVec,
    sort::sort_by_key,
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

/// Batches of the maximum size that may be given up at once. At most two, and the rest of two
/// files, are ahead.
const CREDIT_BATCHES: u64 = 3;

/// A file of which `len` bytes were read ahead.
#[derive(Clone, Copy)]
struct Ahead {
    ino: u64,
    len: u64,
}

/// Files that were read ahead together.
struct Batch {
    /// Those that were not read yet.
    unread: OptionalVec<Ahead>,
    /// The number of files.
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self {
            unread: OptionalVec::new(),
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

    /// Forgets the files. Returns the size of those that were not read, in bytes.
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
    /// What was known when the listing began.
    reading: Reading,
    /// Set if there is no readahead: most of a batch was not read, or too much was given up.
    is_stopped: bool,
    /// Set if any file was read; the size of those that were read ahead before, in bytes.
    are_read: bool,
    used: u64,
    /// Set if the reads have reached the last batch, or if that is not complete.
    is_due: bool,
    /// The number of reads in a row whose data was in memory, but not read ahead.
    in_memory: usize,
    /// Position of the last batch.
    mark: usize,
    /// Size of the next batch, in bytes.
    window: Window,
    last: Batch,
    passed: Batch,
    /// The files of small batches before these.
    tally: Tally,
    /// Bytes that may be given up when reads leave the order; files that are read earn them.
    credit: u64,
    /// Reads that were not noted since the last batch began.
    missed: usize,
    /// Bytes that were read ahead in vain, and that C has not counted yet.
    wasted: u64,
    /// The last plan, in submission order.
    ranges: OptionalVec<FileRange>,
}

impl Files {
    /// No files. If `reading` is expected, it is in the order of the listing.
    pub(super) fn new(disk: Disk, reading: Reading) -> Self {
        let most = max_batch(disk);
        let are_expected = reading == Reading::Read;
        Self {
            sequence: Sequence::new(reading),
            reading,
            is_stopped: most == 0,
            are_read: false,
            used: 0,
            is_due: are_expected,
            in_memory: 0,
            mark: 0,
            window: Window::new(FIRST_WINDOW, most),
            last: Batch::new(),
            passed: Batch::new(),
            tally: Tally::default(),
            credit: CREDIT_BATCHES * most,
            missed: 0,
            wasted: 0,
            ranges: OptionalVec::new(),
        }
    }

    /// Adds the file with the inode number `ino`, unless there are `most`.
    pub(super) fn add(&mut self, ino: u64, most: usize) {
        self.mark -= self.sequence.add(ino, self.mark, most);
    }

    /// Notes a read of the beginning of `ino`, whose page cache `has_data` or not. Returns the
    /// bytes that were read ahead for it.
    fn read(&mut self, ino: u64, has_data: bool) -> u64 {
        let used = self.last.take(ino).or_else(|| self.passed.take(ino));
        if self.is_stopped || self.sequence.is_missing() {
            return used.unwrap_or(0);
        }
        match used {
            Some(len) if has_data => {
                self.used += len;
                self.credit = (self.credit + len).min(CREDIT_BATCHES * self.window.most());
            }
            // Memory is short.
            Some(_) => self.window.shrink(),
            None => (),
        }
        if self.sequence.is_known() {
            self.follow(ino, has_data, used.is_some());
        } else if !has_data && self.sequence.start(ino) {
            self.mark = self.sequence.reached();
            self.is_due = true;
        }
        used.unwrap_or(0)
    }

    /// Notes a read of `ino` while the order of reads is known. Its data was read ahead if
    /// `is_used`.
    fn follow(&mut self, ino: u64, has_data: bool, is_used: bool) {
        let is_in_memory = has_data && !is_used;
        let before = self.sequence.reached();
        if let Some(found) = self.sequence.follow(ino) {
            self.is_due |= found >= self.mark;
            // The same file again, or one behind, tells nothing.
            if !is_in_memory {
                self.in_memory = 0;
            } else if self.sequence.reached() > before {
                self.in_memory += 1;
            }
        } else if !is_in_memory {
            self.sequence.stray();
        }
        let are_in_memory = self.in_memory > MAX_IN_MEMORY && self.held() == 0;
        if are_in_memory || self.sequence.is_missing() {
            self.restart();
        }
    }

    /// Gives up the files read ahead, and waits for another order of reads, unless more bytes were
    /// given up than the files that were read have earned.
    fn restart(&mut self) {
        let unread = self.last.clear() + self.passed.clear();
        self.wasted += unread;
        self.is_stopped = unread > self.credit;
        self.credit = self.credit.saturating_sub(unread);
        self.window.reset();
        self.tally = Tally::default();
        self.in_memory = 0;
        self.sequence.restart();
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
        let [last, passed] =
            [&self.last, &self.passed].map(|batch| MAX_FILES.saturating_sub(batch.unread.len()));
        self.ranges.reserve(MAX_FILES, GFP_KERNEL).is_ok()
            && self.last.unread.reserve(last, GFP_KERNEL).is_ok()
            && self.passed.unread.reserve(passed, GFP_KERNEL).is_ok()
    }

    /// Begins a batch, unless the last one goes on.
    fn begin(&mut self) {
        if self.sequence.reached() < self.mark {
            return;
        }
        let missed = core::mem::take(&mut self.missed).min(self.passed.count / 4);
        let unread = self.passed.unread.len().saturating_sub(missed);
        match self.tally.add(unread, self.passed.count) {
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
            let range = if must_yield { None } else { head(tree, ino) };
            let Some(range) = range else {
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
        sort_by_key(&mut self.ranges, |range| range.bytenr);
    }

    /// The size of the files that were read ahead and not read yet, in bytes.
    fn held(&self) -> u64 {
        self.last.bytes() + self.passed.bytes()
    }
}

impl DirReada {
    /// Notes that the task reads the beginning of the file `ino`, whose page cache `has_data` or
    /// not. `missed` reads of files before it were not noted. Returns the bytes that were read
    /// ahead for it.
    pub(crate) fn read(&mut self, ino: u64, has_data: bool, missed: usize) -> u64 {
        self.files.missed = self.files.missed.saturating_add(missed);
        self.files.are_read = true;
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
    /// `others` limits the size.
    pub(crate) fn plan_files<T: Subvolume>(&mut self, tree: &T, others: Others) {
        let files = &mut self.files;
        files.begin();
        if !files.is_stopped {
            let held = others.held.saturating_add(files.passed.bytes());
            let room = files.window.room(limit(self.disk), held, others);
            files.plan(tree, room);
        }
    }

    /// Returns the size of the file data that was read ahead and passed since the last call.
    pub(crate) fn take_wasted_data(&mut self) -> u64 {
        core::mem::take(&mut self.files.wasted)
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

    /// What the reads so far tell about other directories.
    pub(crate) fn reading(&self) -> Reading {
        let files = &self.files;
        // A task may list subdirectories before it reads the files.
        let are_left = self.children.are_none() && files.held() > files.used;
        if are_left || (files.reading == Reading::Refused && !files.are_read) {
            Reading::Refused
        } else if files.sequence.is_known() && files.sequence.reads() > 0 && !files.is_stopped {
            Reading::Read
        } else {
            Reading::Unknown
        }
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
