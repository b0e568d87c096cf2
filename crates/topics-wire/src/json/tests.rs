//! The scanner accepts what `serde_json` accepts, except for nesting, and keeps accepted text as is.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

/// The result of `serde_json` without interpreting values.
fn reference(text: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(text).ok()?;
    serde_json::from_str::<&RawValue>(text).ok().map(|v| v.get().to_owned())
}

fn ours(text: &[u8]) -> Option<String> {
    validate(text).ok().map(str::to_owned)
}

#[test]
fn kept_as_sent() {
    for text in [
        r#"{"a":1,"a":2}"#,
        r#""\ud800""#,
        r#""\udc00\ud800x""#,
        r#"{"\ud800":1}"#,
        "1e999999",
        "-0",
        "-0.0e-0",
        "123456789012345678901234567890123456789012345678901234567890",
        "0.1234567890123456789012345678901234567890123456789012345678901234567890",
        r#""\u0000\/\b""#,
        "\"\u{feff}\u{7f}\u{2028}\"",
        "[ 1 , { } , [ ] ]",
    ] {
        assert_eq!(ours(text.as_bytes()).as_deref(), Some(text));
        assert_eq!(reference(text.as_bytes()).as_deref(), Some(text));
        let padded = format!(" \n\t\r{text} \n\t\r");
        assert_eq!(ours(padded.as_bytes()).as_deref(), Some(text));
    }
}

#[test]
fn refused() {
    let texts: [&[u8]; 54] = [
        b"",
        b" ",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"nan",
        b"\xef\xbb\xbf1",
        b"\"\xff\"",
        b"\"\xc0\x80\"",
        b"\"\xed\xa0\x80\"",
        b"01",
        b"-",
        b"-01",
        b"+1",
        b".5",
        b"1.",
        b"1.e5",
        b"1e",
        b"1e+",
        b"0x10",
        b"1 2",
        b"1,",
        b"'a'",
        b"\"",
        b"\"\\\"",
        b"\"\\x\"",
        b"\"\\u12g4\"",
        b"\"\\u12\"",
        b"\"\\u123",
        b"\"\\uZZZZ\"",
        b"\"\n\"",
        b"\"\t\"",
        b"\"\x00\"",
        b"\"\x1f\"",
        b"tru",
        b"truex",
        b"True",
        b"nul",
        b"[",
        b"[1",
        b"[1,",
        b"[1,]",
        b"[,1]",
        b"]",
        b"{",
        b"{\"a\"",
        b"{\"a\":",
        b"{\"a\":1,}",
        b"{a:1}",
        b"{\"a\":1]",
        b"{1:2}",
        b"{\"a\" 1}",
        b"[1}",
        b"1 // x",
    ];
    for text in texts {
        assert_eq!(ours(text), None, "{:?}", String::from_utf8_lossy(text));
        assert_eq!(reference(text), None, "{:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn errors_say_where() {
    let at = |text: &str| validate(text.as_bytes()).unwrap_err().at;
    assert_eq!(at("[1, 2, x]"), 7);
    assert_eq!(at(r#"{"a": "\q"}"#), 7);
    assert_eq!(at("[1] 2"), 4);
    assert_eq!(validate(b"ab\xff").unwrap_err().at, 2);
}

#[test]
fn nesting_is_bounded_to_128_of_the_body() {
    let nested = |open: &str, close: &str, n: usize| {
        format!("{}1{}", open.repeat(n), close.repeat(n)).into_bytes()
    };
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let levels = open.matches(['[', '{']).count();
        let fits = (MAX_DEPTH - DATA_DEPTH) as usize / levels;
        assert!(validate(&nested(open, close, fits)).is_ok());
        let text = nested(open, close, fits + 1);
        assert_eq!(validate(&text).unwrap_err().what, "nesting deeper than 128 levels");
        let body = nested(open, close, 128 / levels);
        assert!(Scanner::new(&body).unwrap().value().is_ok());
    }
    // Deep enough to overflow the stack of a recursive parser.
    assert!(validate(&vec![b'['; 10_000_000]).is_err());
    // Many containers side by side are not deep.
    let flat = format!("[{}[]]", "{\"a\":[]},[{}],".repeat(1000));
    assert!(validate(flat.as_bytes()).is_ok());
}

#[test]
fn strings_mean_what_they_say() {
    let text = |json: &str| {
        Scanner::new(json.as_bytes()).unwrap().string().unwrap().decode().map(String::from)
    };
    assert_eq!(
        text(r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00z""#).unwrap(),
        "a\"\\/\u{8}\u{c}\n\r\té😀z"
    );
    for half in [r#""\ud800""#, r#""\ud800x""#, r#""\ud800\n""#, r#""\udc00""#, r#""\ud800\ud800""#]
    {
        assert_eq!(text(half), None);
    }
}

/// Text of a grammar close to JSON, so that both outcomes are common.
fn nearly_json() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        "-?(0|[1-9][0-9]{0,40})([.][0-9]{1,40})?([eE][+-]?[0-9]{1,4})?",
        "[-+0-9.eE]{1,12}",
        r#""([ -~é😀]|\\[\\"/bfnrtu]|\\u[0-9a-fA-F]{4}|\\ud[89a-f][0-9a-f]{2}){0,40}""#,
        r#""[ -~\x00-\x1f]{0,40}""#,
    ];
    scalar.prop_recursive(6, 64, 5, |inner| {
        let space = "[ \n\r\t]{0,2}";
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..5), space)
                .prop_map(|(v, s)| format!("[{s}{}{s}]", v.join(&format!("{s},{s}")))),
            (prop::collection::vec(("[a-c\\\\]{0,2}", inner), 0..5), space).prop_map(|(v, s)| {
                let fields: Vec<_> = v.iter().map(|(k, v)| format!("\"{k}\"{s}:{s}{v}")).collect();
                format!("{{{}}}", fields.join(&format!("{s},{s}")))
            }),
        ]
    })
}

