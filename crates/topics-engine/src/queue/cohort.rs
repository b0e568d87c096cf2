//! Dividing jobs among claims that came within one window.

/// How many of `available` jobs each claim gets: in turns, in proportion to what it asked for.
/// The answer says, job by job, whose it is.
pub(crate) fn divide(available: usize, wants: &[usize]) -> Vec<usize> {
    let mut given = vec![0usize; wants.len()];
    let total: usize = wants.iter().sum();
    let mut out = Vec::with_capacity(available.min(total));
    while out.len() < available.min(total) {
        // The claim that is furthest behind its share: least (given + 1) / wants.
        let next = (0..wants.len()).filter(|i| given[*i] < wants[*i]).min_by(|a, b| {
            let left = (given[*a] as u128 + 1) * wants[*b] as u128;
            let right = (given[*b] as u128 + 1) * wants[*a] as u128;
            left.cmp(&right).then(a.cmp(b))
        });
        let Some(i) = next else { break };
        given[i] += 1;
        out.push(i);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(available: usize, wants: &[usize]) -> Vec<usize> {
        let mut n = vec![0; wants.len()];
        divide(available, wants).into_iter().for_each(|i| n[i] += 1);
        n
    }

    #[test]
    fn in_proportion_and_in_turns() {
        assert_eq!(counts(12, &[8, 4, 4]), [6, 3, 3]);
        assert_eq!(counts(3, &[1, 1, 1]), [1, 1, 1]);
        assert_eq!(counts(2, &[1, 1, 1]), [1, 1, 0]);
        assert_eq!(counts(100, &[2, 3]), [2, 3]);
        assert_eq!(counts(0, &[2]), [0]);
        assert_eq!(divide(4, &[2, 2]), [0, 1, 0, 1]);
    }

    proptest! {
        #[test]
        fn nobody_is_more_than_one_turn_behind(
            available in 0usize..200,
            wants in proptest::collection::vec(0usize..50, 1..8),
        ) {
            let n = counts(available, &wants);
            let total: usize = wants.iter().sum();
            prop_assert_eq!(n.iter().sum::<usize>(), available.min(total));
            for (got, want) in n.iter().zip(&wants) {
                prop_assert!(got <= want);
                let share = available.min(total) as f64 * *want as f64 / total.max(1) as f64;
                prop_assert!((*got as f64 - share).abs() < wants.len() as f64, "{:?}", n);
            }
        }
    }
}
