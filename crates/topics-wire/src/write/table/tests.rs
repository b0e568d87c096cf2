use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder, StringDictionaryBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{ArrayRef, Int64Array, NullArray, RecordBatch};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};

use super::super::{parse_table, txn};
use super::*;
use crate::limits::Limits;
use crate::query::Query;

fn ipc(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

fn compressed(batches: &[RecordBatch], codec: CompressionType) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(Some(codec)).unwrap();
    let schema = batches[0].schema();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
    batches.iter().for_each(|b| writer.write(b).unwrap());
    writer.into_inner().unwrap()
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn strings(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn maps(rows: &[&[(&str, Option<&str>)]]) -> ArrayRef {
    let mut out = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for row in rows {
        for (key, value) in *row {
            out.keys().append_value(key);
            out.values().append_option(*value);
        }
        out.append(!row.is_empty()).unwrap();
    }
    Arc::new(out.finish())
}

fn refusal(batch: &RecordBatch) -> String {
    let table = Table::read(&ipc(std::slice::from_ref(batch)), 100, 0).unwrap();
    let limits = Limits { tag_bytes: 5, ..Limits::default() };
    parse_table(&table, &Query::new(b""), b"", &limits).unwrap_err().message
}

#[test]
fn every_column() {
    let mut node = StringDictionaryBuilder::<Int8Type>::new();
    node.append_value("n1");
    node.append_null();
    let first = batch(vec![
        ("seq", Arc::new(Int64Array::from(vec![7, 8]))),
        ("data", strings(&[Some(r#" {"a":1} "#), Some("null")])),
        ("tag", Arc::new(LargeStringArray::from(vec![Some("t"), None]))),
        ("node", Arc::new(node.finish())),
        ("meta", maps(&[&[("k", Some("v\"\n")), ("l", Some(""))], &[]])),
    ]);
    let second = first.slice(1, 1);
    let table = Table::read(&ipc(&[first, second]), 3, 0).unwrap();
    let query = Query::new(b"tag=all&node=default&key=k&return_seqs");
    let w = parse_table(&table, &query, b"header", &Limits::default()).unwrap();
    assert!(w.return_seqs);
    w.with_append(|a| {
        assert_eq!((a.records.len(), a.node, a.key), (3, &b"default"[..], &b"k"[..]));
        let (one, two) = (a.records[0], a.records[1]);
        assert_eq!((one.data, one.binary), (&br#"{"a":1}"#[..], false));
        assert_eq!((one.tag, one.node), (&b"t"[..], &b"n1"[..]));
        assert_eq!(one.meta, br#"{"k":"v\"\n","l":""}"#);
        assert_eq!((two.data, two.tag, two.node), (&b"null"[..], &b"all"[..], &b""[..]));
        assert_eq!((two.meta, a.records[2].data), (&b""[..], &b"null"[..]));
    });
}

#[test]
fn bytes_are_binary_records() {
    let odd: Vec<Option<&[u8]>> = vec![Some(b"\xff\x00"), Some(b"")];
    let kinds: [ArrayRef; 3] = [
        Arc::new(BinaryArray::from(odd.clone())),
        Arc::new(LargeBinaryArray::from(odd.clone())),
        Arc::new(BinaryViewArray::from(odd)),
    ];
    for kind in kinds {
        let nulls: ArrayRef = Arc::new(NullArray::new(2));
        let one = batch(vec![("data", kind), ("tag", nulls.clone()), ("meta", nulls)]);
        let table = Table::read(&ipc(&[one]), 0, 0).unwrap();
        let w = parse_table(&table, &Query::new(b""), b"", &Limits::default()).unwrap();
        w.with_append(|a| {
            assert_eq!((a.records[0].data, a.records[0].binary), (&b"\xff\x00"[..], true));
            assert_eq!((a.records[1].data, a.records[1].tag), (&b""[..], &b""[..]));
        });
    }
}

#[test]
fn rows_of_a_stage_by_topic() {
    let topics = strings(&[Some("a"), Some("b"), Some("a")]);
    let data = strings(&[Some("1"), Some("2"), Some("3")]);
    let table = Table::read(&ipc(&[batch(vec![("topic", topics), ("data", data)])]), 0, 0).unwrap();
    let t = txn::stage_table(&table, None, &Limits::default()).unwrap();
    assert_eq!(t.topics().collect::<Vec<_>>(), ["a", "b"]);
    t.with_stage("s", 0, |r| {
        let of = |i: usize| r.rows[i].records.iter().map(|r| r.data).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![&b"1"[..], b"3"], vec![&b"2"[..]]));
    });
    let t = txn::stage_table(&table, Some("c"), &Limits::default()).unwrap();
    assert_eq!(t.topics().collect::<Vec<_>>(), ["c"]);
    t.with_stage("s", 0, |r| assert_eq!(r.rows[0].records.len(), 3));
    let nameless = batch(vec![("topic", strings(&[None])), ("data", strings(&[Some("1")]))]);
    let table = Table::read(&ipc(&[nameless]), 0, 0).unwrap();
    let text = txn::stage_table(&table, None, &Limits::default()).unwrap_err().message;
    assert!(text.contains("records[0].topic"), "{text}");
}

#[test]
fn refusals_name_the_row_or_the_column() {
    let good = || strings(&[Some("1"), Some("2")]);
    let rows: [(&str, ArrayRef, &str); 7] = [
        ("data", strings(&[Some("1"), Some("{]")]), "records[1].data"),
        ("data", strings(&[Some("1"), None]), "records[1].data must not be null"),
        (
            "data",
            Arc::new(Int64Array::from(vec![1, 2])),
            "data must be a column of utf8 or binary, not of Int64",
        ),
        ("tag", strings(&[None, Some("too long")]), "record 1"),
        (
            "tag",
            Arc::new(BinaryArray::from(vec![&b"x"[..], b"y"])),
            "tag must be a column of utf8, not of Binary",
        ),
        ("meta", strings(&[None, None]), "meta must be a column of map<utf8, utf8>, not of Utf8"),
        ("meta", maps(&[&[], &[("$k", Some("v"))]]), "records[1].meta"),
    ];
    for (name, column, word) in rows {
        let columns = match name {
            "data" => vec![("data", column)],
            name => vec![("data", good()), (name, column)],
        };
        let text = refusal(&batch(columns));
        assert!(text.contains(word), "{text}, not {word}");
    }
    let text = refusal(&batch(vec![("data", good()), ("meta", maps(&[&[("k", None)], &[]]))]));
    assert!(text.contains("records[0].meta must not contain null"), "{text}");
    assert!(refusal(&batch(vec![("x", good())])).contains("data is missing"));
    assert!(refusal(&batch(vec![("data", strings(&[]))])).contains("records must not be empty"));
    let body = ipc(&[batch(vec![("data", good())])]);
    assert_eq!(Table::read(&body, 1, 0).unwrap_err().code, "batch_too_large");
}

/// Random bytes, and streams with one byte changed or cut off, are refused or read; nothing panics.
#[test]
fn malformed_bodies_are_refused() {
    let one = batch(vec![
        ("data", strings(&[Some("1"), Some("22")])),
        ("meta", maps(&[&[("k", Some("v"))], &[]])),
    ]);
    let body = ipc(&[one]);
    let read = |bytes: &[u8]| {
        let table = Table::read(bytes, 10, 0)?;
        parse_table(&table, &Query::new(b""), b"", &Limits::default()).map(drop)
    };
    assert!(read(&body).is_ok());
    for bytes in [&b""[..], b"{}", b"ARROW1\0\0", &[0xff; 64], &body[8..]] {
        assert_eq!(read(bytes).unwrap_err().code, "invalid_request");
    }
    for end in 0..body.len() {
        // A stream may stop at the end of a message without its marker.
        let cut = read(&body[..end]);
        assert!(cut.is_err() || body.len() - end <= 8, "cut at {end}");
    }
    for at in 0..body.len() {
        for bit in [0x01, 0x80] {
            let mut changed = body.clone();
            changed[at] ^= bit;
            let _ = read(&changed);
        }
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    for column in ["data", "tag"] {
        let values = strings(&[Some("1234567")]);
        let mut columns = vec![("data", strings(&[Some("1")]))];
        columns.retain(|(name, _)| *name != column);
        columns.push((column, values));
        let good = ipc(&[batch(columns)]);
        let text = b"1234567";
        let mut bad = good.clone();
        let at = bad.windows(text.len()).rposition(|w| w == text).unwrap();
        bad[at] = 0xff;
        assert!(Table::read(&good, 0, 0).is_ok());
        assert!(Table::read(&bad, 0, 0).unwrap_err().message.contains("UTF8"), "{column}");
    }
}

const CODECS: [CompressionType; 2] = [CompressionType::LZ4_FRAME, CompressionType::ZSTD];

/// Rows with a buffer that compression makes larger, a dictionary, and nested buffers.
fn mixed() -> RecordBatch {
    let data = (0..2000).map(|n| format!("{{\"n\":{n}}}")).collect::<Vec<_>>();
    let data: Vec<_> = data.iter().map(|text| Some(text.as_str())).collect();
    let mut node = StringDictionaryBuilder::<Int8Type>::new();
    (0..2000).for_each(|n| node.append_value(["a", "b"][n % 2]));
    batch(vec![
        ("data", strings(&data)),
        ("node", Arc::new(node.finish())),
        ("meta", maps(&[&[("k", Some("v"))][..]; 2000])),
    ])
}

#[test]
fn compressed_buffers_have_the_same_rows() {
    let rows = mixed();
    let plain = ipc(&[rows.clone(), rows.slice(0, 1)]);
    assert_eq!(Table::decompressed_bytes(&plain).unwrap(), 0);
    let want = Table::read(&plain, 0, 0).unwrap();
    for codec in CODECS {
        let body = compressed(&[rows.clone(), rows.slice(0, 1)], codec);
        assert!(body.len() < plain.len(), "{} of {}", body.len(), plain.len());
        let all = Table::decompressed_bytes(&body).unwrap() as usize;
        // Buffers that compression does not make smaller lie in the body as they are.
        assert!(all < plain.len() && all > plain.len() / 4, "{all} of {}", plain.len());
        let table = Table::read(&body, 0, all).unwrap();
        assert_eq!(table.records().unwrap(), want.records().unwrap());
        let refused = Table::read(&body, 0, all - 1).unwrap_err();
        assert_eq!(refused.code, "payload_too_large");
        assert_eq!(refused.detail.unwrap(), format!("{{\"max\":{}}}", all - 1));
    }
}

/// Where bodies have no limit the decoder must not allocate what a buffer says either: that would end the
/// process.
#[test]
fn what_is_decompressed_has_a_bound_where_bodies_have_none() {
    let body = compressed(&[mixed()], CompressionType::ZSTD);
    let longest = (0..2000).map(|n| format!("{{\"n\":{n}}}").len()).sum::<usize>() as u64;
    let at = body.windows(8).position(|w| w == longest.to_le_bytes()).unwrap();
    for bytes in [(1 << 30) + 1, 1 << 46, i64::MAX as u64] {
        let mut changed = body.clone();
        changed[at..at + 8].copy_from_slice(&bytes.to_le_bytes());
        assert_eq!(Table::read(&changed, 0, 0).unwrap_err().code, "payload_too_large");
    }
    assert!(Table::read(&body, 0, 0).is_ok());
}

/// Compressed streams with one byte changed or cut off are refused or read, and what they say that they
/// decompress to is bounded before it is allocated; nothing panics.
#[test]
fn malformed_compressed_bodies_are_refused() {
    let rows = mixed().slice(0, 300);
    for codec in CODECS {
        let body = compressed(std::slice::from_ref(&rows), codec);
        let read = |bytes: &[u8]| Table::read(bytes, 1000, 1 << 20)?.records().map(drop);
        assert!(read(&body).is_ok());
        for end in (0..body.len()).step_by(7) {
            assert!(read(&body[..end]).is_err() || body.len() - end <= 8, "cut at {end}");
        }
        for at in 0..body.len() {
            for bit in [0x01, 0x80] {
                let mut changed = body.clone();
                changed[at] ^= bit;
                let _ = read(&changed);
            }
        }
    }
}
