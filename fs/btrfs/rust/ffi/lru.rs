// SPDX-License-Identifier: GPL-2.0

//! Exports of `lru.rs`.

use core::ptr::NonNull;

use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
};

use super::{
    bindings,
    Storage, //
};
use crate::lru::{
    Lru,
    LruKey, //
};

/// A pointer to an entry of a `struct btrfs_lru_cache`. C allocates and frees the entry.
#[derive(Clone, Copy)]
pub(super) struct EntryPtr(NonNull<c_void>);

// SAFETY: Rust does not use what the pointer is to.
unsafe impl Send for EntryPtr {}

/// What C gets: the pointer, or null.
fn or_null(entry: Option<EntryPtr>) -> *mut c_void {
    entry.map_or(core::ptr::null_mut(), |entry| entry.0.as_ptr())
}

/// Makes an empty cache.
///
/// # Safety
///
/// `lru` must be valid for writing.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_init(lru: *mut bindings::btrfs_rust_lru) {
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
pub(super) unsafe extern "C" fn btrfs_rust_lru_destroy(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: C calls this once for a cache that was made, and does not use it again.
    unsafe { Storage::destroy(lru) };
}

/// Finds an entry, which is then the most recently used one, or returns null.
///
/// # Safety
///
/// `lru` must be a cache that [`btrfs_rust_lru_init`] has made, and the caller's alone.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_lookup(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
) -> *mut c_void {
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.touch(LruKey {
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
pub(super) unsafe extern "C" fn btrfs_rust_lru_store(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
    entry: *mut c_void,
    max_size: u32,
    removed: *mut *mut c_void,
) -> c_int {
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    let entry = NonNull::new(entry).map(EntryPtr);
    let stored = entry.ok_or(EINVAL).and_then(|entry| {
        lru.store(
            LruKey {
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
pub(super) unsafe extern "C" fn btrfs_rust_lru_remove(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
) -> *mut c_void {
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.remove(LruKey {
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
pub(super) unsafe extern "C" fn btrfs_rust_lru_remove_oldest(
    lru: *mut bindings::btrfs_rust_lru,
) -> *mut c_void {
    // SAFETY: The cache was made, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.oldest().and_then(|oldest| lru.remove(oldest)))
}

/// What an entry of the cache takes, in bytes.
#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
#[no_mangle]
pub(super) extern "C" fn btrfs_rust_lru_entry_size() -> u32 {
    crate::lru::ENTRY_SIZE as u32
}
