// SPDX-License-Identifier: GPL-2.0

//! Extent buffers and commit roots.

use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    error::from_err_ptr,
    prelude::*,
    types::Opaque, //
};

use super::{
    bindings,
    Mirror, //
};
use crate::{
    data_reada::{
        Extent,
        Items,
        Subvolume, //
    },
    tree::{
        Key,
        KeyPtr,
        Node,
        Root,
        Tree,
        Unread, //
    },
};

/// A node above the leaves.
///
/// # Invariants
///
/// The extent buffer is up to date, its level is at least 1, and it does not change as long as a
/// reference to this exists.
#[repr(transparent)]
pub(super) struct NodeBuffer(Opaque<bindings::extent_buffer>);

impl NodeBuffer {
    /// # Safety
    ///
    /// `node` must be null, or point to an extent buffer that meets the invariants during `'a`.
    pub(super) unsafe fn from_raw<'a>(node: *const bindings::extent_buffer) -> Option<&'a Self> {
        // SAFETY: The pointer is null or valid for `'a`, and `NodeBuffer` has the layout of its
        // field.
        // INVARIANT: The caller passes an uptodate node that does not change during `'a`.
        unsafe { node.cast::<Self>().as_ref() }
    }

    fn as_ptr(&self) -> *mut bindings::extent_buffer {
        self.0.get()
    }
}

impl Node for NodeBuffer {
    fn level(&self) -> u32 {
        // SAFETY: By the type invariants, the pointer is to an uptodate node.
        unsafe { bindings::btrfs_rust_node_level(self.as_ptr()) }
    }

    fn nodesize(&self) -> u32 {
        // SAFETY: By the type invariants, the pointer is to an uptodate node.
        unsafe { bindings::btrfs_rust_node_size(self.as_ptr()) }
    }

    fn nritems(&self) -> u32 {
        // SAFETY: By the type invariants, the pointer is to an uptodate node.
        unsafe { bindings::btrfs_rust_node_nritems(self.as_ptr()) }
    }

    fn copy_ptrs(&self, slot: u32, ptrs: &mut [KeyPtr]) {
        let (to, count) = (ptrs.as_mut_ptr(), ptrs.len());
        // SAFETY: By the type invariants, the pointer is to an uptodate node. The helper writes at
        // most `count` elements, and reads only pointers that the node has room for.
        unsafe { bindings::btrfs_rust_node_ptrs(self.as_ptr(), slot, KeyPtr::as_c_mut(to), count) };
    }

    fn blockptr(&self, slot: u32) -> u64 {
        // SAFETY: By the type invariants, the pointer is to an uptodate node. The helper checks the
        // slot.
        unsafe { bindings::btrfs_rust_node_blockptr(self.as_ptr(), slot) }
    }

    fn search(&self, key: Key) -> Result<u32, u32> {
        let mut slot = 0;
        // SAFETY: By the type invariants, the pointer is to an uptodate node. `key` and `slot` are
        // variables.
        let is_found =
            unsafe { bindings::btrfs_rust_node_search(self.as_ptr(), Key::as_c(&key), &mut slot) };
        is_found.then_some(slot).ok_or(slot)
    }

    fn is_cached(&self, blockptr: u64) -> bool {
        // SAFETY: By the type invariants, the pointer is to an uptodate node.
        unsafe { bindings::btrfs_rust_is_cached(self.as_ptr(), blockptr) }
    }
}

/// Proof that C holds the `commit_root_sem` of a filesystem for reading.
///
/// # Invariants
///
/// C holds the semaphore as long as this exists.
pub(super) struct CommitRootSem(());

impl CommitRootSem {
    /// # Safety
    ///
    /// C must hold the semaphore for reading as long as the result exists.
    pub(super) unsafe fn held() -> Self {
        // INVARIANT: C holds the semaphore as long as the result exists.
        Self(())
    }
}

/// A reference to a block of a commit root.
///
/// # Invariants
///
/// `buffer` points to an extent buffer, and this owns one of its references. The extent buffer is
/// up to date and does not change during `'lock`: a transaction changes only newer blocks, and
/// `btrfs_buffer_uptodate()` does not have them read again if a wrong pointer leads to them.
pub(super) struct BufferRef<'lock> {
    buffer: NonNull<bindings::extent_buffer>,
    _lock: PhantomData<&'lock CommitRootSem>,
}

impl BufferRef<'_> {
    /// # Safety
    ///
    /// `buffer` must be null, or meet the invariants. The result takes over the caller's reference.
    unsafe fn new(buffer: *mut bindings::extent_buffer) -> Option<Self> {
        // INVARIANT: The caller hands over its reference to an uptodate block of a commit root.
        Some(Self {
            buffer: NonNull::new(buffer)?,
            _lock: PhantomData,
        })
    }
}

impl Drop for BufferRef<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants, this owns a reference, which is not used again.
        unsafe { bindings::btrfs_rust_put_node(self.buffer.as_ptr()) };
    }
}

/// A node of a commit root.
///
/// # Invariants
///
/// The level of the extent buffer is at least 1.
pub(super) struct NodeRef<'lock>(BufferRef<'lock>);

impl Deref for NodeRef<'_> {
    type Target = NodeBuffer;

    fn deref(&self) -> &NodeBuffer {
        // SAFETY: By the type invariants, `buffer` points to a node that does not change during
        // `'lock`. The reference that `self` owns keeps it alive.
        unsafe { &*self.0.buffer.as_ptr().cast() }
    }
}

/// A leaf of a commit root.
///
/// # Invariants
///
/// The level of the extent buffer is 0.
pub(super) struct LeafRef<'lock>(BufferRef<'lock>);

