// SPDX-License-Identifier: GPL-2.0

//! The border between C and Rust: what C calls, and what Rust calls of C.
//!
//! It only turns C's values into Rust's and back. No other file of this crate has unsafe code.

#![expect(unsafe_code)]

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    error::from_err_ptr,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    types::Opaque, //
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
        Leaf,
        Located,
        Root,
        Tree,
        Walk, //
    },
    send_utimes::DirUtimes,
    share_cache::ShareCache,
    window::{
        Disk,
        Others, //
    },
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
    btrfs_rust_window,
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

/// Storage in which C keeps a state of Rust.
///
/// `storages!` gives each type of storage its one type of state. So no access can name another one.
trait Storage: Sized {
    /// The state. Another task may use it later.
    type State: Send;

    /// Writes a new state.
    ///
    /// # Safety
    ///
    /// `storage` must be valid for writing. A state that is in it is not dropped.
    unsafe fn write(storage: *mut Self, state: Self::State) {
        // SAFETY: The storage is valid for writing. `storages!` has checked size and alignment.
        unsafe { storage.cast::<Self::State>().write(state) };
    }

    /// # Safety
    ///
    /// `storage` must have a state, which nobody changes for as long as the result is used. The
    /// state is one that [`Storage::write`] has written, or all zeroes if those are one.
    unsafe fn get<'a>(storage: *const Self) -> &'a Self::State {
        // SAFETY: The storage has a state, which nobody changes.
        unsafe { &*storage.cast::<Self::State>() }
    }

    /// # Safety
    ///
    /// `storage` must have a state that [`Storage::write`] has written, and that nobody else uses
    /// for as long as the result is used.
    unsafe fn get_mut<'a>(storage: *mut Self) -> &'a mut Self::State {
        // SAFETY: The storage has a state, which nobody else uses.
        unsafe { &mut *storage.cast::<Self::State>() }
    }

    /// # Safety
    ///
    /// As for [`Storage::get_mut`], but `storage` may also be all zeroes.
    unsafe fn zeroable<'a>(storage: *mut Self) -> &'a mut Self::State
    where
        Self::State: Zeroable,
    {
        // SAFETY: The storage has a state, as all zeroes are one. Nobody else uses it.
        unsafe { &mut *storage.cast::<Self::State>() }
    }

    /// Drops the state.
    ///
    /// # Safety
    ///
    /// As for [`Storage::get_mut`]. The state must not be used again.
    unsafe fn destroy(storage: *mut Self) {
        // SAFETY: The storage has a state, which nobody uses again.
        unsafe { storage.cast::<Self::State>().drop_in_place() };
    }
}

/// Says which state is in which storage, and checks that it fits.
macro_rules! storages {
    ($($storage:ident: $state:ty;)*) => {
        $(
            const _: () = assert!(size_of::<$state>() <= size_of::<bindings::$storage>());
            const _: () = assert!(align_of::<$state>() <= align_of::<bindings::$storage>());
            impl Storage for bindings::$storage {
                type State = $state;
            }
        )*
    };
}

storages! {
    btrfs_rust_walk: Walk;
    btrfs_rust_located: Located;
    btrfs_rust_data: DataWalk;
    btrfs_rust_share_cache: ShareCache;
    btrfs_rust_lru: Lru<Entry>;
    btrfs_rust_dir_utimes: DirUtimes;
}

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
        reada: bindings::BTRFS_RUST_READA_FORWARD_ALWAYS as u8,
        share_cache: true,
        utimes_cache: true,
    }
}

/// An extent buffer that is a node above the leaves.
///
/// # Invariants
///
/// The extent buffer is up to date, its level is at least 1, and it does not change for as long as
/// a reference to this exists.
#[repr(transparent)]
struct NodeBuffer(Opaque<bindings::extent_buffer>);

