// SPDX-License-Identifier: GPL-2.0

//! The readahead of file data for a send.
//!
//! C reports the position of the send with [`DataReada::advance`]. Ranges of files are planned by
//! [`DataReada::plan`] until the window is full, and again when half of it was passed.
//!
//! The planner looks through the leaves ahead of the send for extents that the send will read. It
//! takes only leaves that are in memory: `leaf_reada.rs` reads them ahead. The send does not read
//! inline extents, holes, preallocated extents, extents that a clone source has, too, and data that
//! it can clone because it was seen before. The planner cannot know all of the clones. So each
//! range costs credit, which the send returns when it reads data: see `credit.rs`.
//!
//! A run of extents that follow each other in a file is only begun. The readahead of the page cache
//! reads the rest as well.
//!
//! C holds the inodes of the ranges ahead, in slots, until the send has passed them.

use core::cmp::{
    max,
    min, //
};

use kernel::{
    prelude::*,
    sizes::SZ_128K, //
};

use crate::{
    tree::{
        Cursor,
        Key,
        Node,
        Tree, //
    },
    window::{
        sort_by_address,
        Disk,
        Others,
        Window,
        FIRST_WINDOW, //
    },
};

mod credit;
mod queue;
mod recent;

use credit::Credit;
use queue::Queue;
pub(crate) use queue::{
    FileRange,
    MAX_INODES,
    MAX_RANGES, //
};
use recent::Recent;

/// The most leaves to look through for one batch, and the most pointers.
const MAX_LEAVES: usize = 64;
const MAX_STEPS: u32 = 8192;

/// The most bytes of a compressed extent on disk; `BTRFS_MAX_COMPRESSED`.
const MAX_COMPRESSED: u64 = SZ_128K as u64;

/// `BTRFS_INODE_ITEM_KEY`.
const INODE_ITEM_KEY: u8 = 1;

/// `BTRFS_EXTENT_DATA_KEY`.
const EXTENT_DATA_KEY: u8 = 108;

/// The end of the files: no inode number is greater than `BTRFS_LAST_FREE_OBJECTID`.
const END: Key = Key {
    objectid: -256i64 as u64,
    kind: 0,
    offset: 0,
};

/// A file extent with data on disk: not inline, no hole and not preallocated;
/// `struct btrfs_file_extent_item`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The logical address of the extent, in bytes.
    pub(crate) bytenr: u64,
    /// Its size on disk, in bytes.
    pub(crate) disk_len: u64,
    /// The offset of the file's data in the uncompressed extent, in bytes.
    pub(crate) offset: u64,
    /// The size of the file's data, in bytes.
    pub(crate) len: u64,
    /// The generation.
    pub(crate) generation: u64,
    /// The extent is compressed.
    pub(crate) is_compressed: bool,
}

/// The items of a leaf of a subvolume.
pub(crate) trait Items {
    /// The number of items.
    fn nritems(&self) -> u32;
    /// The key of an item.
    fn key(&self, slot: u32) -> Key;
    /// A file extent item, if it has data on disk.
    fn extent(&self, slot: u32) -> Option<Extent>;
    /// The inode item is that of a regular file with a name. Send skips all others.
    fn is_file(&self, slot: u32) -> bool;
}

/// A tree with readable leaves.
pub(crate) trait Subvolume: Tree {
    /// A leaf.
    type Items: Items;

    /// A child that is a leaf, if it is in memory and up to date.
    fn leaf(&self, node: &Self::Node, slot: u32) -> Option<Self::Items>;
}

/// The readahead of file data.
pub(crate) struct DataReada {
    /// The position of the send.
    position: Key,
    /// The first key that was not looked at yet; none at the end of the tree.
    next: Option<Key>,
    /// The next batch is not planned before the send reaches this key.
    mark: Key,
    /// The send reads only extents of later generations.
    min_gen: u64,
    /// Compressed extents are sent as they are.
    sends_encoded: bool,
    /// A batch is read in disk order.
    rotating: bool,
    /// The bytes that may be ahead of the send, and the part that other readers leave.
    window: Window,
    room: u64,
    credit: Credit,
    /// A range of the last leaf was left out for want of credit.
    is_short: bool,
    /// The inode of the last inode item, and whether it is a file that is sent.
    file: (u64, bool),
    queue: Queue,
    /// The order in which the last batch is to be read.
    order: KVVec<u32>,
    recent: Recent,
}

