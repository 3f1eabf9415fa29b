// SPDX-License-Identifier: GPL-2.0

//! What file data to read ahead of a send.
//!
//! The leaves that the send comes to next are looked through for extents whose data will be read.
//! Only leaves that are in memory are: to have them there is what `reada_walk.rs` is for. Ranges of
//! files are planned until as many bytes are ahead of the send as suits the disk, and again when
//! half of that was passed. What is read and not used is paid for by what is used: see `credit`.

use core::cmp::{
    max,
    min, //
};

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sizes::SZ_128K, //
};

use crate::{
    reada::{
        Key,
        Node, //
    },
    reada_walk::{
        sort_by_address,
        Cursor,
        Tree, //
    },
    window::{
        Disk,
        Others,
        Window,
        FIRST_WINDOW, //
    },
};

/// How many inodes are held at most.
pub(crate) const MAX_INODES: usize = 256;

/// How many ranges are ahead of the send at most.
pub(crate) const MAX_RANGES: usize = 2048;

/// How many leaves are looked through for one batch, and how many pointers to them.
const MAX_LEAVES: usize = 64;
const MAX_STEPS: u32 = 8192;

/// How many extents are remembered, to see that one comes again.
const MAX_SEEN: usize = 4096;

/// One byte may be read in vain for as many that are used, or left out for want of credit.
const USED_PER_WASTED: u64 = 50;

/// What a compressed extent takes on disk at most, in bytes; `BTRFS_MAX_COMPRESSED`.
const MAX_COMPRESSED: u64 = SZ_128K as u64;

/// `BTRFS_INODE_ITEM_KEY`.
const INODE_ITEM_KEY: u8 = 1;

/// `BTRFS_EXTENT_DATA_KEY`.
const EXTENT_DATA_KEY: u8 = 108;

/// `BTRFS_LAST_FREE_OBJECTID`: what comes after it are not files.
const LAST_FREE_OBJECTID: u64 = -256i64 as u64;

/// An extent of a file that is on disk, and neither inline, a hole nor preallocated;
/// `struct btrfs_file_extent_item`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its logical address, in bytes.
    pub(crate) bytenr: u64,
    /// What it takes on disk, in bytes.
    pub(crate) disk_len: u64,
    /// Where in the extent, uncompressed, the file's data begins.
    pub(crate) offset: u64,
    /// How many bytes of the file it holds.
    pub(crate) len: u64,
    /// Its generation.
    pub(crate) generation: u64,
    /// Whether it is compressed.
    pub(crate) is_compressed: bool,
}

/// A leaf of a subvolume.
pub(crate) trait Items {
    /// The number of items.
    fn nritems(&self) -> u32;
    /// The key of an item.
    fn key(&self, slot: u32) -> Key;
    /// What a file extent item says, if it has data on disk.
    fn extent(&self, slot: u32) -> Option<Extent>;
    /// Whether an inode item is that of a file that has a name. Others are not sent.
    fn is_file(&self, slot: u32) -> bool;
}

/// A tree whose leaves are looked through.
pub(crate) trait Subvolume: Tree {
    /// A leaf.
    type Items: Items;

    /// A child that is a leaf, if it is in memory and was read.
    fn leaf(&self, node: &Self::Node, slot: u32) -> Option<Self::Items>;
}

/// A range of a file to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The inode.
    pub(crate) ino: u64,
    /// A number from 0 to [`MAX_INODES`] - 1 that the inode has alone, of those ahead of the send
    /// and the one that the send is at.
    pub(crate) place: u32,
    /// How many ranges were planned before it.
    pub(crate) number: u32,
    /// Where it begins in the file, in bytes.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) len: u64,
    /// The extent that it is in; where that is on disk, and what it takes there, in bytes.
    pub(crate) bytenr: u64,
    pub(crate) disk_len: u64,
    /// Whether the extent is to be read as it is on disk.
    pub(crate) is_encoded: bool,
    /// Whether the page cache is to go on by itself after it.
    pub(crate) is_cut: bool,
}

impl Range {
    fn key(&self) -> Key {
        Key {
            objectid: self.ino,
            kind: EXTENT_DATA_KEY,
            offset: self.offset,
        }
    }

    /// What it takes in memory, in bytes.
    fn cost(&self) -> u64 {
        if self.is_encoded {
            self.disk_len.next_multiple_of(PAGE_SIZE as u64)
        } else {
            self.len
        }
    }
}

/// Where the extents looked at last follow each other in a file.
#[derive(Default)]
struct Run {
    ino: u64,
    end: u64,
    len: u64,
}

