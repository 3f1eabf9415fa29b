// SPDX-License-Identifier: GPL-2.0

//! The border between C and Rust: what C calls, and what Rust calls of C.
//!
//! It only turns C's values into Rust's and back. No other file of this crate has unsafe code.

#![expect(unsafe_code)]

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};

use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*, //
};

use crate::{
    lru::{
        Key,
        Lru, //
    },
    reada::{
        self,
        Mode,
        Node, //
    },
    reada_data::{
        self,
        DataWalk,
        Extent,
        Items,
        Range,
        Subvolume, //
    },
    reada_walk::{
        self,
        Disk,
        Leaf,
        Located,
        Tree,
        Walk, //
    },
    send_utimes::DirUtimes,
    share_cache::ShareCache,
};

/// What bindgen makes of `btrfs_rust.h`.
#[allow(dead_code, non_camel_case_types, unreachable_pub, missing_docs)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    use kernel::ffi;

    include!(env!("BTRFS_RUST_BINDINGS"));
}

/// Checks that the functions have the types that `btrfs_rust.h` promises to C.
macro_rules! check_prototypes {
    ($($function:ident),* $(,)?) => {
        $(const _: () = {
            if true {
                bindings::$function
            } else {
                $function
            };
        };)*
    };
}

check_prototypes!(
    btrfs_rust_reada_for_search,
    btrfs_rust_reada_for_move_down,
    btrfs_rust_walk_init,
    btrfs_rust_walk_destroy,
    btrfs_rust_walk_is_due,
    btrfs_rust_walk_plan,
    btrfs_rust_walk_leaf,
    btrfs_rust_walk_last,
    btrfs_rust_walk_restart,
    btrfs_rust_walk_init_listing,
    btrfs_rust_locate,
    btrfs_rust_data_init,
    btrfs_rust_data_destroy,
    btrfs_rust_data_is_due,
    btrfs_rust_data_shrink,
    btrfs_rust_data_plan,
    btrfs_rust_data_range,
    btrfs_rust_data_ordered,
    btrfs_rust_share_lookup,
    btrfs_rust_share_store,
    btrfs_rust_share_end_many_paths,
    btrfs_rust_share_prev_extent,
    btrfs_rust_share_add_prev_extent,
    btrfs_rust_lru_init,
    btrfs_rust_lru_destroy,
    btrfs_rust_lru_lookup,
    btrfs_rust_lru_store,
    btrfs_rust_lru_remove,
    btrfs_rust_lru_remove_oldest,
    btrfs_rust_dir_utimes_init,
    btrfs_rust_dir_utimes_destroy,
    btrfs_rust_dir_utimes_cache,
    btrfs_rust_dir_utimes_next_to_trim,
    btrfs_rust_dir_utimes_next_to_flush,
    btrfs_rust_dir_utimes_remove,
);

#[cfg(CONFIG_BTRFS_RUST_VERIFY)]
check_prototypes!(btrfs_rust_share_block);

#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
check_prototypes!(btrfs_rust_lru_entry_size);

const _: () = assert!(reada::MAX_SCAN < bindings::BTRFS_RUST_READA_MAX);
const _: () = assert!(reada_walk::LISTING == bindings::BTRFS_RUST_LISTING);
const _: () = assert!(reada_data::MAX_INODES == bindings::BTRFS_RUST_DATA_INODES as usize);
const _: () = assert!(reada_data::MAX_RANGES == bindings::BTRFS_RUST_DATA_RANGES as usize);

// C keeps the states in opaque storage.
const _: () = assert!(size_of::<Walk>() <= size_of::<bindings::btrfs_rust_walk>());
const _: () = assert!(align_of::<Walk>() <= align_of::<bindings::btrfs_rust_walk>());
const _: () = assert!(size_of::<Located>() <= size_of::<bindings::btrfs_rust_located>());
const _: () = assert!(align_of::<Located>() <= align_of::<bindings::btrfs_rust_located>());
const _: () = assert!(size_of::<DataWalk>() <= size_of::<bindings::btrfs_rust_data>());
const _: () = assert!(align_of::<DataWalk>() <= align_of::<bindings::btrfs_rust_data>());
const _: () = assert!(size_of::<ShareCache>() <= size_of::<bindings::btrfs_rust_share_cache>());
const _: () = assert!(align_of::<ShareCache>() <= align_of::<bindings::btrfs_rust_share_cache>());
const _: () = assert!(size_of::<Entries>() <= size_of::<bindings::btrfs_rust_lru>());
const _: () = assert!(align_of::<Entries>() <= align_of::<bindings::btrfs_rust_lru>());
const _: () = assert!(size_of::<DirUtimes>() <= size_of::<bindings::btrfs_rust_dir_utimes>());
const _: () = assert!(align_of::<DirUtimes>() <= align_of::<bindings::btrfs_rust_dir_utimes>());

