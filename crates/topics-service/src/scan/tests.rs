use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use topics_engine::{
    Append, ConfigPatch, DeleteRequest, Engine, NewRecord, Options, ReadFrom, TopicMatch,
};
use topics_env::sim::sim_env;

use super::prefetch::{Prefetcher, Range, RangeReader};
use super::*;

/// A row: seq, ts in ms, tag, node, data, end of a gap.
type Row = (i64, Option<i64>, String, String, Option<String>, Option<i64>);

fn engine() -> Engine {
    let options = Options { segment_max_events: 100, ..Options::default() };
    Engine::open(sim_env(1).0, Path::new("/data"), options).unwrap()
}

fn write(db: &Engine, topic: &str, from: usize, to: usize, plain: bool) {
    let data: Vec<String> = (from..to).map(|i| format!("\"{}\"", "é".repeat(i % 50))).collect();
    let tags: Vec<String> = (from..to).map(|i| format!("k:{}", i % 3)).collect();
    let records: Vec<NewRecord<'_>> = data
        .iter()
        .zip(&tags)
        .enumerate()
        .map(|(i, (data, tag))| NewRecord {
            data: data.as_bytes(),
            tag: if plain { b"" } else { tag.as_bytes() },
            node: if plain || i % 2 == 0 { b"" } else { b"n" },
            meta: if plain || i % 5 > 0 { b"" } else { br#"{"a":"b"}"# },
            ..NewRecord::default()
        })
        .collect();
    db.append(topic, &Append { records: &records, ..Append::default() }).unwrap();
}

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let text = |column: usize, i: usize| {
        let array = batch.column(column).as_string::<i32>();
        array.is_valid(i).then(|| array.value(i).to_owned())
    };
    let int = |column: usize, i: usize| {
        let array = batch.column(column).as_primitive::<Int64Type>();
        array.is_valid(i).then(|| array.value(i))
    };
    let times = batch.column(2).as_primitive::<TimestampMicrosecondType>();
    (0..batch.num_rows())
        .map(|i| {
            assert_eq!(text(0, i).unwrap(), "t");
            assert_eq!(batch.column(5).is_valid(i), batch.column(5).as_map().value_length(i) > 0);
            assert_eq!(int(7, i).is_some(), text(8, i).is_some());
            let time = times.is_valid(i).then(|| times.value(i) / 1000);
            let or_empty = |column| text(column, i).unwrap_or_default();
            (int(1, i).unwrap(), time, or_empty(4), or_empty(3), text(6, i), int(7, i))
        })
        .collect()
}

fn scanned(db: &Engine, request: ScanRequest) -> Vec<Row> {
    let scan = Scan::begin(db.clone(), "t", request).unwrap();
    scan.flat_map(|batch| rows(&batch.unwrap())).collect()
}

/// The rows that plain reads return, page by page.
fn expected(db: &Engine, after: u64) -> Vec<Row> {
    let (mut at, mut out) = (after, Vec::new());
    loop {
        let from = topics_engine::ReadFrom::After(at);
        let request = topics_engine::ReadRequest { from, limit: 7, ..Default::default() };
        let page = db.read("t", &request).unwrap();
        if let Some(gap) = &page.tombstone {
            let to = Some(gap.gap_to as i64);
            out.push((gap.gap_from as i64, None, String::new(), String::new(), None, to));
        }
        out.extend(page.iter().map(|r| {
            let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
            let (seq, ts) = (r.seq as i64, Some(r.ts as i64));
            (seq, ts, text(r.tag), text(r.node), Some(text(r.data)), None)
        }));
        at = page.next_from_seq;
        if page.caught_up {
            return out;
        }
    }
}

