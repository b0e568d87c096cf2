use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type, TimestampMicrosecondType, UInt64Type};
use proptest::prelude::*;

use super::*;

fn fields(text: &str) -> Result<TypedFields, Failure> {
    let mut s = Scanner::new(text.as_bytes()).unwrap();
    TypedFields::parse(&mut s)
}

fn record(data: &[u8], binary: bool) -> Option<RecordView<'_>> {
    Some(RecordView { seq: 7, ts: 0, node: b"", tag: b"", meta: b"", data, binary })
}

/// The columns of records with these payloads; an empty payload is a gap.
fn columns(schema: &str, payloads: &[&str]) -> Vec<ArrayRef> {
    let records = payloads.iter().map(|p| match p.is_empty() {
        true => None,
        false => record(p.as_bytes(), false),
    });
    fields(schema).unwrap().columns(payloads.len(), records).unwrap()
}

fn texts(column: &ArrayRef) -> Vec<Option<&str>> {
    column.as_string::<i32>().iter().collect()
}

#[test]
fn values_nulls_and_misfits() {
    let schema = r#"{"user":"int64","price":"decimal(6, 2)","at":"timestamp[us, UTC]",
        "big":"uint64","_raw":"string","_misfits":"string","note":{"type":"string","path":"n[0]"}}"#;
    let rows = [
        r#"{"user":1,"price":2.5,"at":"2026-01-02T03:04:05Z","big":18446744073709551615}"#,
        r#"{"user":"x","price":1e9,"at":"soon","n":[{"a" :1}]}"#,
        "",
        r#"{"user":null,"price":"3.25","at":1700000000000000,"n":["a\u00e9\""]}"#,
        r#"{"n":["\ud800"],"user":true}"#,
        "[1]",
    ];
    let found = columns(schema, &rows);
    let users: Vec<_> = found[0].as_primitive::<Int64Type>().iter().collect();
    assert_eq!(users, [Some(1), None, None, None, None, None]);
    let prices: Vec<_> = found[1].as_primitive::<Decimal128Type>().iter().collect();
    assert_eq!(prices, [Some(250), None, None, Some(325), None, None]);
    let times: Vec<_> = found[2].as_primitive::<TimestampMicrosecondType>().iter().collect();
    let at = Some(1_767_323_045_000_000);
    assert_eq!(times, [at, None, None, Some(1_700_000_000_000_000), None, None]);
    assert_eq!(found[3].as_primitive::<UInt64Type>().value(0), u64::MAX);
    let raw = [None, Some(rows[1]), None, None, Some(rows[4]), None];
    assert_eq!(texts(&found[4]), raw);
    let misfits =
        [None, Some(r#"["user","price","at"]"#), None, None, Some(r#"["user","note"]"#), None];
    assert_eq!(texts(&found[5]), misfits);
    assert_eq!(texts(&found[6]), [None, Some(r#"{"a" :1}"#), None, Some("aé\""), None, None]);
}

#[test]
fn binary_records_that_are_json_have_values() {
    let schema =
        fields(r#"{"a":"int64","b":"string","_raw":"binary","_misfits":"string"}"#).unwrap();
    let rows =
        [record(br#"{"a":1,"b":2}"#, true), record(b"\xff{", true), record(b"{\"a\":", true)];
    let found = schema.columns(3, rows.into_iter()).unwrap();
    assert_eq!(found[0].null_count(), 2);
    assert_eq!(found[2].as_binary::<i32>().value(1), b"\xff{");
    let both = Some(r#"["a","b"]"#);
    assert_eq!(texts(&found[3]), [None, both, both]);
    let schema = fields(r#"{"a":"int64","_raw":"string"}"#).unwrap();
    let error = schema.columns(1, std::iter::once(record(b"\xff", true))).unwrap_err();
    assert!(error.to_string().contains("record 7 is binary"), "{error}");
}

#[test]
fn refusals() {
    for (text, wanted) in [
        ("{}", "fields must not be empty"),
        ("[]", "fields must be an object"),
        (r#"{"a":"int46"}"#, "field `a` has the unknown type \"int46\"; did you mean `int64`?"),
        (r#"{"a":7}"#, "field `a` has a type that is not a string"),
        (r#"{"a":{"path":"b"}}"#, "field `a` has no type"),
        (r#"{"a":{"tpye":"int64"}}"#, "did you mean `type`?"),
        (
            r#"{"a..b":"int64"}"#,
            "malformed path `a..b`: expected a key at byte 1; did you mean `a.b`?",
        ),
        (r#"{"a":{"type":"int64","path":""}}"#, "a path is like `a.b[0]`"),
        (r#"{"tag":"string"}"#, r#"{"tag_field": {"type": "string", "path": "tag"}}"#),
        (r#"{"a":"int64","a":"int64"}"#, "field `a` is there twice"),
        (
            r#"{"a":"string","b":{"type":"str","path":"$.a"}}"#,
            "field `b` has the path and the type of field `a`",
        ),
        (r#"{"":"int64"}"#, "bytes"),
        (r#"{"_raw":"int64"}"#, "string or binary"),
        (r#"{"_misfits":"binary"}"#, "is of type string"),
        (r#"{"a":"binary"}"#, "ask for a string"),
    ] {
        let failure = fields(text).unwrap_err();
        assert!(failure.message.contains(wanted), "{text}: {}", failure.message);
    }
    let many: Vec<String> = (0..=MAX_FIELDS).map(|i| format!("\"f{i}\":\"bool\"")).collect();
    let failure = fields(&format!("{{{}}}", many.join(","))).unwrap_err();
    assert!(failure.message.contains("more than 256"), "{}", failure.message);
    let failure = fields(r#"{"a":"int46"}"#).unwrap_err();
    assert_eq!(failure.detail.as_deref(), Some(r#"{"field":"a","nearest":"int64"}"#));
}

proptest! {
    /// The values of all types for any JSON, against `serde_json`'s reading of it.
    #[test]
    fn integers_and_strings_are_those_of_serde_json(
        a in any::<i64>(), b in any::<f64>(), c in any::<String>(), noise in "[a-z]{0,3}"
    ) {
        let text = serde_json::json!({ "x": a, noise: [b, c], "y": { "c": c, "b": b } }).to_string();
        let found = columns(r#"{"x":"int64","y.c":"string","y.b":"double","_misfits":"string"}"#, &[&text]);
        let theirs: serde_json::Value = serde_json::from_str(&text).unwrap();
        let x = found[0].as_primitive::<Int64Type>();
        prop_assert_eq!(x.is_valid(0).then(|| x.value(0)), theirs["x"].as_i64());
        prop_assert_eq!(texts(&found[1])[0], theirs["y"]["c"].as_str());
        prop_assert!(found[2].is_valid(0) == theirs["y"]["b"].is_number());
    }
}
