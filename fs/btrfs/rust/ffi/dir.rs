// SPDX-License-Identifier: GPL-2.0

//! Exports of `dir_reada.rs`.

use super::{
    bindings,
    eb::{
        CommitRoot,
        CommitRootSem, //
    },
    leaf::chunk,
    Mirror,
    Storage, //
};
use crate::{
    dir_reada::{
        Cache,
        DirReada,
        Directory,
        Due,
        Habit,
        Kind,
        Reading, //
    },
    tree::Leaf, //
};

/// The tree blocks of the filesystem of a root.
///
/// # Invariants
///
/// The root exists as long as this.
struct RootCache(*const bindings::btrfs_root);

impl Cache for RootCache {
    fn has(&self, blockptr: u64) -> bool {
        // SAFETY: By the type invariants, the root exists.
        !unsafe { bindings::btrfs_rust_is_evicted(self.0, blockptr) }
    }

    fn has_unused(&self, blockptr: u64) -> bool {
        // SAFETY: By the type invariants, the root exists.
        unsafe { bindings::btrfs_rust_is_unused(self.0, blockptr) }
    }
}

/// Initializes the readahead of a directory.
///
/// # Safety
///
/// `reada` must be valid for writes, `disk` and `directory` for reads.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_init(
    reada: *mut bindings::btrfs_rust_dir_reada,
    disk: *const bindings::btrfs_rust_disk,
    directory: *const bindings::btrfs_rust_directory,
) {
    // SAFETY: `disk` and `directory` point to variables of the caller.
    let (disk, directory) = unsafe { (*disk, *directory) };
    let directory = Directory {
        ino: directory.ino,
        size: directory.size,
        last_index: directory.last_index,
        habit: habit_of(&directory),
        reading: reading_of(&directory),
    };
    // SAFETY: `reada` is memory of the caller that holds no state yet.
    unsafe { Storage::write(reada, DirReada::new(disk.into(), &directory)) };
}

/// Frees a readahead. Returns the size of the file data that was read ahead and is unused, in
/// bytes.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it, and it must not be used again.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_destroy(
    reada: *mut bindings::btrfs_rust_dir_reada,
) -> u64 {
    // SAFETY: C calls this once, when it drops the last reference.
    let unread = unsafe { Storage::get(reada) }.held_data();
    // SAFETY: As above.
    unsafe { Storage::destroy(reada) };
    unread
}

/// The habit that other directories have noted in `directory`.
fn habit_of(directory: &bindings::btrfs_rust_directory) -> Habit {
    if directory.is_refused {
        Habit::Refused
    } else if directory.window == 0 {
        Habit::Unknown
    } else {
        Habit::LookedUp {
            window: directory.window,
            by_inode: directory.by_inode,
        }
    }
}

/// What other directories have noted in `directory` about its files.
fn reading_of(directory: &bindings::btrfs_rust_directory) -> Reading {
    if directory.refuses_files {
        Reading::Refused
    } else if directory.reads_files {
        Reading::Read
    } else {
        Reading::Unknown
    }
}

/// Notes in `directory`, whose listing begins, what the lookups and reads in that of `reada` tell.
/// The same task has used that last if `is_same_task`, otherwise another one of the process.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`]. `root` must be a valid root, and `directory` valid for
/// reads and writes.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_habit(
    reada: *const bindings::btrfs_rust_dir_reada,
    root: *const bindings::btrfs_root,
    is_same_task: bool,
    directory: *mut bindings::btrfs_rust_directory,
) {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &DirReada = unsafe { Storage::get(reada) };
    // INVARIANT: The root exists during this call.
    let habit = reada.habit(&RootCache(root));
    // SAFETY: `directory` points to a variable of the caller.
    let directory = unsafe { &mut *directory };
    match habit_of(directory).and(habit) {
        Habit::Unknown => (),
        Habit::LookedUp { window, by_inode } => {
            directory.window = window;
            directory.by_inode = by_inode;
        }
        Habit::Refused => directory.is_refused = true,
    }
    let reading = reada.reading();
    // Another task of the process may be about to read those files.
    let is_known = is_same_task || reading != Reading::Refused;
    let reading = if is_known { reading } else { Reading::Unknown };
    match reading_of(directory).and(reading) {
        Reading::Unknown => (),
        Reading::Read => directory.reads_files = true,
        Reading::Refused => directory.refuses_files = true,
    }
}

