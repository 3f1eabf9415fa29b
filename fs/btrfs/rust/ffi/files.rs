// SPDX-License-Identifier: GPL-2.0

//! Exports of `dir_reada/files.rs`.

use super::{
    bindings,
    dir::plan_with,
    Mirror,
    Storage, //
};
use crate::{
    data_reada::FileRange,
    dir_reada::DirReada, //
};

/// Notes that the task reads the beginning of the file `ino`, whose page cache `has_data` or not.
/// `missed` reads before it were not noted.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_read(
    reada: *mut bindings::btrfs_rust_dir_reada,
    ino: u64,
    has_data: bool,
    missed: u32,
) -> bindings::btrfs_rust_file_use {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    let used = reada.read(ino, has_data, missed as usize);
    bindings::btrfs_rust_file_use {
        used,
        held: reada.held_data(),
        wasted: reada.take_wasted_data(),
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

/// Notes that the data of the file `ino`, which was planned, was not read ahead. Returns the size
/// of all that is still unused, in bytes.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_read`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_skip_file(
    reada: *mut bindings::btrfs_rust_dir_reada,
    ino: u64,
) -> u64 {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    reada.skip_file(ino);
    reada.held_data()
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
    // SAFETY: C has initialized `reada`, and holds its lock and `commit_root_sem`.
    unsafe {
        plan_with(reada, root, |reada, tree| {
            reada.plan_files(tree, others.into());
            bindings::btrfs_rust_dir_files {
                ranges: FileRange::as_c(reada.ranges().as_ptr()),
                count: reada.ranges().len() as u32,
                held: reada.held_data(),
                wasted: reada.take_wasted_data(),
            }
        })
    }
}
