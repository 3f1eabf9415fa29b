// SPDX-License-Identifier: GPL-2.0

//! The macros of the kernel's crate `macros` that fs/btrfs/rust uses.

use proc_macro::{
    TokenStream,
    TokenTree, //
};

/// Leaves the module of a KUnit suite as it is: `cargo test` runs its functions with `#[test]`.
#[proc_macro_attribute]
pub fn kunit_tests(_suite: TokenStream, module: TokenStream) -> TokenStream {
    module
}

/// Implements `Zeroable` for a struct without parameters.
#[proc_macro_derive(Zeroable)]
pub fn zeroable(item: TokenStream) -> TokenStream {
    let is_struct =
        |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "struct");
    let name = item
        .into_iter()
        .skip_while(|token| !is_struct(token))
        .nth(1);
    let name = name.expect("derive(Zeroable) is for structs");
    format!("unsafe impl Zeroable for {name} {{}}")
        .parse()
        .unwrap()
}