/// What the module parameters of `debug.c` say.
#[cfg(CONFIG_BTRFS_DEBUG)]
fn ablation() -> bindings::btrfs_rust_ablation {
    // SAFETY: It returns a copy of what can be read at any time.
    unsafe { bindings::btrfs_rust_ablation() }
}

/// All parts as they are without module parameters.
#[cfg(not(CONFIG_BTRFS_DEBUG))]
const fn ablation() -> bindings::btrfs_rust_ablation {
    bindings::btrfs_rust_ablation {
        reada_window: 0,
        send_reada: bindings::BTRFS_RUST_READA_WALK as u8,
        share_cache: true,
        utimes_cache: true,
    }
}

/// A node, with a reference.
///
/// # Invariants
///
/// The pointer is to an extent buffer that is a node above the leaves, is up to date, does not
/// change for as long as this exists, and has a reference that is given back when this is dropped.
struct ExtentBuffer(NonNull<bindings::extent_buffer>);

impl ExtentBuffer {
    /// # Safety
    ///
    /// `node` must be null, or as the invariants say.
    unsafe fn new(node: *mut bindings::extent_buffer) -> Option<Self> {
        // INVARIANT: By the safety requirements.
        NonNull::new(node).map(Self)
    }

    /// A node that C holds, and goes on to hold for as long as the result exists.
    ///
    /// # Safety
    ///
    /// `node` must be null, or as the invariants say, but for the reference.
    unsafe fn borrow(node: *const bindings::extent_buffer) -> Option<ManuallyDrop<Self>> {
        // INVARIANT: By the safety requirements; the reference is not given back.
        NonNull::new(node.cast_mut()).map(|node| ManuallyDrop::new(Self(node)))
    }
}

impl Drop for ExtentBuffer {
    fn drop(&mut self) {
        // SAFETY: By the invariants, the reference is ours.
        unsafe { bindings::btrfs_rust_put_node(self.0.as_ptr()) };
    }
}

/// Implements methods of [`Node`] by functions of `helpers.c` with the same arguments.
macro_rules! by_helpers {
    ($($method:ident($($slot:ident)?) -> $result:ty = $helper:ident;)*) => {
        $(fn $method(&self $(, $slot: u32)?) -> $result {
            // SAFETY: By the invariants, this is a node; the helper checks `slot` against what a
            // node has room for.
            unsafe { bindings::$helper(self.0.as_ptr() $(, $slot)?) }
        })*
    };
}

impl Node for ExtentBuffer {
    by_helpers! {
        level() -> u32 = btrfs_rust_node_level;
        nodesize() -> u32 = btrfs_rust_node_size;
        nritems() -> u32 = btrfs_rust_node_nritems;
        blockptr(slot) -> u64 = btrfs_rust_node_blockptr;
        generation(slot) -> u64 = btrfs_rust_node_generation;
    }

    fn key(&self, slot: u32) -> reada::Key {
        // SAFETY: By the invariants, this is a node; the helper checks `slot` against what a node
        // has room for.
        unsafe { bindings::btrfs_rust_node_key(self.0.as_ptr(), slot) }.into()
    }

    fn is_cached(&self, blockptr: u64) -> bool {
        // SAFETY: By the invariants, this is a node.
        unsafe { bindings::btrfs_rust_is_cached(self.0.as_ptr(), blockptr) }
    }
}

impl From<bindings::btrfs_rust_key> for reada::Key {
    fn from(key: bindings::btrfs_rust_key) -> Self {
        Self {
            objectid: key.objectid,
            kind: key.type_,
            offset: key.offset,
        }
    }
}

/// Writes `slots` where C can read them.
///
/// # Safety
///
/// `selected` must be initialised, valid for reading and writing, and the caller's alone.
unsafe fn write_reada(
    selected: *mut bindings::btrfs_rust_reada,
    slots: impl Iterator<Item = u32>, //
) {
    // SAFETY: By the safety requirements.
    let selected = unsafe { &mut *selected };
    selected.count = 0;
    for (to, slot) in selected.slots.iter_mut().zip(slots) {
        *to = slot as u16;
        selected.count += 1;
    }
}