/// Moves the listing to the entry with `index`. Returns whether to plan its next batch.
///
/// # Safety
///
/// `reada` must have been initialized. No other task may use it during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_list(
    reada: *mut bindings::btrfs_rust_dir_reada,
    index: u64,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.list(index)
}

/// `DT_DIR` and `DT_REG`.
const DT_DIR: u8 = 4;
const DT_REG: u8 = 8;

/// Notes an entry that the listing has returned, with its index, its inode number, and its type.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_add(
    reada: *mut bindings::btrfs_rust_dir_reada,
    index: u64,
    ino: u64,
    kind: u8,
) {
    let kind = match kind {
        DT_DIR => Kind::Directory,
        DT_REG => Kind::File,
        _ => Kind::Other,
    };
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.add(index, ino, kind);
}

/// The memory that unused readahead of the directory takes, in bytes.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_held(
    reada: *const bindings::btrfs_rust_dir_reada,
) -> u64 {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get(reada) }.held()
}

/// Whether nothing is left to read ahead, for the entries listed so far.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_is_done(
    reada: *const bindings::btrfs_rust_dir_reada,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get(reada) }.is_done()
}

/// Notes the end of a part of the listing. Returns whether to plan a batch.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_end_part(
    reada: *mut bindings::btrfs_rust_dir_reada,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.end_part()
}

/// Notes the lookup of the inode `ino`, which is not in memory. Returns whether to plan a batch.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`]. `root` must be a valid root.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_look_up(
    reada: *mut bindings::btrfs_rust_dir_reada,
    root: *const bindings::btrfs_root,
    ino: u64,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    // INVARIANT: The root exists during this call.
    reada.look_up(ino, &RootCache(root))
}

/// Plans the batch that the last event has asked for. Reads nodes and waits for them.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`]. `root` must be a valid root whose `commit_root_sem` C
/// holds for reading.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_plan(
    reada: *mut bindings::btrfs_rust_dir_reada,
    root: *mut bindings::btrfs_root,
    others: bindings::btrfs_rust_others,
) -> bindings::btrfs_rust_leaves {
    let others = others.into();
    // INVARIANT: The root exists during this call.
    let cache = RootCache(root);
    // SAFETY: C has initialized `reada`, and holds its lock and `commit_root_sem`.
    unsafe {
        plan_with(reada, root, |reada, tree| {
            match (reada.take_due(), reada.listing()) {
                (Some(Due::Listing), Some(listing)) => {
                    listing.plan(tree, &tree.empty(), others);
                    return chunk(listing);
                }
                (Some(Due::Entries), _) => reada.plan(tree, others, &cache),
                (Some(Due::Children), _) => reada.plan_children(tree, others, &cache),
                _ => return leaves_of(&[], 0),
            }
            leaves_of(reada.leaves(), reada.held())
        })
    }
}

/// Plans a batch in the commit root of `root` with the function `plan`. Returns its result.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_plan`].
pub(super) unsafe fn plan_with<T>(
    reada: *mut bindings::btrfs_rust_dir_reada,
    root: *mut bindings::btrfs_root,
    plan: impl FnOnce(&mut DirReada, &CommitRoot<'_>) -> T,
) -> T {
    // SAFETY: `reada` was initialized, and C holds its lock.
    let reada: &mut DirReada = unsafe { Storage::get_mut(reada) };
    // SAFETY: C holds `commit_root_sem` during this call.
    let lock = unsafe { CommitRootSem::held() };
    // SAFETY: The root exists during this call, and belongs to the filesystem of the semaphore.
    let tree = unsafe { CommitRoot::new(&lock, root) };
    plan(reada, &tree)
}

/// A batch of `leaves`.
fn leaves_of(leaves: &[Leaf], held: u64) -> bindings::btrfs_rust_leaves {
    bindings::btrfs_rust_leaves {
        leaves: Leaf::as_c(leaves.as_ptr()),
        count: leaves.len() as u32,
        planned: leaves.len() as u32,
        held,
    }
}

/// Notes that the task has listed the subdirectory `ino`, and whether lookups of its entries are
/// expected. Returns whether to plan a batch for the next subdirectories.
///
/// # Safety
///
/// As for [`btrfs_rust_dir_reada_list`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_dir_reada_list_child(
    reada: *mut bindings::btrfs_rust_dir_reada,
    ino: u64,
    is_expected: bool,
) -> bool {
    // SAFETY: `reada` was initialized, and C holds its lock.
    unsafe { Storage::get_mut(reada) }.list_child(ino, is_expected)
}
