// SPDX-License-Identifier: GPL-2.0

//! Reproducible pseudo-random numbers for the tests.

/// The xorshift64 generator of G. Marsaglia.
pub(crate) struct Random(u64);

impl Random {
    /// Starts a sequence. `seed` must not be 0, which yields only zeroes.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number from 0 to `bound` - 1, for a `bound` of up to 32 bits.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }
}
