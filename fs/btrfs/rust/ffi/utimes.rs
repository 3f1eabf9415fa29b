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

/// Initializes an empty cache.
///
/// # Safety
///
/// `utimes` must be valid for writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_init(
    utimes: *mut bindings::btrfs_rust_send_utimes,
) {
    // SAFETY: `utimes` is memory of the caller that holds no state yet.
    unsafe { Storage::write(utimes, DirUtimes::new()) };
}

/// Frees a cache.
///
/// # Safety
///
/// `utimes` must have been initialized by [`btrfs_rust_send_utimes_init`]. No other task may use
/// it, and it must not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_destroy(
    utimes: *mut bindings::btrfs_rust_send_utimes,
) {
    // SAFETY: C calls this once for each initialized cache and does not use it again.
    unsafe { Storage::destroy(utimes) };
}

/// Adds a directory. Returns 0, or -ENOMEM if its utimes are to be sent immediately.
///
/// # Safety
///
/// `utimes` must have been initialized by [`btrfs_rust_send_utimes_init`]. No other task may use it
/// during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_add(
    utimes: *mut bindings::btrfs_rust_send_utimes,
    ino: u64,
    gen: u64,
) -> c_int {
    // SAFETY: `utimes` was initialized, and only the sending task uses it.
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

/// Writes `dir` to `ino` and `gen`. Returns false if there is none.
///
/// # Safety
///
/// `ino` and `gen` must be valid for writes.
unsafe fn write_dir(dir: Option<LruKey>, ino: *mut u64, gen: *mut u64) -> bool {
    let Some(dir) = dir else {
        return false;
    };
    // SAFETY: Both pointers are valid for writes.
    unsafe {
        ino.write(dir.ino);
        gen.write(dir.generation);
    }
    true
}

/// Removes the directory to send next after an inode was processed. Returns false if there is none.
///
/// # Safety
///
/// As for [`btrfs_rust_send_utimes_add`]; `ino` and `gen` must be valid for writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_trim(
    utimes: *mut bindings::btrfs_rust_send_utimes,
    ino: *mut u64,
    gen: *mut u64,
) -> bool {
    // SAFETY: `utimes` was initialized, and only the sending task uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    // SAFETY: `ino` and `gen` point to variables of the caller.
    unsafe { write_dir(utimes.trim(), ino, gen) }
}

/// Removes the directory to send next at the end of the send. Returns false if there is none.
///
/// # Safety
///
/// As for [`btrfs_rust_send_utimes_trim`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_send_utimes_flush(
    utimes: *mut bindings::btrfs_rust_send_utimes,
    ino: *mut u64,
    gen: *mut u64,
) -> bool {
    // SAFETY: `utimes` was initialized, and only the sending task uses it.
    let utimes = unsafe { Storage::get_mut(utimes) };
    // SAFETY: `ino` and `gen` point to variables of the caller.
    unsafe { write_dir(utimes.flush(), ino, gen) }
}
