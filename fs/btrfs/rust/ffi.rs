// SPDX-License-Identifier: GPL-2.0

//! Interface between C and Rust.
//!
//! Its modules call functions of C, and export functions to C: each converts the arguments, calls
//! code outside of this module, and converts the result. No other module of this crate has unsafe
//! code.

#![expect(unsafe_code)]

mod data;
mod eb;
mod leaf;
mod lru;
mod search;
mod share;
mod utimes;

use core::mem::offset_of;

use kernel::prelude::*;

use crate::{
    data_reada::{
        self,
        DataReada,
        FileRange, //
    },
    leaf_reada::{
        self,
        LeafReada, //
    },
    lru::Lru,
    reada,
    send_utimes::DirUtimes,
    share_cache::ShareCache,
    tree::{
        Key,
        KeyPtr,
        LastLeaf,
        Leaf, //
    },
    window::{
        Disk,
        Others, //
    },
};

/// Output of bindgen for `btrfs_rust.h`.
#[allow(dead_code, non_camel_case_types, unreachable_pub, missing_docs)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    use kernel::ffi;

    include!(env!("BTRFS_RUST_BINDINGS"));
}

/// Checks at compile time that exported functions have the prototypes of `btrfs_rust.h`.
macro_rules! check_prototypes {
    ($($module:ident: $($function:ident),*;)*) => {
        $($(const _: () = {
            if true {
                bindings::$function
            } else {
                $module::$function
            };
        };)*)*
    };
}

check_prototypes! {
    search: btrfs_rust_select_search, btrfs_rust_select_move_down;
    leaf: btrfs_rust_window, btrfs_rust_leaf_reada_init, btrfs_rust_leaf_reada_destroy,
        btrfs_rust_leaf_reada_advance, btrfs_rust_leaf_reada_plan, btrfs_rust_leaf_reada_report,
        btrfs_rust_find_leaf;
    data: btrfs_rust_data_reada_init, btrfs_rust_data_reada_destroy, btrfs_rust_data_reada_advance,
        btrfs_rust_data_reada_plan, btrfs_rust_data_reada_report_evicted;
    share: btrfs_rust_share_lookup, btrfs_rust_share_store, btrfs_rust_share_end_many_paths,
        btrfs_rust_share_prev_extent, btrfs_rust_share_add_prev_extent;
    lru: btrfs_rust_lru_init, btrfs_rust_lru_destroy, btrfs_rust_lru_lookup, btrfs_rust_lru_store,
        btrfs_rust_lru_remove, btrfs_rust_lru_remove_oldest;
    utimes: btrfs_rust_send_utimes_init, btrfs_rust_send_utimes_destroy,
        btrfs_rust_send_utimes_add, btrfs_rust_send_utimes_trim, btrfs_rust_send_utimes_flush;
}

#[cfg(CONFIG_BTRFS_RUST_VERIFY)]
check_prototypes!(share: btrfs_rust_share_block;);

#[cfg(CONFIG_BTRFS_RUST_KUNIT_BENCH)]
check_prototypes!(lru: btrfs_rust_lru_entry_size;);

const _: () = assert!(reada::MAX_SCAN < bindings::BTRFS_RUST_READA_MAX_SLOTS);
const _: () = assert!(leaf_reada::SERIES_EXTENTS == bindings::BTRFS_RUST_SERIES_EXTENTS);
const _: () = assert!(data_reada::MAX_INODES == bindings::BTRFS_RUST_DATA_INODES as usize);

/// A type with the layout of a type in C.
///
/// # Safety
///
/// Size and alignment must be those of [`Mirror::C`], and so must be the offset and the type of
/// each field.
unsafe trait Mirror: Copy {
    /// The C type.
    type C;

    /// Casts to a pointer that C may read.
    fn as_c(ours: *const Self) -> *const Self::C {
        ours.cast()
    }

    /// Casts to a pointer that C may write.
    fn as_c_mut(ours: *mut Self) -> *mut Self::C {
        ours.cast()
    }
}

/// A type of a field that is `C` in the C type: the same, or its [`Mirror`]. Only constants use it.
#[allow(dead_code)]
trait Field<C> {}

impl Field<u8> for u8 {}
impl Field<u32> for u32 {}
impl Field<u64> for u64 {}
impl Field<bool> for bool {}
impl<T: Mirror> Field<T::C> for T {}

#[allow(dead_code)]
fn check_field<T: Field<C>, C>(_: &T, _: &C) {}

/// Declares types with the layout of a C type. Checks size, alignment, the offset and the type of
/// each field, and that neither type has other fields.
macro_rules! mirrors {
    ($($ours:ident = $theirs:ident { $($field:ident = $their_field:ident),* })*) => {
        $(
            const _: () = assert!(size_of::<$ours>() == size_of::<bindings::$theirs>());
            const _: () = assert!(align_of::<$ours>() == align_of::<bindings::$theirs>());
            const _: fn(bindings::$theirs) = |bindings::$theirs { $($their_field: _),* }| ();
            const _: fn($ours) = |$ours { $($field: _),* }| ();
            $(const _: () = assert!(
                offset_of!($ours, $field) == offset_of!(bindings::$theirs, $their_field)
            );)*
            $(const _: fn(&$ours, &bindings::$theirs) =
                |ours, theirs| check_field(&ours.$field, &theirs.$their_field);)*
            // SAFETY: All of this is checked above.
            unsafe impl Mirror for $ours {
                type C = bindings::$theirs;
            }
        )*
    };
}

