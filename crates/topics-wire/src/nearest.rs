//! Refusals of unknown names, with the known name that was probably meant.

use crate::error::{DetailBuilder, Failure};

/// Longer names are not compared: they are not misspelt fields.
const LONGEST: usize = 64;
/// Characters of an unknown name that a message repeats.
const SHOWN: usize = 100;

/// The known name that `given` probably misspells. Case, `_` and `-` do not count; of the other
/// characters about a third may be wrong.
#[must_use]
pub fn nearest<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    let given = plain(given)?;
    let distances = known.iter().filter_map(|name| Some((distance(&given, &plain(name)?), *name)));
    let (least, name) = distances.min_by_key(|(d, _)| *d)?;
    (least <= (given.len() / 3).clamp(1, 3) && least < given.len()).then_some(name)
}

/// The compared form of a name; `None` for a name that is too long.
fn plain(name: &str) -> Option<Vec<char>> {
    let skipped = |c: &char| !matches!(c, '_' | '-');
    (name.len() <= LONGEST)
        .then(|| name.chars().filter(skipped).map(|c| c.to_ascii_lowercase()).collect())
}

/// The edit distance: insertions, deletions, replacements and swaps of neighbours.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect(), vec![0; b.len() + 1]];
    for (i, x) in a.iter().enumerate() {
        let [before, above, row] = &mut rows;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let mut least = (above[j] + usize::from(x != y)).min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row[j + 1] = least;
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

/// The refusal of a name that is none of `known`. `what` is the kind of name, `path` the object that
/// contains it.
#[must_use]
pub fn unknown_name(
    what: &str,
    path: &str,
    index: Option<usize>,
    name: &str,
    known: &[&str],
) -> Failure {
    refusal(what, path, index, name, known, nearest(name, known))
}

/// The refusal of a name where the one that was meant is known.
#[must_use]
pub(crate) fn refusal(
    what: &str,
    path: &str,
    index: Option<usize>,
    name: &str,
    known: &[&str],
    near: Option<&str>,
) -> Failure {
    let shown: String = name.chars().take(SHOWN).collect();
    let hint = match (near, known) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => "none is expected here".to_owned(),
        (None, known) => {
            let mut known = known.to_vec();
            known.sort_unstable();
            format!("expected one of {}", known.join(", "))
        }
    };
    let dot = if path.is_empty() { "" } else { "." };
    let mut failure = Failure::invalid(format!("unknown {what} `{path}{dot}{shown}`; {hint}"));
    let mut detail = DetailBuilder::default();
    detail.text("field", &shown);
    if let Some(index) = index {
        detail.int("index", index as u64);
    }
    if let Some(near) = near {
        detail.text("nearest", near);
    }
    failure.detail = Some(detail.finish());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 6] = ["records", "node", "idempotency_key", "expect_head", "sync", "seqs"];

    #[test]
    fn what_was_meant() {
        for (given, meant) in [
            ("idempotency_kye", Some("idempotency_key")),
            ("idempotencyKey", Some("idempotency_key")),
            ("Idempotency-Key", Some("idempotency_key")),
            ("idempotncy_ke", Some("idempotency_key")),
            ("record", Some("records")),
            ("nodes", Some("node")),
            ("seq", Some("seqs")),
            ("snyc", Some("sync")),
            ("expect_heads", Some("expect_head")),
            ("key", None),
            ("x", None),
            ("", None),
            ("tag", None),
        ] {
            assert_eq!(nearest(given, &KNOWN), meant, "{given}");
        }
        assert_eq!(nearest(&"records".repeat(10), &KNOWN), None);
        assert_eq!(nearest("a", &[]), None);
    }

    #[test]
    fn distances() {
        let of = |a: &str, b: &str| distance(&plain(a).unwrap(), &plain(b).unwrap());
        assert_eq!((of("abc", "abc"), of("abc", "acb"), of("", "ab")), (0, 1, 2));
        assert_eq!((of("abc", "ab"), of("ab", "abc"), of("abc", "xbc")), (1, 1, 1));
        assert_eq!((of("ca", "abc"), of("kitten", "sitting")), (3, 3));
    }

    #[test]
    fn refusals_say_where_and_what() {
        let failure = unknown_name("field", "records[3]", Some(3), "dat", &["data", "tag"]);
        assert_eq!(failure.message, "unknown field `records[3].dat`; did you mean `data`?");
        let detail: serde_json::Value = serde_json::from_str(&failure.detail.unwrap()).unwrap();
        assert_eq!(detail, serde_json::json!({"field": "dat", "index": 3, "nearest": "data"}));
        let failure = unknown_name("query parameter", "", None, "x", &[]);
        assert_eq!(failure.message, "unknown query parameter `x`; none is expected here");
        let failure = unknown_name("field", "", None, "q\"\n", &["b", "a"]);
        assert_eq!(failure.message, "unknown field `q\"\n`; expected one of a, b");
        let long = unknown_name("field", "", None, &"é".repeat(5000), &["b"]);
        assert!(long.message.len() < 300);
    }
}
