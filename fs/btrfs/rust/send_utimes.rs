// SPDX-License-Identifier: GPL-2.0

//! Which directories a send still owes an utimes command, and when it is sent.
//!
//! Adding or removing an entry changes the times of a directory. Send remembers the directory
//! instead of writing the command each time, and writes it once, late: when an inode is finished
//! and too many directories are remembered, or at the end of the send. Upstream has this in
//! `cache_dir_utimes()`, `trim_dir_utimes_cache()` and `btrfs_ioctl_send()`.

use kernel::{
    alloc::AllocError,
    prelude::*, //
};

use crate::lru::{
    Lru, //
    LruKey,
};

/// The most directories that stay remembered; `SEND_MAX_DIR_UTIMES_CACHE_SIZE`.
const MAX_SIZE: usize = 64;

/// The directories that a send still owes an utimes command.
pub(crate) struct DirUtimes {
    dirs: Lru,
}

impl DirUtimes {
    /// Makes an empty cache, without allocating.
    pub(crate) const fn new() -> Self {
        Self { dirs: Lru::new() }
    }

    /// Remembers `dir`, as the most recently used; `cache_dir_utimes()`.
    ///
    /// It never drops another directory for it: the path of that one may be stale while an inode
    /// is being processed.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if there is no memory for it; the caller sends the command at once then.
    pub(crate) fn cache(&mut self, dir: LruKey) -> Result<(), AllocError> {
        if self.dirs.touch(dir).is_some() {
            return Ok(());
        }
        self.dirs.insert(dir, (), GFP_KERNEL)
    }

    /// The directory to send and [`remove`](Self::remove) next once an inode is finished, if there
    /// are too many: the least recently used; `trim_dir_utimes_cache()`.
    pub(crate) fn next_to_trim(&self) -> Option<LruKey> {
        if self.dirs.len() <= MAX_SIZE {
            return None;
        }
        self.dirs.oldest()
    }

    /// The directory to send and [`remove`](Self::remove) next at the end of the send: the most
    /// recently used, the other way round than trimming.
    pub(crate) fn next_to_flush(&self) -> Option<LruKey> {
        self.dirs.newest()
    }

    /// Forgets `dir`, whose command has been sent.
    pub(crate) fn remove(&mut self, dir: LruKey) {
        self.dirs.remove(dir);
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod tests;
