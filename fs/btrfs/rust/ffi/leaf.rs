// SPDX-License-Identifier: GPL-2.0

//! Exports of `leaf_reada.rs`, and of the parts of `tree.rs` and `window.rs` that C uses directly.

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

/// The maximum window of a reader on `disk`, in bytes; see [`Disk::window`].
///
/// # Safety
///
/// `disk` must be valid for reads.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_window(disk: *const bindings::btrfs_rust_disk) -> u64 {
    // SAFETY: `disk` points to a variable of the caller.
    let disk = unsafe { *disk };
    Disk::from(disk).window()
}

/// Initializes the readahead of a fiemap call for `extents`, or of a walk if that is null. Returns
/// false if there is no memory.
///
/// # Safety
///
/// `reada` must be valid for writes, `disk` for reads, and so must `extents` unless it is null.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_init(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    disk: *const bindings::btrfs_rust_disk,
    extents: *const bindings::btrfs_rust_file_extents,
) -> bool {
    // SAFETY: `disk` points to a variable of the caller, and so does `extents` unless it is null.
    let (disk, extents) = unsafe { (*disk, extents.as_ref()) };
    let new = match extents {
        None => LeafReada::new(disk.into()),
        Some(extents) => LeafReada::for_extents(
            disk.into(),
            FileExtents {
                range: extents.start.into()..extents.end.into(),
                wanted: extents.wanted,
                is_first: extents.is_first,
            },
        ),
    };
    let Ok(new) = new else {
        return false;
    };
    // SAFETY: `reada` is memory of the caller that holds no state yet.
    unsafe { Storage::write(reada, new) };
    true
}

/// Frees a readahead.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it, and it must not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_destroy(
    reada: *mut bindings::btrfs_rust_leaf_reada,
) {
    // SAFETY: C calls this once for each initialized readahead, after its worker has ended.
    unsafe { Storage::destroy(reada) };
}

/// Moves the walk to `key`, in the tree `root`. Returns whether the next batch is to be planned.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it during the call. `root` must be a
/// valid root, and `key` valid for reads.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_advance(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    root: *const bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
) -> bool {
    // SAFETY: `reada` was initialized, and its worker has ended; `key` is a variable.
    let (reada, key) = unsafe { (Storage::get_mut(reada), *key) };
    reada.advance(key.into(), |bytenr| {
        // SAFETY: The root exists during this call.
        unsafe { bindings::btrfs_rust_is_evicted(root, bytenr) }
    })
}

/// The leaves that C submits next.
fn chunk(reada: &LeafReada) -> bindings::btrfs_rust_leaves {
    let ((rest, count), (planned, held)) = (reada.rest(), reada.size());
    bindings::btrfs_rust_leaves {
        // Valid for the rest of the batch: fiemap reads past `count` after it has submitted all
        // leaves.
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
/// As for [`btrfs_rust_leaf_reada_advance`]. `left` must be a valid root, `right` a root of the
/// same filesystem or null. C must hold its `commit_root_sem` for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_leaf_reada_plan(
    reada: *mut bindings::btrfs_rust_leaf_reada,
    left: *mut bindings::btrfs_root,
    right: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_leaves {
    // SAFETY: `reada` was initialized, and its worker has ended.
    let reada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds `commit_root_sem` during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: `left` exists during this call, and so does `right` unless it is null. Both belong to
    // the filesystem of the semaphore.
    let (left, right) = unsafe { (CommitRoot::new(&lock, left), CommitRoot::new(&lock, right)) };
    reada.plan(&left, &right, others.into());
    chunk(reada)
}

/// Records that the first `submitted` leaves were submitted. If `is_dropped`, the others are given
/// up. Returns the leaves to submit next.
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
    // SAFETY: `reada` was initialized. The walk does not use it while its worker runs.
    let reada = unsafe { Storage::get_mut(reada) };
    reada.report(submitted as usize, is_dropped);
    chunk(reada)
}

/// Finds the leaf of `key`. Returns false if it is the leaf of the last lookup, on errors, and if a
/// node is not in memory while a task waits for `commit_root_sem`.
/// Reads nodes and waits for them.
///
/// # Safety
///
/// `last` must be all zeroes, or the result of lookups in the same tree. No other task may use it
/// during the call. `root` must be a valid root whose `commit_root_sem` C holds for reading. `key`
/// must be valid for reads, and `leaf` for writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_find_leaf(
    last: *mut bindings::btrfs_rust_last_leaf,
    root: *mut bindings::btrfs_root,
    key: *const bindings::btrfs_rust_key,
    leaf: *mut bindings::btrfs_rust_leaf,
) -> bool {
    // SAFETY: `last` was zeroed at first, and only one task uses it; `key` is a variable.
    let (last, key) = unsafe { (Storage::zeroable(last), *key) };
    // SAFETY: C holds `commit_root_sem` during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: The root exists during this call, and belongs to the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    let Ok(Some(found)) = last.find(&tree, key.into()) else {
        return false;
    };
    // SAFETY: `leaf` points to a variable of the caller, and `Leaf` has the layout of the C type.
    unsafe { leaf.write(*Leaf::as_c(&found)) };
    true
}