/// Selects the slots of `node` to read ahead when a search for `objectid` with the readahead mode
/// `reada` goes down at `slot`. May sleep.
///
/// # Safety
///
/// `node` must be null or a locked or otherwise unchanging node above the leaves, `selected` must
/// be initialised, valid for reading and writing, and the caller's alone.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_reada_for_search(
    node: *const bindings::extent_buffer,
    slot: c_int,
    reada: u8,
    objectid: u64,
    selected: *mut bindings::btrfs_rust_reada,
) {
    let mut reada = u32::from(reada);
    let send_reada = u32::from(ablation().send_reada);
    if reada == bindings::BTRFS_RUST_READA_FORWARD_ALWAYS
        && send_reada != bindings::BTRFS_RUST_READA_WALK
    {
        reada = send_reada;
    }
    let mode = match reada {
        bindings::BTRFS_RUST_READA_BACK => Mode::Back,
        bindings::BTRFS_RUST_READA_FORWARD => Mode::Forward,
        bindings::BTRFS_RUST_READA_FORWARD_ALWAYS => Mode::ForwardAlways,
        _ => Mode::None,
    };
    // SAFETY: By the safety requirements, `node` outlives this call unchanged.
    let node = unsafe { ExtentBuffer::borrow(node) };
    let search = node
        .as_deref()
        .and_then(|node| reada::for_search(node, slot as u32, mode, objectid));
    // SAFETY: By the safety requirements.
    unsafe { write_reada(selected, search.into_iter().flatten()) };
}

/// Selects the slots of `node` to read ahead when a comparison of trees, whose other tree has all
/// blocks up to generation `min_gen`, goes down at `slot`.
///
/// # Safety
///
/// As for [`btrfs_rust_reada_for_search`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_reada_for_move_down(
    node: *const bindings::extent_buffer,
    slot: c_int,
    min_gen: u64,
    selected: *mut bindings::btrfs_rust_reada,
) {
    // SAFETY: By the safety requirements, `node` outlives this call unchanged.
    let node = unsafe { ExtentBuffer::borrow(node) };
    let slots = node
        .as_deref()
        .filter(|_| u32::from(ablation().send_reada) != bindings::BTRFS_RUST_READA_NONE)
        .map(|node| reada::for_move_down(node, slot as u32, min_gen));
    // SAFETY: By the safety requirements.
    unsafe { write_reada(selected, slots.into_iter().flatten()) };
}

/// The commit root of a tree, or an empty tree for null.
///
/// # Invariants
///
/// The pointer is null, or to a root that exists for as long as this does; `commit_root_sem` is
/// held for reading, so that no block of it changes.
struct CommitRoot(*mut bindings::btrfs_root);

impl Tree for CommitRoot {
    type Node = ExtentBuffer;

    fn root(&self) -> Option<ExtentBuffer> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: By the invariants, this is a root, and the lock is held.
        let node = unsafe { bindings::btrfs_rust_commit_root(self.0) };
        // SAFETY: It is null or a node above the leaves, with a reference for us.
        unsafe { ExtentBuffer::new(node) }
    }

    fn is_contended(&self) -> bool {
        // SAFETY: By the invariants, this is null or a root.
        !self.0.is_null() && unsafe { bindings::btrfs_rust_is_contended(self.0) }
    }

    fn child(
        &self,
        node: &ExtentBuffer,
        slot: u32,
        also: impl Iterator<Item = u32>,
    ) -> Option<ExtentBuffer> {
        for wanted in Iterator::chain(core::iter::once(slot), also) {
            // SAFETY: By the invariants, this is a node; the helper checks the slot.
            unsafe { bindings::btrfs_rust_readahead_child(node.0.as_ptr(), wanted) };
        }
        // SAFETY: By the invariants, this is a node; the helper checks the slot.
        let child = unsafe { bindings::btrfs_rust_read_child(node.0.as_ptr(), slot) };
        // SAFETY: It is null, or a node one level below, with a reference for us; callers do not
        // ask for leaves.
        unsafe { ExtentBuffer::new(child) }
    }
}

impl From<bindings::btrfs_rust_disk> for Disk {
    fn from(disk: bindings::btrfs_rust_disk) -> Self {
        Self {
            rotating: disk.rotating,
            readahead: disk.readahead,
            memory: disk.memory,
            nodesize: disk.nodesize,
        }
    }
}