/// The readahead of file data.
pub(crate) struct DataWalk {
    /// The first key that has not been looked at; none at the end of the tree.
    next: Option<Key>,
    /// Nothing is to be planned before the send gets here.
    trigger: Key,
    /// The send does not read what is not newer than this.
    known: u64,
    /// Whether compressed extents are sent as they are.
    sends_encoded: bool,
    /// Whether a batch is read in disk order.
    rotating: bool,
    /// How many bytes may be ahead of the send, and what other readers leave of that.
    window: Window,
    room: u64,
    /// How many bytes may be planned. Those that are used are given back, and a little more; twice
    /// as many after a `streak` of as many ranges as it takes for `trust`, which doubles when that
    /// was wrong.
    credit: u64,
    streak: u64,
    trust: u64,
    /// Whether a range of the last leaf was left out for want of credit.
    is_short: bool,
    /// The inode whose item was looked at last, and whether it is a file that is sent.
    file: (u64, bool),
    /// The ranges that were planned, without those that the send has passed before the last batch.
    ranges: KVVec<Range>,
    /// The first one that the send has not passed, and the first of the last batch.
    first: usize,
    batch: usize,
    /// What is ahead of the send.
    bytes: u64,
    inodes: usize,
    /// How many ranges the send has passed.
    passed: u32,
    /// The inode that was planned last, and its place.
    last_ino: u64,
    place: u32,
    /// The order in which the last batch is to be read.
    order: KVVec<u32>,
    run: Run,
    /// Extents that were looked at, each at the place that its hash gives.
    seen: KVVec<(u64, u64)>,
}

impl DataWalk {
    /// The readahead of a send from `disk` that reads extents newer than generation `known`, and
    /// sends compressed ones as they are if `sends_encoded`. It reads nothing if the readahead of
    /// `disk` is 0.
    pub(crate) fn new(disk: Disk, known: u64, sends_encoded: bool) -> Result<Self> {
        let window = Window::new(FIRST_WINDOW, disk.window());
        Ok(Self {
            next: (disk.window() > 0).then(Key::default),
            trigger: Key::default(),
            known,
            sends_encoded,
            rotating: disk.rotating,
            window,
            room: 0,
            credit: 2 * window.most(),
            streak: 0,
            trust: USED_PER_WASTED,
            is_short: false,
            file: (0, false),
            ranges: KVVec::with_capacity(MAX_RANGES, GFP_KERNEL)?,
            first: 0,
            batch: 0,
            bytes: 0,
            inodes: 0,
            passed: 0,
            last_ino: 0,
            place: MAX_INODES as u32 - 1,
            order: KVVec::with_capacity(MAX_RANGES, GFP_KERNEL)?,
            run: Run::default(),
            seen: KVVec::from_elem((0, 0), MAX_SEEN, GFP_KERNEL)?,
        })
    }

    /// Notes that the send has come to `key`, and whether it `has_read` data since it was where it
    /// was before. Says whether it wants a new batch planned.
    pub(crate) fn is_due(&mut self, key: Key, has_read: bool) -> bool {
        while let Some(range) = self.ranges.get(self.first) {
            if range.key() >= key {
                break;
            }
            let cost = range.cost();
            if has_read {
                let more = if self.streak < self.trust {
                    cost / USED_PER_WASTED
                } else {
                    cost
                };
                self.credit = min(self.credit + cost + more, 2 * self.window.most());
                self.streak += 1;
            } else {
                if self.streak >= self.trust {
                    self.trust = self.trust.saturating_mul(2);
                }
                self.streak = 0;
            }
            self.bytes -= cost;
            self.first += 1;
            self.passed = self.passed.wrapping_add(1);
            let next = self.ranges.get(self.first);
            self.inodes -= usize::from(next.is_none_or(|next| next.ino != range.ino));
        }
        self.next.is_some()
            && key >= self.trigger
            && self.bytes <= self.room / 2
            && self.inodes <= MAX_INODES / 2
            && self.ranges.len() - self.first <= MAX_RANGES / 2
    }

    /// Notes that what was read ahead was gone when the send came to it: memory is short.
    pub(crate) fn shrink(&mut self) {
        self.window.shrink();
        self.room = min(self.room, self.window.size());
    }

    /// How many ranges the send has passed.
    pub(crate) fn passed(&self) -> u32 {
        self.passed
    }

    /// The ranges that are ahead of the send, in bytes.
    pub(crate) fn held(&self) -> u64 {
        self.bytes
    }

