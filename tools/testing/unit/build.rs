// SPDX-License-Identifier: GPL-2.0

//! Sets the option of the kernel configuration that adds the tests.

fn main() {
    println!("cargo:rustc-cfg=CONFIG_BTRFS_RUST_KUNIT_TEST");
}