#[test]
fn stretches_of_any_size_give_what_reads_give() {
    let db = engine();
    write(&db, "t", 0, 3000, false);
    db.checkpoint().unwrap();
    let tagged = TopicMatch::Eq(b"k:1".to_vec());
    for request in [
        DeleteRequest { matching: Some(tagged), ..DeleteRequest::default() },
        DeleteRequest { before_seq: Some(50), ..DeleteRequest::default() },
    ] {
        db.delete("t", &request).unwrap();
    }
    db.checkpoint().unwrap();
    // Some records are in a log file only, and some columns are empty from here on.
    write(&db, "t", 3000, 20_000, true);
    let want = expected(&db, 0);
    assert_eq!(want.len(), 20_000 - 50 - 983 + usize::from(want[0].5.is_some()));
    for batch_bytes in [1, 300, 5000, 100_000, 4 << 20] {
        let request =
            ScanRequest { from: ReadFrom::After(0), batch_bytes, ..ScanRequest::default() };
        assert!(scanned(&db, request) == want, "batches of {batch_bytes} bytes");
    }
    let upto = ScanRequest { upto: Some(700), batch_bytes: 200, ..ScanRequest::default() };
    let below: Vec<Row> = want.iter().filter(|r| r.5.is_none() && r.0 <= 700).cloned().collect();
    assert!(scanned(&db, upto) == below);
    let matching = Some(TopicMatch::Eq(b"k:2".to_vec()));
    let hits = ScanRequest { matching, batch_bytes: 500, ..ScanRequest::default() };
    let tagged: Vec<Row> = want.into_iter().filter(|r| r.2 == "k:2").collect();
    assert!(scanned(&db, hits) == tagged && !tagged.is_empty());
    db.close().unwrap();
}

#[test]
fn a_gap_that_spans_stretches_is_one_row() {
    let db = engine();
    let patch = ConfigPatch { cap_records: Some(3000), ..ConfigPatch::default() };
    db.create_topic("t", &patch).unwrap();
    for i in 0..30 {
        write(&db, "t", i * 1000, (i + 1) * 1000, true);
    }
    let all = ScanRequest { from: ReadFrom::After(5), batch_bytes: 1000, ..ScanRequest::default() };
    let mut scan = Scan::begin(db.clone(), "t", all).unwrap();
    let first = rows(&scan.next().unwrap().unwrap());
    assert_eq!((first[0].0, first[0].5), (6, Some(27_000)));
    // Records evicted during the scan are a gap of their own, whatever was prefetched.
    write(&db, "t", 0, 2500, true);
    let rest: Vec<Row> = scan.flat_map(|b| rows(&b.unwrap())).collect();
    let mut next = first.last().map(|r| r.5.unwrap_or(r.0)).unwrap() + 1;
    for row in &rest {
        assert_eq!(row.0, next, "seqs and gaps follow each other");
        next = row.5.unwrap_or(row.0) + 1;
    }
    assert_eq!(next, 30_001);
    db.close().unwrap();
}

#[test]
fn a_scan_that_is_given_up_ends() {
    let db = engine();
    write(&db, "t", 0, 50_000, true);
    for taken in 0..4 {
        let request = ScanRequest { batch_bytes: 2000, ..ScanRequest::default() };
        let scan = Scan::begin(db.clone(), "t", request).unwrap();
        assert_eq!(scan.take(taken).filter(Result::is_ok).count(), taken);
    }
    let mixed = [NewRecord { data: b"\xff", binary: true, ..NewRecord::default() }];
    db.append("t", &Append { records: &mixed, ..Append::default() }).unwrap();
    let request = ScanRequest { batch_bytes: 2000, ..ScanRequest::default() };
    let mut scan = Scan::begin(db.clone(), "t", request).unwrap();
    let error = scan.by_ref().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("record 50001 is binary"), "{error}");
    assert!(scan.next().is_none(), "nothing comes after an error");
    db.close().unwrap();
}

/// Takes longer for even ranges; counts the ranges that it read.
struct Squares;

impl RangeReader<u64> for Squares {
    type Output = (u64, u64);

    fn read_range(&self, range: Range, made: &mut u64) -> (u64, u64) {
        *made += 1;
        if range.after.is_multiple_of(2) {
            (0..100).for_each(|_| std::thread::yield_now());
        }
        (range.after * range.after, *made)
    }
}

#[test]
fn ranges_come_in_order_whichever_thread_reads_them() {
    let mut ahead = Prefetcher::<u64, Squares>::new(Squares);
    ahead.help(3);
    let range = |after| Range { after, upto: after + 1 };
    (0..8).for_each(|n| ahead.plan(range(n)));
    for n in 0..200 {
        let (made, (square, _)) = ahead.next().unwrap();
        assert_eq!((made, square), (range(n), n * n));
        ahead.plan(range(n + 8));
    }
    // A range planned first comes first while others are being read; dropped ranges never come.
    ahead.plan_first(range(1000));
    assert_eq!(ahead.next().unwrap().0, range(1000));
    ahead.clear();
    ahead.plan(range(2000));
    assert_eq!(ahead.next().unwrap().0, range(2000));
    assert!(ahead.next().is_none());
    assert_eq!(ahead.planned(), 0);
}
