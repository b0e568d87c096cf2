use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use topics_engine::{
    Append, ConfigPatch, DeleteRequest, Engine, NewRecord, NodeFilter, Options, ReadFrom,
    RemoteLimits, RemoteOptions, TopicMatch,
};
use topics_sim::{Bucket, CallFilter, CallKind, FaultKind, SimClock, SimFs, sim_env};
use topics_wire::arrow::Columns;

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

/// An engine whose file system and clock the test controls.
fn controlled_engine() -> (Engine, Arc<SimFs>, Arc<SimClock>) {
    let (env, fs, clock) = sim_env(1);
    let options = Options { segment_max_events: 100, ..Options::default() };
    (Engine::open(env, Path::new("/data"), options).unwrap(), fs, clock)
}

fn named(names: &[&str]) -> Columns {
    let columns = names.iter().map(|name| Columns::named(name).unwrap());
    columns.reduce(Columns::and).unwrap()
}

/// Seq and end of a gap of each row, of a scan with these columns.
fn seqs(db: &Engine, names: &[&str], request: &ScanRequest) -> Vec<(i64, Option<i64>)> {
    let request = ScanRequest { columns: named(names), ..request.clone() };
    let scan = Scan::begin(db.clone(), "t", request).unwrap();
    let rows = scan.flat_map(|batch| {
        let batch = batch.unwrap();
        let int = |name| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone();
        let (seqs, ends) = (int("seq"), int("gap_to"));
        (0..batch.num_rows())
            .map(|i| (seqs.value(i), ends.is_valid(i).then(|| ends.value(i))))
            .collect::<Vec<_>>()
    });
    rows.collect()
}

const SEQS: [&str; 4] = ["topic", "seq", "gap_to", "gap_reason"];
const WITH_DATA: [&str; 3] = ["seq", "data", "gap_to"];

#[test]
fn seqs_alone_are_those_of_a_scan_of_all_columns_and_need_no_record() {
    let (db, fs, _) = controlled_engine();
    let patch = ConfigPatch { cap_records: Some(19_000), ..ConfigPatch::default() };
    db.create_topic("t", &patch).unwrap();
    write(&db, "t", 0, 3000, false);
    db.checkpoint().unwrap();
    let tagged = TopicMatch::Eq(b"k:1".to_vec());
    let delete = DeleteRequest { matching: Some(tagged), ..DeleteRequest::default() };
    db.delete("t", &delete).unwrap();
    // The last records are in a log file only; the cap evicts the first ones.
    write(&db, "t", 3000, 21_000, true);
    let from = |after| ScanRequest { from: ReadFrom::After(after), ..ScanRequest::default() };
    let matching = Some(TopicMatch::Eq(b"k:2".to_vec()));
    let requests = [
        ScanRequest { batch_bytes: 4 << 20, ..from(0) },
        ScanRequest { batch_bytes: 1, ..from(0) },
        ScanRequest { batch_bytes: 4 << 20, upto: Some(2500), ..from(0) },
        ScanRequest { batch_bytes: 4 << 20, upto: Some(20_123), ..from(3001) },
        ScanRequest { batch_bytes: 4 << 20, matching, ..from(0) },
    ];
    let want: Vec<_> = requests.iter().map(|r| seqs(&db, &WITH_DATA, r)).collect();
    assert!(want.iter().all(|rows| rows.len() > 100), "{:?}", want.iter().map(Vec::len));
    assert!(want[0][0].1.is_some(), "the evicted records are a gap");
    for part in [".data", "wal"] {
        fs.fail_from(CallFilter::on_path(CallKind::Read, part), 1, FaultKind::EIO);
    }
    for (request, want) in requests.iter().zip(&want) {
        assert!(seqs(&db, &SEQS, request) == *want, "{request:?}");
    }
    assert_eq!(fs.faults_fired(), 0);
    let whole = ScanRequest { columns: named(&WITH_DATA), ..requests[0].clone() };
    assert!(Scan::begin(db.clone(), "t", whole).is_err(), "other columns are in the records");
    fs.clear_faults();
    db.close().unwrap();
}

