// SPDX-License-Identifier: GPL-2.0

//! Sorting with little stack.

/// Sorts `items` by `key`, in place and without allocations. As sort() of the kernel, this is a
/// heap sort: sort_unstable_by_key() of core takes kilobytes of stack.
pub(crate) fn sort_by_key<T>(items: &mut [T], key: impl Fn(&T) -> u64) {
    if items.is_sorted_by_key(&key) {
        return;
    }
    for root in (0..items.len() / 2).rev() {
        sift_down(items, root, &key);
    }
    for end in (1..items.len()).rev() {
        items.swap(0, end);
        sift_down(&mut items[..end], 0, &key);
    }
}

/// Moves the item at `root` down in a binary heap, whose greatest item is the first one.
fn sift_down<T>(items: &mut [T], mut root: usize, key: &impl Fn(&T) -> u64) {
    let value = |items: &[T], number: usize| items.get(number).map(key);
    loop {
        let mut child = 2 * root + 1;
        if value(items, child) < value(items, child + 1) {
            child += 1;
        }
        if value(items, child) <= value(items, root) {
            return;
        }
        items.swap(root, child);
        root = child;
    }
}

#[cfg(CONFIG_BTRFS_RUST_KUNIT_TEST)]
#[kernel::macros::kunit_tests(btrfs_sort)]
mod tests {
    use super::*;
    use crate::random::Random;
    use kernel::prelude::*;

    #[test]
    fn items_are_sorted() -> Result {
        let mut random = Random::new(5);
        for count in 0..200 {
            let (mut items, mut expected) = (KVVec::new(), KVVec::new());
            for number in 0..count {
                let key = random.below(50);
                items.push((key, number), GFP_KERNEL)?;
                expected.push((key, number), GFP_KERNEL)?;
            }
            sort_by_key(&mut items, |item| item.0);
            assert!(items.is_sorted_by_key(|item| item.0));
            // No item is lost.
            items.sort_unstable();
            expected.sort_unstable();
            assert!(items[..] == expected[..]);
        }
        Ok(())
    }
}