mirrors! {
    Key = btrfs_rust_key { objectid = objectid, kind = type_, offset = offset }
    KeyPtr = btrfs_rust_key_ptr { key = key, blockptr = blockptr, generation = generation }
    Leaf = btrfs_rust_leaf { ptr = ptr, tree = tree }
    FileRange = btrfs_rust_file_range {
        ino = ino, offset = offset, len = len, bytenr = bytenr, disk_len = disk_len, slot = slot,
        number = number, is_encoded = is_encoded, is_cut = is_cut
    }
}

/// Storage that C provides for a Rust value.
///
/// `storages!` assigns one [`Storage::State`] to each type of storage, so all accesses use the same
/// type.
///
/// # Safety
///
/// Size and alignment of [`Storage::State`] must not exceed those of this type.
unsafe trait Storage: Sized {
    /// The Rust value. It is [`Send`], since several tasks may use it in turn.
    type State: Send;

    /// Writes a new state.
    ///
    /// # Safety
    ///
    /// `storage` must be valid for writes. An old state is overwritten without being dropped.
    unsafe fn write(storage: *mut Self, state: Self::State) {
        // SAFETY: `storage` is valid for writes, and `storages!` has checked that the state fits.
        unsafe { storage.cast::<Self::State>().write(state) };
    }

    /// # Safety
    ///
    /// `storage` must hold a state written by [`Storage::write`], or all zeroes if the state is
    /// [`Zeroable`]. It must not be modified as long as the result is used.
    unsafe fn get<'a>(storage: *const Self) -> &'a Self::State {
        // SAFETY: `storage` holds a valid state, which is not modified during `'a`.
        unsafe { &*storage.cast::<Self::State>() }
    }

    /// # Safety
    ///
    /// `storage` must hold a state written by [`Storage::write`], and there must be no other
    /// reference to it as long as the result is used.
    unsafe fn get_mut<'a>(storage: *mut Self) -> &'a mut Self::State {
        // SAFETY: `storage` holds a valid state, and there is no other reference to it during `'a`.
        unsafe { &mut *storage.cast::<Self::State>() }
    }

    /// # Safety
    ///
    /// As for [`Storage::get_mut`], but `storage` may also be all zeroes.
    unsafe fn zeroable<'a>(storage: *mut Self) -> &'a mut Self::State
    where
        Self::State: Zeroable,
    {
        // SAFETY: All zeroes are a valid state, too. There is no other reference during `'a`.
        unsafe { &mut *storage.cast::<Self::State>() }
    }

    /// Drops the state.
    ///
    /// # Safety
    ///
    /// As for [`Storage::get_mut`]. The state must not be used again.
    unsafe fn destroy(storage: *mut Self) {
        // SAFETY: `storage` holds a valid state, which is not used again.
        unsafe { storage.cast::<Self::State>().drop_in_place() };
    }
}

/// Assigns a state to each storage, and checks its size and alignment.
macro_rules! storages {
    ($($storage:ident: $state:ty;)*) => {
        $(
            const _: () = assert!(size_of::<$state>() <= size_of::<bindings::$storage>());
            const _: () = assert!(align_of::<$state>() <= align_of::<bindings::$storage>());
            // SAFETY: The assertions above check size and alignment.
            unsafe impl Storage for bindings::$storage {
                type State = $state;
            }
        )*
    };
}

storages! {
    btrfs_rust_leaf_reada: LeafReada;
    btrfs_rust_last_leaf: LastLeaf;
    btrfs_rust_data_reada: DataReada;
    btrfs_rust_share_cache: ShareCache;
    btrfs_rust_lru: Lru<lru::EntryPtr>;
    btrfs_rust_send_utimes: DirUtimes;
}

/// The module parameters of `debug/debug.c`.
#[cfg(CONFIG_BTRFS_DEBUG)]
fn tunables() -> bindings::btrfs_rust_tunables {
    // SAFETY: The function has no preconditions. It returns a copy of the parameters.
    unsafe { bindings::btrfs_rust_tunables() }
}

/// The default values of the module parameters.
#[cfg(not(CONFIG_BTRFS_DEBUG))]
const fn tunables() -> bindings::btrfs_rust_tunables {
    bindings::btrfs_rust_tunables {
        reada: bindings::BTRFS_RUST_READA_FORWARD_ALWAYS as u8,
        share_cache: true,
        utimes_cache: true,
    }
}

impl From<bindings::btrfs_rust_key> for Key {
    fn from(key: bindings::btrfs_rust_key) -> Self {
        Self {
            objectid: key.objectid,
            kind: key.type_,
            offset: key.offset,
        }
    }
}

impl From<bindings::btrfs_rust_disk> for Disk {
    fn from(disk: bindings::btrfs_rust_disk) -> Self {
        Self {
            rotating: disk.rotating,
            readahead: disk.readahead,
            window_kb: disk.window_kb,
            memory: disk.memory,
            nodesize: disk.nodesize,
        }
    }
}

impl From<bindings::btrfs_rust_others> for Others {
    fn from(others: bindings::btrfs_rust_others) -> Self {
        Self {
            held: others.held,
            count: others.count,
        }
    }
}