#[test]
fn seqs_alone_pass_over_expired_records_and_other_nodes() {
    let (db, _, clock) = controlled_engine();
    let append = |range: std::ops::Range<usize>| {
        let record = |i: usize| NewRecord {
            data: b"1",
            node: if i.is_multiple_of(2) { b"n" } else { b"m" },
            ttl_ms: if i.is_multiple_of(3) { 1000 } else { 0 },
            ..NewRecord::default()
        };
        let records: Vec<_> = range.map(record).collect();
        db.append("t", &Append { records: &records, ..Append::default() }).unwrap();
    };
    append(0..500);
    db.checkpoint().unwrap();
    append(500..1000);
    let all = ScanRequest { batch_bytes: 4 << 20, ..ScanRequest::default() };
    assert_eq!(seqs(&db, &SEQS, &all).len(), 1000);
    clock.advance_ms(1500);
    let want = seqs(&db, &WITH_DATA, &all);
    assert_eq!(want.len(), 666);
    assert!(seqs(&db, &SEQS, &all) == want);
    let only = ScanRequest { only_nodes: NodeFilter(vec![b"n".to_vec()]), ..all.clone() };
    let skipped = ScanRequest { skip_nodes: NodeFilter(vec![b"m".to_vec()]), ..all };
    for request in [only, skipped] {
        let want = seqs(&db, &WITH_DATA, &request);
        assert_eq!(want.len(), 333);
        assert!(seqs(&db, &SEQS, &request) == want);
    }
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

#[test]
fn typed_columns_are_those_of_each_record_in_batches_of_any_size() {
    let (db, fs, _) = controlled_engine();
    let patch = ConfigPatch { cap_records: Some(4000), ..ConfigPatch::default() };
    db.create_topic("t", &patch).unwrap();
    let data: Vec<String> =
        (0..5000).map(|i| format!(r#"{{"n":{i},"s":"é{i}","x":[{i}.5]}}"#)).collect();
    let record = |data: &'static [u8]| NewRecord { data, ..NewRecord::default() };
    let records: Vec<_> =
        data.iter().map(|d| NewRecord { data: d.as_bytes(), ..NewRecord::default() }).collect();
    db.append("t", &Append { records: &records, ..Append::default() }).unwrap();
    db.checkpoint().unwrap();
    let odd = [record(br#"{"n":"none"}"#), record(b"7")];
    db.append("t", &Append { records: &odd, ..Append::default() }).unwrap();
    let body =
        br#"{"columns":["seq","gap_to"],"from_seq":0,"fields":{"n":"int64","_misfits":"string",
        "x":{"type":"double","path":"x[0]"}}}"#;
    for batch_bytes in [1, 3000, 4 << 20] {
        let request = ScanRequest { batch_bytes, ..topics_wire::arrow::parse(body).unwrap() };
        let mut at = 1003;
        for batch in Scan::begin(db.clone(), "t", request).unwrap() {
            let batch = batch.unwrap();
            let seqs = batch.column(0).as_primitive::<Int64Type>();
            let numbers = batch.column(2).as_primitive::<Int64Type>();
            let misfits = batch.column(3).as_string::<i32>();
            let halves = batch.column(4).as_primitive::<Float64Type>();
            for i in (0..batch.num_rows()).filter(|i| batch.column(1).is_null(*i)) {
                assert_eq!(seqs.value(i), at);
                let n = (at <= 5000).then_some(at - 1);
                assert_eq!(numbers.is_valid(i).then(|| numbers.value(i)), n);
                let half = n.map(|n| n as f64 + 0.5);
                assert_eq!(halves.is_valid(i).then(|| halves.value(i)), half);
                let misfit = misfits.is_valid(i).then(|| misfits.value(i));
                assert_eq!(misfit, (at == 5001).then_some(r#"["n"]"#));
                at += 1;
            }
        }
        assert_eq!(at, 5003, "batches of {batch_bytes} bytes");
    }
    // Their values are in the records, whichever columns of the topic are beside them.
    fs.fail_from(CallFilter::on_path(CallKind::Read, ".data"), 1, FaultKind::EIO);
    assert!(Scan::begin(db.clone(), "t", topics_wire::arrow::parse(body).unwrap()).is_err());
    fs.clear_faults();
    db.close().unwrap();
}

/// The bytes of the columns of each batch of a scan with these fields.
fn built(db: &Engine, fields: &str) -> Result<Vec<usize>, topics_wire::Failure> {
    let body = format!(r#"{{"columns":["seq"],"fields":{{{fields}}}}}"#);
    let request = topics_wire::arrow::parse(body.as_bytes())?;
    let scan = Scan::begin(db.clone(), "t", request)?;
    let sizes = scan.map(|batch| batch.unwrap().get_array_memory_size());
    Ok(sizes.collect())
}

/// What is built for a page is bounded by what is read and by a constant, whatever a client asks for.
#[test]
fn batches_are_small_whatever_is_asked_for() {
    let db = engine();
    let records = vec![NewRecord { data: br#""x""#, ..NewRecord::default() }; 1000];
    for _ in 0..30 {
        db.append("t", &Append { records: &records, ..Append::default() }).unwrap();
    }
    let kinds = (1..=38).flat_map(|p| (0..=p).map(move |scale| format!("decimal({p},{scale})")));
    let named = |len: usize| {
        let fields = kinds
            .clone()
            .take(255)
            .enumerate()
            .map(|(i, kind)| format!(r#""{i:0len$}":{{"type":"{kind}","path":"$"}}"#));
        fields.collect::<Vec<_>>().join(",")
    };
    for misfits in ["", r#","_misfits":"string""#] {
        let sizes = built(&db, &format!("{}{misfits}", named(58))).unwrap();
        println!("{} batches, at most {} bytes", sizes.len(), sizes.iter().max().unwrap());
        assert!(sizes.iter().all(|size| *size < 40 << 20), "{sizes:?}");
    }
    let refused = built(&db, &named(70)).unwrap_err();
    assert!(refused.message.contains("16384 bytes of names together"), "{refused:?}");

    // Strings of which one is within the other.
    let text = format!(r#"{{"a":{{"a":{{"a":{{"a":"{}"}}}}}}}}"#, "x".repeat(100_000));
    let records = vec![NewRecord { data: text.as_bytes(), ..NewRecord::default() }; 10];
    for _ in 0..10 {
        db.append("t", &Append { records: &records, ..Append::default() }).unwrap();
    }
    let nested = |n: usize| {
        let paths = (1..=n).map(|i| {
            format!(r#""s{i}":{{"type":"string","path":"{}"}}"#, ["a"].repeat(i).join("."))
        });
        paths.collect::<Vec<_>>().join(",")
    };
    let sizes = built(&db, &nested(8)).unwrap();
    assert!(sizes.len() > 10 && sizes.iter().all(|size| *size < 8 << 20), "{sizes:?}");
    let refused = built(&db, &nested(9)).unwrap_err();
    assert!(refused.message.contains("not have more than 8 strings"), "{refused:?}");
    db.close().unwrap();
}

/// Several threads at their own ranges would end what the tier reads ahead for one that goes on.
#[test]
fn cold_segments_are_read_in_order_by_one_thread() {
    let (env, _, clock) = sim_env(1);
    let bucket = Bucket::new(&clock);
    bucket.set_mutable(&["HEAD"]);
    let limits = RemoteLimits { hot_segments: 1, single_writer: true, ..RemoteLimits::default() };
    let remote = Some(RemoteOptions { store: Arc::new(bucket.client(1)), limits });
    let options =
        Options { background: false, segment_max_events: 100, remote, ..Options::default() };
    let db = Engine::open(env, Path::new("/data"), options).unwrap();
    write(&db, "t", 0, 5000, true);
    db.checkpoint().unwrap();
    assert!(db.archive().unwrap().cooled > 40);
    let request = ScanRequest { prefetch: true, batch_bytes: 3000, ..ScanRequest::default() };
    let mut scan = Scan::begin(db.clone(), "t", request).unwrap();
    let mut records = 0;
    while let Some(batch) = scan.next() {
        records += batch.unwrap().num_rows();
        if records < 4500 {
            assert_eq!((scan.pages.threads(), scan.pages.planned()), (1, 1), "at {records}");
        }
    }
    assert_eq!(records, 5000);
}
