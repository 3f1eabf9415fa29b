// SPDX-License-Identifier: GPL-2.0

//! Multiplicative hashing, as in `<linux/hash.h>`.

/// 2^64 divided by the golden ratio; `GOLDEN_RATIO_64`.
const GOLDEN_RATIO_64: u64 = 0x61C8_8646_80B5_83EB;

/// A hash of `value` from 0 to 2^`bits` - 1, for 1 to 32 `bits`; `hash_64()`.
pub(crate) fn hash_64(value: u64, bits: u32) -> usize {
    // The high bits of the product depend on all bits of the value.
    (value.wrapping_mul(GOLDEN_RATIO_64) >> (u64::BITS - bits)) as usize
}
