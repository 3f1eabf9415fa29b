// SPDX-License-Identifier: GPL-2.0

//! Readahead of file data for a send.
//!
//! C reports the position of the send to [`DataReada::advance`]. [`DataReada::plan`] adds ranges of
//! files until the window is full, and is called again when half of the window is used.
//!
//! The planner scans the leaves ahead of the send for extents whose data the send will read. It
//! scans only cached leaves: `leaf_reada.rs` reads them ahead. It skips inline extents, holes,
//! preallocated extents, extents that a clone source has too, and repeated data, unless the send
//! reads that instead of cloning it. Not all clones can be predicted. So each range takes credit,
//! which the send returns when it reads data: see `credit.rs`.
//!
//! A send without file data only looks up the backrefs of extents. For such a send, the ranges are
//! empty: C reads ahead the leaves with these backrefs, and no data.
//!
//! Of a run of extents that are adjacent in a file and on disk, only the head is planned. The
//! readahead of the page cache reads the rest. Other extents are planned one by one: in a
//! fragmented file, the page cache does not know their order on disk.
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
    leaf_reada,
    sort::sort_by_key,
    tree::{
        Cursor,
        Key,
        Node,
        Tree,
        Unread,
        MAX_STEPS, //
    },
    window::{
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
    MAX_INODES, //
};
use recent::Recent;

/// Limit for one batch: leaves to scan, as many as are submitted at a time.
const MAX_LEAVES: usize = leaf_reada::CHUNK;

/// Maximum size of a compressed extent on disk, in bytes; `BTRFS_MAX_COMPRESSED`.
const MAX_COMPRESSED: u64 = SZ_128K as u64;

/// `BTRFS_INODE_ITEM_KEY`.
const INODE_ITEM_KEY: u8 = 1;

/// `BTRFS_EXTENT_DATA_KEY`.
const EXTENT_DATA_KEY: u8 = 108;

/// End of the scan: inode numbers do not exceed `BTRFS_LAST_FREE_OBJECTID`.
const END: Key = Key {
    objectid: -256i64 as u64,
    kind: 0,
    offset: 0,
};

/// An extent of type `BTRFS_FILE_EXTENT_REG` that is not a hole; `struct btrfs_file_extent_item`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The logical address of the extent, in bytes.
    pub(crate) bytenr: u64,
    /// The size of the extent on disk, in bytes.
    pub(crate) disk_len: u64,
    /// The offset of the file's data in the uncompressed extent, in bytes.
    pub(crate) offset: u64,
    /// The length of the file's data, in bytes.
    pub(crate) len: u64,
    /// The generation of the extent.
    pub(crate) generation: u64,
    /// Whether the extent is compressed.
    pub(crate) is_compressed: bool,
}

/// A leaf of a subvolume tree.
pub(crate) trait Items {
    /// The number of items.
    fn nritems(&self) -> u32;
    /// The key of the item in `slot`.
    fn key(&self, slot: u32) -> Key;
    /// The file extent item in `slot`, if it has data on disk.
    fn extent(&self, slot: u32) -> Option<Extent>;
    /// Whether the inode item in `slot` is of a linked regular file without fs-verity. Only linked
    /// files have data to send. Data with fs-verity cannot be verified before the file is open.
    fn is_file(&self, slot: u32) -> bool;
}

/// A tree whose cached leaves can be read.
pub(crate) trait Subvolume: Tree {
    /// A leaf.
    type Items: Items;

    /// The leaf in `slot`, if it is cached and up to date.
    fn leaf(&self, node: &Self::Node, slot: u32) -> Option<Self::Items>;

    /// The root, if it is a leaf.
    fn only_leaf(&self) -> Option<Self::Items>;
}

/// What a send does with the extents of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// It only says how long they are: `BTRFS_SEND_FLAG_NO_FILE_DATA`.
    Unread,
    /// It reads them, and decompresses them.
    Plain,
    /// It writes compressed extents without decompression: `BTRFS_SEND_FLAG_COMPRESSED`.
    Encoded,
}

