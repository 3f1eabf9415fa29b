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
    Data,
    DataReada,
    FileRange, //
};

/// Initializes the readahead of file data for a send. The send looks up extents newer than
/// `min_gen`. It reads no data unless `reads_data`, and writes compressed extents without
/// decompression if `sends_encoded`. Returns the maximum number of ranges ahead of the send, a
/// power of two; 0 if there is no memory.
///
/// # Safety
///
/// `reada` must be valid for writes, and `disk` for reads.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_init(
    reada: *mut bindings::btrfs_rust_data_reada,
    disk: *const bindings::btrfs_rust_disk,
    min_gen: u64,
    reads_data: bool,
    sends_encoded: bool,
) -> u32 {
    let data = match (reads_data, sends_encoded) {
        (false, _) => Data::Unread,
        (true, false) => Data::Plain,
        (true, true) => Data::Encoded,
    };
    // SAFETY: `disk` points to a variable of the caller.
    let disk = unsafe { *disk };
    let Ok(new) = DataReada::new(disk.into(), min_gen, data) else {
        return 0;
    };
    let max_ranges = new.max_ranges() as u32;
    // SAFETY: `reada` is memory of the caller that holds no state yet.
    unsafe { Storage::write(reada, new) };
    max_ranges
}

/// Frees a readahead.
///
/// # Safety
///
/// `reada` must have been initialized by [`btrfs_rust_data_reada_init`]. No other task may use it,
/// and it must not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_destroy(
    reada: *mut bindings::btrfs_rust_data_reada,
) {
    // SAFETY: C calls this once for each initialized readahead and does not use it again.
    unsafe { Storage::destroy(reada) };
}

/// Moves the send to `key`. `has_read`: the send has read file data since the last call.
///
/// # Safety
///
/// `reada` must have been initialized by [`btrfs_rust_data_reada_init`]. No other task may use it
/// during the call. `key` must be valid for reads.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_advance(
    reada: *mut bindings::btrfs_rust_data_reada,
    key: *const bindings::btrfs_rust_key,
    has_read: bool,
) -> bindings::btrfs_rust_data_position {
    // SAFETY: `reada` was initialized, and only the sending task uses it; `key` is a variable.
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
/// As for [`btrfs_rust_data_reada_advance`]. `root` must be a valid root, and C must hold its
/// `commit_root_sem` for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_plan(
    reada: *mut bindings::btrfs_rust_data_reada,
    root: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_file_ranges {
    // SAFETY: `reada` was initialized, and only the sending task uses it.
    let reada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds `commit_root_sem` during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: The root exists during this call, and belongs to the filesystem of the semaphore.
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

/// Reports that data was evicted before its use.
///
/// # Safety
///
/// `reada` must have been initialized by [`btrfs_rust_data_reada_init`]. No other task may use it
/// during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_data_reada_report_evicted(
    reada: *mut bindings::btrfs_rust_data_reada,
) {
    // SAFETY: `reada` was initialized, and only the sending task uses it.
    unsafe { Storage::get_mut(reada) }.report_evicted();
}