impl From<Leaf> for bindings::btrfs_rust_leaf {
    fn from(leaf: Leaf) -> Self {
        Self {
            key: bindings::btrfs_rust_key {
                objectid: leaf.key.objectid,
                offset: leaf.key.offset,
                type_: leaf.key.kind,
            },
            blockptr: leaf.blockptr,
            generation: leaf.generation,
            tree: leaf.tree,
        }
    }
}

/// Writes a walk where C can keep it, if there is one and it is not switched off.
///
/// # Safety
///
/// `walk` must be valid for writing.
unsafe fn write_walk(walk: *mut bindings::btrfs_rust_walk, new: Result<Walk>) -> bool {
    if u32::from(ablation().send_reada) != bindings::BTRFS_RUST_READA_WALK {
        return false;
    }
    let Ok(new) = new else {
        return false;
    };
    // SAFETY: By the safety requirements, and the storage is large enough as checked above.
    unsafe { walk.cast::<Walk>().write(new) };
    true
}

/// Prepares the readahead of a walk; false if it is out of memory, or switched off.
///
/// # Safety
///
/// `walk` must be valid for writing, and `disk` for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_init(
    walk: *mut bindings::btrfs_rust_walk,
    disk: *const bindings::btrfs_rust_disk,
) -> bool {
    // SAFETY: By the safety requirements.
    let disk = unsafe { *disk };
    let window = u64::from(ablation().reada_window);
    // SAFETY: By the safety requirements.
    unsafe {
        write_walk(
            walk,
            Walk::new(disk.into(), (window > 0).then_some(window / 2)),
        )
    }
}

/// Prepares the readahead of a listing of file extents; false if it is out of memory, or switched
/// off.
///
/// # Safety
///
/// `walk` must be valid for writing, `disk` and `listing` for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_init_listing(
    walk: *mut bindings::btrfs_rust_walk,
    disk: *const bindings::btrfs_rust_disk,
    listing: *const bindings::btrfs_rust_listing,
) -> bool {
    // SAFETY: By the safety requirements.
    let (disk, listing) = unsafe { (*disk, *listing) };
    let range = listing.start.into()..listing.end.into();
    let new = Walk::listing(disk.into(), range, listing.wanted, listing.is_first);
    // SAFETY: By the safety requirements.
    unsafe { write_walk(walk, new) }
}

/// Looks up the leaf that `key` is in; false if it was the last one already, or could not be found.
/// Reads nodes and waits for them.
///
/// # Safety
///
/// `located` must be all zeroes or what this function has left there, and the caller's alone;
/// `root` must be a root, `key` be valid for reading and `leaf` for writing. `commit_root_sem` must
/// be held.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_locate(
    located: *mut bindings::btrfs_rust_located,
    root: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
    leaf: *mut bindings::btrfs_rust_leaf,
) -> bool {
    // SAFETY: By the safety requirements, and all zeroes is a value of this type.
    let (located, key) = unsafe { (&mut *located.cast::<Located>(), *key) };
    // INVARIANT: By the safety requirements.
    let Some(found) = located.leaf(&CommitRoot(root), key.into()) else {
        return false;
    };
    // SAFETY: By the safety requirements.
    unsafe { leaf.write(found.into()) };
    true
}

/// Frees what [`btrfs_rust_walk_init`] has made.
///
/// # Safety
///
/// `walk` must be what [`btrfs_rust_walk_init`] has made, the caller's alone, and not be used
/// again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_destroy(walk: *mut bindings::btrfs_rust_walk) {
    // SAFETY: By the safety requirements.
    unsafe { walk.cast::<Walk>().drop_in_place() };
}

/// Whether a walk that has come to `key` wants another batch.
///
/// # Safety
///
/// `walk` must be what [`btrfs_rust_walk_init`] has made, and not be changed at the same time;
/// `key` must be valid for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_is_due(
    walk: *const bindings::btrfs_rust_walk,
    key: *const bindings::btrfs_rust_key,
) -> bool {
    // SAFETY: By the safety requirements.
    let (walk, key) = unsafe { (&*walk.cast::<Walk>(), *key) };
    walk.is_due(key.into())
}

