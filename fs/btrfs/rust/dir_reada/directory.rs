// SPDX-License-Identifier: GPL-2.0

//! What is known of a directory when its listing begins.

use super::{
    batch::Usage,
    Cache,
    DirReada, //
};
use crate::tree::Key;

/// Size of a DIR_INDEX item without its name, in bytes: `struct btrfs_item` and
/// `struct btrfs_dir_item`.
const DIR_INDEX_SIZE: u64 = 25 + 30;

/// Types of keys.
pub(super) const INODE_ITEM: u8 = 1;
const XATTR_ITEM: u8 = 24;
pub(super) const DIR_ITEM: u8 = 84;
pub(super) const DIR_INDEX: u8 = 96;
pub(super) const EXTENT_DATA: u8 = 108;

/// The first key of an object with a type.
pub(super) fn first_key(objectid: u64, kind: u8) -> Key {
    Key {
        objectid,
        kind,
        offset: 0,
    }
}

/// Whether a lookup of `ino` also reads the leaf after that of its INODE_ITEM, whose first key is
/// `next`: `acls_after_inode_item()` looks for items up to XATTR_ITEMs.
pub(super) fn reads_on(ino: u64, next: Key) -> bool {
    let is_extent = next.kind == EXTENT_DATA && next.offset == 0;
    next.objectid == ino && (next.kind <= XATTR_ITEM || is_extent)
}

/// Whether a listing of the directory `ino` or a lookup of one of its entries reads the leaf whose
/// first key is `next`.
pub(super) fn lists_on(ino: u64, next: Key) -> bool {
    next.objectid == ino && (DIR_ITEM..=DIR_INDEX).contains(&next.kind)
}

/// A directory.
pub(crate) struct Directory {
    /// The inode number.
    pub(crate) ino: u64,
    /// The size of the inode: twice the sum of the lengths of the names, in bytes.
    pub(crate) size: u64,
    /// The index of the last entry.
    pub(crate) last_index: u64,
    /// The expectation from directories listed before.
    pub(crate) habit: Habit,
    /// The expectation whether files are read.
    pub(crate) reading: Reading,
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Another one, such as a symbolic link.
    Other,
}

/// Whether a process reads the files of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing is known.
    Unknown,
    /// It reads those of a directory, in the expected order.
    Read,
    /// It has left a directory without reading most of the files that were read ahead, or has read
    /// none since.
    Refused,
}

impl Reading {
    /// What two directories tell.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused, _) | (_, Self::Refused) => Self::Refused,
            (Self::Unknown, reading) | (reading, Self::Unknown) => reading,
            _ => Self::Read,
        }
    }
}

/// How a process looks up entries of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Nothing is known.
    Unknown,
    /// It looks up at least half of the entries, as far as it has come.
    LookedUp {
        /// Size of the window, in leaves.
        window: u64,
        /// Whether lookups are in the order of the inode numbers.
        by_inode: bool,
    },
    /// A directory was read ahead, more than an eighth of that is unused, and none of its entries
    /// was looked up.
    Refused,
}

impl Habit {
    /// The habit that two directories show.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused, _) | (_, Self::Refused) => Self::Refused,
            (Self::Unknown, habit) | (habit, Self::Unknown) => habit,
            (Self::LookedUp { window: ours, .. }, Self::LookedUp { window, .. }) => {
                // A parent in which few entries were looked up has a small window.
                if window > ours {
                    other
                } else {
                    self
                }
            }
        }
    }
}

impl Directory {
    /// The number of leaves with DIR_INDEX items, a high estimate: they may be half full.
    pub(super) fn leaves(&self, nodesize: u32) -> u64 {
        let names = self.size / 2;
        let entries = names.min(self.last_index);
        let bytes = names.saturating_add(entries.saturating_mul(DIR_INDEX_SIZE));
        bytes / u64::from(nodesize / 2).max(1) + 1
    }
}

impl DirReada {
    /// What the lookups so far tell about other directories.
    pub(crate) fn habit(&self, cache: &impl Cache) -> Habit {
        let last = Usage::of(&self.batches.last, cache);
        if self.lookups == 0 && (self.is_refused || last != Usage::Most) {
            return Habit::Refused;
        }
        // The lookups may still be on their way through the last batch.
        let is_used = last == Usage::Most || !self.are_passed();
        let are_looked_up = self.lookups * 2 >= self.entries.reached();
        // Each listing of a subdirectory needs a lookup, also for names, and one is under way.
        let has_others = self.lookups > self.children.count_listed() + 1;
        if self.is_stopped || !self.is_started || !is_used || !are_looked_up || !has_others {
            return Habit::Unknown;
        }
        Habit::LookedUp {
            window: self.window.size(),
            by_inode: self.by_inode,
        }
    }
}
