//! The metrics of the engine, as Prometheus text and as JSON.

mod remote;

use std::fmt::Write;

use topics_engine::{
    BUCKETS, ConsumerInfo, Durability, Engine, HistogramSnapshot, MetricsSnapshot, Survey, Surveyed,
};

use topics_env::LoopPanics;

use crate::grant::Grant;
use crate::json::push_str;
use crate::object::Object;

/// Maximum number of topics, and of consumers, with gauges of their own.
const TOPICS: usize = 1000;

const REASONS: [&str; 8] =
    ["cap", "ttl", "mixed", "recreated", "source_trim", "crash", "restart", "corrupt"];

const CLASSES: [Durability; 4] =
    [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];

struct Sample {
    snapshot: MetricsSnapshot,
    survey: Survey,
    panics: Vec<LoopPanics>,
}

fn sample_of(engine: &Engine, grant: &Grant) -> Sample {
    // The survey fails only while the engine closes; then the gauges are 0.
    let survey = engine.survey(&grant.within(""), TOPICS).unwrap_or_default();
    let mut snapshot = engine.metrics();
    if let Some(remote) = &mut snapshot.remote
        && !grant.admin
    {
        // It may name paths of this machine, and the holder of the prefix.
        remote.reason = None;
    }
    Sample { snapshot, survey, panics: engine.loop_panics() }
}

type Row = (&'static str, &'static str, u64);

/// Name, help and value of each counter.
fn counters(m: &MetricsSnapshot) -> Vec<Row> {
    let mut all = records(m).to_vec();
    all.extend(jobs(m));
    all.extend([
        ("throttled", "Calls refused as throttled", m.throttled),
        ("failed_batches", "Batches that failed after they were staged", m.failed_batches),
        ("watch_records", "Records delivered to watchers", m.watch_records),
        ("router_copies", "Copies that routers made", m.router_copies),
        ("watch_lags", "Times that a watcher fell behind its queue", m.watch_lags),
        ("strains", "Times that delivery came under strain", m.strains),
        ("wal_groups", "Groups written to the log", m.wal_groups),
        ("wal_batches", "Batches written to the log", m.wal_batches),
        ("wal_frames", "Frames written to the log", m.wal_frames),
        ("wal_bytes", "Bytes written to the log", m.wal_bytes),
        ("wal_fsyncs", "Syncs of log files", m.wal_fsyncs),
        ("wal_rotations", "Log files begun", m.wal_rotations),
        ("checkpoints", "Checkpoints that succeeded", m.checkpoints),
        ("checkpoint_failures", "Checkpoints that failed", m.checkpoint_failures),
        ("segments_rewritten", "Segments written anew or merged", m.segments_rewritten),
        ("cold_reads", "Requests for records of cold segments", m.cold_reads),
        ("cold_read_bytes", "Bytes fetched for reads of cold segments", m.cold_read_bytes),
        ("cold_read_failures", "Requests for cold records that failed", m.cold_read_failures),
        ("cold_block_hits", "Blocks of cold segments found in memory", m.cold_block_hits),
        ("cold_block_misses", "Blocks of cold segments requested", m.cold_block_misses),
        ("cold_memory_waits", "Reads of cold segments that waited for memory", m.cold_memory_waits),
        (
            "clock_steps",
            "Steps of the wall clock of more than a minute, in either direction",
            m.clock_steps,
        ),
    ]);
    all
}

fn records(m: &MetricsSnapshot) -> [Row; 16] {
    [
        ("appends", "Writes applied", m.appends),
        ("append_records", "Records of the writes applied", m.append_records),
        ("append_bytes", "Payload bytes of the writes applied", m.append_bytes),
        ("dedupe_hits", "Writes answered from an idempotency key", m.dedupe_hits),
        ("reads", "Reads", m.reads),
        ("read_records", "Records returned by reads", m.read_records),
        ("read_bytes", "Payload bytes returned by reads", m.read_bytes),
        ("deletes", "Deletes applied", m.deletes),
        ("deleted_records", "Records removed by deletes", m.deleted_records),
        ("evicted_records", "Records evicted by a cap or by TTL", m.evicted_records),
        ("corrupt_records", "Records that failed their checksum", m.corrupt_records),
        ("lost_lsns", "Log entries lost to damage", m.lost_lsns),
        ("topics_created", "Topics created", m.topics_created),
        ("topics_deleted", "Topics deleted", m.topics_deleted),
        ("orphan_frames", "Frames of absent topics passed over by recovery", m.orphan_frames),
        ("apply_reads", "Times that applying a frame had to read a file", m.apply_reads),
    ]
}