/// Plans the next batch of a walk that has come to `key`, and returns how many leaves it has. Reads
/// nodes and waits for them.
///
/// # Safety
///
/// `walk` must be what [`btrfs_rust_walk_init`] has made, and the caller's alone; `left` must be a
/// root and `right` one or null; `key` must be valid for reading. `commit_root_sem` must be held.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_plan(
    walk: *mut bindings::btrfs_rust_walk,
    left: *mut bindings::btrfs_root,
    right: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
) -> u32 {
    // SAFETY: By the safety requirements.
    let (walk, key) = unsafe { (&mut *walk.cast::<Walk>(), *key) };
    // INVARIANT: By the safety requirements.
    walk.plan(&CommitRoot(left), &CommitRoot(right), key.into());
    walk.count() as u32
}

/// Reads the leaf of the last batch that is to be read after `index` others.
///
/// # Safety
///
/// As for [`btrfs_rust_walk_is_due`]; `leaf` must be valid for writing, and is not written to if
/// there are no more than `index`.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_leaf(
    walk: *const bindings::btrfs_rust_walk,
    index: u32,
    leaf: *mut bindings::btrfs_rust_leaf,
) {
    // SAFETY: By the safety requirements.
    let walk = unsafe { &*walk.cast::<Walk>() };
    if let Some(found) = walk.leaf(index as usize) {
        // SAFETY: By the safety requirements.
        unsafe { leaf.write((*found).into()) };
    }
}

/// The address of the leaf of the last batch that the walk needs last, in bytes; 0 if there is
/// none.
///
/// # Safety
///
/// As for [`btrfs_rust_walk_is_due`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_last(walk: *const bindings::btrfs_rust_walk) -> u64 {
    // SAFETY: By the safety requirements.
    let walk = unsafe { &*walk.cast::<Walk>() };
    walk.last().map_or(0, |leaf| leaf.blockptr)
}

/// Has a walk that has come to `key` planned anew, as not all of the last batch was read, or is in
/// memory no more.
///
/// # Safety
///
/// `walk` must be what [`btrfs_rust_walk_init`] has made, and the caller's alone; `key` must be
/// valid for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_restart(
    walk: *mut bindings::btrfs_rust_walk,
    key: *const bindings::btrfs_rust_key,
) {
    // SAFETY: By the safety requirements.
    let (walk, key) = unsafe { (&mut *walk.cast::<Walk>(), *key) };
    walk.restart(key.into());
}

/// A leaf, with a reference.
///
/// # Invariants
///
/// The pointer is to an extent buffer that is a leaf, is up to date, does not change for as long as
/// this exists, and has a reference that is given back when this is dropped.
struct LeafBuffer(NonNull<bindings::extent_buffer>);

impl Drop for LeafBuffer {
    fn drop(&mut self) {
        // SAFETY: By the invariants, the reference is ours.
        unsafe { bindings::btrfs_rust_put_node(self.0.as_ptr()) };
    }
}

impl Items for LeafBuffer {
    fn nritems(&self) -> u32 {
        // SAFETY: By the invariants.
        unsafe { bindings::btrfs_rust_node_nritems(self.0.as_ptr()) }
    }

    fn key(&self, slot: u32) -> reada::Key {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot`.
        unsafe { bindings::btrfs_rust_item_key(self.0.as_ptr(), slot) }.into()
    }

    fn is_file(&self, slot: u32) -> bool {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot` and the item.
        unsafe { bindings::btrfs_rust_item_is_file(self.0.as_ptr(), slot) }
    }