    /// Plans the next batch of a send that has come to `key`.
    pub(crate) fn plan<T: Subvolume>(&mut self, tree: &T, key: Key, others: Others) {
        let ahead = self.ranges.len() - self.first;
        self.ranges.copy_within(self.first.., 0);
        self.ranges.truncate(ahead);
        self.first = 0;
        self.batch = ahead;
        self.order.clear();
        let window = self.window;
        self.window.grow();
        self.room = self.window.room(window.most(), others.held, others);
        if let Some(next) = self.next {
            self.next = self.gather(tree, max(next, key), key);
        }
        if self.planned().is_empty() {
            self.window = window;
        }
        let planned = self.ranges.get(self.batch..).unwrap_or_default();
        let first = if self.rotating { 0 } else { planned.len() };
        sort_by_address(&mut self.order, planned.len(), first, |number| {
            planned[number].bytenr
        });
    }

    /// The ranges of the last batch, as the send comes to them.
    pub(crate) fn planned(&self) -> &[Range] {
        self.ranges.get(self.batch..).unwrap_or_default()
    }

    /// The number among them of the one that is to be read after `index` others.
    pub(crate) fn ordered(&self, index: usize) -> Option<u32> {
        self.order.get(index).copied()
    }

    fn is_full(&self) -> bool {
        self.bytes >= self.room
            // One place is that of the inode which the send is at.
            || self.inodes >= MAX_INODES - 1
            || self.ranges.len() >= MAX_RANGES
    }

    /// Looks through leaves from `from` on, for a send that has come to `key`; returns where to go
    /// on, `None` at the end.
    fn gather<T: Subvolume>(&mut self, tree: &T, from: Key, key: Key) -> Option<Key> {
        let end = Key {
            objectid: LAST_FREE_OBJECTID,
            ..Key::default()
        };
        if from == key && key.kind == EXTENT_DATA_KEY && key.objectid != self.file.0 {
            // C tells of extents only if the send reads them: it has looked at the inode item.
            self.file = (key.objectid, true);
        }
        let Some(mut cursor) = Cursor::new(tree, from, true, end) else {
            return Some(self.wait(from, key));
        };
        self.is_short = false;
        let (mut leaves, mut passed) = (0, 0);
        for _ in 0..MAX_STEPS {
            let (node, slot) = cursor.head()?;
            let first = max(from, node.key(slot));
            if node.generation(slot) <= self.known {
                cursor.advance();
                passed += 1;
                continue;
            }
            if (leaves > 0 || passed > 0) && tree.is_contended() {
                break;
            }
            if node.level() > 1 {
                if cursor.descend(None, 0).is_none() {
                    // The send comes to the same error.
                    self.trigger = first;
                    return Some(first);
                }
                continue;
            }
            let Some(leaf) = tree.leaf(node, slot) else {
                return Some(self.wait(first, key));
            };
            for item in 0..leaf.nritems() {
                let key = leaf.key(item);
                if key < from {
                    continue;
                }
                if key >= end {
                    return None;
                }
                if self.is_full() {
                    self.trigger = Key::default();
                    return Some(key);
                }
                self.look_at(key, &leaf, item);
            }
            leaves += 1;
            // What is far away can wait.
            if leaves == MAX_LEAVES / 2 {
                self.trigger = first;
            }
            cursor.advance();
            if self.is_short {
                // There may be more credit when the send gets there.
                self.trigger = cursor.key().unwrap_or_default();
                break;
            }
            if leaves == MAX_LEAVES {
                break;
            }
        }
        cursor.key()
    }

    /// Has `next` looked at when the send has come from `key` to another extent or inode: it may be
    /// in memory then.
    fn wait(&mut self, next: Key, key: Key) -> Key {
        self.trigger = Key {
            objectid: key.objectid,
            kind: EXTENT_DATA_KEY,
            offset: match key.kind {
                EXTENT_DATA_KEY => key.offset.saturating_add(1),
                _ => 0,
            },
        };
        next
    }

    fn look_at(&mut self, key: Key, leaf: &impl Items, item: u32) {
        match key.kind {
            INODE_ITEM_KEY => self.file = (key.objectid, leaf.is_file(item)),
            EXTENT_DATA_KEY if self.file == (key.objectid, true) => {
                if let Some(extent) = leaf.extent(item) {
                    self.look_at_extent(key, extent);
                }
            }
            _ => (),
        }
    }