impl NodeBuffer {
    /// # Safety
    ///
    /// `node` must be null, or point to an extent buffer as the invariants say for as long as `'a`.
    unsafe fn from_raw<'a>(node: *const bindings::extent_buffer) -> Option<&'a Self> {
        // SAFETY: The pointer is null or valid for `'a`, and `Opaque` is transparent.
        // INVARIANT: The caller promises them.
        unsafe { node.cast::<Self>().as_ref() }
    }

    fn as_ptr(&self) -> *mut bindings::extent_buffer {
        self.0.get()
    }
}

/// Implements methods of [`Node`] by functions of `helpers.c` with the same arguments.
macro_rules! by_helpers {
    ($($method:ident($($slot:ident)?) -> $result:ty = $helper:ident;)*) => {
        $(fn $method(&self $(, $slot: u32)?) -> $result {
            // SAFETY: By the invariants, this is a node. The helper compares `slot` with the room
            // in a node.
            unsafe { bindings::$helper(self.as_ptr() $(, $slot)?) }
        })*
    };
}

impl Node for NodeBuffer {
    by_helpers! {
        level() -> u32 = btrfs_rust_node_level;
        nodesize() -> u32 = btrfs_rust_node_size;
        nritems() -> u32 = btrfs_rust_node_nritems;
        blockptr(slot) -> u64 = btrfs_rust_node_blockptr;
        generation(slot) -> u64 = btrfs_rust_node_generation;
    }

    fn key(&self, slot: u32) -> reada::Key {
        // SAFETY: By the invariants, this is a node. The helper compares `slot` with the room in a
        // node.
        unsafe { bindings::btrfs_rust_node_key(self.as_ptr(), slot) }.into()
    }

    fn is_cached(&self, blockptr: u64) -> bool {
        // SAFETY: By the invariants, this is a node.
        unsafe { bindings::btrfs_rust_is_cached(self.as_ptr(), blockptr) }
    }
}

/// The `commit_root_sem` of a filesystem, held for reading.
///
/// # Invariants
///
/// C holds the semaphore for as long as this exists.
struct CommitRootSem(());

impl CommitRootSem {
    /// # Safety
    ///
    /// C must hold the semaphore for reading for as long as the result exists.
    unsafe fn held() -> Self {
        // INVARIANT: The caller promises it.
        Self(())
    }
}

/// A reference to a block of a commit root.
///
/// # Invariants
///
/// The pointer is to an extent buffer, of whose references one is this one's. It is up to date, and
/// does not change during `'lock`.
struct BufferRef<'lock> {
    buffer: NonNull<bindings::extent_buffer>,
    _lock: PhantomData<&'lock CommitRootSem>,
}

impl BufferRef<'_> {
    /// # Safety
    ///
    /// `buffer` must be null, or as the invariants say.
    unsafe fn new(buffer: *mut bindings::extent_buffer) -> Option<Self> {
        // INVARIANT: The caller promises them.
        Some(Self {
            buffer: NonNull::new(buffer)?,
            _lock: PhantomData,
        })
    }
}

impl Drop for BufferRef<'_> {
    fn drop(&mut self) {
        // SAFETY: By the invariants, the reference is ours. Nobody uses it again.
        unsafe { bindings::btrfs_rust_put_node(self.buffer.as_ptr()) };
    }
}

/// A node of a commit root.
///
/// # Invariants
///
/// The level of the extent buffer is at least 1.
struct NodeRef<'lock>(BufferRef<'lock>);

impl Deref for NodeRef<'_> {
    type Target = NodeBuffer;

    fn deref(&self) -> &NodeBuffer {
        // SAFETY: By the invariants, this is a node, which does not change during `'lock` and
        // exists for as long as this reference to it.
        unsafe { &*self.0.buffer.as_ptr().cast() }
    }
}

/// A leaf of a commit root.
///
/// # Invariants
///
/// The level of the extent buffer is 0.
struct LeafRef<'lock>(BufferRef<'lock>);