    fn extent(&self, slot: u32) -> Option<Extent> {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot` and the item.
        let extent = unsafe { bindings::btrfs_rust_item_extent(self.0.as_ptr(), slot) };
        (extent.bytenr != 0).then_some(Extent {
            bytenr: extent.bytenr,
            disk_len: extent.disk_len,
            offset: extent.offset,
            len: extent.len,
            generation: extent.generation,
            is_compressed: extent.is_compressed,
        })
    }
}

impl Subvolume for CommitRoot {
    type Items = LeafBuffer;

    fn leaf(&self, node: &ExtentBuffer, slot: u32) -> Option<LeafBuffer> {
        // SAFETY: By the invariants, this is a node; the helper checks the slot.
        let leaf = unsafe { bindings::btrfs_rust_cached_leaf(node.0.as_ptr(), slot) };
        // INVARIANT: It is null, or a leaf with a reference for us, which does not change while
        // the lock is held.
        NonNull::new(leaf).map(LeafBuffer)
    }
}

impl From<Range> for bindings::btrfs_rust_range {
    fn from(range: Range) -> Self {
        Self {
            ino: range.ino,
            offset: range.offset,
            len: range.len,
            bytenr: range.bytenr,
            disk_len: range.disk_len,
            place: range.place,
            number: range.number,
            is_encoded: range.is_encoded,
            is_cut: range.is_cut,
        }
    }
}

/// Prepares the readahead of the file data that a send reads: extents newer than the generation
/// `known`, those that are compressed as they are on disk if `sends_encoded`. False if it is out of
/// memory, or switched off.
///
/// # Safety
///
/// `data` must be valid for writing, and `disk` for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_init(
    data: *mut bindings::btrfs_rust_data,
    disk: *const bindings::btrfs_rust_disk,
    known: u64,
    sends_encoded: bool,
) -> bool {
    if u32::from(ablation().send_reada) != bindings::BTRFS_RUST_READA_WALK {
        return false;
    }
    // SAFETY: By the safety requirements.
    let disk = unsafe { *disk };
    let Ok(new) = DataWalk::new(disk.into(), known, sends_encoded) else {
        return false;
    };
    // SAFETY: By the safety requirements, and the storage is large enough as checked above.
    unsafe { data.cast::<DataWalk>().write(new) };
    true
}

/// Frees what [`btrfs_rust_data_init`] has made.
///
/// # Safety
///
/// `data` must be what [`btrfs_rust_data_init`] has made, the caller's alone, and not be used
/// again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_destroy(data: *mut bindings::btrfs_rust_data) {
    // SAFETY: By the safety requirements.
    unsafe { data.cast::<DataWalk>().drop_in_place() };
}

/// Notes that a send has come to `key`, and whether it `has_read` data since the last call. Says
/// whether it wants another batch, and writes how many ranges it has `passed`.
///
/// # Safety
///
/// `data` must be what [`btrfs_rust_data_init`] has made, and the caller's alone; `key` must be
/// valid for reading, and `passed` for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_is_due(
    data: *mut bindings::btrfs_rust_data,
    key: *const bindings::btrfs_rust_key,
    has_read: bool,
    passed: *mut u32,
) -> bool {
    // SAFETY: By the safety requirements.
    let (data, key) = unsafe { (&mut *data.cast::<DataWalk>(), *key) };
    let is_due = data.is_due(key.into(), has_read);
    // SAFETY: By the safety requirements.
    unsafe { passed.write(data.passed()) };
    is_due
}

/// Notes that what was read ahead was gone when the send came to it.
///
/// # Safety
///
/// `data` must be what [`btrfs_rust_data_init`] has made, and the caller's alone.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_shrink(data: *mut bindings::btrfs_rust_data) {
    // SAFETY: By the safety requirements.
    unsafe { &mut *data.cast::<DataWalk>() }.shrink();
}

/// Plans the next batch of a send of `root` that has come to `key`, and returns how many ranges it
/// has. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_data_is_due`]; `root` must be a root, and `commit_root_sem` be held.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_plan(
    data: *mut bindings::btrfs_rust_data,
    root: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
) -> u32 {
    // SAFETY: By the safety requirements.
    let (data, key) = unsafe { (&mut *data.cast::<DataWalk>(), *key) };
    // INVARIANT: By the safety requirements.
    data.plan(&CommitRoot(root), key.into());
    data.planned().len() as u32
}

/// Reads the range of the last batch that the send comes to after `index` others.
///
/// # Safety
///
/// `data` must be what [`btrfs_rust_data_init`] has made, and not be changed at the same time;
/// `range` must be valid for writing, and is not written to if there are no more than `index`.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_range(
    data: *const bindings::btrfs_rust_data,
    index: u32,
    range: *mut bindings::btrfs_rust_range,
) {
    // SAFETY: By the safety requirements.
    let data = unsafe { &*data.cast::<DataWalk>() };
    if let Some(found) = data.planned().get(index as usize) {
        // SAFETY: By the safety requirements.
        unsafe { range.write((*found).into()) };
    }
}

/// The index, for [`btrfs_rust_data_range`], of the range that is to be read after `index` others.
///
/// # Safety
///
/// As for [`btrfs_rust_data_range`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_ordered(
    data: *const bindings::btrfs_rust_data,
    index: u32,
) -> u32 {
    // SAFETY: By the safety requirements.
    let data = unsafe { &*data.cast::<DataWalk>() };
    data.ordered(index as usize).unwrap_or(index)
}

/// Turns an answer into what C expects: 1, 0 or -ENOENT.
fn answer(is_shared: Option<bool>) -> c_int {
    is_shared.map_or(ENOENT.to_errno(), c_int::from)
}

