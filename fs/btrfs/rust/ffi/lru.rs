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

/// A pointer to a `struct btrfs_lru_cache_entry`, which C allocates and frees.
#[derive(Clone, Copy)]
pub(super) struct EntryPtr(NonNull<c_void>);

// SAFETY: Rust stores the pointer and returns it to C, but does not dereference it.
unsafe impl Send for EntryPtr {}

/// Converts an entry to a pointer for C, null for none.
fn or_null(entry: Option<EntryPtr>) -> *mut c_void {
    entry.map_or(core::ptr::null_mut(), |entry| entry.0.as_ptr())
}

/// Initializes an empty cache.
///
/// # Safety
///
/// `lru` must be valid for writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_init(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: `lru` is memory of the caller that holds no state yet.
    unsafe { Storage::write(lru, Lru::new()) };
}

/// Frees the arrays of a cache, but not its entries, which belong to C.
///
/// # Safety
///
/// `lru` must have been initialized by [`btrfs_rust_lru_init`]. No other task may use it, and it
/// must not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_destroy(lru: *mut bindings::btrfs_rust_lru) {
    // SAFETY: C calls this once for each initialized cache and does not use it again.
    unsafe { Storage::destroy(lru) };
}

/// Looks up an entry and makes it the most recently used one. Returns null if there is none.
///
/// # Safety
///
/// `lru` must have been initialized by [`btrfs_rust_lru_init`]. No other task may use it during the
/// call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_lookup(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
) -> *mut c_void {
    // SAFETY: `lru` was initialized, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.touch(LruKey {
        ino: key,
        generation: gen,
    }))
}

/// Adds an entry. Returns 0, -EEXIST if the key is cached, -ENOMEM, or -EINVAL if `entry` is null.
/// If the cache has `max_size` entries, removes the least recently used one and sets `removed` to
/// it, otherwise to null. A `max_size` of 0 is no limit. May sleep.
///
/// # Safety
///
/// As for [`btrfs_rust_lru_lookup`]; `removed` must be valid for writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_store(
    lru: *mut bindings::btrfs_rust_lru,
    key: u64,
    gen: u64,
    entry: *mut c_void,
    max_size: u32,
    removed: *mut *mut c_void,
) -> c_int {
    // SAFETY: `lru` was initialized, and only its owner uses it.
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
    // SAFETY: `removed` points to a variable of the caller.
    unsafe { removed.write(or_null(stored.unwrap_or(None))) };
    stored.map_or_else(Error::to_errno, |_| 0)
}

/// Removes an entry and returns it, null if it is not cached.
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
    // SAFETY: `lru` was initialized, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.remove(LruKey {
        ino: key,
        generation: gen,
    }))
}

/// Removes the least recently used entry and returns it, null if the cache is empty.
///
/// # Safety
///
/// As for [`btrfs_rust_lru_lookup`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_remove_oldest(
    lru: *mut bindings::btrfs_rust_lru,
) -> *mut c_void {
    // SAFETY: `lru` was initialized, and only its owner uses it.
    let lru = unsafe { Storage::get_mut(lru) };
    or_null(lru.oldest().and_then(|oldest| lru.remove(oldest)))
}

/// Size of an entry of the cache, in bytes.
///
/// # Safety
///
/// There are no preconditions. bindgen declares all functions of C as unsafe.
#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_lru_entry_size() -> u32 {
    crate::lru::ENTRY_SIZE as u32
}
