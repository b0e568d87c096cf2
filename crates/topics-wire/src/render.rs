//! Answers, assembled as text.

use std::ops::RangeInclusive;

use topics_engine::{
    Appended, CreatedTopic, Deleted, DeletedTopic, Guarantee, Repair, Report, RouterInfo,
    SegmentMap, TopicMatch, TopicState, TopicSummary,
};

use crate::config;
use crate::json::{push_i64, push_ms, push_str, push_u64};

/// An object in the making. Keys are ours and need no escapes.
pub struct Object(Vec<u8>);

impl Object {
    /// Begins an object; `capacity` is the expected number of bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.push(b'{');
        Self(out)
    }

    /// A finished object that gets more fields.
    #[must_use]
    pub fn reopen(mut object: Vec<u8>) -> Self {
        object.pop();
        Self(object)
    }

    /// Begins a field; the value is appended to the buffer that this returns.
    pub fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
        &mut self.0
    }

    /// A field with an integer.
    pub fn int(&mut self, key: &str, value: u64) -> &mut Self {
        push_u64(self.key(key), value);
        self
    }

    /// A field with an integer or `null`.
    pub fn maybe(&mut self, key: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.int(key, value),
            None => self.raw(key, b"null"),
        }
    }

    /// A field with an integer.
    pub fn ints(&mut self, key: &str, values: RangeInclusive<u64>) -> &mut Self {
        let out = self.key(key);
        out.push(b'[');
        let first = *values.start();
        for value in values {
            if value != first {
                out.push(b',');
            }
            push_u64(out, value);
        }
        out.push(b']');
        self
    }

    /// A field with a boolean.
    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { b"true" } else { b"false" })
    }

    /// A field with a string.
    pub fn name(&mut self, key: &str, value: &str) -> &mut Self {
        push_str(self.key(key), value.as_bytes());
        self
    }

    /// A field whose value is JSON text.
    pub fn raw(&mut self, key: &str, json: &[u8]) -> &mut Self {
        self.key(key).extend_from_slice(json);
        self
    }

    /// A field with a string.
    pub fn names(&mut self, key: &str, values: &[String]) -> &mut Self {
        let out = self.key(key);
        out.push(b'[');
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            push_str(out, value.as_bytes());
        }
        out.push(b']');
        self
    }

    /// The field `performance`.
    pub fn performance(&mut self, p: &Performance) -> &mut Self {
        let out = self.key("performance");
        out.extend_from_slice(b"{\"server_total_ms\":");
        push_ms(out, p.server_total_ns);
        if let Some(ns) = p.wal_append_ns {
            out.extend_from_slice(b",\"wal_append_ms\":");
            push_ms(out, ns);
        }
        if let Some(ns) = p.fsync_ns {
            out.extend_from_slice(b",\"fsync_ms\":");
            push_ms(out, ns);
        }
        if let Some(ns) = p.throttle_wait_ns {
            out.extend_from_slice(b",\"throttle_wait_ms\":");
            push_ms(out, ns);
        }
        if let Some(records) = p.records_scanned {
            out.extend_from_slice(b",\"records_scanned\":");
            push_u64(out, records);
        }
        out.push(b'}');
        self
    }

    /// The finished text.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

/// What an answer says about its own cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Performance {
    /// From the call to the answer.
    pub server_total_ns: u64,
    /// From staging to the end of the write to the log.
    pub wal_append_ns: Option<u64>,
    /// The share of a sync; 0 unless the class needs one.
    pub fsync_ns: Option<u64>,
    /// The wait for a staging permit.
    pub throttle_wait_ns: Option<u64>,
    /// Records that a filter looked at.
    pub records_scanned: Option<u64>,
}

impl Performance {
    /// Of a write.
    #[must_use]
    pub fn of_write(a: &Appended, server_total_ns: u64) -> Self {
        Self {
            server_total_ns,
            wal_append_ns: Some(a.wal_append_ns),
            fsync_ns: Some(a.fsync_ns),
            throttle_wait_ns: Some(a.throttle_ns),
            records_scanned: None,
        }
    }

    /// Of what looked at so many records.
    #[must_use]
    pub fn of_scan(records: u64, server_total_ns: u64) -> Self {
        Self { server_total_ns, records_scanned: Some(records), ..Self::default() }
    }
}