    /// Plans to read an extent, if the send will.
    fn look_at_extent(&mut self, key: Key, extent: Extent) {
        // The block layer cannot cope with reads of nothing that are merged with others.
        let is_broken = extent.is_compressed && !(1..=MAX_COMPRESSED).contains(&extent.disk_len);
        if is_broken || extent.generation <= self.known || self.is_seen(extent) {
            return;
        }
        let mut range = Range {
            ino: key.objectid,
            place: 0,
            number: 0,
            offset: key.offset,
            len: extent.len,
            bytenr: extent.bytenr,
            disk_len: extent.disk_len,
            is_encoded: self.sends_encoded && extent.is_compressed && extent.disk_len <= extent.len,
            is_cut: false,
        };
        if !range.is_encoded {
            if self.run.ino != range.ino || self.run.end != range.offset {
                self.run = Run {
                    ino: range.ino,
                    end: range.offset,
                    len: 0,
                };
            }
            // The page cache does well by itself with the rest of a large file.
            let most = min(self.room, max(self.window.most() / 4, FIRST_WINDOW));
            range.len = range.len.min(most.saturating_sub(self.run.len));
            self.run.end = self.run.end.saturating_add(extent.len);
            self.run.len = self.run.len.saturating_add(extent.len);
            range.is_cut = self.run.len >= most;
        }
        if range.len == 0 {
            return;
        }
        let Some(credit) = self.credit.checked_sub(range.cost()) else {
            self.is_short = true;
            self.credit += range.cost() / USED_PER_WASTED;
            return;
        };
        self.credit = credit;
        if self.last_ino != range.ino {
            self.last_ino = range.ino;
            self.place = (self.place + 1) % MAX_INODES as u32;
        }
        range.place = self.place;
        let ahead = self.ranges.get(self.first..).unwrap_or_default();
        self.inodes += usize::from(ahead.last().is_none_or(|last| last.ino != range.ino));
        range.number = self.passed.wrapping_add(ahead.len() as u32);
        self.bytes += range.cost();
        // There is room: gather() has looked.
        let _ = self.ranges.push_within_capacity(range);
    }

    /// Whether the data of an extent was looked at not long ago. It will be cloned, then.
    fn is_seen(&mut self, extent: Extent) -> bool {
        let data = (extent.bytenr, extent.offset);
        let hash = (data.0 ^ data.1.rotate_left(32)).wrapping_mul(0x61c8_8646_80b5_83eb);
        let Some(place) = self.seen.get_mut((hash >> 32) as usize % MAX_SEEN) else {
            return false;
        };
        core::mem::replace(place, data) == data
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kernel::macros::kunit_tests(btrfs_reada_data)]
mod tests {
    use super::*;
    use crate::{
        random::Random,
        reada_walk::Root,
        window::MAX_WINDOW, //
    };
    use core::cell::Cell;

    /// A tree with one node above the leaves, which are cut out of one array of items.
    struct Array<'a> {
        items: &'a [(Key, Option<Extent>)],
        width: usize,
        /// The generation of the leaf that has the item with this number, and of those after it;
        /// those before have generation 1.
        newer: (usize, u64),
        /// Leaves from this one on are not in memory.
        cached: Cell<u32>,
        /// How many leaves were looked through.
        read: Cell<u32>,
    }

    impl<'a> Array<'a> {
        fn new(items: &'a [(Key, Option<Extent>)], width: usize) -> Self {
            Self {
                items,
                width,
                newer: (0, 2),
                cached: Cell::new(u32::MAX),
                read: Cell::new(0),
            }
        }
    }

    struct Parent<'a>(&'a Array<'a>);