/// Counters of queues and transactions.
fn jobs(m: &MetricsSnapshot) -> [Row; 16] {
    [
        ("claims", "Jobs claimed by workers", m.claims),
        ("acked_jobs", "Jobs acked", m.acked_jobs),
        ("nacked_jobs", "Jobs nacked by their workers", m.nacked_jobs),
        ("released_jobs", "Jobs given back without a delivery", m.released_jobs),
        ("extended_jobs", "Leases extended", m.extended_jobs),
        ("lease_expiries", "Leases that ran out", m.lease_expiries),
        ("expired_jobs", "Jobs that expired before they were done", m.expired_jobs),
        ("dead_letters", "Jobs moved to dead-letter topics", m.dead_letters),
        ("redriven_jobs", "Dead letters moved back, dead jobs revived", m.redriven_jobs),
        ("removed_jobs", "Jobs deleted by an operator", m.removed_jobs),
        ("promoted_jobs", "Delayed jobs made ready by an operator", m.promoted_jobs),
        ("txn_stages", "Parts of transactions staged", m.txn_stages),
        ("txn_commits", "Transactions decided", m.txn_commits),
        ("txn_refused", "Transactions refused, or not logged", m.txn_refused),
        ("txn_aborts", "Stages aborted by their writers", m.txn_aborts),
        ("txn_expired", "Stages that expired without a commit", m.txn_expired),
    ]
}

/// Name, help and value of each gauge with a fraction, in millionths.
fn ratios(m: &MetricsSnapshot) -> [Row; 2] {
    [
        ("recovery_progress_ratio", "How far recovery has come, from 0 to 1", m.recovery_ppm),
        ("pressure_ratio", "The governor's pressure; 1 is the limit", m.pressure_ppm),
    ]
}

fn gauges(sample: &Sample) -> [Row; 29] {
    let (m, s) = (&sample.snapshot, &sample.survey);
    [
        ("ready", "Whether the engine takes calls", m.ready),
        ("recovery_frames", "Log entries that the open replayed", m.recovery_frames),
        ("topics", "Topics", m.topics),
        ("queues", "Topics that are queues", s.queues),
        ("routers", "Routers", m.routers),
        ("consumers", "Consumers", s.consumers),
        ("live_records", "Live records", s.records),
        ("packs", "Objects of the remote that hold segments of the directory", m.packs),
        ("live_bytes", "Live payload bytes", m.live_bytes),
        ("resident_records", "Records with a resident index entry", m.resident_records),
        ("idempotency_keys", "Live idempotency keys", m.idempotency_keys),
        ("ephemeral_bytes", "Payload bytes of ephemeral topics", m.ephemeral_bytes),
        ("jobs_ready", "Jobs of all queues that could be claimed", s.jobs.ready),
        ("queue_leases", "Jobs of all queues that are leased", s.jobs.in_flight),
        ("jobs_delayed", "Jobs of all queues that wait for their time", s.jobs.delayed),
        ("jobs_dead", "Jobs of all queues that are dead", s.jobs.dead),
        ("txns_open", "Decided transactions that are not yet applied", m.txns_open),
        ("txn_parts", "Parts of transactions that wait for a commit", m.txn_parts),
        ("txn_bytes", "Bytes of the parts that wait, on disk", m.txn_bytes),
        ("watch_streams", "Open watch streams", m.watch_streams),
        ("watch_sessions", "Watch sessions", m.watch_sessions),
        ("ready_topics", "Topics that wait for a delivery worker", m.ready_topics),
        ("staged_batches", "Batches staged and not written", m.staged_batches),
        ("staged_bytes", "Bytes staged and not written", m.staged_bytes),
        ("read_only_shards", "Log shards that refuse writes", m.read_only_shards),
        ("wal_disk_bytes", "Bytes of all log files", m.wal_disk_bytes),
        ("topics_with_gauges", "Topics with gauges of their own", s.topics.len() as u64),
        ("topics_truncated", "Whether there are more topics than that", s.truncated.into()),
        ("consumers_truncated", "Whether more consumers have no gauge", s.lags_truncated.into()),
    ]
}

