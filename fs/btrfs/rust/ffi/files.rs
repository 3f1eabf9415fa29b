// SPDX-License-Identifier: GPL-2.0

//! Exports of `dir_reada/files.rs`.

use super::{
    bindings,
    eb::{
        CommitRoot,
        CommitRootSem, //
    },
    Mirror,
    Storage, //
};
use crate::{
    data_reada::FileRange,
    dir_reada::DirReada, //
};

/// Notes that the task reads the beginning of the file `ino`, whose page cache `has_data` or not.
/// Returns the bytes that were read ahead for it, and those that are still unused.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_read(
    reada: *mut bindings::btrfs_rust_dir_reada,
    ino: u64,
    has_data: bool,
) -> bindings::btrfs_rust_file_use {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    let used = reada.read(ino, has_data);
    bindings::btrfs_rust_file_use {
        used,
        held: reada.held_data(),
    }
}

/// Whether to plan file data.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_read`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_are_files_due(
    reada: *mut bindings::btrfs_rust_dir_reada,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.are_files_due()
}

/// Notes that the data of the file `ino`, which was planned, was not read ahead.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_read`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_skip_file(
    reada: *mut bindings::btrfs_rust_dir_reada,
    ino: u64,
) {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.skip_file(ino);
}

/// Plans file data. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_read`]. `root` must be a valid root whose `commit_root_sem` C
/// holds for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_plan_files(
    reada: *mut bindings::btrfs_rust_dir_reada,
    root: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_dir_files {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds `commit_root_sem` during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: The root exists during this call, and belongs to the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    let wasted = reada.plan_files(&tree, others.into());
    let ranges = reada.ranges();
    bindings::btrfs_rust_dir_files {
        ranges: FileRange::as_c(ranges.as_ptr()),
        count: ranges.len() as u32,
        held: reada.held_data(),
        wasted,
    }
}
