// SPDX-License-Identifier: GPL-2.0

//! Cache of the directories whose utimes command a send has postponed.
//!
//! A directory's times change with each entry that is added or removed. Send caches the directory
//! instead of sending a command each time, and sends one command later: after an inode is finished
//! if too many directories are cached, or at the end of the send. Upstream does this in
//! `cache_dir_utimes()`, `trim_dir_utimes_cache()` and `btrfs_ioctl_send()`.

use kernel::{
    alloc::AllocError,
    prelude::*, //
};

use crate::lru::{
    Lru, //
    LruKey,
};

/// Number of directories that trimming leaves; `SEND_MAX_DIR_UTIMES_CACHE_SIZE`.
const MAX_SIZE: usize = 64;

/// The directories whose utimes command is postponed.
pub(crate) struct DirUtimes {
    dirs: Lru,
}

impl DirUtimes {
    /// Creates an empty cache, without allocating.
    pub(crate) const fn new() -> Self {
        Self { dirs: Lru::new() }
    }

    /// Adds `dir` as the most recently used directory; `cache_dir_utimes()`.
    ///
    /// The cache is not trimmed here: while an inode is processed, the paths of other directories
    /// may be outdated.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory; the caller then sends the command immediately.
    pub(crate) fn cache(&mut self, dir: LruKey) -> Result<(), AllocError> {
        if self.dirs.touch(dir).is_some() {
            return Ok(());
        }
        self.dirs.insert(dir, (), GFP_KERNEL)
    }

    /// Removes the least recently used directory, if more than [`MAX_SIZE`] are cached;
    /// `trim_dir_utimes_cache()`. After an inode is finished, the caller sends it.
    pub(crate) fn trim(&mut self) -> Option<LruKey> {
        if self.dirs.len() <= MAX_SIZE {
            return None;
        }
        let oldest = self.dirs.oldest()?;
        self.dirs.remove(oldest);
        Some(oldest)
    }

    /// Removes the most recently used directory; `btrfs_ioctl_send()`. At the end of the send, the
    /// caller sends it. The order is the reverse of trimming.
    pub(crate) fn flush(&mut self) -> Option<LruKey> {
        let newest = self.dirs.newest()?;
        self.dirs.remove(newest);
        Some(newest)
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