fn histograms(m: &MetricsSnapshot) -> [(&'static str, &'static str, &HistogramSnapshot); 5] {
    [
        ("append", "Time of a write from call to answer", &m.append),
        ("fsync", "Time of each sync of a log file", &m.fsync),
        ("sync_wait", "Time that writes waited for a sync", &m.sync_wait),
        ("scheduling", "Time that a dirty topic waited for its worker", &m.scheduling),
        ("delivery", "Time from a topic becoming dirty until it was served", &m.delivery),
    ]
}

/// The Prometheus text format, with gauges of the topics that the client may see.
#[must_use]
pub fn prometheus(engine: &Engine, grant: &Grant) -> Vec<u8> {
    let sample = sample_of(engine, grant);
    let mut out = String::with_capacity(16_384 + sample.survey.topics.len() * 384);
    // Writing to a string does not fail.
    let _ = write_text(&mut out, &sample);
    out.into_bytes()
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) -> std::fmt::Result {
    write!(out, "# HELP topics_{name} {help}.\n# TYPE topics_{name} {kind}\n")
}

fn write_text(out: &mut String, sample: &Sample) -> std::fmt::Result {
    let m = &sample.snapshot;
    for (name, help, value) in counters(m) {
        head(out, &format!("{name}_total"), help, "counter")?;
        writeln!(out, "topics_{name}_total {value}")?;
    }
    for (name, help, value) in gauges(sample) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {value}")?;
    }
    for (name, help, millionths) in ratios(m) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {}", millionths as f64 / 1e6)?;
    }
    head(out, "tombstones_total", "Tombstones served", "counter")?;
    for (reason, count) in REASONS.iter().zip(m.tombstones) {
        writeln!(out, "topics_tombstones_total{{reason=\"{reason}\"}} {count}")?;
    }
    head(out, "loop_panics_total", "Panics of background loops, which continue", "counter")?;
    for p in &sample.panics {
        writeln!(out, "topics_loop_panics_total{{loop=\"{}\"}} {}", p.name, p.count)?;
    }
    for (name, help, h) in histograms(m) {
        histogram(out, &format!("{name}_seconds"), help, h)?;
    }
    head(out, "topics_by_class", "Topics by durability class", "gauge")?;
    for (class, count) in CLASSES.into_iter().zip(sample.survey.by_class) {
        let word = class.as_str();
        writeln!(out, "topics_topics_by_class{{durability=\"{word}\"}} {count}")?;
    }
    if let Some(remote) = &m.remote {
        remote::write_text(out, m, remote)?;
    }
    per_topic(out, &sample.survey)
}

fn histogram(out: &mut String, name: &str, help: &str, h: &HistogramSnapshot) -> std::fmt::Result {
    head(out, name, help, "histogram")?;
    samples(out, name, "", h)
}

/// The samples of a histogram; `label` is empty, or a label.
fn samples(out: &mut String, name: &str, label: &str, h: &HistogramSnapshot) -> std::fmt::Result {
    let comma = if label.is_empty() { "" } else { "," };
    let alone = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
    let mut below = 0;
    for (i, count) in h.buckets.iter().enumerate().take(BUCKETS - 1) {
        below += count;
        let bound = (1u64 << (i + 8)) as f64 / 1e9;
        writeln!(out, "topics_{name}_bucket{{{label}{comma}le=\"{bound}\"}} {below}")?;
    }
    writeln!(out, "topics_{name}_bucket{{{label}{comma}le=\"+Inf\"}} {}", h.count)?;
    writeln!(out, "topics_{name}_sum{alone} {}", h.sum_ns as f64 / 1e9)?;
    writeln!(out, "topics_{name}_count{alone} {}", h.count)
}

