// SPDX-License-Identifier: GPL-2.0

//! Exports of `leaf_reada.rs`, and of the parts of `tree.rs` and `window.rs` that C uses directly.

use kernel::prelude::*;

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
    leaf_reada::{
        FileExtents,
        LeafReada, //
    },
    tree::Leaf,
    window::Disk, //
};

/// The most bytes that one reader reads ahead of `disk`.
///
/// # Safety
///
/// `disk` must be valid for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_window(disk: *const bindings::btrfs_rust_disk) -> u64 {
    // SAFETY: `disk` is a variable of the caller.
    let disk = unsafe { *disk };
    Disk::from(disk).window()
}

/// Stores a new readahead for C; false if there is none, for want of memory.
///
/// # Safety
///
/// `reada` must be valid for writing.
unsafe fn write_reada(reada: *mut bindings::btrfs_rust_leaf_reada, new: Result<LeafReada>) -> bool {
    let Ok(new) = new else {
        return false;
    };
    // SAFETY: `reada` is valid for writing.
    unsafe { Storage::write(reada, new) };
    true
}

/// Prepares the readahead of a walk; false if there is no memory for it.
///
/// # Safety
///
/// `reada` must be valid for writing, and `disk` for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_init(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    disk: *const bindings::btrfs_rust_disk,
) -> bool {
    // SAFETY: `disk` is a variable of the caller.
    let disk = unsafe { *disk };
    let new = LeafReada::new(disk.into());
    // SAFETY: `reada` is a variable of the caller.
    unsafe { write_reada(reada, new) }
}

/// Prepares the readahead of a fiemap call; false if there is no memory for it.
///
/// # Safety
///
/// `reada` must be valid for writing, `disk` and `extents` for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_init_extents(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    disk: *const bindings::btrfs_rust_disk,
    extents: *const bindings::btrfs_rust_file_extents,
) -> bool {
    // SAFETY: Both are variables of the caller.
    let (disk, extents) = unsafe { (*disk, *extents) };
    let extents = FileExtents {
        range: extents.start.into()..extents.end.into(),
        wanted: extents.wanted,
        is_first: extents.is_first,
    };
    let new = LeafReada::for_extents(disk.into(), extents);
    // SAFETY: `reada` is a variable of the caller.
    unsafe { write_reada(reada, new) }
}

/// Frees a readahead.
///
/// # Safety
///
/// `reada` must have been prepared. Nobody uses it during the call or after it.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_destroy(
    reada: *mut bindings::btrfs_rust_leaf_reada,
) {
    // SAFETY: C calls this once for each that was prepared, when its worker has ended.
    unsafe { Storage::destroy(reada) };
}

/// Moves the walk to `key`, in the tree `root`. Returns whether it wants the next batch.
///
/// # Safety
///
/// `reada` must have been prepared. Nobody else uses it during the call. `root` must be a root,
/// and `key` valid for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_advance(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    root: *const bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
) -> bool {
    // SAFETY: `reada` was prepared, and its worker has ended; `key` is a variable.
    let (reada, key) = unsafe { (Storage::get_mut(reada), *key) };
    reada.advance(key.into(), |bytenr| {
        // SAFETY: C holds the root during this call.
        unsafe { bindings::btrfs_rust_is_evicted(root, bytenr) }
    })
}

/// The leaves that C is to submit next.
fn chunk(reada: &LeafReada) -> bindings::btrfs_rust_leaves {
    let ((rest, count), (planned, held)) = (reada.rest(), reada.size());
    bindings::btrfs_rust_leaves {
        // Valid for the rest of the batch: fiemap reads on in it when all leaves are submitted.
        leaves: Leaf::as_c(rest.as_ptr()),
        count: count as u32,
        planned: planned as u32,
        held,
    }
}

/// Plans the next batch. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_leaf_reada_advance`]. `left` must be a root and `right` a root or null, of
/// one filesystem, whose `commit_root_sem` must be held.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_plan(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    left: *mut bindings::btrfs_root,
    right: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_leaves {
    // SAFETY: `reada` was prepared, and its worker has ended.
    let reada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: C holds `left` during this call, and `right` unless that is null. They are of the
    // filesystem of the semaphore.
    let (left, right) = unsafe { (CommitRoot::new(&lock, left), CommitRoot::new(&lock, right)) };
    reada.plan(&left, &right, others.into());
    chunk(reada)
}

/// Notes that the first `submitted` leaves are being read, and that the others are given up if
/// `is_dropped`. Returns the leaves to submit next.
///
/// # Safety
///
/// As for [`btrfs_rust_leaf_reada_advance`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_report(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    submitted: u32,
    is_dropped: bool,
) -> bindings::btrfs_rust_leaves {
    // SAFETY: `reada` was prepared. The walk leaves it to its worker for as long as that runs.
    let reada = unsafe { Storage::get_mut(reada) };
    reada.report(submitted as usize, is_dropped);
    chunk(reada)
}

/// Looks up the leaf of `key`; false if it is the leaf of the last lookup, or on errors. Reads
/// nodes and waits for them.
///
/// # Safety
///
/// `last` must be all zeroes, or the result of such lookups in the same tree, and not be used by
/// others. `root` must be a root whose `commit_root_sem` is held, `key` valid for reading and
/// `leaf` for writing.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_find_leaf(
    last: *mut bindings::btrfs_rust_last_leaf,
    root: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
    leaf: *mut bindings::btrfs_rust_leaf,
) -> bool {
    // SAFETY: `last` was all zeroes at first, and only one task uses it; `key` is a variable.
    let (last, key) = unsafe { (Storage::zeroable(last), *key) };
    // SAFETY: C holds the semaphore during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: C holds the root during this call. It is of the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    let Some(found) = last.find(&tree, key.into()) else {
        return false;
    };
    // SAFETY: `leaf` is a variable of the caller, of the same layout.
    unsafe { leaf.write(*Leaf::as_c(&found)) };
    true
}
