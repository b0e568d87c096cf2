//! Reads and sets keys of the engine in a record's meta, and skips those of its trace context. A meta is a
//! JSON object of strings, as text.
//!
//! The text was validated when it was written. A meta that does not parse here is left as it is.

use std::borrow::Cow;

/// An entry of an object of strings.
struct Entry<'a> {
    /// The raw texts, with their quotes.
    key: &'a str,
    value: &'a str,
    /// The whole entry, with the whitespace around it.
    text: &'a str,
}

/// The entries of an object of strings.
fn entries(meta: &[u8]) -> Option<Vec<Entry<'_>>> {
    let mut rest = std::str::from_utf8(meta).ok()?.trim().strip_prefix('{')?;
    let mut out = Vec::new();
    if rest.trim_start() == "}" {
        return Some(out);
    }
    loop {
        let (key, after) = string(rest.trim_start())?;
        let (value, after) = string(after.trim_start().strip_prefix(':')?.trim_start())?;
        let end = after.trim_start();
        let text = rest.get(..rest.len() - end.len())?;
        out.push(Entry { key, value, text });
        match end.strip_prefix(',') {
            Some(next) => rest = next,
            None => return (end == "}").then_some(out),
        }
    }
}

/// A JSON string at the beginning of a text, and the rest of the text.
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

/// The keys of a W3C trace context.
const TRACE_KEYS: [&str; 2] = ["\"traceparent\"", "\"tracestate\""];

/// The meta without its trace context. The other entries stay as they are, byte for byte.
pub(crate) fn without_trace_context(meta: &[u8]) -> Cow<'_, [u8]> {
    let has = |key: &str| meta.windows(key.len()).any(|w| w == key.as_bytes());
    if !TRACE_KEYS.iter().any(|key| has(key)) {
        return meta.into();
    }
    let Some(mut kept) = entries(meta) else { return meta.into() };
    kept.retain(|e| !TRACE_KEYS.contains(&e.key));
    if kept.is_empty() {
        return Cow::Borrowed(b"");
    }
    let kept: Vec<&str> = kept.iter().map(|e| e.text).collect();
    format!("{{{}}}", kept.join(",")).into_bytes().into()
}

/// Whether a raw key begins with a plain prefix.
fn begins(key: &str, prefix: &str) -> bool {
    key.strip_prefix('"').is_some_and(|k| k.starts_with(prefix))
}

/// The meta without the keys that begin with `prefix`, and with these keys (which need no escapes) and
/// values. Empty when no key is left.
pub(crate) fn replace(meta: &[u8], prefix: &str, with: &[(&str, String)]) -> Vec<u8> {
    let kept = if meta.is_empty() { Some(Vec::new()) } else { entries(meta) };
    let Some(mut kept) = kept else { return meta.to_vec() };
    kept.retain(|e| !begins(e.key, prefix));
    if kept.is_empty() && with.is_empty() {
        return Vec::new();
    }
    let kept = kept.into_iter().map(|e| format!("{}:{}", e.key, e.value));
    let fresh = with.iter().map(|(k, v)| format!("\"{k}\":{}", quoted(v)));
    let all: Vec<String> = kept.chain(fresh).collect();
    format!("{{{}}}", all.join(",")).into_bytes()
}

/// The value of a key that needs no escapes.
pub(crate) fn get(meta: &[u8], key: &str) -> Option<String> {
    let all = entries(meta)?;
    let found = all.into_iter().find(|e| e.key.trim_matches('"') == key)?;
    unquoted(found.value)
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The text of a JSON string.
fn unquoted(string: &str) -> Option<String> {
    let mut rest = string.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::with_capacity(rest.len());
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let kind = escape.chars().next()?;
        rest = &escape[kind.len_utf8()..];
        out.push(match kind {
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let (high, after) = unit(rest)?;
                let low = after.strip_prefix("\\u").and_then(unit);
                let both = low.and_then(|(low, end)| Some((pair(high, low)?, end)));
                let (c, end) = match both {
                    Some(found) => found,
                    None => (char::from_u32(high)?, after),
                };
                rest = end;
                c
            }
            c => c,
        });
    }
    out.push_str(rest);
    Some(out)
}

