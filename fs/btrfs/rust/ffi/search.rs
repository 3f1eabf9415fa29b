// SPDX-License-Identifier: GPL-2.0

//! Exports of `reada.rs`.

use kernel::ffi::c_int;

use super::{
    bindings,
    eb::NodeBuffer,
    tunables, //
};
use crate::reada::{
    self,
    Mode, //
};

/// Writes the `selected` slots to `slots`, at most `BTRFS_RUST_READA_MAX_SLOTS`. Returns their
/// number.
///
/// # Safety
///
/// `slots` must be valid for writes of `BTRFS_RUST_READA_MAX_SLOTS` elements.
unsafe fn write_slots(slots: *mut u16, selected: impl Iterator<Item = u32>) -> u32 {
    let mut count = 0;
    for slot in selected.take(bindings::BTRFS_RUST_READA_MAX_SLOTS as usize) {
        // SAFETY: `count` is less than `BTRFS_RUST_READA_MAX_SLOTS`, the size of the array.
        unsafe { slots.add(count).write(slot as u16) };
        count += 1;
    }
    count as u32
}

/// Selects slots of `node` to read ahead when a search for `objectid` with the readahead mode
/// `reada` descends at `slot`. Returns their number. May sleep.
///
/// # Safety
///
/// `node` must be null, or a node above the leaves that does not change during the call. `slots`
/// must be valid for writes of `BTRFS_RUST_READA_MAX_SLOTS` elements.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_select_search(
    node: *const bindings::extent_buffer,
    slot: c_int,
    reada: u8,
    objectid: u64,
    slots: *mut u16,
) -> u32 {
    let mut reada = u32::from(reada);
    if reada == bindings::BTRFS_RUST_READA_FORWARD_ALWAYS {
        reada = u32::from(tunables().reada);
    }
    let mode = match reada {
        bindings::BTRFS_RUST_READA_BACK => Mode::Back,
        bindings::BTRFS_RUST_READA_FORWARD => Mode::Forward,
        bindings::BTRFS_RUST_READA_FORWARD_ALWAYS => Mode::ForwardAlways,
        bindings::BTRFS_RUST_READA_FORWARD_FAR => Mode::ForwardFar,
        _ => Mode::None,
    };
    // SAFETY: C holds a reference to a node above the leaves. A lock or the commit root keeps it
    // stable.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let search = node.and_then(|node| reada::for_search(node, slot as u32, mode, objectid));
    // SAFETY: `slots` is an array of the caller with `BTRFS_RUST_READA_MAX_SLOTS` elements.
    unsafe { write_slots(slots, search.into_iter().flatten()) }
}

/// Selects slots of `node` to read ahead when a comparison of trees descends at `slot`. The other
/// tree has all blocks up to generation `min_gen`. Returns the number of slots.
///
/// # Safety
///
/// As for [`btrfs_rust_select_search`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_select_move_down(
    node: *const bindings::extent_buffer,
    slot: c_int,
    min_gen: u64,
    slots: *mut u16,
) -> u32 {
    // SAFETY: C holds a reference to a node above the leaves. A lock or the commit root keeps it
    // stable.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let selected = node
        .filter(|_| u32::from(tunables().reada) != bindings::BTRFS_RUST_READA_NONE)
        .map(|node| reada::for_move_down(node, slot as u32, min_gen));
    // SAFETY: `slots` is an array of the caller with `BTRFS_RUST_READA_MAX_SLOTS` elements.
    unsafe { write_slots(slots, selected.into_iter().flatten()) }
}