impl LeafRef<'_> {
    fn as_ptr(&self) -> *mut bindings::extent_buffer {
        self.0.buffer.as_ptr()
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
fn write_reada(selected: &mut bindings::btrfs_rust_reada, slots: impl Iterator<Item = u32>) {
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
    if reada == bindings::BTRFS_RUST_READA_FORWARD_ALWAYS {
        reada = u32::from(ablation().reada);
    }
    let mode = match reada {
        bindings::BTRFS_RUST_READA_BACK => Mode::Back,
        bindings::BTRFS_RUST_READA_FORWARD => Mode::Forward,
        bindings::BTRFS_RUST_READA_FORWARD_ALWAYS => Mode::ForwardAlways,
        _ => Mode::None,
    };
    // SAFETY: C has locked the node, or it is one of a commit root, and holds it during this call.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let search = node.and_then(|node| reada::for_search(node, slot as u32, mode, objectid));
    // SAFETY: `selected` is a variable of the caller, who has initialised it.
    let selected = unsafe { &mut *selected };
    write_reada(selected, search.into_iter().flatten());
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
    // SAFETY: C has locked the node, or it is one of a commit root, and holds it during this call.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let slots = node
        .filter(|_| u32::from(ablation().reada) != bindings::BTRFS_RUST_READA_NONE)
        .map(|node| reada::for_move_down(node, slot as u32, min_gen));
    // SAFETY: `selected` is a variable of the caller, who has initialised it.
    let selected = unsafe { &mut *selected };
    write_reada(selected, slots.into_iter().flatten());
}

/// The commit root of a tree, or an empty tree for null.
///
/// # Invariants
///
/// The pointer is null, or to a root that exists during `'lock`, of the filesystem whose semaphore
/// is held then.
struct CommitRoot<'lock> {
    root: *mut bindings::btrfs_root,
    _lock: PhantomData<&'lock CommitRootSem>,
}

impl<'lock> CommitRoot<'lock> {
    /// # Safety
    ///
    /// `root` must be null, or a root of the filesystem whose semaphore `_lock` is, and exist for
    /// as long as that is held.
    unsafe fn new(_lock: &'lock CommitRootSem, root: *mut bindings::btrfs_root) -> Self {
        // INVARIANT: The caller promises them.
        Self {
            root,
            _lock: PhantomData,
        }
    }
}

impl<'lock> Tree for CommitRoot<'lock> {
    type Node = NodeRef<'lock>;

    fn root(&self) -> Root<NodeRef<'lock>> {
        if self.root.is_null() {
            return Root::Leaf;
        }
        // SAFETY: By the invariants, this is a root, and the semaphore is held.
        let node = unsafe { bindings::btrfs_rust_commit_root(self.root) };
        let Ok(node) = from_err_ptr(node) else {
            return Root::Uncommitted;
        };
        // SAFETY: The helper has returned null, or a committed node with a reference for us. The
        // semaphore keeps it from changing.
        let node = unsafe { BufferRef::new(node) };
        // INVARIANT: The helper has looked at the level.
        node.map_or(Root::Leaf, |node| Root::Node(NodeRef(node)))
    }

    fn is_contended(&self) -> bool {
        // SAFETY: By the invariants, this is null or a root.
        !self.root.is_null() && unsafe { bindings::btrfs_rust_is_contended(self.root) }
    }

    fn child(
        &self,
        node: &NodeRef<'lock>,
        slot: u32,
        also: impl Iterator<Item = u32>,
    ) -> Option<NodeRef<'lock>> {
        for wanted in Iterator::chain(core::iter::once(slot), also) {
            // SAFETY: By the invariants, this is a node. The helper checks the slot.
            unsafe { bindings::btrfs_rust_readahead_child(node.as_ptr(), wanted) };
        }
        // SAFETY: By the invariants, this is a node. The helper checks the slot.
        let child = unsafe { bindings::btrfs_rust_read_child(node.as_ptr(), slot) };
        // SAFETY: The helper has returned null, or a block of the same tree with a reference for
        // us. The semaphore keeps it from changing.
        // INVARIANT: The helper has looked at the level.
        unsafe { BufferRef::new(child) }.map(NodeRef)
    }
}

