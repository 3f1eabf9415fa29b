// SPDX-License-Identifier: GPL-2.0

//! What is known of a directory when its listing begins.

use crate::tree::Key;

/// Size of a DIR_INDEX item without its name, in bytes: `struct btrfs_item` and
/// `struct btrfs_dir_item`.
const DIR_INDEX_SIZE: u64 = 25 + 30;

/// Types of keys.
pub(super) const INODE_ITEM: u8 = 1;
pub(super) const XATTR_ITEM: u8 = 24;
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
}

/// How a process looks up entries of directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Habit {
    /// Size of the window, in leaves; 0 if the process looks up few entries.
    pub(crate) window: u64,
    /// Whether lookups are in the order of the inode numbers.
    pub(crate) by_inode: bool,
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
