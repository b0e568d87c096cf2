//! What the engine counts, as Prometheus text and as JSON.

use std::fmt::Write;

use topics_engine::{
    BUCKETS, Durability, Engine, HistogramSnapshot, MetricsSnapshot, TopicSummary,
};

use crate::config;
use crate::grant::Grant;
use crate::json::push_str;
use crate::render::Object;

/// Topics with gauges of their own.
const TOPICS: usize = 1000;

const REASONS: [&str; 8] =
    ["cap", "ttl", "mixed", "recreated", "source_trim", "crash", "restart", "corrupt"];

const CLASSES: [Durability; 4] =
    [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];

struct Seen {
    snapshot: MetricsSnapshot,
    topics: Vec<TopicSummary>,
    truncated: bool,
}

fn look(engine: &Engine, grant: &Grant) -> Seen {
    let mut topics = Vec::new();
    for prefix in grant.within("") {
        topics.extend(engine.list(&prefix, None, TOPICS + 1 - topics.len()));
    }
    let truncated = topics.len() > TOPICS;
    topics.truncate(TOPICS);
    Seen { snapshot: engine.metrics(), topics, truncated }
}

/// Name, help and value of each counter.
fn counters(m: &MetricsSnapshot) -> [(&'static str, &'static str, u64); 21] {
    [
        ("appends", "Writes applied", m.appends),
        ("append_records", "Records of the writes applied", m.append_records),
        ("append_bytes", "Payload bytes of the writes applied", m.append_bytes),
        ("dedupe_hits", "Writes answered from an idempotency key", m.dedupe_hits),
        ("throttled", "Calls refused as throttled", m.throttled),
        ("failed_batches", "Batches that failed after they were staged", m.failed_batches),
        ("reads", "Reads", m.reads),
        ("read_records", "Records returned by reads", m.read_records),
        ("read_bytes", "Payload bytes returned by reads", m.read_bytes),
        ("deletes", "Deletes applied", m.deletes),
        ("deleted_records", "Records removed by deletes", m.deleted_records),
        ("evicted_records", "Records evicted by a cap or by TTL", m.evicted_records),
        ("corrupt_records", "Records that failed their checksum", m.corrupt_records),
        ("lost_lsns", "Log entries given up as damaged", m.lost_lsns),
        ("topics_created", "Topics created", m.topics_created),
        ("topics_deleted", "Topics deleted", m.topics_deleted),
        ("orphan_frames", "Frames of absent topics passed over by recovery", m.orphan_frames),
        ("watch_records", "Records handed to watchers", m.watch_records),
        ("router_copies", "Copies that routers made", m.router_copies),
        ("watch_lags", "Times that a watcher fell behind its queue", m.watch_lags),
        ("clock_steps", "Steps of the wall clock of more than an hour", m.clock_steps),
    ]
}

fn gauges(m: &MetricsSnapshot) -> [(&'static str, &'static str, u64); 8] {
    [
        ("topics", "Topics", m.topics),
        ("idempotency_keys", "Live idempotency keys", m.idempotency_keys),
        ("ephemeral_bytes", "Payload bytes of ephemeral topics", m.ephemeral_bytes),
        ("watch_streams", "Open watch streams", m.watch_streams),
        ("watch_sessions", "Watch sessions", m.watch_sessions),
        ("ready_topics", "Topics that wait for a delivery worker", m.ready_topics),
        ("pressure_ppm", "The governor's pressure in millionths", m.pressure_ppm),
        ("resident_records", "Records with a resident index entry", m.resident_records),
    ]
}

/// Prometheus' text format; topics by name as far as the client may see them.
#[must_use]
pub fn prometheus(engine: &Engine, grant: &Grant) -> Vec<u8> {
    let seen = look(engine, grant);
    let mut out = String::with_capacity(8192 + seen.topics.len() * 256);
    // Writing to a string does not fail.
    let _ = write_text(&mut out, &seen);
    out.into_bytes()
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) -> std::fmt::Result {
    write!(out, "# HELP topics_{name} {help}.\n# TYPE topics_{name} {kind}\n")
}

fn write_text(out: &mut String, seen: &Seen) -> std::fmt::Result {
    let m = &seen.snapshot;
    for (name, help, value) in counters(m) {
        head(out, &format!("{name}_total"), help, "counter")?;
        writeln!(out, "topics_{name}_total {value}")?;
    }
    for (name, help, value) in gauges(m) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {value}")?;
    }
    head(out, "tombstones_total", "Tombstones served", "counter")?;
    for (reason, count) in REASONS.iter().zip(m.tombstones) {
        writeln!(out, "topics_tombstones_total{{reason=\"{reason}\"}} {count}")?;
    }
    histogram(out, "append_seconds", "Time of a write from call to answer", &m.append)?;
    histogram(out, "sync_wait_seconds", "Time that writes waited for a sync", &m.sync_wait)?;
    histogram(
        out,
        "delivery_seconds",
        "Time that a dirty topic waited for its worker",
        &m.delivery,
    )?;
    per_topic(out, seen)
}

fn histogram(out: &mut String, name: &str, help: &str, h: &HistogramSnapshot) -> std::fmt::Result {
    head(out, name, help, "histogram")?;
    let mut below = 0;
    for (i, count) in h.buckets.iter().enumerate().take(BUCKETS - 1) {
        below += count;
        let bound = (1u64 << (i + 8)) as f64 / 1e9;
        writeln!(out, "topics_{name}_bucket{{le=\"{bound}\"}} {below}")?;
    }
    writeln!(out, "topics_{name}_bucket{{le=\"+Inf\"}} {}", h.count)?;
    writeln!(out, "topics_{name}_sum {}", h.sum_ns as f64 / 1e9)?;
    writeln!(out, "topics_{name}_count {}", h.count)
}

