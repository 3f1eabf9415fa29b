// SPDX-License-Identifier: GPL-2.0

//! The items of the kernel's crate `kernel` that fs/btrfs/rust uses, for the host.

pub use macros;

/// Types with a valid value that is all zeroes; derived as in the kernel.
///
/// # Safety
///
/// Zeroes must be a valid value.
pub unsafe trait Zeroable: Sized {
    fn zeroed() -> Self {
        // SAFETY: Zeroes are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

/// Memory and arrays.
pub mod alloc {
    use std::{
        ops::{Deref, DerefMut},
        slice,
    };

    /// GFP flags, without effect.
    #[derive(Clone, Copy)]
    pub struct Flags;

    /// There is no memory.
    #[derive(Debug, PartialEq, Eq)]
    pub struct AllocError;

    /// The array is full, and the item was not added.
    #[derive(Debug)]
    pub struct PushError<T>(pub T);

    /// `KVVec` and `KVec` of the kernel.
    #[derive(Debug)]
    pub struct KVVec<T>(Vec<T>);

    impl<T> KVVec<T> {
        pub const fn new() -> Self {
            Self(Vec::new())
        }

        pub fn with_capacity(capacity: usize, flags: Flags) -> Result<Self, AllocError> {
            let mut array = Self::new();
            array.reserve(capacity, flags)?;
            Ok(array)
        }

        pub fn from_elem(value: T, count: usize, flags: Flags) -> Result<Self, AllocError>
        where
            T: Clone,
        {
            let mut array = Self::with_capacity(count, flags)?;
            array.0.resize(count, value);
            Ok(array)
        }

        pub fn capacity(&self) -> usize {
            self.0.capacity()
        }

        pub fn reserve(&mut self, additional: usize, _flags: Flags) -> Result<(), AllocError> {
            if self.0.capacity() - self.0.len() >= additional {
                return Ok(());
            }
            // As in the kernel: at least twice the capacity.
            let wanted = (self.0.len() + additional).max(self.0.capacity() * 2);
            self.0.reserve_exact(wanted - self.0.len());
            Ok(())
        }

        pub fn push(&mut self, item: T, flags: Flags) -> Result<(), AllocError> {
            self.reserve(1, flags)?;
            self.0.push(item);
            Ok(())
        }

        pub fn push_within_capacity(&mut self, item: T) -> Result<(), PushError<T>> {
            if self.0.len() == self.0.capacity() {
                return Err(PushError(item));
            }
            self.0.push(item);
            Ok(())
        }

        pub fn remove(&mut self, index: usize) -> Result<T, ()> {
            (index < self.0.len())
                .then(|| self.0.remove(index))
                .ok_or(())
        }

        pub fn clear(&mut self) {
            self.0.clear();
        }

        pub fn truncate(&mut self, len: usize) {
            self.0.truncate(len);
        }

        pub fn retain(&mut self, keep: impl FnMut(&mut T) -> bool) {
            self.0.retain_mut(keep);
        }
    }

    impl<T> Deref for KVVec<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            &self.0
        }
    }

    impl<T> DerefMut for KVVec<T> {
        fn deref_mut(&mut self) -> &mut [T] {
            &mut self.0
        }
    }

    impl<T: PartialEq> PartialEq for KVVec<T> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    impl<'a, T> IntoIterator for &'a KVVec<T> {
        type Item = &'a T;
        type IntoIter = slice::Iter<'a, T>;

        fn into_iter(self) -> Self::IntoIter {
            self.0.iter()
        }
    }
}

/// The page size of most architectures.
pub mod page {
    pub const PAGE_SIZE: usize = 4096;
}

/// Sizes in bytes.
pub mod sizes {
    macro_rules! sizes {
        ($($name:ident = $size:expr;)*) => { $(pub const $name: usize = $size;)* };
    }

    sizes! {
        SZ_1K = 1 << 10;
        SZ_16K = 16 << 10;
        SZ_64K = 64 << 10;
        SZ_128K = 128 << 10;
        SZ_256M = 256 << 20;
    }
}

pub mod prelude {
    use super::alloc::{
        AllocError,
        Flags, //
    };

    pub use super::alloc::KVVec;
    pub use super::alloc::KVVec as KVec;
    pub use super::Zeroable;
    pub use macros::Zeroable;

    pub const GFP_KERNEL: Flags = Flags;

    /// A negative error number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Error(pub i32);

    pub const ENOMEM: Error = Error(-12);
    pub const EEXIST: Error = Error(-17);
    pub const EINVAL: Error = Error(-22);

    pub type Result<T = (), E = Error> = std::result::Result<T, E>;

    impl From<AllocError> for Error {
        fn from(_: AllocError) -> Self {
            ENOMEM
        }
    }
}
