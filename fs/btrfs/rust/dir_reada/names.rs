// SPDX-License-Identifier: GPL-2.0

//! Readahead of DIR_ITEMs. Lookups use them in random order.

use super::{
    Cache,
    MIN_LOOKUPS, //
};
use crate::{
    ffi::OptionalVec,
    tree::{
        Cursor,
        Key,
        Leaf,
        Tree,
        Unread, //
    },
};

/// Leaves with DIR_ITEMs to read ahead for each lookup so far.
const LEAVES_PER_LOOKUP: usize = 8;

/// The DIR_ITEMs of a directory that were not planned yet.
pub(super) struct Names {
    pub(super) next: Key,
    pub(super) end: Key,
    /// The number of lookups at which more of them are planned. It doubles each time, or grows by
    /// one for each leaf planned, if that is less.
    mark: usize,
}

impl Names {
    /// None of the DIR_ITEMs from the key `first` to `end` were planned. The first ones are planned
    /// after `mark` lookups.
    pub(super) fn new(first: Key, end: Key, mark: usize) -> Self {
        Self {
            next: first,
            end,
            mark,
        }
    }

    /// Whether to plan leaves after `lookups` lookups.
    pub(super) fn are_due(&self, lookups: usize) -> bool {
        self.next < self.end && lookups >= self.mark
    }

    /// The number of leaves to plan, at most `most`.
    pub(super) fn count(lookups: usize, most: usize) -> usize {
        let leaves = lookups.max(MIN_LOOKUPS).saturating_mul(LEAVES_PER_LOOKUP);
        leaves.min(most)
    }

    /// Adds the next `count` leaves to `leaves`, which has room for them. Those in memory are left
    /// out.
    pub(super) fn plan<T: Tree>(
        &mut self,
        tree: &T,
        lookups: usize,
        count: usize,
        cache: &impl Cache,
        leaves: &mut OptionalVec<Leaf>,
    ) {
        let lookups = lookups.max(MIN_LOOKUPS);
        self.mark = lookups.saturating_add(count.min(lookups));
        let mut cursor = Cursor::new(tree, self.next, true, self.end);
        if cursor.enter_root().is_err() {
            return;
        }
        for number in 0..count {
            match cursor.descend_to_leaves() {
                Ok(_) if !tree.is_contended() => (),
                Err(Unread::Failed) => break,
                _ => {
                    self.mark = lookups.saturating_add(number.clamp(1, lookups));
                    break;
                }
            }
            if let Some(&ptr) = cursor.ptr().filter(|ptr| !cache.has(ptr.blockptr)) {
                let _ = leaves.push_within_capacity(Leaf { ptr, tree: 0 });
            }
            cursor.advance();
        }
        self.next = cursor.key().map_or(self.end, |key| key.max(self.next));
    }
}
