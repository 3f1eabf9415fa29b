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

impl From<bindings::btrfs_rust_dir> for LruKey {
    fn from(dir: bindings::btrfs_rust_dir) -> Self {
        Self {
            ino: dir.ino,
            generation: dir.generation,
        }
    }
}

/// Makes an empty cache.
///
/// # Safety
///
/// `utimes` must be valid for writing.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_init(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
) {
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
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_destroy(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
) {
    // SAFETY: C calls this once for a cache that was made, and does not use it again.
    unsafe { Storage::destroy(utimes) };
}

/// Remembers that `dir` is owed an utimes command: 0, or -ENOMEM for one to be sent at once.
///
/// # Safety
///
/// `utimes` must be a cache that [`btrfs_rust_dir_utimes_init`] has made, and the caller's alone.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_cache(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
    dir: bindings::btrfs_rust_dir,
) -> c_int {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    if !tunables().utimes_cache {
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
unsafe fn write_dir(dir: *mut bindings::btrfs_rust_dir, found: Option<LruKey>) -> bool {
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
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_next_to_trim(
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
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_next_to_flush(
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
pub(super) unsafe extern "C" fn btrfs_rust_dir_utimes_remove(
    utimes: *mut bindings::btrfs_rust_dir_utimes,
    dir: bindings::btrfs_rust_dir,
) {
    // SAFETY: The cache was made, and only the sender uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    utimes.remove(dir.into());
}
