//! Splits: a range divided into parts of similar size, from the index alone.

use topics_engine::{SegmentMap, SeqRange};

use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader, read_body};
use crate::object::Object;
use crate::routes::bodies;

/// Default maximum records of a split.
const RECORDS: u64 = 1_000_000;
/// Default maximum bytes of a split.
const BYTES: u64 = 256 << 20;
/// Maximum number of splits in an answer; a range that needs more gets larger splits.
const PARTS: u64 = 10_000;

/// The body of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRequest {
    /// Records after this seq.
    pub from_seq: u64,
    /// Inclusive end; `None`: the head.
    pub to_seq: Option<u64>,
    /// Maximum records of a split.
    pub max_records: u64,
    /// Maximum bytes of a split.
    pub max_bytes: u64,
}

/// One split of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Split {
    from_seq: u64,
    to_seq: u64,
    records: u64,
    bytes: u64,
}

/// `{from_seq?, to_seq?, max_records?, max_bytes?}`.
pub fn parse(bytes: &[u8]) -> Result<SplitRequest, Failure> {
    const FIELDS: Fields = Fields::of(bodies::SPLIT);
    let mut a = SplitRequest { from_seq: 0, to_seq: None, max_records: RECORDS, max_bytes: BYTES };
    if bytes.is_empty() {
        return Ok(a);
    }
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "from_seq" => a.from_seq = s.u64(FieldPath::field("from_seq"))?,
            "to_seq" => a.to_seq = Some(s.u64(FieldPath::field("to_seq"))?),
            "max_records" => a.max_records = s.u64(FieldPath::field("max_records"))?,
            "max_bytes" => a.max_bytes = s.u64(FieldPath::field("max_bytes"))?,
            _ => s.skip()?,
        }
        Ok(())
    })?;
    for (field, n) in [("max_records", a.max_records), ("max_bytes", a.max_bytes)] {
        if n == 0 {
            return Err(FieldPath::field(field).invalid("must be at least 1"));
        }
    }
    Ok(a)
}

/// The answer: splits that cover the range without holes, and their total bytes.
#[must_use]
pub fn answer(topic: &str, a: &SplitRequest, map: &SegmentMap) -> Vec<u8> {
    let to_seq = a.to_seq.map_or(map.head_seq, |to| to.min(map.head_seq));
    let parts = divide(a, to_seq, &map.ranges);
    let mut list = vec![b'['];
    for (i, p) in parts.iter().enumerate() {
        if i > 0 {
            list.push(b',');
        }
        let mut o = Object::new(96);
        o.int("from_seq", p.from_seq).int("to_seq", p.to_seq);
        o.int("records", p.records).int("bytes", p.bytes);
        list.extend_from_slice(&o.finish());
    }
    list.push(b']');
    let mut o = Object::new(list.len() + 160);
    o.name("topic", topic).int("topic_id", map.topic_id).int("head_seq", map.head_seq);
    o.int("from_seq", a.from_seq).int("to_seq", to_seq.max(a.from_seq));
    o.int("records", parts.iter().map(|p| p.records).sum());
    o.int("bytes", parts.iter().map(|p| p.bytes).sum());
    o.raw("splits", &list);
    o.finish()
}

/// The records and bytes of a range after `from`, up to `to`, in proportion to its seqs. The shares
/// of adjacent ranges add up.
fn share(s: &SeqRange, from: u64, to: u64) -> (u64, u64) {
    let span = u128::from(s.last_seq + 1 - s.first_seq);
    let below = |seq: u64| u128::from((seq.min(s.last_seq) + 1).saturating_sub(s.first_seq));
    let of = |n: u64| {
        let upto = |seq| u128::from(n) * below(seq) / span.max(1);
        (upto(to) - upto(from.min(to))) as u64
    };
    (of(s.count), of(s.bytes))
}

fn divide(a: &SplitRequest, to_seq: u64, ranges: &[SeqRange]) -> Vec<Split> {
    let from_seq = a.from_seq;
    if from_seq >= to_seq {
        return Vec::new();
    }
    let within = || ranges.iter().filter(|s| s.last_seq > from_seq && s.first_seq <= to_seq);
    let all = within().map(|s| share(s, from_seq, to_seq));
    let (records, bytes) = all.fold((0, 0), |(n, b), (records, bytes)| (n + records, b + bytes));
    // Even splits: the last one is not a small remainder.
    let even = |n: u64, most: u64| n.div_ceil(n.div_ceil(most).clamp(1, PARTS)).max(1);
    let (most_records, most_bytes) = (even(records, a.max_records), even(bytes, a.max_bytes));
    let mut parts = Vec::new();
    let mut now = Split { from_seq, to_seq: from_seq, ..Split::default() };
    for s in within() {
        let end = s.last_seq.min(to_seq);
        let mut at = s.first_seq.max(from_seq + 1) - 1;
        while at < end {
            let upto = reach(s, at, end, most_records - now.records, most_bytes, now.bytes);
            let (records, bytes) = share(s, at, upto);
            now = Split { records: now.records + records, bytes: now.bytes + bytes, ..now };
            now.to_seq = upto;
            at = upto;
            if now.records >= most_records || now.bytes >= most_bytes {
                parts.push(now);
                now = Split { from_seq: upto, to_seq: upto, ..Split::default() };
            }
        }
    }
    match parts.last_mut() {
        // After the last record there may be a gap, which the last split must report.
        Some(last) if now.records == 0 => last.to_seq = to_seq,
        _ => parts.push(Split { to_seq, ..now }),
    }
    parts
}

