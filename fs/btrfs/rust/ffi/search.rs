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

/// Writes `slots` where C can read them.
fn write_reada(selected: &mut bindings::btrfs_rust_reada, slots: impl Iterator<Item = u32>) {
    selected.count = 0;
    for (to, slot) in selected.slots.iter_mut().zip(slots) {
        *to = slot as u16;
        selected.count += 1;
    }
}

/// Selects the slots of `node` to read ahead when a search for `objectid` with the readahead mode
/// `reada` goes down at `slot`. May sleep.
///
/// # Safety
///
/// `node` must be null or a locked or otherwise unchanging node above the leaves, `selected` must
/// be initialised, valid for reading and writing, and the caller's alone.
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_reada_for_search(
    node: *const bindings::extent_buffer,
    slot: c_int,
    reada: u8,
    objectid: u64,
    selected: *mut bindings::btrfs_rust_reada,
) {
    let mut reada = u32::from(reada);
    if reada == bindings::BTRFS_RUST_READA_FORWARD_ALWAYS {
        reada = u32::from(tunables().reada);
    }
    let mode = match reada {
        bindings::BTRFS_RUST_READA_BACK => Mode::Back,
        bindings::BTRFS_RUST_READA_FORWARD => Mode::Forward,
        bindings::BTRFS_RUST_READA_FORWARD_ALWAYS => Mode::ForwardAlways,
        _ => Mode::None,
    };
    // SAFETY: C has locked the node, or it is one of a commit root, and holds it during this call.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let search = node.and_then(|node| reada::for_search(node, slot as u32, mode, objectid));
    // SAFETY: `selected` is a variable of the caller, who has initialised it.
    let selected = unsafe { &mut *selected };
    write_reada(selected, search.into_iter().flatten());
}

/// Selects the slots of `node` to read ahead when a comparison of trees, whose other tree has all
/// blocks up to generation `min_gen`, goes down at `slot`.
///
/// # Safety
///
/// As for [`btrfs_rust_reada_for_search`].
#[no_mangle]
pub(super) unsafe extern "C" fn btrfs_rust_reada_for_move_down(
    node: *const bindings::extent_buffer,
    slot: c_int,
    min_gen: u64,
    selected: *mut bindings::btrfs_rust_reada,
) {
    // SAFETY: C has locked the node, or it is one of a commit root, and holds it during this call.
    let node = unsafe { NodeBuffer::from_raw(node) };
    let slots = node
        .filter(|_| u32::from(tunables().reada) != bindings::BTRFS_RUST_READA_NONE)
        .map(|node| reada::for_move_down(node, slot as u32, min_gen));
    // SAFETY: `selected` is a variable of the caller, who has initialised it.
    let selected = unsafe { &mut *selected };
    write_reada(selected, slots.into_iter().flatten());
}