impl DataReada {
    /// The readahead of a send from `disk` that reads extents newer than generation `min_gen`, and
    /// sends compressed extents as they are if `sends_encoded`. It reads nothing if the readahead
    /// of `disk` is 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory for it.
    pub(crate) fn new(disk: Disk, min_gen: u64, sends_encoded: bool) -> Result<Self> {
        let window = Window::new(FIRST_WINDOW, disk.window());
        Ok(Self {
            position: Key::default(),
            next: (disk.window() > 0).then(Key::default),
            mark: Key::default(),
            min_gen,
            sends_encoded,
            rotating: disk.rotating,
            window,
            room: 0,
            credit: Credit::new(2 * window.most()),
            is_short: false,
            file: (0, false),
            queue: Queue::new()?,
            order: KVVec::with_capacity(MAX_RANGES, GFP_KERNEL)?,
            recent: Recent::new()?,
        })
    }

    /// Moves the send to `key`; it `has_read` file data since the last position. Returns whether it
    /// wants the next batch.
    pub(crate) fn advance(&mut self, key: Key, has_read: bool) -> bool {
        while let Some(range) = self.queue.pass(key) {
            if has_read {
                self.credit.note_used(range.cost());
            } else {
                self.credit.note_wasted();
            }
        }
        self.position = key;
        self.next.is_some() && key >= self.mark && self.queue.is_half_empty(self.room)
    }

    /// Notes that data read ahead was dropped before its use: memory is short.
    pub(crate) fn report_evicted(&mut self) {
        self.window.shrink();
        self.room = min(self.room, self.window.size());
    }

    /// The number of ranges that the send has passed.
    pub(crate) fn passed(&self) -> u32 {
        self.queue.passed()
    }

