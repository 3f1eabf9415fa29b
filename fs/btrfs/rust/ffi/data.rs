// SPDX-License-Identifier: GPL-2.0

//! Exports of `data_reada.rs`.

use super::{
    bindings,
    eb::{
        CommitRoot,
        CommitRootSem, //
    },
    Mirror,
    Storage, //
};
use crate::data_reada::{
    DataReada,
    FileRange, //
};

/// Prepares the readahead of the file data of a send, which reads extents newer than the generation
/// `min_gen`, and compressed extents as they are on disk if `sends_encoded`. False if there is no
/// memory for it.
///
/// # Safety
///
/// `reada` must be valid for writing, and `disk` for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_init(
    reada: *mut bindings::btrfs_rust_data_reada,
    disk: *const bindings::btrfs_rust_disk,
    min_gen: u64,
    sends_encoded: bool,
) -> bool {
    // SAFETY: `disk` is a variable of the caller.
    let disk = unsafe { *disk };
    let Ok(new) = DataReada::new(disk.into(), min_gen, sends_encoded) else {
        return false;
    };
    // SAFETY: `reada` is a variable of the caller.
    unsafe { Storage::write(reada, new) };
    true
}

/// Frees a readahead.
///
/// # Safety
///
/// `reada` must have been prepared. Nobody uses it during the call or after it.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_destroy(
    reada: *mut bindings::btrfs_rust_data_reada,
) {
    // SAFETY: C calls this once for each that was prepared.
    unsafe { Storage::destroy(reada) };
}

/// Moves the send to `key`; it `has_read` file data since the last call.
///
/// # Safety
///
/// `reada` must have been prepared. Nobody else uses it during the call. `key` must be valid for
/// reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_advance(
    reada: *mut bindings::btrfs_rust_data_reada,
    key: *const bindings::btrfs_rust_key,
    has_read: bool,
) -> bindings::btrfs_rust_data_position {
    // SAFETY: `reada` was prepared, and only the sender uses it; `key` is a variable.
    let (reada, key) = unsafe { (Storage::get_mut(reada), *key) };
    let is_due = reada.advance(key.into(), has_read);
    bindings::btrfs_rust_data_position {
        passed: reada.passed(),
        is_due,
    }
}

/// Plans the next batch of a send of `root`. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_data_reada_advance`]. `root` must be a root whose `commit_root_sem` is held.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_plan(
    reada: *mut bindings::btrfs_rust_data_reada,
    root: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_file_ranges {
    // SAFETY: `reada` was prepared, and only the sender uses it.
    let reada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: C holds the root during this call. It is of the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    reada.plan(&tree, others.into());
    let planned = reada.planned();
    bindings::btrfs_rust_file_ranges {
        ranges: FileRange::as_c(planned.as_ptr()),
        order: reada.order().as_ptr(),
        count: planned.len() as u32,
        held: reada.held(),
    }
}

/// Notes that data read ahead was dropped before its use.
///
/// # Safety
///
/// `reada` must have been prepared. Nobody else uses it during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_report_evicted(
    reada: *mut bindings::btrfs_rust_data_reada,
) {
    // SAFETY: `reada` was prepared, and only the sender uses it.
    unsafe { Storage::get_mut(reada) }.report_evicted();
}