impl From<bindings::btrfs_rust_disk> for Disk {
    fn from(disk: bindings::btrfs_rust_disk) -> Self {
        Self {
            rotating: disk.rotating,
            readahead: disk.readahead,
            window_kb: disk.window_kb,
            memory: disk.memory,
            nodesize: disk.nodesize,
        }
    }
}

/// The most bytes that one reader reads ahead of `disk`.
///
/// # Safety
///
/// `disk` must be valid for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_window(disk: *const bindings::btrfs_rust_disk) -> u64 {
    // SAFETY: `disk` is valid for reading.
    let disk = unsafe { *disk };
    Disk::from(disk).window()
}

impl From<bindings::btrfs_rust_others> for Others {
    fn from(others: bindings::btrfs_rust_others) -> Self {
        Self {
            held: others.held,
            count: others.count,
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

/// Writes a walk where C can keep it, if there is one.
///
/// # Safety
///
/// `walk` must be valid for writing.
unsafe fn write_walk(walk: *mut bindings::btrfs_rust_walk, new: Result<Walk>) -> bool {
    let Ok(new) = new else {
        return false;
    };
    // SAFETY: `walk` is valid for writing.
    unsafe { Storage::write(walk, new) };
    true
}

/// Prepares the readahead of a walk; false if it is out of memory.
///
/// # Safety
///
/// `walk` must be valid for writing, and `disk` for reading.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_init(
    walk: *mut bindings::btrfs_rust_walk,
    disk: *const bindings::btrfs_rust_disk,
) -> bool {
    // SAFETY: `disk` is a variable of the caller.
    let disk = unsafe { *disk };
    let new = Walk::new(disk.into(), None);
    // SAFETY: `walk` is a variable of the caller.
    unsafe { write_walk(walk, new) }
}

/// Prepares the readahead of a listing of file extents; false if it is out of memory.
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
    // SAFETY: Both are variables of the caller.
    let (disk, listing) = unsafe { (*disk, *listing) };
    let range = listing.start.into()..listing.end.into();
    let new = Walk::listing(disk.into(), range, listing.wanted, listing.is_first);
    // SAFETY: `walk` is a variable of the caller.
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
    // SAFETY: `located` was all zeroes at first, and only one task uses it; `key` is a variable.
    let (located, key) = unsafe { (Storage::zeroable(located), *key) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: `root` is a root that C holds during this call, of the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    let Some(found) = located.leaf(&tree, key.into()) else {
        return false;
    };
    // SAFETY: `leaf` is a variable of the caller.
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
    // SAFETY: C calls this once for a walk that was made, and does not use it again.
    unsafe { Storage::destroy(walk) };
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
    // SAFETY: The walk was made, and the worker is done with it; `key` is a variable.
    let (walk, key) = unsafe { (Storage::get(walk), *key) };
    walk.is_due(key.into())
}

/// Plans the next batch of a walk that has come to `key`. Reads nodes and waits for them.
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
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_batch {
    // SAFETY: The walk was made, and the worker is done with it; `key` is a variable.
    let (walk, key) = unsafe { (Storage::get_mut(walk), *key) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: Both are roots, or null, that C holds during this call, of the filesystem of the
    // semaphore.
    let (left, right) = unsafe { (CommitRoot::new(&lock, left), CommitRoot::new(&lock, right)) };
    walk.plan(&left, &right, key.into(), others.into());
    bindings::btrfs_rust_batch {
        held: walk.held(),
        count: walk.count() as u32,
    }
}

/// Copies entry `index` of the last batch, in the order of submission; false if there is none.
///
/// # Safety
///
/// As for [`btrfs_rust_walk_is_due`]; `leaf` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_leaf(
    walk: *const bindings::btrfs_rust_walk,
    index: u32,
    leaf: *mut bindings::btrfs_rust_leaf,
) -> bool {
    // SAFETY: The walk was made, and is not planned while a batch is submitted.
    let walk = unsafe { Storage::get(walk) };
    let Some(found) = walk.leaf(index as usize) else {
        return false;
    };
    // SAFETY: `leaf` is a variable of the caller.
    unsafe { leaf.write((*found).into()) };
    true
}

/// The address of the leaf of the last batch that the walk needs last, in bytes; 0 if there is
/// none.
///
/// # Safety
///
/// As for [`btrfs_rust_walk_is_due`].
#[no_mangle]
unsafe extern "C" fn btrfs_rust_walk_last(walk: *const bindings::btrfs_rust_walk) -> u64 {
    // SAFETY: The walk was made, and the worker is done with it.
    let walk = unsafe { Storage::get(walk) };
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
    // SAFETY: The walk was made, and the worker is done with it; `key` is a variable.
    let (walk, key) = unsafe { (Storage::get_mut(walk), *key) };
    walk.restart(key.into());
}

impl Items for LeafRef<'_> {
    fn nritems(&self) -> u32 {
        // SAFETY: By the invariants, this is an extent buffer.
        unsafe { bindings::btrfs_rust_node_nritems(self.as_ptr()) }
    }

    fn key(&self, slot: u32) -> reada::Key {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot`.
        unsafe { bindings::btrfs_rust_item_key(self.as_ptr(), slot) }.into()
    }

    fn is_file(&self, slot: u32) -> bool {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot` and the item.
        unsafe { bindings::btrfs_rust_item_is_file(self.as_ptr(), slot) }
    }

    fn extent(&self, slot: u32) -> Option<Extent> {
        // SAFETY: By the invariants, this is a leaf; the helper checks `slot` and the item.
        let extent = unsafe { bindings::btrfs_rust_item_extent(self.as_ptr(), slot) };
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

impl<'lock> Subvolume for CommitRoot<'lock> {
    type Items = LeafRef<'lock>;

    fn leaf(&self, node: &NodeRef<'lock>, slot: u32) -> Option<LeafRef<'lock>> {
        // SAFETY: By the invariants, this is a node. The helper checks the slot.
        let leaf = unsafe { bindings::btrfs_rust_cached_leaf(node.as_ptr(), slot) };
        // SAFETY: The helper has returned null, or a block of the same tree with a reference for
        // us. The semaphore keeps it from changing.
        // INVARIANT: The helper has looked at the level.
        unsafe { BufferRef::new(leaf) }.map(LeafRef)
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
/// memory.
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
    // SAFETY: `disk` is a variable of the caller.
    let disk = unsafe { *disk };
    let Ok(new) = DataWalk::new(disk.into(), known, sends_encoded) else {
        return false;
    };
    // SAFETY: `data` is a variable of the caller.
    unsafe { Storage::write(data, new) };
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
    // SAFETY: C calls this once for what was made, and does not use it again.
    unsafe { Storage::destroy(data) };
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
    // SAFETY: `data` was made, and only the sender uses it; `key` is a variable.
    let (data, key) = unsafe { (Storage::get_mut(data), *key) };
    let is_due = data.is_due(key.into(), has_read);
    // SAFETY: `passed` is a variable of the caller.
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
    // SAFETY: `data` was made, and only the sender uses it.
    unsafe { Storage::get_mut(data) }.shrink();
}

/// Plans the next batch of a send of `root` that has come to `key`. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_data_is_due`]; `root` must be a root, and `commit_root_sem` be held.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_plan(
    data: *mut bindings::btrfs_rust_data,
    root: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_batch {
    // SAFETY: `data` was made, and only the sender uses it; `key` is a variable.
    let (data, key) = unsafe { (Storage::get_mut(data), *key) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: `root` is a root that C holds during this call, of the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    data.plan(&tree, key.into(), others.into());
    bindings::btrfs_rust_batch {
        held: data.held(),
        count: data.planned().len() as u32,
    }
}

/// Copies entry `index` of the last batch, in the order of the send; false if there is none.
///
/// # Safety
///
/// `data` must be what [`btrfs_rust_data_init`] has made, and not be changed at the same time;
/// `range` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_data_range(
    data: *const bindings::btrfs_rust_data,
    index: u32,
    range: *mut bindings::btrfs_rust_range,
) -> bool {
    // SAFETY: `data` was made, and only the sender uses it.
    let data = unsafe { Storage::get(data) };
    let Some(found) = data.planned().get(index as usize) else {
        return false;
    };
    // SAFETY: `range` is a variable of the caller.
    unsafe { range.write((*found).into()) };
    true
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
    // SAFETY: `data` was made, and only the sender uses it.
    let data = unsafe { Storage::get(data) };
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::get(cache) };
    if let Some((bytenr, is_shared)) = cache.block(level as usize) {
        let found = bindings::btrfs_rust_share_block { bytenr, is_shared };
        // SAFETY: `block` is a variable of the caller.
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::get(cache) };
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
    // SAFETY: The cache was all zeroes at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
    cache.add_prev_extent(bytenr, is_shared);
}

impl From<bindings::btrfs_rust_dir> for Key {
    fn from(dir: bindings::btrfs_rust_dir) -> Self {
        Self {
            ino: dir.ino,
            generation: dir.generation,
        }
    }
}

/// A pointer to an entry of a `struct btrfs_lru_cache`. C allocates and frees the entry.
#[derive(Clone, Copy)]
struct Entry(NonNull<c_void>);

// SAFETY: Rust does not use what the pointer is to.
unsafe impl Send for Entry {}

/// What C gets: the pointer, or null.
fn or_null(entry: Option<Entry>) -> *mut c_void {
    entry.map_or(core::ptr::null_mut(), |entry| entry.0.as_ptr())
}

/// Makes an empty cache.
///
/// # Safety
///
/// `lru` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_init(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: `lru` is a new cache of the caller.
    unsafe { Storage::write(lru, Lru::new()) };
}

/// Frees what a cache has allocated, which leaves alone what its entries point to.
///
/// # Safety
///
/// `lru` must be a cache that [`btrfs_rust_lru_init`] has made, the caller's alone, and not be used
/// again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_lru_destroy(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: C calls this once for a cache that was made, and does not use it again.
    unsafe { Storage::destroy(lru) };
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
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
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
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    let entry = NonNull::new(entry).map(Entry);
    let stored = entry.ok_or(EINVAL).and_then(|entry| {
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
    // SAFETY: `removed` is a variable of the caller.
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
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
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
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.oldest().and_then(|oldest| lru.remove(oldest)))
}

/// Makes an empty cache.
///
/// # Safety
///
/// `utimes` must be valid for writing.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_init(utimes: *mut bindings::btrfs_rust_dir_utimes) {
    // SAFETY: `utimes` is a new cache of the caller.
    unsafe { Storage::write(utimes, DirUtimes::new()) };
}

/// Frees a cache.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_dir_utimes_init`] has made, the caller's alone, and
/// not be used again.
#[no_mangle]
unsafe extern "C" fn btrfs_rust_dir_utimes_destroy(utimes: *mut bindings::btrfs_rust_dir_utimes) {
    // SAFETY: C calls this once for a cache that was made, and does not use it again.
    unsafe { Storage::destroy(utimes) };
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
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
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
        generation: found.generation,
    };
    // SAFETY: `dir` is valid for writing.
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
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get(utimes) };
    // SAFETY: `dir` is a variable of the caller.
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
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get(utimes) };
    // SAFETY: `dir` is a variable of the caller.
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
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    utimes.remove(dir.into());
}

/// What an entry of the cache takes, in bytes.
#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
#[no_mangle]
extern "C" fn btrfs_rust_lru_entry_size() -> u32 {
    crate::lru::ENTRY_SIZE as u32
}