/// Looks up whether the block at `bytenr` on `level` is shared: 1, 0 or -ENOENT.
///
/// # Safety
///
/// `cache` must be zeroed memory or a cache that only these functions have changed, and the
/// caller's alone.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_lookup(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    level: c_int,
) -> c_int {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    if !ablation().share_cache {
        return answer(None);
    }
    answer(cache.lookup(bytenr, level as usize))
}

/// Stores whether the block at `bytenr` on `level` is shared.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_store(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    level: c_int,
    is_shared: bool,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    cache.store(bytenr, level as usize, is_shared);
}

/// Ends a call that met more than one path and whose result is `result`; `level` is the last one
/// that was on one path only, or negative.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_end_many_paths(
    cache: *mut bindings::btrfs_rust_share_cache,
    level: c_int,
    result: c_int,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    let reached = usize::try_from(level)
        .ok()
        .filter(|_| result >= 0)
        .map(|level| (level, result != 0));
    cache.end_many_paths(reached);
}

/// Reads what is remembered of `level`, for the comparison with the C code.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`]; `block` must be valid for writing.
#[cfg(CONFIG_BTRFS_RUST_VERIFY)]
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_block(
    cache: *const bindings::btrfs_rust_share_cache,
    level: c_int,
    block: *mut bindings::btrfs_rust_share_block,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &*cache.cast::<ShareCache>() };
    if let Some((bytenr, is_shared)) = cache.block(level as usize) {
        let found = bindings::btrfs_rust_share_block { bytenr, is_shared };
        // SAFETY: By the safety requirements.
        unsafe { block.write(found) };
    }
}

/// Looks up whether the data extent at `bytenr` is shared: 1, 0 or -ENOENT.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_prev_extent(
    cache: *const bindings::btrfs_rust_share_cache,
    bytenr: u64,
) -> c_int {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &*cache.cast::<ShareCache>() };
    if !ablation().share_cache {
        return answer(None);
    }
    answer(cache.prev_extent(bytenr))
}

/// Stores whether the data extent at `bytenr` is shared.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_share_add_prev_extent(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    is_shared: bool,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    cache.add_prev_extent(bytenr, is_shared);
}

impl From<bindings::btrfs_rust_dir> for Key {
    fn from(dir: bindings::btrfs_rust_dir) -> Self {
        Self {
            ino: dir.ino,
            generation: dir.gen,
        }
    }
}

/// What C has a `struct btrfs_lru_cache` for. Its entries are C's, which allocates and frees them.
type Entries = Lru<NonNull<c_void>>;

/// What C gets: the pointer, or null.
fn or_null(entry: Option<NonNull<c_void>>) -> *mut c_void {
    entry.map_or(core::ptr::null_mut(), NonNull::as_ptr)
}

/// Makes an empty cache.
///
/// # Safety
///
/// `lru` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_init(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: By the safety requirements, and the storage is large enough as checked above.
    unsafe { lru.cast::<Entries>().write(Lru::new()) };
}

/// Frees what a cache has allocated, which leaves alone what its entries point to.
///
/// # Safety
///
/// `lru` must be a cache that [`btrfs_rust_lru_init`] has made, the caller's alone, and not be used
/// again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_destroy(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: By the safety requirements.
    unsafe { lru.cast::<Entries>().drop_in_place() };
}

/// Finds an entry, which is then the most recently used one, or returns null.
///
/// # Safety
///
/// `lru` must be a cache that [`btrfs_rust_lru_init`] has made, and the caller's alone.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_lookup(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
) -> *mut c_void {
    // SAFETY: By the safety requirements.
    let lru = unsafe { &mut *lru.cast::<Entries>() };
    or_null(lru.touch(Key {
        ino: key,
        generation: gen,
    }))
}

/// Adds an entry: 0, -EEXIST if the key is there, or -ENOMEM. If there are `max_size` already, the
/// least recently used one goes, which `removed` is set to; it is null if none does. May sleep.
///
/// # Safety
///
/// As for [`btrfs_rust_lru_lookup`]; `removed` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_store(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
    entry: *mut c_void,
    max_size: u32,
    removed: *mut *mut c_void,
) -> c_int {
    // SAFETY: By the safety requirements.
    let lru = unsafe { &mut *lru.cast::<Entries>() };
    let stored = NonNull::new(entry).ok_or(EINVAL).and_then(|entry| {
        lru.store(
            Key {
                ino: key,
                generation: gen,
            },
            entry,
            max_size as usize,
            GFP_KERNEL,
        )
    });
    // SAFETY: By the safety requirements.
    unsafe { removed.write(or_null(stored.unwrap_or(None))) };
    stored.map_or_else(Error::to_errno, |_| 0)
}