fn per_topic(out: &mut String, survey: &Survey) -> std::fmt::Result {
    type Value = fn(&Surveyed) -> Option<u64>;
    let series: [(&str, &str, Value); 8] = [
        ("topic_head_seq", "Last seq of a topic", |t| Some(t.summary.head_seq)),
        ("topic_earliest_seq", "First live seq of a topic", |t| Some(t.summary.earliest_seq)),
        ("topic_records", "Live records of a topic", |t| Some(t.summary.count)),
        ("topic_bytes", "Live bytes of a topic", |t| Some(t.summary.bytes)),
        ("queue_ready", "Jobs of a queue that could be claimed", |t| Some(t.queue?.ready)),
        ("queue_in_flight", "Jobs of a queue that are leased", |t| Some(t.queue?.in_flight)),
        ("queue_delayed", "Jobs of a queue that wait", |t| Some(t.queue?.delayed)),
        ("queue_dead", "Jobs of a queue that are dead", |t| Some(t.queue?.dead)),
    ];
    for (name, help, value) in series {
        head(out, name, help, "gauge")?;
        for t in &survey.topics {
            if let Some(value) = value(t) {
                // A topic's name needs no escapes.
                writeln!(out, "topics_{name}{{topic=\"{}\"}} {value}", t.summary.topic)?;
            }
        }
    }
    let help = "Time since the oldest ready job of a queue was written, became due or was released";
    head(out, "queue_oldest_ready_seconds", help, "gauge")?;
    for t in survey.topics.iter().filter(|t| t.queue.is_some()) {
        let (topic, age) = (&t.summary.topic, seconds(t.oldest_ready_ms));
        writeln!(out, "topics_queue_oldest_ready_seconds{{topic=\"{topic}\"}} {age}")?;
    }
    head(out, "consumer_lag", "Records that a consumer has not read", "gauge")?;
    for c in consumers(survey) {
        writeln!(out, "topics_consumer_lag{} {}", labels(c), c.lag)?;
    }
    let help = "Time since the first record that a consumer has not read was committed";
    head(out, "consumer_lag_seconds", help, "gauge")?;
    for c in consumers(survey) {
        writeln!(out, "topics_consumer_lag_seconds{} {}", labels(c), seconds(c.lag_ms))?;
    }
    Ok(())
}

fn consumers(survey: &Survey) -> impl Iterator<Item = &ConsumerInfo> {
    survey.topics.iter().flat_map(|t| &t.consumers)
}

