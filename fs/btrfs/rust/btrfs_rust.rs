// SPDX-License-Identifier: GPL-2.0

//! The parts of btrfs that are written in Rust.

mod ffi;
mod lru;
#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod random;
mod reada;
mod reada_data;
mod reada_walk;
mod send_utimes;
mod share_cache;
mod window;
