// SPDX-License-Identifier: GPL-2.0

//! The beginning of a file.

use kernel::sizes::SZ_128K;

use super::directory::{
    first_key,
    EXTENT_DATA,
    INODE_ITEM, //
};
use crate::{
    data_reada::{
        FileRange,
        Items,
        Subvolume, //
    },
    tree::{
        Cursor,
        Key,
        Unread, //
    },
};

/// Maximum size of the beginning, in bytes. The readahead of the page cache reads the rest.
const MAX_HEAD: u64 = SZ_128K as u64;

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
/// there is none to read from the disk. `None` if the leaf or a node is not in memory.
pub(super) fn head<T: Subvolume>(tree: &T, ino: u64) -> Option<FileRange> {
    let [first, end] = [INODE_ITEM, EXTENT_DATA + 1].map(|kind| first_key(ino, kind));
    let mut range = FileRange {
        ino,
        ..FileRange::default()
    };
    let mut cursor = Cursor::new(tree, first, true, end);
    cursor.enter_root().ok()?;
    loop {
        let leaf = match cursor.descend_to_leaves() {
            Ok((node, slot)) => tree.leaf(node, slot),
            Err(Unread::Busy) => None,
            Err(Unread::Failed) => return Some(range),
        };
        let Some(leaf) = leaf else {
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
}