#[test]
fn base64_is_exactly_one_text_for_each_value() {
    let rows = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
    for (length, text) in rows.iter().enumerate() {
        let mut out = b">".to_vec();
        push_base64(&mut out, &b"foobar"[..length]);
        assert_eq!(&out[1..], text.as_bytes());
        assert_eq!(decode_base64(text.as_bytes()).unwrap(), &b"foobar"[..length]);
    }
    for text in
        ["A", "AA", "AAA", "====", "A===", "Zh==", "Zm9=", "Zg=", "Zm9v\n", "Zg==Zg==", "-_=="]
    {
        assert_eq!(decode_base64(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn base64_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut text = Vec::new();
        push_base64(&mut text, &bytes);
        prop_assert_eq!(decode_base64(&text), Some(bytes));
    }

    #[test]
    fn base64_that_decodes_encodes_back(text in "[A-Za-z0-9+/=]{0,12}") {
        if let Some(bytes) = decode_base64(text.as_bytes()) {
            let mut again = Vec::new();
            push_base64(&mut again, &bytes);
            prop_assert_eq!(again, text.into_bytes());
        }
    }

    #[test]
    fn accepts_what_serde_json_accepts(text in nearly_json(), pad in "[ \n]{0,3}") {
        let text = format!("{pad}{text}{pad}");
        prop_assert_eq!(ours(text.as_bytes()), reference(text.as_bytes()), "{}", text);
    }

    /// One byte changed, removed or doubled.
    #[test]
    fn accepts_what_serde_json_accepts_after_damage(
        text in nearly_json(), at in any::<prop::sample::Index>(), byte in any::<u8>(), kind in 0..3,
    ) {
        let mut text = text.into_bytes();
        let at = at.index(text.len());
        match kind {
            0 => text[at] = byte,
            1 => drop(text.remove(at)),
            _ => text.insert(at, byte),
        }
        prop_assert_eq!(ours(&text), reference(&text), "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn accepts_what_serde_json_accepts_of_noise(text in r#"[\[\]{}":,\\u0-9a-f.+-]{0,24}"#) {
        prop_assert_eq!(ours(text.as_bytes()), reference(text.as_bytes()), "{}", text);
    }

    #[test]
    fn strings_round_trip(text in any::<String>()) {
        let mut out = Vec::new();
        push_str(&mut out, text.as_bytes());
        let theirs: String = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(&theirs, &text);
        let ours = Scanner::new(&out).unwrap().string().unwrap().decode().unwrap();
        prop_assert_eq!(ours, text.as_str());
        let escaped = serde_json::to_string(&text).unwrap();
        let ours = Scanner::new(escaped.as_bytes()).unwrap().string().unwrap().decode().unwrap();
        prop_assert_eq!(ours, text.as_str());
    }

    #[test]
    fn numbers_are_written_as_everyone_does(value in any::<u64>(), signed in any::<i64>()) {
        let mut out = Vec::new();
        push_u64(&mut out, value);
        prop_assert_eq!(out, value.to_string().into_bytes());
        let mut out = Vec::new();
        push_i64(&mut out, signed);
        prop_assert_eq!(out, signed.to_string().into_bytes());
        let mut out = Vec::new();
        push_ms(&mut out, value >> 20);
        let micros = (value >> 20) / 1000;
        let shown: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
        prop_assert!((shown * 1000.0 - micros as f64).abs() < 0.5);
    }
}
