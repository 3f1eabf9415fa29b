// SPDX-License-Identifier: GPL-2.0

//! The leaf of the last lookup.

use kernel::prelude::*;

use super::{
    Cursor,
    Key,
    Leaf,
    Tree,
    Unread, //
};

/// The key range of the last leaf looked up: successive lookups there do not read it again.
///
/// All zeroes is an empty range.
#[derive(Default, Zeroable)]
pub(crate) struct LastLeaf {
    /// The first key of the leaf, or of the subtree that could not be read.
    first: Key,
    /// The first key past it.
    end: Key,
}

impl LastLeaf {
    /// Finds the leaf of `key`; `None` if it is the last leaf looked up. Successive lookups in a
    /// subtree that cannot be read try it once. After [`Unread::Busy`], the last leaf is the same
    /// as before, and the next lookup tries again.
    pub(crate) fn find<T: Tree>(&mut self, tree: &T, key: Key) -> Result<Option<Leaf>, Unread> {
        if (self.first..self.end).contains(&key) {
            return Ok(None);
        }
        let mut cursor = Cursor::new(tree, key, true, Key::MAX);
        cursor.enter_root()?;
        let is_found = match cursor.descend_to_leaves() {
            Err(Unread::Busy) => return Err(Unread::Busy),
            found => found.is_ok(),
        };
        let ptr = *cursor.ptr().ok_or(Unread::Failed)?;
        cursor.advance();
        self.first = ptr.key;
        self.end = cursor.key().unwrap_or(Key::MAX);
        Ok(is_found.then_some(Leaf { ptr, tree: 0 }))
    }
}
