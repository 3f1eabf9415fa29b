// SPDX-License-Identifier: GPL-2.0

//! The border between C and Rust: what C calls, and what Rust calls of C.
//!
//! It only turns C's values into Rust's and back. No other file of this crate has unsafe code.

#![expect(unsafe_code)]

use core::ptr::NonNull;

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use crate::{
    lru::Key,
    reada::{
        self,
        Mode,
        Node, //
    },
    send_utimes::DirUtimes,
    share_cache::{
        Generations,
        ShareCache, //
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
    btrfs_rust_share_lookup,
    btrfs_rust_share_store,
    btrfs_rust_share_end_many_paths,
    btrfs_rust_share_prev_extent,
    btrfs_rust_share_add_prev_extent,
    btrfs_rust_dir_utimes_init,
    btrfs_rust_dir_utimes_destroy,
    btrfs_rust_dir_utimes_cache,
    btrfs_rust_dir_utimes_next_to_trim,
    btrfs_rust_dir_utimes_next_to_flush,
    btrfs_rust_dir_utimes_remove,
);

#[cfg(CONFIG_BTRFS_RUST_VERIFY)]
check_prototypes!(btrfs_rust_share_block);

const _: () = assert!(reada::MAX_SCAN < bindings::BTRFS_RUST_READA_MAX);

// C keeps the states in opaque storage.
const _: () = assert!(size_of::<ShareCache>() <= size_of::<bindings::btrfs_rust_share_cache>());
const _: () = assert!(align_of::<ShareCache>() <= align_of::<bindings::btrfs_rust_share_cache>());
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
        reada_window: reada::WINDOW,
        send_reada: bindings::BTRFS_RUST_READA_FORWARD_ALWAYS as u8,
        share_cache: true,
        utimes_cache: true,
    }
}

/// A node that C holds.
///
/// # Invariants
///
/// The pointer is to an extent buffer that is a node above the leaves, is up to date, and neither
/// changes nor goes away for as long as this exists.
struct ExtentBuffer(NonNull<bindings::extent_buffer>);

impl ExtentBuffer {
    /// # Safety
    ///
    /// `node` must be null, or as the invariants say for as long as the result exists.
    unsafe fn new(node: *const bindings::extent_buffer) -> Option<Self> {
        // INVARIANT: By the safety requirements.
        NonNull::new(node.cast_mut()).map(Self)
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
        objectid(slot) -> u64 = btrfs_rust_node_objectid;
    }

    fn is_cached(&self, blockptr: u64) -> bool {
        // SAFETY: By the invariants, this is a node.
        unsafe { bindings::btrfs_rust_is_cached(self.0.as_ptr(), blockptr) }
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
    let (mut reada, ablation) = (u32::from(reada), ablation());
    if reada == bindings::BTRFS_RUST_READA_FORWARD_ALWAYS {
        reada = u32::from(ablation.send_reada);
    }
    let mode = match reada {
        bindings::BTRFS_RUST_READA_BACK => Mode::Back,
        bindings::BTRFS_RUST_READA_FORWARD => Mode::Forward,
        bindings::BTRFS_RUST_READA_FORWARD_ALWAYS => Mode::ForwardAlways,
        _ => Mode::None,
    };
    // SAFETY: By the safety requirements, `node` outlives this call unchanged.
    let node = unsafe { ExtentBuffer::new(node) };
    let search = node.as_ref().and_then(|node| {
        reada::for_search(node, slot as u32, mode, objectid, ablation.reada_window)
    });
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
    let node = unsafe { ExtentBuffer::new(node) };
    let slots = node
        .as_ref()
        .filter(|_| u32::from(ablation().send_reada) != bindings::BTRFS_RUST_READA_NONE)
        .map(|node| reada::for_move_down(node, slot as u32, min_gen));
    // SAFETY: By the safety requirements.
    unsafe { write_reada(selected, slots.into_iter().flatten()) };
}

impl From<bindings::btrfs_rust_share_gens> for Generations {
    fn from(gens: bindings::btrfs_rust_share_gens) -> Self {
        Self {
            last_snapshot: gens.last_snapshot,
            last_root_drop: gens.last_root_drop,
        }
    }
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
    now: bindings::btrfs_rust_share_gens,
) -> c_int {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    if !ablation().share_cache {
        return answer(None);
    }
    answer(cache.lookup(bytenr, level as usize, now.into()))
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
    now: bindings::btrfs_rust_share_gens,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    cache.store(bytenr, level as usize, is_shared, now.into());
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
    now: bindings::btrfs_rust_share_gens,
) {
    // SAFETY: By the safety requirements; `ShareCache` is `Zeroable`.
    let cache = unsafe { &mut *cache.cast::<ShareCache>() };
    let reached = usize::try_from(level)
        .ok()
        .filter(|_| result >= 0)
        .map(|level| (level, result != 0));
    cache.end_many_paths(reached, now.into());
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
    if let Some((bytenr, gen, is_shared)) = cache.block(level as usize) {
        let found = bindings::btrfs_rust_share_block {
            bytenr,
            gen,
            is_shared,
        };
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