/// Four hexadecimal digits, and the rest of the text.
fn unit(text: &str) -> Option<(u32, &str)> {
    let (digits, rest) = text.split_at_checked(4)?;
    Some((u32::from_str_radix(digits, 16).ok()?, rest))
}

/// The character of two surrogates.
fn pair(high: u32, low: u32) -> Option<char> {
    char::decode_utf16([u16::try_from(high).ok()?, u16::try_from(low).ok()?])
        .next()?
        .ok()
        .filter(|c| *c > '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_and_go() {
        let meta = br#" { "a" : "b\"}" , "$x_1":"old","c":"" } "#;
        let with = |k, v: &str| (k, v.to_owned());
        let new = replace(meta, "$x_", &[with("$x_2", "v"), with("$x_3", "w")]);
        assert_eq!(new, br#"{"a":"b\"}","c":"","$x_2":"v","$x_3":"w"}"#);
        assert_eq!(get(&new, "$x_3").as_deref(), Some("w"));
        assert_eq!(get(&new, "$x_1"), None);
        assert_eq!(replace(&new, "$x_", &[]), br#"{"a":"b\"}","c":""}"#);
        assert_eq!(replace(b"", "$x_", &[with("$x_1", "v")]), br#"{"$x_1":"v"}"#);
        assert_eq!(replace(br#"{"$x_1":"v"}"#, "$x_", &[]), b"");
        assert_eq!(replace(b"{}", "$x_", &[]), b"");
        assert_eq!(replace(b"{broken", "$x_", &[with("$x_1", "v")]), b"{broken");
        assert_eq!(get(b"", "a"), None);
    }

    #[test]
    fn a_trace_context_is_left_out() {
        let without = |meta: &str| String::from_utf8(without_trace_context(meta.as_bytes()).into());
        let context = "\"traceparent\":\"00-a-b-01\",\"tracestate\":\"v=\\\"1\\\"\"";
        // As the server adds it: to the end, in front of the brace.
        for meta in ["{\"a\":\"b\"}", "{ \"a\" : \"}\\\"{\" ,\n\"c\":\"\"\t}"] {
            let with = format!("{},{context}}}", &meta[..meta.len() - 1]);
            assert_eq!(without(&with).unwrap(), meta);
        }
        assert_eq!(without(&format!("{{{context}}}")).unwrap(), "");
        assert_eq!(without(&format!("{{{context},\"a\":\"b\"}}")).unwrap(), "{\"a\":\"b\"}");
        assert_eq!(without("{\"tracestate\":\"\", \"a\":\"b\"}").unwrap(), "{ \"a\":\"b\"}");
        for same in ["", "{}", "{broken \"traceparent\"", "{\"a\":\"traceparent\"}"] {
            assert_eq!(without(same).unwrap(), same);
        }
    }

    #[test]
    fn any_text_is_a_value() {
        for text in ["", "a\"b\\", "\\\"", "\u{1}\n\u{1f}", "grün 🦀", "\\u0041", "}\",\"x\":\""]
        {
            let meta = replace(b"{\"a\":\"b\"}", "$x_", &[("$x_1", text.to_owned())]);
            assert_eq!(get(&meta, "$x_1").as_deref(), Some(text));
            assert_eq!(replace(&meta, "$x_", &[]), b"{\"a\":\"b\"}");
        }
        let other = br#"{"x":"\u0041\/\b\f\n\r\t\ud83e\udd80\u00fc\""}"#;
        assert_eq!(get(other, "x").as_deref(), Some("A/\u{8}\u{c}\n\r\t🦀ü\""));
        for bad in [&br#"{"x":"\ud83e"}"#[..], br#"{"x":"\u12"}"#, br#"{"x":"\ud83e\u0041"}"#] {
            assert_eq!(get(bad, "x"), None, "{bad:?}");
        }
    }
}