/// Removes an entry and returns it, or null if it is not there.
///
/// # Safety
///
/// As for [`btrfs_rust_lru_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_remove(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
) -> *mut c_void {
    // SAFETY: By the safety requirements.
    let lru = unsafe { &mut *lru.cast::<Entries>() };
    or_null(lru.remove(Key {
        ino: key,
        generation: gen,
    }))
}

/// Removes the least recently used entry and returns it, or null if there is none.
///
/// # Safety
///
/// As for [`btrfs_rust_lru_lookup`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_remove_oldest(
    lru: *mut bindings::btrfs_rust_lru,
) -> *mut c_void {
    // SAFETY: By the safety requirements.
    let lru = unsafe { &mut *lru.cast::<Entries>() };
    or_null(lru.oldest().and_then(|oldest| lru.remove(oldest)))
}

/// Makes an empty cache.
///
/// # Safety
///
/// `utimes` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_init(utimes: *mut bindings::btrfs_rust_dir_utimes) {
    // SAFETY: By the safety requirements, and the storage is large enough as checked above.
    unsafe { utimes.cast::<DirUtimes>().write(DirUtimes::new()) };
}

/// Frees a cache.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_dir_utimes_init`] has made, the caller's alone, and
/// not be used again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_destroy(utimes: *mut bindings::btrfs_rust_dir_utimes) {
    // SAFETY: By the safety requirements.
    unsafe { utimes.cast::<DirUtimes>().drop_in_place() };
}

/// Remembers that `dir` is owed an utimes command: 0, or -ENOMEM for one to be sent at once.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_dir_utimes_init`] has made, and the caller's alone.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_cache(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
    dir: bindings::btrfs_rust_dir,
) -> c_int {
    // SAFETY: By the safety requirements.
    let utimes = unsafe { &mut *utimes.cast::<DirUtimes>() };
    if !ablation().utimes_cache {
        return ENOMEM.to_errno();
    }
    match utimes.cache(dir.into()) {
        Ok(()) => 0,
        Err(error) => Error::from(error).to_errno(),
    }
}

/// Writes `found` where C can read it, and returns whether there is one.
///
/// # Safety
///
/// `dir` must be valid for writing.
unsafe fn write_dir(dir: *mut bindings::btrfs_rust_dir, found: Option<Key>) -> bool {
    let Some(found) = found else {
        return false;
    };
    let found = bindings::btrfs_rust_dir {
        ino: found.ino,
        gen: found.generation,
    };
    // SAFETY: By the safety requirements.
    unsafe { dir.write(found) };
    true
}

/// Finds the directory to send and remove next after an inode is finished, if any.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_utimes_cache`]; `dir` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_next_to_trim(
    utimes: *const bindings::btrfs_rust_dir_utimes,
    dir: *mut bindings::btrfs_rust_dir,
) -> bool {
    // SAFETY: By the safety requirements.
    let utimes = unsafe { &*utimes.cast::<DirUtimes>() };
    // SAFETY: By the safety requirements.
    unsafe { write_dir(dir, utimes.next_to_trim()) }
}

/// Finds the directory to send and remove next at the end of the send, if any.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_utimes_next_to_trim`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_next_to_flush(
    utimes: *const bindings::btrfs_rust_dir_utimes,
    dir: *mut bindings::btrfs_rust_dir,
) -> bool {
    // SAFETY: By the safety requirements.
    let utimes = unsafe { &*utimes.cast::<DirUtimes>() };
    // SAFETY: By the safety requirements.
    unsafe { write_dir(dir, utimes.next_to_flush()) }
}

/// Forgets `dir`.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_utimes_cache`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_remove(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
    dir: bindings::btrfs_rust_dir,
) {
    // SAFETY: By the safety requirements.
    let utimes = unsafe { &mut *utimes.cast::<DirUtimes>() };
    utimes.remove(dir.into());
}

/// What an entry of the cache takes, in bytes.
#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
#[no_mangle]
extern "C" fn btrfs_rust_lru_entry_size() -> u32 {
    crate::lru::ENTRY_SIZE as u32
}
