// SPDX-License-Identifier: GPL-2.0

//! Rust code of btrfs. C calls it through [`ffi`].

mod data_reada;
// `cargo test` runs on a host, without C.
#[cfg(not(test))]
mod ffi;
mod hash;
mod leaf_reada;
mod lru;
#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
mod random;
mod reada;
mod send_utimes;
mod share_cache;
mod sort;
mod tree;
mod window;
