// SPDX-License-Identifier: GPL-2.0

//! A tree of which a plan waits for few nodes.

use core::cell::Cell;

use super::{
    first_key,
    DirReada,
    Directories,
    Entry,
    INODE_ITEM, //
};
use crate::tree::{
    LastLeaf,
    Node,
    Root,
    Tree,
    Unread, //
};

/// Maximum number of nodes to wait for in one plan. The task waits with the directory locked,
/// before its own lookup: two reads take as long as those of the DIR_ITEM and the INODE_ITEM.
const MAX_READS: u32 = 2;

/// A tree of which [`MAX_READS`] nodes are waited for. Others that are not up to date are read
/// ahead and [`Unread::Busy`].
pub(super) struct Hasty<'a, T> {
    tree: &'a T,
    reads: Cell<u32>,
}

impl<'a, T: Tree> Hasty<'a, T> {
    /// The same tree as `tree`, of which no node was waited for; `None` if it is not committed.
    pub(super) fn new(tree: &'a T) -> Option<Self> {
        if let Root::Uncommitted = tree.root() {
            return None;
        }
        Some(Self {
            tree,
            reads: Cell::new(0),
        })
    }
}

impl<T: Tree> Tree for Hasty<'_, T> {
    type Node = T::Node;

    fn root(&self) -> Root<T::Node> {
        self.tree.root()
    }

    fn is_contended(&self) -> bool {
        self.tree.is_contended()
    }

    fn child(
        &self,
        node: &T::Node,
        slot: u32,
        ahead: impl Iterator<Item = u32>,
    ) -> Result<T::Node, Unread> {
        if !node.is_uptodate(node.blockptr(slot)) {
            if self.reads.get() >= MAX_READS {
                self.read_ahead(node, slot);
                return Err(Unread::Busy);
            }
            self.reads.set(self.reads.get() + 1);
        }
        self.tree.child(node, slot, ahead)
    }

    fn read_ahead(&self, node: &T::Node, slot: u32) {
        self.tree.read_ahead(node, slot);
    }
}

impl<T: Directories> Directories for Hasty<'_, T> {
    fn entries(&self, node: &T::Node, slot: u32, ino: u64, to: &mut [Entry]) -> Option<usize> {
        self.tree.entries(node, slot, ino, to)
    }
}

impl DirReada {
    /// Starts reading nodes for the next `count` entries: the next plan need not wait for them.
    pub(super) fn read_nodes<T: Tree>(
        &self,
        tree: &Hasty<'_, T>,
        last: &mut LastLeaf,
        count: usize,
    ) {
        for &ino in self.entries.rest().iter().take(count) {
            let _ = last.find(tree, first_key(ino, INODE_ITEM));
        }
    }
}
