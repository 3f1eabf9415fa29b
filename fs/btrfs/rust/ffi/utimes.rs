// SPDX-License-Identifier: GPL-2.0

//! Exports of `send_utimes.rs`.

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    bindings,
    tunables,
    Storage, //
};
use crate::{
    lru::LruKey,
    send_utimes::DirUtimes, //
};

/// Makes an empty cache.
///
/// # Safety
///
/// `utimes` must be valid for writing.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_init(
    utimes: *mut bindings::btrfs_rust_send_utimes,
) {
    // SAFETY: `utimes` is a new cache of the caller.
    unsafe { Storage::write(utimes, DirUtimes::new()) };
}

/// Frees a cache.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_send_utimes_init`] has made, the caller's alone, and
/// not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_destroy(
    utimes: *mut bindings::btrfs_rust_send_utimes,
) {
    // SAFETY: C calls this once for a cache that was made, and does not use it again.
    unsafe { Storage::destroy(utimes) };
}

/// Adds a directory: 0, or -ENOMEM if its utimes are to be sent at once.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_send_utimes_init`] has made, and the caller's alone.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_add(
    utimes: *mut bindings::btrfs_rust_send_utimes,
    ino: u64,
    gen: u64,
) -> c_int {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    if !tunables().utimes_cache {
        return ENOMEM.to_errno();
    }
    match utimes.cache(LruKey {
        ino,
        generation: gen,
    }) {
        Ok(()) => 0,
        Err(error) => Error::from(error).to_errno(),
    }
}

/// Stores a directory for C. Returns whether there is one.
///
/// # Safety
///
/// `ino` and `gen` must be valid for writing.
unsafe fn write_dir(dir: Option<LruKey>, ino: *mut u64, gen: *mut u64) -> bool {
    let Some(dir) = dir else {
        return false;
    };
    // SAFETY: Both are valid for writing.
    unsafe {
        ino.write(dir.ino);
        gen.write(dir.generation);
    }
    true
}

/// Finds the directory to send and remove next after an inode was processed, if any.
///
/// # Safety
///
/// As for [`btrfs_rust_send_utimes_add`]; `ino` and `gen` must be valid for writing.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_next_to_trim(
    utimes: *const bindings::btrfs_rust_send_utimes,
    ino: *mut u64,
    gen: *mut u64,
) -> bool {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get(utimes) };
    // SAFETY: Both are variables of the caller.
    unsafe { write_dir(utimes.next_to_trim(), ino, gen) }
}

/// Finds the directory to send and remove next at the end of the send, if any.
///
/// # Safety
///
/// As for [`btrfs_rust_send_utimes_next_to_trim`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_next_to_flush(
    utimes: *const bindings::btrfs_rust_send_utimes,
    ino: *mut u64,
    gen: *mut u64,
) -> bool {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get(utimes) };
    // SAFETY: Both are variables of the caller.
    unsafe { write_dir(utimes.next_to_flush(), ino, gen) }
}

/// Removes a directory.
///
/// # Safety
///
/// As for [`btrfs_rust_send_utimes_add`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_remove(
    utimes: *mut bindings::btrfs_rust_send_utimes,
    ino: u64,
    gen: u64,
) {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    utimes.remove(LruKey {
        ino,
        generation: gen,
    });
}
