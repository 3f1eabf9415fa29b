// SPDX-License-Identifier: GPL-2.0

//! Memory for readahead.

use core::{
    alloc::Layout,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::alloc::{
    allocator::KVmalloc,
    AllocError,
    Allocator,
    Flags,
    NumaNode,
    Vec, //
};

use super::bindings;

/// An allocator for optional memory. It is not charged to a cgroup. An allocation fails where
/// another one would call the OOM killer, and prints no warning; see `btrfs_rust_realloc()`.
pub(crate) struct Optional;

/// A vector in optional memory.
pub(crate) type OptionalVec<T> = Vec<T, Optional>;

// SAFETY: `btrfs_rust_realloc()` is kvrealloc(), which gives the guarantees of `KVmalloc` for
// alignments up to `MIN_ALIGN`. Its flags are those of C, since there is no `__GFP_NORETRY` in
// `kernel::alloc::flags`.
unsafe impl Allocator for Optional {
    const MIN_ALIGN: usize = KVmalloc::MIN_ALIGN;

    unsafe fn realloc(
        ptr: Option<NonNull<u8>>,
        layout: Layout,
        old_layout: Layout,
        _: Flags,
        _: NumaNode,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > Self::MIN_ALIGN {
            return Err(AllocError);
        }
        let old = match ptr {
            Some(ptr) if old_layout.size() > 0 => ptr.as_ptr(),
            _ => ptr::null_mut(),
        };
        // SAFETY: `old` is NULL, or memory of this function that the caller gives up if there is
        // other memory.
        let new = unsafe { bindings::btrfs_rust_realloc(old.cast(), layout.size()) };
        let new = if layout.size() == 0 {
            ptr::without_provenance_mut(layout.align())
        } else {
            new.cast()
        };
        let new = NonNull::new(new).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(new, layout.size()))
    }
}
