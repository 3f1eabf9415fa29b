// SPDX-License-Identifier: GPL-2.0

//! Exports of `share_cache.rs`.

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    bindings,
    tunables,
    Storage, //
};

/// Converts a result for C: 1 for shared, 0 for not shared, -ENOENT for not known.
fn answer(is_shared: Option<bool>) -> c_int {
    is_shared.map_or(ENOENT.to_errno(), c_int::from)
}

/// Looks up whether the block at `bytenr` on `level` is shared: 1, 0 or -ENOENT.
///
/// # Safety
///
/// `cache` must have been zeroed, and since then modified only by the functions of this module. No
/// other task may use it during the call.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_lookup(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    level: c_int,
) -> c_int {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
    if !tunables().share_cache {
        return answer(None);
    }
    answer(cache.lookup(bytenr, level as usize))
}

/// Stores whether the block at `bytenr` on `level` is shared.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_store(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    level: c_int,
    is_shared: bool,
) {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
    cache.store(bytenr, level as usize, is_shared);
}

/// Ends a check that has found more than one path and returns `result`. `level` is the last level
/// with a single block, negative for none.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_end_many_paths(
    cache: *mut bindings::btrfs_rust_share_cache,
    level: c_int,
    result: c_int,
) {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
    let reached = usize::try_from(level)
        .ok()
        .filter(|_| result >= 0)
        .map(|level| (level, result != 0));
    cache.end_many_paths(reached);
}

/// Gets the cached block of `level`, to compare it with that of the C code.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`]; `block` must be valid for writes.
#[cfg(CONFIG_BTRFS_RUST_VERIFY)]
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_block(
    cache: *const bindings::btrfs_rust_share_cache,
    level: c_int,
    block: *mut bindings::btrfs_rust_share_block,
) {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::get(cache) };
    if let Some((bytenr, is_shared)) = cache.block(level as usize) {
        let found = bindings::btrfs_rust_share_block { bytenr, is_shared };
        // SAFETY: `block` points to a variable of the caller.
        unsafe { block.write(found) };
    }
}

/// Looks up whether the data extent at `bytenr` is shared: 1, 0 or -ENOENT.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_prev_extent(
    cache: *const bindings::btrfs_rust_share_cache,
    bytenr: u64,
) -> c_int {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::get(cache) };
    if !tunables().share_cache {
        return answer(None);
    }
    answer(cache.prev_extent(bytenr))
}

/// Stores whether the data extent at `bytenr` is shared.
///
/// # Safety
///
/// As for [`btrfs_rust_share_lookup`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_share_add_prev_extent(
    cache: *mut bindings::btrfs_rust_share_cache,
    bytenr: u64,
    is_shared: bool,
) {
    // SAFETY: The cache was zeroed at first, and only its owner uses it.
    let cache = unsafe { Storage::zeroable(cache) };
    cache.add_prev_extent(bytenr, is_shared);
}
