//! Paths of JSON values: `a.b[0]`, `$`, `$[0]`, `["a.b"].c`.

use crate::json::Scanner;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A member of an object.
    Key(String),
    /// An element of an array.
    Index(usize),
}

/// Maximum steps of a path. It bounds the recursion of the walk.
pub(super) const MAX_STEPS: usize = 32;

/// Why a text is not a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// The steps of a path; none for `$`, the whole value. A key without quotes ends at `.`, `[`, `]` or
/// `"`; any other key is written `["…"]`, with the escapes of JSON.
pub(super) fn parse(text: &str) -> Result<Vec<Step>, PathError> {
    let mut steps = Vec::new();
    let mut at = match text.as_bytes() {
        [b'$'] | [b'$', b'.' | b'[', ..] => 1,
        _ => 0,
    };
    let from_root = at == 1;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let fail = |what| Err(PathError { at, what });
        let (step, length) = if rest.starts_with('[') {
            match bracket(rest) {
                Some(found) => found,
                None => return fail("expected `[`, an index or a quoted key, and `]`"),
            }
        } else {
            let dot = rest.starts_with('.');
            if dot != (from_root || !steps.is_empty()) {
                return fail(if dot { "expected a key" } else { "expected `.` or `[`" });
            }
            let key = rest.get(usize::from(dot)..).unwrap_or_default();
            let key = key.split(['.', '[', ']', '"']).next().unwrap_or_default();
            if key.is_empty() {
                return fail("expected a key");
            }
            (Step::Key(key.to_owned()), usize::from(dot) + key.len())
        };
        steps.push(step);
        at += length;
        if steps.len() > MAX_STEPS {
            return Err(PathError { at, what: "more than 32 steps" });
        }
    }
    match steps.is_empty() && !from_root {
        true => Err(PathError { at, what: "expected a key" }),
        false => Ok(steps),
    }
}

/// The step `[0]` or `["key"]` at the start of `rest`, and its length.
fn bracket(rest: &str) -> Option<(Step, usize)> {
    let inside = rest.get(1..)?;
    if inside.starts_with('"') {
        let mut s = Scanner::at_depth(inside, 0);
        let key = s.string().ok()?;
        let length = key.raw.len() + 2;
        inside.get(length..)?.strip_prefix(']')?;
        return Some((Step::Key(key.decode()?.into_owned()), length + 2));
    }
    let (digits, _) = inside.split_once(']')?;
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((Step::Index(digits.parse().ok()?), digits.len() + 2))
}

/// The path that a malformed one probably means: its words, in their order.
pub(super) fn repaired(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut index = false;
    for word in text.split_inclusive(['.', '[', ']', '"', '\'']) {
        let opens = word.ends_with('[');
        let key = word.trim_end_matches(['.', '[', ']', '"', '\'']);
        let is_root = key == "$" && out.is_empty();
        if !key.is_empty() && !is_root {
            if index && key.bytes().all(|b| b.is_ascii_digit()) {
                out.push_str(&format!("[{key}]"));
            } else {
                let dot = if out.is_empty() { "" } else { "." };
                out.push_str(&format!("{dot}{key}"));
            }
        }
        index = opens;
    }
    parse(&out).is_ok().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Step {
        Step::Key(name.into())
    }

    #[test]
    fn paths() {
        for (text, steps) in [
            ("a", vec![key("a")]),
            ("$", vec![]),
            ("$.a", vec![key("a")]),
            ("$[3]", vec![Step::Index(3)]),
            ("[0]", vec![Step::Index(0)]),
            ("a.b[0]", vec![key("a"), key("b"), Step::Index(0)]),
            ("a[0][12].c", vec![key("a"), Step::Index(0), Step::Index(12), key("c")]),
            ("$type", vec![key("$type")]),
            ("a b.é-ü", vec![key("a b"), key("é-ü")]),
            (r#"["a.b"].c"#, vec![key("a.b"), key("c")]),
            (r#"a["\"]\u00e9"]"#, vec![key("a"), key("\"]é")]),
            (r#"[""]"#, vec![key("")]),
            ("a.$", vec![key("a"), key("$")]),
        ] {
            assert_eq!(parse(text), Ok(steps), "{text}");
        }
    }

    #[test]
    fn refusals_and_what_was_meant() {
        for (text, at, meant) in [
            ("", 0, None),
            (".", 0, None),
            (".a", 0, Some("a")),
            ("a.", 1, Some("a")),
            ("a..b", 1, Some("a.b")),
            ("a.[0]", 1, Some("a[0]")),
            ("a[0", 1, Some("a[0]")),
            ("a[b]", 1, Some("a.b")),
            ("a['b']", 1, Some("a.b")),
            ("a[-1]", 1, Some("a.-1")),
            ("a]", 1, Some("a")),
            ("a[0]b", 4, Some("a[0].b")),
            ("a\"b\"", 1, Some("a.b")),
            ("$a[", 2, Some("$a")),
            ("$.", 1, None),
            (r#"["\ud800"]"#, 0, None),
            ("[99999999999999999999]", 0, None),
        ] {
            assert_eq!(parse(text).unwrap_err().at, at, "{text}");
            if !text.starts_with("[") {
                assert_eq!(repaired(text).as_deref(), meant, "{text}");
            }
        }
        assert!(parse(&vec!["a"; MAX_STEPS].join(".")).is_ok());
        assert!(parse(&vec!["a"; MAX_STEPS + 1].join(".")).is_err());
    }
}
