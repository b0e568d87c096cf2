//! The engine's own keys in a record's meta: a JSON object of strings, as text.
//!
//! The text was validated when it was written; what does not parse here is left as it is.

/// The entries of an object of strings: raw key and value texts, with their quotes.
fn entries(meta: &[u8]) -> Option<Vec<(&str, &str)>> {
    let text = std::str::from_utf8(meta).ok()?.trim();
    let mut rest = text.strip_prefix('{')?.trim_start();
    let mut out = Vec::new();
    while !rest.starts_with('}') {
        let (key, after) = string(rest)?;
        let (value, after) = string(after.trim_start().strip_prefix(':')?.trim_start())?;
        out.push((key, value));
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    (rest == "}").then_some(out)
}

/// A JSON string at the beginning of a text, and what follows.
fn string(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut i = 1;
    loop {
        match bytes.get(i)? {
            b'"' => return Some(text.split_at(i + 1)),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
}

/// Whether a raw key begins with a plain prefix.
fn begins(key: &str, prefix: &str) -> bool {
    key.strip_prefix('"').is_some_and(|k| k.starts_with(prefix))
}

/// The meta without the keys that begin with `prefix`, and with these, whose texts need no
/// escapes. Empty when nothing is left.
pub(crate) fn replace(meta: &[u8], prefix: &str, with: &[(&str, &str)]) -> Vec<u8> {
    let kept = if meta.is_empty() { Some(Vec::new()) } else { entries(meta) };
    let Some(mut kept) = kept else { return meta.to_vec() };
    kept.retain(|(k, _)| !begins(k, prefix));
    if kept.is_empty() && with.is_empty() {
        return Vec::new();
    }
    let kept = kept.into_iter().map(|(k, v)| format!("{k}:{v}"));
    let fresh = with.iter().map(|(k, v)| format!("\"{k}\":\"{v}\""));
    let all: Vec<String> = kept.chain(fresh).collect();
    format!("{{{}}}", all.join(",")).into_bytes()
}

/// The value of a key of ours.
pub(crate) fn get(meta: &[u8], key: &str) -> Option<String> {
    let all = entries(meta)?;
    let (_, value) = all.into_iter().find(|(k, _)| k.trim_matches('"') == key)?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_and_go() {
        let meta = br#" { "a" : "b\"}" , "$x_1":"old","c":"" } "#;
        let new = replace(meta, "$x_", &[("$x_2", "v"), ("$x_3", "w")]);
        assert_eq!(new, br#"{"a":"b\"}","c":"","$x_2":"v","$x_3":"w"}"#);
        assert_eq!(get(&new, "$x_3").as_deref(), Some("w"));
        assert_eq!(get(&new, "$x_1"), None);
        assert_eq!(replace(&new, "$x_", &[]), br#"{"a":"b\"}","c":""}"#);
        assert_eq!(replace(b"", "$x_", &[("$x_1", "v")]), br#"{"$x_1":"v"}"#);
        assert_eq!(replace(br#"{"$x_1":"v"}"#, "$x_", &[]), b"");
        assert_eq!(replace(b"{}", "$x_", &[]), b"");
        assert_eq!(replace(b"{broken", "$x_", &[("$x_1", "v")]), b"{broken");
        assert_eq!(get(b"", "a"), None);
    }
}