    impl Node for Parent<'_> {
        fn level(&self) -> u32 {
            1
        }
        fn nodesize(&self) -> u32 {
            1 << 14
        }
        fn nritems(&self) -> u32 {
            self.0.items.len().div_ceil(self.0.width) as u32
        }
        fn blockptr(&self, slot: u32) -> u64 {
            u64::from(slot)
        }
        fn generation(&self, slot: u32) -> u64 {
            if slot as usize >= self.0.newer.0 {
                self.0.newer.1
            } else {
                1
            }
        }
        fn key(&self, slot: u32) -> Key {
            self.0.items[slot as usize * self.0.width].0
        }
        fn is_cached(&self, _blockptr: u64) -> bool {
            true
        }
    }

    impl Items for &[(Key, Option<Extent>)] {
        fn nritems(&self) -> u32 {
            self.len() as u32
        }
        fn key(&self, slot: u32) -> Key {
            self[slot as usize].0
        }
        fn extent(&self, slot: u32) -> Option<Extent> {
            self[slot as usize].1
        }
        fn is_file(&self, slot: u32) -> bool {
            self[slot as usize].0.offset == 0
        }
    }

    impl<'a> Tree for &'a Array<'a> {
        type Node = Parent<'a>;

        fn root(&self) -> Root<Parent<'a>> {
            Root::Node(Parent(self))
        }
        fn is_contended(&self) -> bool {
            false
        }
        fn child(
            &self,
            _node: &Parent<'a>,
            _slot: u32,
            _also: impl Iterator<Item = u32>,
        ) -> Option<Parent<'a>> {
            None
        }
    }

    impl<'a> Subvolume for &'a Array<'a> {
        type Items = &'a [(Key, Option<Extent>)];

        fn leaf(&self, _node: &Parent<'a>, slot: u32) -> Option<Self::Items> {
            if slot >= self.cached.get() {
                return None;
            }
            self.read.set(self.read.get() + 1);
            self.items.chunks(self.width).nth(slot as usize)
        }
    }

    const K: u64 = 1 << 10;
    const ALONE: Others = Others { held: 0, count: 0 };
    const DISK: Disk = Disk {
        rotating: false,
        readahead: 4 << 10,
        window_kb: 0,
        memory: 4 << 20,
        nodesize: 1 << 14,
    };

    fn key(ino: u64, kind: u8, offset: u64) -> Key {
        Key {
            objectid: ino,
            kind,
            offset,
        }
    }

    fn extent(bytenr: u64, len: u64) -> Extent {
        Extent {
            bytenr,
            disk_len: len,
            offset: 0,
            len,
            generation: 2,
            is_compressed: false,
        }
    }

    /// An inode item, or a file extent.
    fn item(ino: u64, offset: u64, extent: Option<Extent>) -> (Key, Option<Extent>) {
        let kind = match extent {
            Some(_) => EXTENT_DATA_KEY,
            None => INODE_ITEM_KEY,
        };
        (key(ino, kind, offset), extent)
    }

    fn array<T: Copy>(items: impl Iterator<Item = T>) -> Result<KVVec<T>> {
        let mut array = KVVec::new();
        for item in items {
            array.push(item, GFP_KERNEL)?;
        }
        Ok(array)
    }

    /// Files of one extent of 8 KiB each, that lie on disk in the opposite order.
    fn small_files(count: u64) -> Result<KVVec<(Key, Option<Extent>)>> {
        array((0..2 * count).map(|number| {
            let ino = 257 + number / 2;
            let bytenr = (count - number / 2) * 8 * K;
            item(ino, 0, (number % 2 == 1).then_some(extent(bytenr, 8 * K)))
        }))
    }

    /// Walks through a tree as a send does; returns what was planned, in the order of the send.
    fn send(walk: &mut DataWalk, tree: &Array<'_>) -> Result<KVVec<Range>> {
        let mut planned = KVVec::new();
        for (key, _) in tree.items {
            if walk.is_due(*key, true) {
                walk.plan(&tree, *key, ALONE);
                for range in walk.planned() {
                    planned.push(*range, GFP_KERNEL)?;
                }
            }
            assert!(walk.inodes < MAX_INODES);
            assert!(walk.bytes < walk.window.most() + 128 * 1024 * K);
        }
        Ok(planned)
    }

    #[test]
    fn all_data_is_planned_once_and_in_order() -> Result {
        let items = small_files(3000)?;
        let mut walk = DataWalk::new(DISK, 1, false)?;
        let planned = send(&mut walk, &Array::new(&items, 100))?;
        assert_eq!(planned.len(), 3000);
        for (number, range) in planned.iter().enumerate() {
            assert_eq!(range.ino, 257 + number as u64);
            assert_eq!((range.offset, range.len), (0, 8 * K));
            assert!(!range.is_encoded && !range.is_cut);
        }
        assert_eq!((walk.bytes, walk.inodes), (8 * K, 1));
        Ok(())
    }

    #[test]
    fn the_window_grows_to_what_suits_the_disk() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&tree, items[0].0, ALONE);
        assert_eq!(walk.bytes, FIRST_WINDOW);
        // Not before half of it was used.
        assert!(!walk.is_due(items[15].0, true));
        assert!(walk.is_due(items[16].0, true));
        walk.plan(&&tree, items[16].0, ALONE);
        assert_eq!(walk.bytes, 2 * FIRST_WINDOW);
        send(&mut walk, &tree)?;
        assert_eq!(walk.window.size(), walk.window.most());
        // Memory in MiB, rotating, the window.
        let cases = [
            (4096, false, 4096 * K),
            (256, false, 2621 * K),
            (4096, true, 41943 * K),
            (1 << 20, true, MAX_WINDOW),
            (1, true, 10 * K),
        ];
        for (memory, rotating, window) in cases {
            let memory = memory << 10;
            let disk = Disk {
                memory,
                rotating,
                ..DISK
            };
            assert_eq!(DataWalk::new(disk, 1, false)?.window.most(), window);
        }
        Ok(())
    }

    #[test]
    fn inodes_ahead_are_bounded_and_have_places_of_their_own() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.window.open();
        walk.plan(&&tree, items[0].0, ALONE);
        assert_eq!(walk.planned().len(), MAX_INODES - 1);
        let mut places = array(walk.planned().iter().map(|range| range.place))?;
        assert_eq!(places[0], 0);
        places.sort_unstable();
        assert!((0..MAX_INODES as u32 - 1).eq(places.iter().copied()));
        assert!(!walk.is_due(items[253].0, true));
        assert!(walk.is_due(items[254].0, true));
        Ok(())
    }

    #[test]
    fn what_the_other_tree_has_is_not_planned() -> Result {
        let mut items = small_files(1000)?;
        for (_, extent) in items.iter_mut().skip(1).step_by(4) {
            *extent = extent.map(|extent| Extent {
                generation: 1,
                ..extent
            });
        }
        let mut tree = Array::new(&items, 100);
        tree.newer = (10, 2);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        let planned = send(&mut walk, &tree)?;
        // Every other file of the newer half, in leaves that were looked at again for each batch.
        assert_eq!(planned.len(), 250);
        assert!(planned
            .iter()
            .all(|range| range.ino >= 257 + 500 && range.ino % 2 == 0));
        Ok(())
    }

    #[test]
    fn leaves_are_not_waited_for() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        tree.cached.set(1);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.window.open();
        walk.plan(&&tree, items[0].0, ALONE);
        assert_eq!(walk.planned().len(), 50);
        assert!(!walk.is_due(items[0].0, true));
        assert!(walk.is_due(items[1].0, true));
        walk.plan(&&tree, items[1].0, ALONE);
        assert_eq!(walk.planned().len(), 0);
        tree.cached.set(2);
        assert!(!walk.is_due(items[1].0, true));
        assert!(walk.is_due(items[2].0, true));
        walk.plan(&&tree, items[2].0, ALONE);
        assert_eq!(walk.planned().len(), 50);
        assert_eq!(walk.planned()[0].ino, 257 + 50);
        Ok(())
    }

    #[test]
    fn a_walk_that_finds_no_data_looks_at_each_leaf_once() -> Result {
        let items = array((0..100_000).map(|number| item(257 + number, 0, None)))?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&tree, items[0].0, ALONE);
        assert_eq!(tree.read.get(), MAX_LEAVES as u32);
        assert!(!walk.is_due(items[3099].0, true));
        assert!(walk.is_due(items[3100].0, true));
        assert_eq!(send(&mut walk, &tree)?.len(), 0);
        assert_eq!(tree.read.get(), 1000);
        Ok(())
    }

    #[test]
    fn the_page_cache_reads_large_files() -> Result {
        // Extents of 256 KiB that follow each other, with a hole after 4 MiB.
        let extents = (0..32).map(|number| {
            let hole = if number < 16 { 0 } else { 64 * K };
            let found = extent((1 + number) << 20, 256 * K);
            item(257, number * 256 * K + hole, Some(found))
        });
        let items = array(Iterator::chain(
            core::iter::once(item(257, 0, None)),
            extents,
        ))?;
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.window.open();
        let planned = send(&mut walk, &Array::new(&items, 100))?;
        let offsets = array(planned.iter().map(|range| range.offset / K))?;
        let after = 4096 + 64;
        assert_eq!(
            &offsets[..],
            &[
                0,
                256,
                512,
                768,
                after,
                after + 256,
                after + 512,
                after + 768
            ]
        );
        assert!(planned
            .iter()
            .map(|range| range.is_cut)
            .eq([false, false, false, true, false, false, false, true]));
        assert!(planned.iter().all(|range| range.place == 0));
        Ok(())
    }

    #[test]
    fn the_end_of_what_is_read_of_a_large_extent_is_marked() -> Result {
        let items = [
            item(257, 0, None),
            item(257, 0, Some(extent(1 << 20, 100 << 20))),
        ];
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&Array::new(&items, 100), items[0].0, ALONE);
        let range = walk.planned()[0];
        assert_eq!((range.len, range.is_cut), (FIRST_WINDOW, true));
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.window.open();
        walk.plan(&&Array::new(&items, 100), items[0].0, ALONE);
        let range = walk.planned()[0];
        assert_eq!((range.len, range.is_cut), (1024 * K, true));
        assert_eq!(walk.bytes, 1024 * K);
        Ok(())
    }

    #[test]
    fn compressed_extents_are_read_as_they_are_sent() -> Result {
        let compressed = |bytenr, disk_len| Extent {
            disk_len,
            is_compressed: true,
            ..extent(bytenr, 128 * K)
        };
        let left = Extent {
            len: 4 * K,
            ..compressed(2 << 20, 16 * K)
        };
        let items = [
            item(257, 0, None),
            // It takes whole pages.
            item(257, 0, Some(compressed(1 << 20, 16 * K - 512))),
            // More on disk than is left of it.
            item(257, 128 * K, Some(left)),
            // Not what a compressed extent can be.
            item(257, 256 * K, Some(compressed(3 << 20, 0))),
            item(257, 384 * K, Some(compressed(4 << 20, 132 * K))),
            item(257, 512 * K, Some(extent(5 << 20, 128 * K))),
        ];
        let on_disk = (16 * K).next_multiple_of(PAGE_SIZE as u64);
        for (sends_encoded, first) in [(true, on_disk), (false, 128 * K)] {
            let mut walk = DataWalk::new(DISK, 1, sends_encoded)?;
            walk.window.open();
            walk.plan(&&Array::new(&items, 100), items[0].0, ALONE);
            let encoded = walk.planned().iter().map(|range| range.is_encoded);
            assert!(encoded.eq([sends_encoded, false, false]));
            assert_eq!(walk.bytes, first + (4 + 128) * K);
        }
        Ok(())
    }

    #[test]
    fn without_readahead_nothing_is_planned() -> Result {
        for rotating in [false, true] {
            let disk = Disk {
                rotating,
                readahead: 0,
                ..DISK
            };
            assert!(!DataWalk::new(disk, 1, false)?.is_due(key(257, 0, 0), false));
        }
        Ok(())
    }

    #[test]
    fn a_window_that_thrashed_grows_slowly() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        let mut sizes = KVVec::new();
        for (key, _) in items.iter() {
            if !walk.is_due(*key, true) {
                continue;
            }
            // Once, what was read ahead is gone.
            if sizes.len() == 5 && walk.window.size() > 8 * FIRST_WINDOW {
                walk.shrink();
            }
            walk.plan(&&tree, *key, ALONE);
            if !walk.planned().is_empty() {
                sizes.push(walk.window.size() / FIRST_WINDOW, GFP_KERNEL)?;
            }
        }
        assert_eq!(&sizes[..9], &[1, 2, 4, 8, 16, 8, 9, 10, 11]);
        Ok(())
    }

    #[test]
    fn other_readers_leave_less() -> Result {
        let items = small_files(3000)?;
        // 255 inodes are held at most.
        let cases = [
            (0, 255 * 8 * K),
            (3072 * K, 1024 * K),
            (9999 * K, FIRST_WINDOW),
        ];
        for (others, left) in cases {
            let mut walk = DataWalk::new(DISK, 1, false)?;
            walk.window.open();
            let others = Others {
                held: others,
                count: 0,
            };
            walk.plan(&&Array::new(&items, 100), items[0].0, others);
            assert_eq!(walk.held(), left);
        }
        Ok(())
    }

    #[test]
    fn what_comes_again_will_be_cloned() -> Result {
        let part = |offset| Extent {
            offset,
            ..extent(1 << 20, 8 * K)
        };
        let items = [
            item(257, 0, None),
            item(257, 0, Some(part(0))),
            item(257, 16 * K, Some(part(0))),
            item(257, 32 * K, Some(part(8 * K))),
            item(257, 48 * K, Some(part(8 * K))),
        ];
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&Array::new(&items, 100), items[0].0, ALONE);
        let offsets = walk.planned().iter().map(|range| range.offset);
        assert!(offsets.eq([0, 32 * K]));
        Ok(())
    }

    #[test]
    fn batches_are_in_disk_order_where_seeks_are_slow() -> Result {
        let items = small_files(100)?;
        for rotating in [false, true] {
            let mut walk = DataWalk::new(Disk { rotating, ..DISK }, 1, false)?;
            walk.plan(&&Array::new(&items, 100), items[0].0, ALONE);
            walk.is_due(items[20].0, true);
            walk.plan(&&Array::new(&items, 100), items[20].0, ALONE);
            let count = walk.planned().len() as u32;
            assert!(count > 16);
            let order = (0..count).map(|index| walk.ordered(index as usize));
            if rotating {
                assert!(order.eq((0..count).rev().map(Some)));
            } else {
                assert!(order.eq((0..count).map(Some)));
            }
        }
        Ok(())
    }

    #[test]
    fn a_send_that_jumps_is_followed() -> Result {
        let items = small_files(3000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&tree, items[0].0, ALONE);
        assert!(walk.is_due(items[2000].0, true));
        assert_eq!((walk.bytes, walk.inodes), (0, 0));
        walk.plan(&&tree, items[2000].0, ALONE);
        assert_eq!(walk.planned()[0].ino, 257 + 1000);
        assert_eq!(walk.bytes, 2 * FIRST_WINDOW);
        Ok(())
    }

    #[test]
    fn only_files_are_read() -> Result {
        // Here, an inode that has no name or is no file has an item at another offset.
        let items = array((0..300).map(|number| {
            let ino = 257 + number / 3;
            match number % 3 {
                0 => item(ino, ino % 2, None),
                part => item(ino, part * 64 * K, Some(extent(number << 20, 8 * K))),
            }
        }))?;
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&Array::new(&items, 7), items[0].0, ALONE);
        assert!(walk.planned().len() > 10);
        assert!(walk.planned().iter().all(|range| range.ino % 2 == 0));
        // A send that is at an extent has seen that its inode is a file.
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.plan(&&Array::new(&items, 7), items[1].0, ALONE);
        assert_eq!(walk.planned()[0].ino, 257);
        Ok(())
    }

    #[test]
    fn little_is_read_that_is_not_used() -> Result {
        let items = small_files(20_000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        let mut planned = 0;
        // The first half is cloned, the second half is read.
        for (number, (key, _)) in items.iter().enumerate() {
            if walk.is_due(*key, number > 20_000) {
                walk.plan(&&tree, *key, ALONE);
                planned += walk.planned().len() as u64;
            }
            if number == 20_000 {
                let bytes = planned * 8 * K;
                assert!((2 * walk.window.most()..3 * walk.window.most()).contains(&bytes));
            }
        }
        let ahead = walk.ranges.len() - walk.first;
        assert_eq!(walk.passed() as usize + ahead, planned as usize);
        assert!(planned > 9000);
        Ok(())
    }

    #[test]
    fn trust_that_was_wrong_is_harder_to_earn() -> Result {
        let items = small_files(1000)?;
        let tree = Array::new(&items, 100);
        let mut walk = DataWalk::new(DISK, 1, false)?;
        walk.window.open();
        let mut gains = KVVec::new();
        for (number, (key, extent)) in items.iter().enumerate() {
            let before = walk.credit;
            // What the 61st file has is not used.
            let is_due = walk.is_due(*key, number != 2 * 61);
            if extent.is_none() && number > 0 {
                gains.push(walk.credit - before, GFP_KERNEL)?;
            }
            if is_due {
                walk.plan(&&tree, *key, ALONE);
            }
        }
        let (cost, little) = (8 * K, 8 * K / USED_PER_WASTED);
        assert!(gains[..50].iter().all(|gain| *gain == cost + little));
        assert!(gains[50..60].iter().all(|gain| *gain == 2 * cost));
        assert_eq!(gains[60], 0);
        assert!(gains[61..161].iter().all(|gain| *gain == cost + little));
        assert_eq!(gains[161], 2 * cost);
        Ok(())
    }

    #[test]
    fn random_trees_are_planned_as_they_would_be_item_by_item() -> Result {
        let mut random = Random::new(42);
        for round in 0..50 {
            let mut items = KVVec::new();
            let mut wanted = KVVec::new();
            let (mut ino, mut offset) = (256, 0);
            for number in 0..2000 {
                if number == 0 || random.below(3) == 0 {
                    (ino, offset) = (ino + 1 + random.below(3), 0);
                    items.push(item(ino, 0, None), GFP_KERNEL)?;
                }
                // A hole after each extent, so that there are no runs.
                let len = 4 * K * (1 + random.below(16));
                let generation = 1 + random.below(2);
                let found = Extent {
                    generation,
                    ..extent((number + 1) << 20, len)
                };
                items.push(item(ino, offset, Some(found)), GFP_KERNEL)?;
                if generation == 2 {
                    wanted.push((ino, offset, len), GFP_KERNEL)?;
                }
                offset += len + 4 * K;
            }
            let tree = Array::new(&items, 1 + random.below(150) as usize);
            let rotating = round % 2 == 0;
            let mut walk = DataWalk::new(Disk { rotating, ..DISK }, 1, false)?;
            let planned = send(&mut walk, &tree)?;
            let planned = planned
                .iter()
                .map(|range| (range.ino, range.offset, range.len));
            assert!(planned.eq(wanted.iter().copied()));
        }
        Ok(())
    }
}
