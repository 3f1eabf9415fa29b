// SPDX-License-Identifier: GPL-2.0

//! Readahead of the leaves of a file for fiemap.

use core::ops::Range;

use kernel::{
    prelude::*,
    sizes::SZ_1K, //
};

use super::LeafReada;
use crate::{
    tree::Key,
    window::Disk, //
};

/// A fiemap that starts past offset 0 and asks for at least this many extents is probably one of a
/// series: at least as many leaves are read ahead as the readahead of the filesystem has.
pub(crate) const SERIES_EXTENTS: u32 = 32;

/// Size of a file extent item in a leaf, in bytes: `struct btrfs_item` and
/// `struct btrfs_file_extent_item`.
const FILE_EXTENT_SIZE: u32 = 25 + 53;

/// The file extents that a fiemap call asks for.
pub(crate) struct FileExtents {
    /// Keys of the file extent items.
    pub(crate) range: Range<Key>,
    /// The number of extents that the call asks for.
    pub(crate) wanted: u32,
    /// Whether the call starts at file offset 0.
    pub(crate) is_first: bool,
}

impl LeafReada {
    /// Creates the readahead of a fiemap call.
    ///
    /// # Errors
    ///
    /// As for [`LeafReada::new`].
    pub(crate) fn for_extents(disk: Disk, extents: FileExtents) -> Result<Self> {
        let is_series = !extents.is_first && extents.wanted >= SERIES_EXTENTS;
        let least = if is_series {
            disk.nodes((disk.readahead as u64).saturating_mul(SZ_1K as u64))
        } else {
            0
        };
        // Assume half full leaves: a split leaves them half full, and random writes do not fill
        // them much further.
        let per_leaf = (disk.nodesize / 2 / FILE_EXTENT_SIZE).max(1);
        let leaves = u64::from(extents.wanted.div_ceil(per_leaf)).max(least as u64);
        let bytes = leaves.saturating_mul(u64::from(disk.nodesize));
        let mut reada = Self::with_max_batch(disk, disk.max_batch().min(bytes))?;
        reada.next = reada.next.map(|_| extents.range.start);
        reada.mark = extents.range.start;
        reada.end = extents.range.end;
        reada.budget = leaves.max(1) as usize;
        if !extents.is_first {
            reada.window.open();
        }
        let needed = extents.wanted.div_ceil(per_leaf).max(1);
        reada.probe = Some(needed.min(reada.in_order as u32));
        Ok(reada)
    }
}