/// The seq up to which a split reaches into a range, at least one seq further.
fn reach(s: &SeqRange, at: u64, end: u64, records: u64, most_bytes: u64, bytes: u64) -> u64 {
    let span = u128::from(s.last_seq + 1 - s.first_seq);
    let seqs = |budget: u64, of: u64| match of {
        0 => u128::from(u64::MAX),
        of => u128::from(budget) * span / u128::from(of),
    };
    let budget = seqs(records, s.count).min(seqs(most_bytes.saturating_sub(bytes), s.bytes));
    let seqs_further = u64::try_from(budget.max(1)).unwrap_or(u64::MAX);
    at.saturating_add(seqs_further).min(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use topics_engine::Tier;

    fn seq_range(first_seq: u64, last_seq: u64, count: u64, bytes: u64) -> SeqRange {
        SeqRange {
            tier: Tier::Segment,
            first_seq,
            last_seq,
            count,
            bytes,
            first_ts: 0,
            last_ts: 0,
            file_no: Some(1),
            file_bytes: bytes,
            sealed: true,
        }
    }

    fn check(a: &SplitRequest, to: u64, ranges: &[SeqRange]) -> Vec<Split> {
        let parts = divide(a, to, ranges);
        let mut at = a.from_seq;
        for p in &parts {
            assert_eq!(p.from_seq, at, "parts follow each other: {parts:?}");
            assert!(p.to_seq > at);
            at = p.to_seq;
        }
        assert_eq!(at, to.max(a.from_seq));
        parts
    }

    fn asked(from_seq: u64, max_records: u64, max_bytes: u64) -> SplitRequest {
        SplitRequest { from_seq, to_seq: None, max_records, max_bytes }
    }

    #[test]
    fn parts_are_even_and_cover_the_range() {
        let all = [seq_range(1, 1000, 1000, 10_000), seq_range(1001, 1500, 500, 500_000)];
        let parts = check(&asked(0, 100, u64::MAX), 1500, &all);
        assert_eq!(parts.len(), 15);
        assert!(parts.iter().all(|p| p.records == 100), "{parts:?}");
        // Large records make short splits.
        let parts = check(&asked(0, 10_000, 51_000), 1500, &all);
        assert!((10..=11).contains(&parts.len()), "{parts:?}");
        assert!(parts.iter().all(|p| p.bytes <= 52_000), "{parts:?}");
        assert!(parts[0].records > 1000 && parts[1].records < 100);
        // One split, and a range that begins and ends within ranges.
        let parts = check(&asked(900, u64::MAX, u64::MAX), 1100, &all);
        assert_eq!((parts.len(), parts[0].records, parts[0].bytes), (1, 200, 101_000));
    }

    #[test]
    fn holes_and_edges() {
        let all = [seq_range(101, 200, 10, 1000), seq_range(301, 400, 100, 100)];
        let parts = check(&asked(0, 30, u64::MAX), 500, &all);
        assert_eq!(parts.iter().map(|p| p.records).sum::<u64>(), 110);
        assert!(parts.iter().all(|p| p.records <= 30));
        assert!(check(&asked(7, 1, 1), 7, &all).is_empty());
        // A range without live records is one split: it may contain a gap.
        assert_eq!(check(&asked(0, 1, 1), 50, &all), [Split { to_seq: 50, ..Split::default() }]);
        let one = [seq_range(1, 1_000_000, 1_000_000, 1)];
        assert_eq!(check(&asked(0, 1, u64::MAX), 1_000_000, &one).len(), 10_000);
        assert!(divide(&asked(9, 1, 1), 3, &all).is_empty());
    }

    #[test]
    fn requests() {
        let a = parse(br#"{"from_seq":4,"to_seq":9,"max_records":2,"max_bytes":3}"#).unwrap();
        assert_eq!(a, SplitRequest { from_seq: 4, to_seq: Some(9), max_records: 2, max_bytes: 3 });
        assert_eq!(parse(b"{}").unwrap().max_records, RECORDS);
        assert!(parse(br#"{"max_bytes":0}"#).unwrap_err().message.contains("max_bytes"));
        assert!(parse(br#"{"from_seq":"x"}"#).unwrap_err().message.contains("from_seq"));
    }
}