    /// The size of the ranges ahead of the send, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.queue.bytes()
    }

    /// Plans the next batch.
    pub(crate) fn plan<T: Subvolume>(&mut self, tree: &T, others: Others) {
        self.queue.begin();
        let window = self.window;
        self.window.grow();
        self.room = self.window.room(window.most(), others.held, others);
        if let Some(next) = self.next {
            self.next = self.gather(tree, max(next, self.position));
        }
        let batch = self.queue.batch();
        if batch.is_empty() {
            self.window = window;
        }
        let first = if self.rotating { 0 } else { batch.len() };
        sort_by_address(&mut self.order, batch.len(), first, |number| {
            batch[number].bytenr
        });
    }

    /// The ranges of the last batch, in the order of the send.
    pub(crate) fn planned(&self) -> &[FileRange] {
        self.queue.batch()
    }

    /// Their numbers, each once, in the order of submission.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Looks through leaves from `from` on. Returns the key to go on at, `None` at the end.
    fn gather<T: Subvolume>(&mut self, tree: &T, from: Key) -> Option<Key> {
        let position = self.position;
        if from == position && position.kind == EXTENT_DATA_KEY && position.objectid != self.file.0
        {
            // C reports the extents of files that are sent only: it has read the inode item.
            self.file = (position.objectid, true);
        }
        let Some(mut cursor) = Cursor::new(tree, from, true, END) else {
            return Some(self.wait_for(from));
        };
        self.is_short = false;
        let mut steps = MAX_STEPS;
        for leaves in 0..MAX_LEAVES {
            let (leaf, first) = match self.next_leaf(&mut cursor, from, leaves > 0, &mut steps) {
                Ok(found) => found,
                Err(next) => return next,
            };
            if let Some(next) = self.scan(&leaf, from) {
                return next;
            }
            // Leaves that are far away can wait.
            if leaves + 1 == MAX_LEAVES / 2 {
                self.mark = first;
            }
            cursor.advance();
            if self.is_short {
                // There may be more credit when the send gets there.
                self.mark = cursor.key().unwrap_or_default();
                break;
            }
        }
        cursor.key()
    }

    /// Moves the cursor to the next leaf that may have newer extents; returns it with its first key
    /// from `from` on. Without such a leaf, or after so many `steps`, gives the key to go on at.
    fn next_leaf<T: Subvolume>(
        &mut self,
        cursor: &mut Cursor<'_, T>,
        from: Key,
        mut has_moved: bool,
        steps: &mut u32,
    ) -> Result<(T::Items, Key), Option<Key>> {
        while *steps > 0 {
            *steps -= 1;
            let (Some((node, slot)), Some(&ptr)) = (cursor.head(), cursor.ptr()) else {
                return Err(None);
            };
            let first = max(from, ptr.key);
            if ptr.generation <= self.min_gen {
                cursor.advance();
                has_moved = true;
                continue;
            }
            if has_moved && cursor.tree().is_contended() {
                break;
            }
            if node.level() == 1 {
                let leaf = cursor.tree().leaf(node, slot);
                return leaf
                    .map(|leaf| (leaf, first))
                    .ok_or_else(|| Some(self.wait_for(first)));
            }
            if cursor.descend(None, 0).is_none() {
                // The send comes to the same error.
                self.mark = first;
                return Err(Some(first));
            }
        }
        Err(cursor.key())
    }

    /// Looks through the items of a leaf from the key `from` on. Returns where to go on, if that is
    /// not in the next leaf.
    fn scan(&mut self, leaf: &impl Items, from: Key) -> Option<Option<Key>> {
        for item in 0..leaf.nritems() {
            let key = leaf.key(item);
            if key < from {
                continue;
            }
            if key >= END {
                return Some(None);
            }
            if self.queue.is_full(self.room) {
                self.mark = Key::default();
                return Some(Some(key));
            }
            match key.kind {
                INODE_ITEM_KEY => self.file = (key.objectid, leaf.is_file(item)),
                EXTENT_DATA_KEY if self.file == (key.objectid, true) => {
                    if let Some(extent) = leaf.extent(item) {
                        self.plan_extent(key, extent);
                    }
                }
                _ => (),
            }
        }
        None
    }

    /// Goes on at `next` when the send has come to another extent or inode: the leaf may be in
    /// memory then.
    fn wait_for(&mut self, next: Key) -> Key {
        let position = self.position;
        self.mark = Key {
            objectid: position.objectid,
            kind: EXTENT_DATA_KEY,
            offset: match position.kind {
                EXTENT_DATA_KEY => position.offset.saturating_add(1),
                _ => 0,
            },
        };
        next
    }

    /// Plans to read an extent, if the send will.
    fn plan_extent(&mut self, key: Key, extent: Extent) {
        // The block layer cannot cope with empty reads that are merged with others.
        let is_broken = extent.is_compressed && !(1..=MAX_COMPRESSED).contains(&extent.disk_len);
        if is_broken
            || extent.generation <= self.min_gen
            // The second send of the same data is a clone.
            || self.recent.is_repeated(extent.bytenr, extent.offset)
        {
            return;
        }
        let mut range = FileRange {
            ino: key.objectid,
            offset: key.offset,
            len: extent.len,
            bytenr: extent.bytenr,
            disk_len: extent.disk_len,
            is_encoded: self.sends_encoded && extent.is_compressed && extent.disk_len <= extent.len,
            ..FileRange::default()
        };
        if !range.is_encoded {
            self.cut(&mut range);
        }
        if range.len == 0 {
            return;
        }
        if self.credit.take(range.cost()) {
            self.queue.push(range);
        } else {
            self.is_short = true;
        }
    }

    /// Cuts a range where the page cache is to read the rest of its run of extents.
    fn cut(&mut self, range: &mut FileRange) {
        let most = min(self.room, max(self.window.most() / 4, FIRST_WINDOW));
        let len = range.len;
        let before = self.recent.continue_run(range.ino, range.offset, len);
        range.len = len.min(most.saturating_sub(before));
        range.is_cut = before.saturating_add(len) >= most;
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