/// Where the records of a topic lie.
#[must_use]
pub fn segments(topic: &str, map: &SegmentMap) -> Vec<u8> {
    let mut list = vec![b'['];
    for (i, s) in map.stretches.iter().enumerate() {
        if i > 0 {
            list.push(b',');
        }
        let mut o = Object::new(192);
        o.name("tier", s.tier.as_str()).int("first_seq", s.first_seq).int("last_seq", s.last_seq);
        o.int("count", s.count).int("bytes", s.bytes);
        o.int("first_ts", s.first_ts).int("last_ts", s.last_ts);
        if let Some(file_no) = s.file_no {
            o.int("file_no", file_no).int("file_bytes", s.file_bytes).flag("sealed", s.sealed);
        }
        list.extend_from_slice(&o.finish());
    }
    list.push(b']');
    let mut o = Object::new(list.len() + 160);
    o.name("topic", topic).int("topic_id", map.topic_id);
    o.int("head_seq", map.head_seq).int("earliest_seq", map.earliest_seq);
    o.raw("segments", &list);
    o.finish()
}

/// The state of a topic.
#[must_use]
pub fn state(s: &TopicState) -> Vec<u8> {
    let mut o = Object::new(900);
    o.name("topic", &s.topic).int("topic_id", s.topic_id).int("epoch", s.epoch);
    o.name("type", config::topic_type(s.config.kind));
    o.int("head_seq", s.head_seq).int("earliest_seq", s.earliest_seq);
    o.int("evict_floor", s.evict_floor).int("next_seq", s.next_seq);
    o.int("count", s.count).int("bytes", s.bytes);
    let out = o.key("gaps");
    out.push(b'[');
    for (i, gap) in s.gaps.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"[" } else { b",[" });
        push_u64(out, gap.from);
        out.push(b',');
        push_u64(out, gap.to);
        out.push(b',');
        push_str(out, gap.reason.as_str().as_bytes());
        out.push(b']');
    }
    out.push(b']');
    config::push(o.key("config"), &s.config);
    push_i64(o.key("effective_priority"), i64::from(s.effective_priority));
    o.maybe("last_write_ts", s.last_write_ts).maybe("last_read_ts", s.last_read_ts);
    if let Some(q) = &s.queue {
        let counts = [
            ("ready", q.ready),
            ("in_flight", q.in_flight),
            ("delayed", q.delayed),
            ("dead", q.dead),
            ("dead_lettered", q.dead_lettered),
            ("expired", q.expired),
        ];
        let out = o.key("queue");
        for (i, (name, n)) in counts.into_iter().enumerate() {
            out.push(if i == 0 { b'{' } else { b',' });
            push_str(out, name.as_bytes());
            out.push(b':');
            push_u64(out, n);
        }
        out.push(b'}');
    }
    o.finish()
}

/// A page of topics; `next` is the cursor of the next page.
#[must_use]
pub fn list(topics: &[TopicSummary], next: Option<&str>) -> Vec<u8> {
    let mut out = Object::new(64 + topics.len() * 160);
    let items = out.key("topics");
    items.push(b'[');
    for (i, t) in topics.iter().enumerate() {
        if i > 0 {
            items.push(b',');
        }
        let mut o = Object::new(160);
        o.name("topic", &t.topic).name("type", config::topic_type(t.kind));
        o.int("head_seq", t.head_seq).int("earliest_seq", t.earliest_seq);
        o.int("count", t.count).int("bytes", t.bytes);
        o.flag("durable", t.durability == topics_engine::Durability::Fsync);
        o.name("durability", config::durability(t.durability));
        push_i64(o.key("effective_priority"), i64::from(t.effective_priority));
        items.extend_from_slice(&o.finish());
    }
    items.push(b']');
    if let Some(next) = next {
        out.name("next_cursor", next);
    }
    out.finish()
}

/// The states of many topics; names that were asked for and do not exist are listed apart.
#[must_use]
pub fn states(found: &[TopicState], missing: &[String]) -> Vec<u8> {
    let mut out = Object::new(64 + found.len() * 900);
    let items = out.key("topics");
    items.push(b'{');
    for (i, s) in found.iter().enumerate() {
        if i > 0 {
            items.push(b',');
        }
        push_str(items, s.topic.as_bytes());
        items.push(b':');
        items.extend_from_slice(&state(s));
    }
    items.push(b'}');
    out.names("missing", missing);
    out.finish()
}

/// The answer to a create.
#[must_use]
pub fn created(topic: &str, c: &CreatedTopic) -> (u16, Vec<u8>) {
    let mut o = Object::new(700);
    o.name("topic", topic).int("topic_id", c.topic_id).flag("created", c.created);
    config::push(o.key("config"), &c.config);
    (if c.created { 201 } else { 200 }, o.finish())
}

