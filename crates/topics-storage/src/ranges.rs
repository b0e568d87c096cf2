//! Inclusive ranges of numbers: seqs, tickets.

/// Merges ascending numbers into inclusive ranges `(first, last)`.
pub fn ranges_of(numbers: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => ranges.push((n, n)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_numbers_are_one_range() {
        assert_eq!(ranges_of([]), []);
        assert_eq!(ranges_of([7]), [(7, 7)]);
        assert_eq!(ranges_of([1, 2, 3, 5, 7, 8]), [(1, 3), (5, 5), (7, 8)]);
        assert_eq!(ranges_of([u64::MAX - 1, u64::MAX]), [(u64::MAX - 1, u64::MAX)]);
    }
}
