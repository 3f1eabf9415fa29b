// SPDX-License-Identifier: GPL-2.0

//! Budget for file data that is read ahead and may stay unused.

use core::cmp::min;

/// Used bytes that earn one extra byte of credit.
pub(super) const USED_PER_WASTED: u64 = 50;

/// Credit: bytes that may be read ahead before the send uses data.
pub(crate) struct Credit {
    pub(super) bytes: u64,
    most: u64,
    /// The number of ranges used in a row, and the streak from which on a used range earns its
    /// whole cost as extra credit. A wasted range that ends such a streak doubles `trust`.
    streak: u64,
    trust: u64,
}

impl Credit {
    /// Creates a credit of `most` bytes, which is also its maximum.
    pub(crate) fn new(most: u64) -> Self {
        Self {
            bytes: most,
            most,
            streak: 0,
            trust: USED_PER_WASTED,
        }
    }

    /// Takes `cost` bytes. Returns false if the credit is too small; then it grows by a part of
    /// `cost`, so that a later range fits.
    pub(crate) fn take(&mut self, cost: u64) -> bool {
        if let Some(rest) = self.bytes.checked_sub(cost) {
            self.bytes = rest;
            return true;
        }
        self.bytes += cost / USED_PER_WASTED;
        false
    }

    /// Returns the `cost` of a used range, and adds the extra credit that it earns.
    pub(crate) fn note_used(&mut self, cost: u64) {
        let more = if self.streak < self.trust {
            cost / USED_PER_WASTED
        } else {
            cost
        };
        self.bytes = min(self.bytes + cost + more, self.most);
        self.streak += 1;
    }

    /// Records a wasted range, whose cost is not returned.
    pub(crate) fn note_wasted(&mut self) {
        if self.streak >= self.trust {
            self.trust = self.trust.saturating_mul(2);
        }
        self.streak = 0;
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kernel::macros::kunit_tests(btrfs_credit)]
mod tests {
    use super::*;

    /// The credit gained from one range of 5,000 bytes.
    fn gain(credit: &mut Credit, is_used: bool) -> u64 {
        let before = credit.bytes;
        if is_used {
            credit.note_used(5000);
        } else {
            credit.note_wasted();
        }
        credit.bytes - before
    }

    #[test]
    fn waste_after_a_streak_doubles_trust() {
        let mut credit = Credit::new(1 << 30);
        assert!(credit.take(1 << 30));
        for (trust, wasted_after) in [(50, 10), (50, 60), (100, 101), (200, 0)] {
            for number in 0..wasted_after {
                let expected = if number < trust { 5100 } else { 10_000 };
                assert_eq!(gain(&mut credit, true), expected);
            }
            assert_eq!(gain(&mut credit, false), 0);
        }
    }

    #[test]
    fn range_without_credit_adds_two_percent() {
        let mut credit = Credit::new(10_000);
        assert!(credit.take(6000) && !credit.take(6000));
        assert_eq!(credit.bytes, 4000 + 120);
        assert!(credit.take(4120) && !credit.take(1) && credit.take(0));
        for _ in 0..3 {
            credit.note_used(6000);
        }
        assert_eq!(credit.bytes, 10_000);
    }
}