/// State of the readahead of file data for one send.
pub(crate) struct DataReada {
    /// The current key of the send.
    position: Key,
    /// The first key that is not scanned yet; `None` if nothing is left to scan.
    next: Option<Key>,
    /// The next batch is not planned before the send reaches this key.
    mark: Key,
    /// The send does not read extents up to this generation.
    min_gen: u64,
    data: Data,
    /// Batches are submitted by logical address.
    rotating: bool,
    /// Limit of the bytes ahead of the send, and the part of it that other readers leave.
    window: Window,
    room: u64,
    credit: Credit,
    /// The credit was too small for a range in the last leaf scanned.
    is_short: bool,
    /// The inode number of the last inode item, and whether send reads that inode's data.
    file: (u64, bool),
    /// A repeated extent that was not planned and that the send has not passed, and whether the
    /// send has read the last one, if there was one: it does not clone extents with more than
    /// `SEND_MAX_EXTENT_REFS` references.
    repeated: Option<Key>,
    reads_repeated: Option<bool>,
    queue: Queue,
    /// The submission order of the last batch, as indices into it.
    order: KVVec<u32>,
    recent: Recent,
}

impl DataReada {
    /// Creates the readahead of a send from `disk`. The send looks up extents newer than `min_gen`.
    /// Nothing is read ahead if [`Disk::window`] is 0.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the queue or the tables cannot be allocated.
    pub(crate) fn new(disk: Disk, min_gen: u64, data: Data) -> Result<Self> {
        let window = Window::new(FIRST_WINDOW, disk.window());
        // Ranges without data hold no part of the window.
        let queue = Queue::new(match data {
            Data::Unread => 0,
            Data::Plain | Data::Encoded => window.most(),
        })?;
        Ok(Self {
            position: Key::default(),
            next: (disk.window() > 0).then(Key::default),
            mark: Key::default(),
            min_gen,
            data,
            rotating: disk.rotating,
            window,
            room: 0,
            credit: Credit::new(2 * window.most()),
            is_short: false,
            file: (0, false),
            repeated: None,
            reads_repeated: None,
            order: KVVec::with_capacity(queue.most(), GFP_KERNEL)?,
            queue,
            recent: Recent::new()?,
        })
    }

    /// Moves the send to `key`. `has_read`: the send has read file data since the last call.
    /// Returns whether the next batch is to be planned.
    pub(crate) fn advance(&mut self, key: Key, has_read: bool) -> bool {
        while let Some(range) = self.queue.pass(key) {
            if has_read {
                self.credit.note_used(range.cost());
            } else {
                self.credit.note_wasted();
                self.reads_repeated = Some(false);
            }
        }
        if let Some(repeated) = self.repeated.filter(|repeated| *repeated < key) {
            if repeated == self.position {
                self.reads_repeated = Some(has_read);
            }
            // The send may pass it without a stop there.
            self.reads_repeated.get_or_insert(false);
            self.repeated = None;
        }
        self.position = key;
        self.next.is_some() && key >= self.mark && self.queue.is_half_empty(self.room)
    }

    /// Shrinks the window: memory is short, since data was evicted before its use.
    pub(crate) fn report_evicted(&mut self) {
        self.window.shrink();
        self.room = min(self.room, self.window.size());
    }

    /// The number of ranges that the send has passed, modulo 2^32.
    pub(crate) fn passed(&self) -> u32 {
        self.queue.passed()
    }

    /// The maximum number of ranges that are ahead of the send, a power of two.
    pub(crate) fn max_ranges(&self) -> usize {
        self.queue.most()
    }