fn per_topic(out: &mut String, seen: &Seen) -> std::fmt::Result {
    type Value = fn(&TopicSummary) -> u64;
    let series: [(&str, &str, Value); 4] = [
        ("topic_head_seq", "Last seq of a topic", |t| t.head_seq),
        ("topic_earliest_seq", "First live seq of a topic", |t| t.earliest_seq),
        ("topic_records", "Live records of a topic", |t| t.count),
        ("topic_bytes", "Live bytes of a topic", |t| t.bytes),
    ];
    for (name, help, value) in series {
        head(out, name, help, "gauge")?;
        for t in &seen.topics {
            // A topic's name needs no escapes.
            writeln!(out, "topics_{name}{{topic=\"{}\"}} {}", t.topic, value(t))?;
        }
    }
    head(out, "topics_by_class", "Topics with gauges of their own, by class", "gauge")?;
    for class in CLASSES {
        let count = seen.topics.iter().filter(|t| t.durability == class).count();
        let word = config::durability(class);
        writeln!(out, "topics_topics_by_class{{durability=\"{word}\"}} {count}")?;
    }
    head(out, "topics_truncated", "Whether there are more topics than have gauges", "gauge")?;
    writeln!(out, "topics_topics_truncated {}", u8::from(seen.truncated))
}

/// The same as one JSON object.
#[must_use]
pub fn json(engine: &Engine, grant: &Grant) -> Vec<u8> {
    let seen = look(engine, grant);
    let m = &seen.snapshot;
    let mut o = Object::new(4096);
    for (name, _, value) in counters(m).into_iter().chain(gauges(m)) {
        o.int(name, value);
    }
    let mut tombstones = Object::new(256);
    for (reason, count) in REASONS.iter().zip(m.tombstones) {
        tombstones.int(reason, count);
    }
    o.raw("tombstones", &tombstones.finish());
    for (name, h) in [("append", &m.append), ("sync_wait", &m.sync_wait), ("delivery", &m.delivery)]
    {
        let mut inner = Object::new(128);
        inner.int("count", h.count).int("sum_ns", h.sum_ns);
        inner.int("p50_ns", quantile(h, 50)).int("p99_ns", quantile(h, 99));
        o.raw(name, &inner.finish());
    }
    let list = o.key("per_topic");
    list.push(b'{');
    for (i, t) in seen.topics.iter().enumerate() {
        if i > 0 {
            list.push(b',');
        }
        push_str(list, t.topic.as_bytes());
        list.push(b':');
        let mut inner = Object::new(128);
        inner.int("head_seq", t.head_seq).int("earliest_seq", t.earliest_seq);
        inner.int("count", t.count).int("bytes", t.bytes);
        list.extend_from_slice(&inner.finish());
    }
    list.push(b'}');
    o.flag("per_topic_truncated", seen.truncated);
    o.finish()
}

/// The upper bound of the bucket that holds a percentile; 0 when nothing was counted.
fn quantile(h: &HistogramSnapshot, percent: u64) -> u64 {
    let wanted = (h.count * percent).div_ceil(100);
    let mut below = 0;
    for (i, count) in h.buckets.iter().enumerate() {
        below += count;
        if below >= wanted && below > 0 {
            return 1 << (i + 8);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        let mut snapshot = MetricsSnapshot { appends: 3, topics: 1, ..MetricsSnapshot::default() };
        snapshot.append.buckets[2] = 98;
        snapshot.append.buckets[5] = 2;
        snapshot.append.count = 100;
        snapshot.append.sum_ns = 2_000_000_000;
        snapshot.tombstones[1] = 7;
        let topic = TopicSummary {
            kind: topics_engine::TopicType::Log,
            topic: "a.b".into(),
            head_seq: 9,
            earliest_seq: 2,
            count: 8,
            bytes: 100,
            durability: Durability::Fsync,
            effective_priority: 0,
        };
        Seen { snapshot, topics: vec![topic], truncated: true }
    }

    #[test]
    fn the_text_is_prometheus() {
        let mut out = String::new();
        write_text(&mut out, &seen()).unwrap();
        for line in [
            "# TYPE topics_appends_total counter",
            "topics_appends_total 3",
            "topics_topics 1",
            "topics_tombstones_total{reason=\"ttl\"} 7",
            "topics_append_seconds_bucket{le=\"0.000001024\"} 98",
            "topics_append_seconds_bucket{le=\"+Inf\"} 100",
            "topics_append_seconds_sum 2",
            "topics_topic_head_seq{topic=\"a.b\"} 9",
            "topics_topics_by_class{durability=\"fsync\"} 1",
            "topics_topics_truncated 1",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
        // One TYPE a family, before its samples.
        let mut families = std::collections::HashSet::new();
        for line in out.lines().filter_map(|l| l.strip_prefix("# TYPE ")) {
            assert!(families.insert(line.split(' ').next().unwrap().to_owned()), "{line}");
        }
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let h = &seen().snapshot.append;
        assert_eq!((quantile(h, 50), quantile(h, 99)), (1 << 10, 1 << 13));
        assert_eq!(quantile(&HistogramSnapshot::default(), 99), 0);
    }

    #[test]
    fn reasons_are_the_engines() {
        use topics_engine::GapReason::*;
        let all = [Cap, Ttl, Mixed, Recreated, SourceTrim, Crash, Restart, Corrupt];
        assert_eq!(all.map(|r| r.as_str()), REASONS);
    }
}