/// The labels of a consumer, whose name, as a topic's, needs no escapes.
fn labels(c: &ConsumerInfo) -> String {
    format!("{{topic=\"{}\",consumer=\"{}\"}}", c.topic, c.name)
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// The same metrics as one JSON object.
#[must_use]
pub fn json(engine: &Engine, grant: &Grant) -> Vec<u8> {
    json_of(&sample_of(engine, grant))
}

fn json_of(sample: &Sample) -> Vec<u8> {
    let m = &sample.snapshot;
    let mut o = Object::new(4096);
    for (name, _, value) in counters(m).into_iter().chain(gauges(sample)) {
        o.int(name, value);
    }
    for (name, _, millionths) in ratios(m) {
        o.raw(name, (millionths as f64 / 1e6).to_string().as_bytes());
    }
    let mut tombstones = Object::new(256);
    for (reason, count) in REASONS.iter().zip(m.tombstones) {
        tombstones.int(reason, count);
    }
    o.raw("tombstones", &tombstones.finish());
    let mut panics = Object::new(64);
    for p in &sample.panics {
        panics.int(p.name, p.count);
    }
    o.raw("loop_panics", &panics.finish());
    for (name, _, h) in histograms(m) {
        let mut inner = Object::new(128);
        inner.int("count", h.count).int("sum_ns", h.sum_ns);
        inner.int("p50_ns", quantile(h, 50)).int("p99_ns", quantile(h, 99));
        o.raw(name, &inner.finish());
    }
    let mut classes = Object::new(96);
    for (class, count) in CLASSES.into_iter().zip(sample.survey.by_class) {
        classes.int(class.as_str(), count);
    }
    o.raw("topics_by_class", &classes.finish());
    if let Some(remote) = &m.remote {
        remote::write_json(&mut o, m, remote);
    }
    named(o.key("per_topic"), sample.survey.topics.iter().map(|t| (&*t.summary.topic, topic(t))));
    o.flag("per_topic_truncated", sample.survey.truncated);
    o.finish()
}

fn topic(t: &Surveyed) -> Vec<u8> {
    let mut o = Object::new(160);
    o.int("head_seq", t.summary.head_seq).int("earliest_seq", t.summary.earliest_seq);
    o.int("count", t.summary.count).int("bytes", t.summary.bytes);
    if let Some(q) = t.queue {
        o.int("ready", q.ready).int("in_flight", q.in_flight);
        o.int("delayed", q.delayed).int("dead", q.dead);
        o.raw("oldest_ready_seconds", seconds(t.oldest_ready_ms).to_string().as_bytes());
    }
    if !t.consumers.is_empty() {
        let records = |c: &ConsumerInfo| (c.name.clone(), c.lag.to_string().into_bytes());
        named(o.key("consumer_lag"), t.consumers.iter().map(records));
        let age = |c: &ConsumerInfo| (c.name.clone(), seconds(c.lag_ms).to_string().into_bytes());
        named(o.key("consumer_lag_seconds"), t.consumers.iter().map(age));
    }
    o.finish()
}

/// Appends an object of values by name.
fn named(out: &mut Vec<u8>, all: impl Iterator<Item = (impl AsRef<str>, Vec<u8>)>) {
    out.push(b'{');
    for (i, (name, value)) in all.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_str(out, name.as_ref().as_bytes());
        out.push(b':');
        out.extend_from_slice(&value);
    }
    out.push(b'}');
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
    use topics_engine::{
        ConsumerMode, QueueState, RemoteSnapshot, RemoteState, TopicSummary, TopicType,
    };

    use super::*;

    fn sample() -> Sample {
        let mut snapshot = MetricsSnapshot { appends: 3, topics: 1, ..MetricsSnapshot::default() };
        snapshot.append.buckets[2] = 98;
        snapshot.append.buckets[5] = 2;
        snapshot.append.count = 100;
        snapshot.append.sum_ns = 2_000_000_000;
        snapshot.tombstones[1] = 7;
        let summary = TopicSummary {
            kind: TopicType::Queue,
            topic: "a.b".into(),
            head_seq: 9,
            earliest_seq: 2,
            count: 8,
            bytes: 100,
            durability: Durability::Fsync,
            effective_priority: 0,
        };
        let queue = Some(QueueState { ready: 5, in_flight: 3, ..QueueState::default() });
        let consumer = ConsumerInfo {
            topic: "a.b".into(),
            name: "c".into(),
            mode: ConsumerMode::AtLeastOnce,
            cursor: 3,
            lag: 4,
            lag_ms: 1500,
        };
        let consumers = vec![consumer];
        let topic = Surveyed { summary, queue, oldest_ready_ms: 90_000, consumers };
        let survey = Survey {
            by_class: [0, 0, 0, 1],
            topics: vec![topic],
            truncated: true,
            ..Survey::default()
        };
        let mut remote = RemoteSnapshot {
            state: RemoteState::Refused,
            reason: Some("in use by \"h\"".into()),
            pack_bytes: 2 << 30,
            ..Default::default()
        };
        remote.requests.outcomes[0][5] = 4;
        remote.requests.seconds[2].count = 3;
        snapshot.remote = Some(remote);
        let sweep = LoopPanics { name: "sweep", count: 2, last: "topic".into() };
        Sample { snapshot, survey, panics: vec![sweep] }
    }

    /// The families of a text, each with one TYPE before its samples.
    fn families(text: &str) -> std::collections::BTreeSet<String> {
        let mut families = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# TYPE ") {
                let name = line.split(' ').next().unwrap();
                assert!(families.insert(name.to_owned()), "{line}");
            } else if !line.starts_with('#') {
                let sample = line.split(['{', ' ']).next().unwrap();
                let base =
                    ["_bucket", "_sum", "_count"].iter().find_map(|e| sample.strip_suffix(e));
                let known = families.contains(sample) || base.is_some_and(|b| families.contains(b));
                assert!(known, "{line}");
            }
        }
        families
    }

    #[test]
    fn the_text_is_prometheus() {
        let mut out = String::new();
        write_text(&mut out, &sample()).unwrap();
        for line in [
            "# TYPE topics_appends_total counter",
            "topics_appends_total 3",
            "topics_topics 1",
            "topics_tombstones_total{reason=\"ttl\"} 7",
            "topics_loop_panics_total{loop=\"sweep\"} 2",
            "topics_append_seconds_bucket{le=\"0.000001024\"} 98",
            "topics_append_seconds_bucket{le=\"+Inf\"} 100",
            "topics_append_seconds_sum 2",
            "topics_topic_head_seq{topic=\"a.b\"} 9",
            "topics_queue_ready{topic=\"a.b\"} 5",
            "topics_queue_in_flight{topic=\"a.b\"} 3",
            "topics_queue_oldest_ready_seconds{topic=\"a.b\"} 90",
            "topics_consumer_lag{topic=\"a.b\",consumer=\"c\"} 4",
            "topics_consumer_lag_seconds{topic=\"a.b\",consumer=\"c\"} 1.5",
            "topics_topics_by_class{durability=\"fsync\"} 1",
            "topics_topics_truncated 1",
            "topics_remote_requests_total{op=\"create\",outcome=\"ambiguous\"} 4",
            "topics_remote_request_seconds_bucket{op=\"get\",le=\"+Inf\"} 3",
            "topics_remote_request_seconds_count{op=\"get\"} 3",
            "topics_remote_bytes_total{direction=\"sent\"} 0",
            "topics_remote_state{state=\"refused\"} 1",
        ] {
            assert!(out.lines().any(|l| l == line), "{line}\n{out}");
        }
        families(&out);
    }

    #[test]
    fn the_docs_name_every_family_and_no_other() {
        let mut out = String::new();
        write_text(&mut out, &sample()).unwrap();
        let docs = include_str!("../../../docs/operations.md");
        // A server writes some of its own.
        let docs = docs.lines().filter(|line| !line.starts_with("| the server |"));
        let named: std::collections::BTreeSet<String> = docs
            .flat_map(|line| line.split('`'))
            .filter(|word| word.starts_with("topics_") && !word.contains([' ', '(', '.']))
            .map(|word| word.split('{').next().unwrap().to_owned())
            .collect();
        assert_eq!(named, families(&out));
    }

    #[test]
    fn the_json_has_the_same_and_each_name_once() {
        let sample = sample();
        let text = String::from_utf8(json_of(&sample)).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut names = std::collections::BTreeSet::new();
        let rows = counters(&sample.snapshot).into_iter().chain(gauges(&sample));
        for (name, _, wanted) in rows {
            assert!(names.insert(name), "{name} is there twice");
            assert_eq!(value[name].as_u64(), Some(wanted), "{name}");
        }
        assert_eq!(value["per_topic"]["a.b"]["in_flight"], 3);
        assert_eq!(value["per_topic"]["a.b"]["oldest_ready_seconds"], 90);
        assert_eq!(value["per_topic"]["a.b"]["consumer_lag"]["c"], 4);
        assert_eq!(value["per_topic"]["a.b"]["consumer_lag_seconds"]["c"], 1.5);
        assert_eq!(value["topics_by_class"]["fsync"], 1);
        assert_eq!(value["loop_panics"]["sweep"], 2);
        assert_eq!(value["append"]["p99_ns"], 1 << 13);
        assert_eq!(value["remote_state"], "refused");
        assert_eq!(value["remote_reason"], "in use by \"h\"");
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let h = &sample().snapshot.append;
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