    /// The memory that the ranges ahead of the send take, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.queue.bytes()
    }

    /// Plans the next batch. The readahead of `others` limits the size.
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
        self.order.clear();
        for number in 0..batch.len() as u32 {
            // The capacity is that of the queue.
            let _ = self.order.push_within_capacity(number);
        }
        if self.rotating {
            sort_by_key(&mut self.order, |number| batch[*number as usize].bytenr);
        }
    }

    /// The ranges of the last batch, in send order.
    pub(crate) fn planned(&self) -> &[FileRange] {
        self.queue.batch()
    }

    /// Indices into [`DataReada::planned`], in submission order.
    pub(crate) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Scans leaves from `from` on. Returns the key to continue at, `None` at the end.
    fn gather<T: Subvolume>(&mut self, tree: &T, from: Key) -> Option<Key> {
        let position = self.position;
        if from == position && position.kind == EXTENT_DATA_KEY && position.objectid != self.file.0
        {
            // C reports extents only after it has read the inode item of a file that is sent.
            self.file = (position.objectid, true);
        }
        let mut cursor = Cursor::new(tree, from, true, END);
        if cursor.enter_root().is_err() {
            return Some(self.wait_for(from));
        }
        if let Some(leaf) = tree.only_leaf() {
            return self.scan(&leaf, from).flatten();
        }
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
            // Plan again halfway through these leaves.
            if leaves + 1 == MAX_LEAVES / 2 {
                self.mark = first;
            }
            cursor.advance();
            if self.is_short {
                // The send may have returned credit by then.
                self.mark = cursor.key().unwrap_or_default();
                break;
            }
        }
        cursor.key()
    }

    /// Moves the cursor to the next leaf newer than `min_gen`. Returns the leaf and its first key,
    /// or `from` if that is greater. Without such a leaf, or after `steps`, returns the key to
    /// continue at.
    fn next_leaf<T: Subvolume>(
        &mut self,
        cursor: &mut Cursor<'_, T>,
        from: Key,
        mut has_moved: bool,
        steps: &mut usize,
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
            match cursor.descend(None, 0) {
                Ok(()) => (),
                Err(Unread::Busy) => return Err(Some(self.wait_for(first))),
                Err(Unread::Failed) => {
                    // The send hits the same error.
                    self.mark = first;
                    return Err(Some(first));
                }
            }
        }
        Err(cursor.key())
    }

    /// Scans the items of a leaf from the key `from` on. Returns the key to continue at, unless
    /// that is in the next leaf.
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
                    if self.repeated == Some(key) && self.reads_repeated.is_none() {
                        // See first what the send does with it.
                        self.mark = key.successor();
                        return Some(Some(key));
                    }
                }
                _ => (),
            }
        }
        None
    }

    /// Delays the scan at `next` until the send reaches another extent or inode: the leaf or node
    /// may be cached by then.
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

    /// Adds an extent to the batch, if the send is expected to read its data or its backrefs.
    fn plan_extent(&mut self, key: Key, extent: Extent) {
        // A read of a compressed extent that is too long fails or not, depending on its pages.
        let is_broken = extent.is_compressed && extent.disk_len > MAX_COMPRESSED;
        if is_broken || extent.generation <= self.min_gen {
            return;
        }
        // Send can clone data that it has sent before.
        let is_repeated = self.recent.is_repeated(key.objectid, key.offset, &extent);
        if is_repeated && self.reads_repeated != Some(true) {
            self.repeated.get_or_insert(key);
            return;
        }
        let mut range = FileRange {
            ino: key.objectid,
            offset: key.offset,
            len: extent.len,
            bytenr: extent.bytenr,
            disk_len: extent.disk_len,
            is_encoded: self.data == Data::Encoded
                && extent.is_compressed
                && extent.disk_len <= extent.len,
            ..FileRange::default()
        };
        if self.data == Data::Unread {
            range.len = 0;
            self.queue.push(range);
            return;
        }
        if !range.is_encoded {
            self.cut(&mut range, &extent);
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

    /// Truncates a range where the readahead of the page cache takes over the run of extents.
    fn cut(&mut self, range: &mut FileRange, extent: &Extent) {
        let most = min(self.room, max(self.window.most() / 4, FIRST_WINDOW));
        let len = range.len;
        let before = self.recent.continue_run(range.ino, range.offset, extent);
        range.len = len.min(most.saturating_sub(before));
        range.is_cut = before.saturating_add(len) >= most;
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