/// The answer to a topic delete.
#[must_use]
pub fn dropped(topic: &str, d: &DeletedTopic) -> Vec<u8> {
    let mut o = Object::new(128);
    o.name("topic", topic).flag("deleted", d.deleted).names("routers_removed", &d.routers_removed);
    o.finish()
}

/// The answer to a delete of records.
#[must_use]
pub fn deleted(topic: &str, d: &Deleted) -> Vec<u8> {
    let mut o = Object::new(160);
    o.name("topic", topic).int("deleted", d.deleted);
    o.int("earliest_seq", d.state.earliest_seq).int("head_seq", d.state.head_seq);
    o.int("count", d.state.count).int("bytes", d.state.bytes);
    o.finish()
}

/// A router.
#[must_use]
pub fn router(r: &RouterInfo) -> Vec<u8> {
    let mut o = Object::new(400);
    let q = &r.request;
    o.name("router", &r.router).name("source", &q.source).name("dest", &q.dest);
    o.flag("preserve_node", q.preserve_node).flag("preserve_tag", q.preserve_tag);
    match &q.filter {
        None => o.raw("filter", b"null"),
        Some(m) => {
            let (op, tag, star) = match m {
                TopicMatch::Eq(tag) => ("Eq", tag, ""),
                TopicMatch::Glob(prefix) => ("Glob", prefix, "*"),
            };
            let pattern = String::from_utf8_lossy(tag).into_owned() + star;
            let out = o.key("filter");
            out.extend_from_slice(b"[\"tag\",");
            push_str(out, op.as_bytes());
            out.push(b',');
            push_str(out, pattern.as_bytes());
            out.push(b']');
            &mut o
        }
    };
    o.flag("create_dest", q.create_dest).flag("allow_cycle", q.allow_cycle);
    let guarantee = match q.guarantee {
        Guarantee::AtLeastOnce => "at_least_once",
        Guarantee::ExactlyOnce => "exactly_once",
    };
    o.name("guarantee", guarantee);
    o.int("forwarded_total", r.forwarded_total).int("lag", r.lag);
    match &r.stopped_by {
        None => o.raw("stopped_by", b"null"),
        Some(e) => o.name("stopped_by", e.code()),
    };
    o.finish()
}

/// A page of routers; `next` is the cursor of the next page.
#[must_use]
pub fn routers(all: &[RouterInfo], next: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(400 * all.len() + 32);
    array(o.key("routers"), all.iter().map(router));
    if let Some(next) = next {
        o.name("next_cursor", next);
    }
    o.finish()
}

/// What a check of bytes found.
#[must_use]
pub fn report(r: &Report) -> Vec<u8> {
    let mut o = Object::new(128 + r.problems.len() * 128);
    o.flag("ok", r.problems.is_empty());
    o.int("files", r.files).int("bytes", r.bytes).int("records", r.records);
    let problems = r.problems.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("file", &problem.file).int("offset", problem.offset);
        item.name("detail", &problem.detail);
        item.finish()
    });
    array(o.key("problems"), problems);
    o.finish()
}

/// What a repair gives up, or gave up.
#[must_use]
pub fn repair(r: &Repair) -> Vec<u8> {
    let mut o = Object::new(256 + (r.losses.len() + r.gaps.len()) * 128);
    o.flag("done", r.done);
    let losses = r.losses.iter().map(|loss| {
        let mut item = Object::new(160);
        item.name("file", &loss.file).int("offset", loss.offset).int("shard", loss.shard.into());
        // The first and the last: there may be billions between them.
        item.raw("lsns", format!("[{},{}]", loss.from_lsn, loss.to_lsn).as_bytes());
        item.finish()
    });
    array(o.key("losses"), losses);
    let gaps = r.gaps.iter().map(|(topic, gap)| {
        let mut item = Object::new(128);
        item.name("topic", topic).int("from", gap.from).int("to", gap.to);
        item.name("reason", gap.reason.as_str());
        item.finish()
    });
    array(o.key("gaps"), gaps);
    let files = r.files.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("file", &problem.file).int("offset", problem.offset);
        item.name("detail", &problem.detail);
        item.finish()
    });
    array(o.key("files"), files);
    let kept = r.kept.iter().map(|name| {
        let mut text = Vec::new();
        push_str(&mut text, name.as_bytes());
        text
    });
    array(o.key("kept"), kept);
    o.finish()
}

fn array(out: &mut Vec<u8>, items: impl Iterator<Item = Vec<u8>>) {
    out.push(b'[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&item);
    }
    out.push(b']');
}