impl LeafRef<'_> {
    fn as_ptr(&self) -> *mut bindings::extent_buffer {
        self.0.buffer.as_ptr()
    }
}

/// The commit root of a tree; an empty tree if the pointer is null.
///
/// # Invariants
///
/// `root` is null or points to a root that exists during `'lock`. The root belongs to the
/// filesystem whose semaphore is held.
pub(super) struct CommitRoot<'lock> {
    root: *mut bindings::btrfs_root,
    _lock: PhantomData<&'lock CommitRootSem>,
}

impl<'lock> CommitRoot<'lock> {
    /// # Safety
    ///
    /// `root` must be null, or point to a root of the filesystem whose semaphore `_lock` stands
    /// for. The root must exist as long as the semaphore is held.
    pub(super) unsafe fn new(_lock: &'lock CommitRootSem, root: *mut bindings::btrfs_root) -> Self {
        // INVARIANT: The caller passes null or a root that exists as long as the semaphore is held.
        Self {
            root,
            _lock: PhantomData,
        }
    }
}

impl<'lock> Tree for CommitRoot<'lock> {
    type Node = NodeRef<'lock>;

    fn root(&self) -> Root<NodeRef<'lock>> {
        if self.root.is_null() {
            return Root::Leaf;
        }
        // SAFETY: By the type invariants, the root exists and the semaphore is held.
        let node = unsafe { bindings::btrfs_rust_commit_root(self.root) };
        let Ok(node) = from_err_ptr(node) else {
            return Root::Uncommitted;
        };
        // SAFETY: The helper has returned null, or a committed node with a reference for us. It
        // does not change as long as the semaphore is held.
        let node = unsafe { BufferRef::new(node) };
        // INVARIANT: The helper returns no leaves.
        node.map_or(Root::Leaf, |node| Root::Node(NodeRef(node)))
    }

    fn is_contended(&self) -> bool {
        // SAFETY: By the type invariants, a root that is not null exists.
        !self.root.is_null() && unsafe { bindings::btrfs_rust_is_contended(self.root) }
    }

    fn child(
        &self,
        node: &NodeRef<'lock>,
        slot: u32,
        ahead: impl Iterator<Item = u32>,
    ) -> Result<NodeRef<'lock>, Unread> {
        for wanted in Iterator::chain(core::iter::once(slot), ahead) {
            // SAFETY: By the type invariants, `node` is an uptodate node. The helper checks the
            // slot.
            unsafe { bindings::btrfs_rust_readahead_child(node.as_ptr(), wanted) };
        }
        // SAFETY: By the type invariants, `node` is an uptodate node. The helper checks the slot.
        let child = unsafe { bindings::btrfs_rust_read_child(node.as_ptr(), slot) };
        let child = from_err_ptr(child).map_err(|_| Unread::Busy)?;
        // SAFETY: The helper has returned null, or a block of the same tree with a reference for
        // us. It does not change as long as the semaphore is held.
        let child = unsafe { BufferRef::new(child) };
        // INVARIANT: The helper returns no leaves.
        child.map(NodeRef).ok_or(Unread::Failed)
    }
}

impl Items for LeafRef<'_> {
    fn nritems(&self) -> u32 {
        // SAFETY: By the type invariants, the pointer is to an uptodate extent buffer.
        unsafe { bindings::btrfs_rust_node_nritems(self.as_ptr()) }
    }

    fn key(&self, slot: u32) -> Key {
        // SAFETY: By the type invariants, the pointer is to a leaf. The helper checks `slot`.
        unsafe { bindings::btrfs_rust_item_key(self.as_ptr(), slot) }.into()
    }

    fn is_file(&self, slot: u32) -> bool {
        // SAFETY: By the type invariants, the pointer is to a leaf. The helper checks `slot` and
        // the item.
        unsafe { bindings::btrfs_rust_item_is_file(self.as_ptr(), slot) }
    }

    fn extent(&self, slot: u32) -> Option<Extent> {
        // SAFETY: By the type invariants, the pointer is to a leaf. The helper checks `slot` and
        // the item.
        let extent = unsafe { bindings::btrfs_rust_item_extent(self.as_ptr(), slot) };
        (extent.bytenr != 0).then_some(Extent {
            bytenr: extent.bytenr,
            disk_len: extent.disk_len,
            offset: extent.offset,
            len: extent.len,
            generation: extent.generation,
            is_compressed: extent.is_compressed,
        })
    }
}

impl<'lock> Subvolume for CommitRoot<'lock> {
    type Items = LeafRef<'lock>;

    fn leaf(&self, node: &NodeRef<'lock>, slot: u32) -> Option<LeafRef<'lock>> {
        // SAFETY: By the type invariants, `node` is an uptodate node. The helper checks the slot.
        let leaf = unsafe { bindings::btrfs_rust_cached_leaf(node.as_ptr(), slot) };
        // SAFETY: The helper has returned null, or a block of the same tree with a reference for
        // us. It does not change as long as the semaphore is held.
        // INVARIANT: The helper returns only leaves.
        unsafe { BufferRef::new(leaf) }.map(LeafRef)
    }

    fn only_leaf(&self) -> Option<LeafRef<'lock>> {
        if self.root.is_null() {
            return None;
        }
        // SAFETY: By the type invariants, the root exists and the semaphore is held.
        let leaf = unsafe { bindings::btrfs_rust_commit_leaf(self.root) };
        // SAFETY: The helper has returned null, or a committed leaf with a reference for us. It
        // does not change as long as the semaphore is held.
        // INVARIANT: The helper returns only leaves.
        unsafe { BufferRef::new(leaf) }.map(LeafRef)
    }
}
