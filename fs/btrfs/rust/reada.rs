// SPDX-License-Identifier: GPL-2.0

//! Selection of siblings to read ahead when a search or a comparison descends.
//!
//! The result is an iterator over slots of the node, in submission order.

use kernel::sizes::{
    SZ_128K,
    SZ_64K, //
};

use crate::tree::Node;

/// Maximum distance of a child from the target, between logical addresses in bytes.
const MAX_DISTANCE: u64 = SZ_64K as u64;

/// The selection ends after it has scanned more slots than this.
pub(crate) const MAX_SCAN: u32 = 32;

/// The readahead mode of a search: the `reada` of `struct btrfs_path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// No readahead; `READA_NONE`.
    None,
    /// Leaves before the target and close to it on disk; `READA_BACK`.
    Back,
    /// Leaves after the target and close to it on disk; `READA_FORWARD`.
    Forward,
    /// All children after the target, nodes too; `READA_FORWARD_ALWAYS`.
    ForwardAlways,
    /// Leaves after the target; `READA_FORWARD_FAR`.
    ForwardFar,
}

/// Iterator over the slots to read ahead when a search descends; see [`for_search`].
pub(crate) struct Search<'a, N> {
    node: &'a N,
    nodesize: u32,
    nritems: u32,
    mode: Mode,
    /// [`Mode::Back`] stops at a key with another objectid, unless this is 0.
    objectid: u64,
    target: u64,
    /// The slot scanned last.
    slot: u32,
    /// Bytes to select: the selection ends once `taken` exceeds this.
    limit: u64,
    taken: u64,
    scanned: u32,
}

/// Selects slots to read ahead when a search for `objectid` descends from `node` at `slot`;
/// `reada_for_search()`.
pub(crate) fn for_search<N: Node>(
    node: &N,
    slot: u32,
    mode: Mode,
    objectid: u64,
) -> Option<Search<'_, N>> {
    let limit = match (mode, node.level()) {
        (Mode::None, _) => return None,
        (Mode::ForwardAlways | Mode::ForwardFar, 1) => SZ_128K as u32,
        // Nodes are visited at longer intervals than leaves: avoid too much I/O at once.
        (Mode::ForwardAlways, _) => node.nodesize(),
        (_, 1) => SZ_64K as u32,
        _ => return None,
    };
    let mut target = 0;
    if mode != Mode::ForwardAlways {
        target = node.blockptr(slot);
        if node.is_cached(target) {
            return None;
        }
    }
    Some(Search {
        node,
        nodesize: node.nodesize(),
        nritems: node.nritems(),
        mode,
        objectid,
        target,
        slot,
        limit: u64::from(limit),
        taken: 0,
        scanned: 0,
    })
}

impl<N: Node> Search<'_, N> {
    fn next_slot(&self) -> Option<u32> {
        if self.mode != Mode::Back {
            return self.slot.checked_add(1).filter(|slot| *slot < self.nritems);
        }
        self.slot
            .checked_sub(1)
            .filter(|slot| self.objectid == 0 || self.node.ptr(*slot).key.objectid == self.objectid)
    }

    fn takes(&self, slot: u32) -> bool {
        matches!(self.mode, Mode::ForwardAlways | Mode::ForwardFar)
            || self.node.blockptr(slot).abs_diff(self.target) <= MAX_DISTANCE
    }
}

impl<N: Node> Iterator for Search<'_, N> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.taken <= self.limit && self.scanned <= MAX_SCAN {
            self.slot = self.next_slot()?;
            self.scanned += 1;
            if self.takes(self.slot) {
                self.taken += u64::from(self.nodesize);
                return Some(self.slot);
            }
        }
        None
    }
}

/// Selects slots to read ahead when the comparison of two trees descends from `node` at `slot`: the
/// following children newer than `min_gen`; `tree_move_down()`.
///
/// Older children are in the other tree too and are not visited. A `min_gen` of [`u64::MAX`]
/// selects none: then [`crate::leaf_reada`] reads ahead for the comparison.
pub(crate) fn for_move_down<N: Node>(
    node: &N,
    slot: u32,
    min_gen: u64,
) -> impl Iterator<Item = u32> + '_ {
    let nodesize = node.nodesize().max(1);
    let limit = if node.level() == 1 {
        SZ_128K as u32
    } else {
        nodesize
    };
    let nritems = if min_gen == u64::MAX {
        0
    } else {
        node.nritems()
    };
    (slot.saturating_add(1)..nritems)
        .filter(move |slot| node.ptr(*slot).generation > min_gen)
        .take(limit.div_ceil(nodesize) as usize)
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
