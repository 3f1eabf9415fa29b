// SPDX-License-Identifier: GPL-2.0

//! The budget for data that may be read in vain.

use core::cmp::min;

/// At most one wasted byte per so many used bytes.
pub(super) const USED_PER_WASTED: u64 = 50;

/// Bytes that may be read ahead before some of them are used.
pub(crate) struct Credit {
    pub(super) bytes: u64,
    most: u64,
    /// The number of ranges that were used in a row, and the number from which on the credit of
    /// each is returned twice. It doubles when a range was wasted after that.
    streak: u64,
    trust: u64,
}

impl Credit {
    /// A credit of `most` bytes. Used ranges make it no more than that.
    pub(crate) fn new(most: u64) -> Self {
        Self {
            bytes: most,
            most,
            streak: 0,
            trust: USED_PER_WASTED,
        }
    }

    /// Takes `cost` bytes. Returns whether there were so many; a range that is left out adds a
    /// little.
    pub(crate) fn take(&mut self, cost: u64) -> bool {
        if let Some(rest) = self.bytes.checked_sub(cost) {
            self.bytes = rest;
            return true;
        }
        self.bytes += cost / USED_PER_WASTED;
        false
    }

    /// Returns the `cost` of a range that was used, and a little more.
    pub(crate) fn note_used(&mut self, cost: u64) {
        let more = if self.streak < self.trust {
            cost / USED_PER_WASTED
        } else {
            cost
        };
        self.bytes = min(self.bytes + cost + more, self.most);
        self.streak += 1;
    }

    /// Notes that a range was wasted, whose cost is lost.
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

    /// The gain from one range of 5,000 bytes.
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
    fn misplaced_trust_is_harder_to_earn() {
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
    fn a_range_without_credit_adds_a_little() {
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
