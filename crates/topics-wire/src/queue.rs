//! Queues: claims, ack, nack and extend, peeks, redrives.

use topics_engine::{Claimed, Error, JobState, Peeked, Redrive, Settled};

use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader, Scanner, push_u64, read_body};
use crate::limits::{Limits, MAX_SEQS, MAX_WAIT_MS};
use crate::object::Object;
use crate::query::Query;
use crate::read::{matching, push_record};

/// The body of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The worker.
    pub node: String,
    /// Maximum number of jobs.
    pub max: usize,
    /// How long the leases last.
    pub lease_ms: Option<u64>,
    /// How long to wait for a job.
    pub wait_ms: u64,
}

/// `{node, max?, lease_ms?, wait_ms?}`.
pub fn claim(bytes: &[u8], limits: &Limits) -> Result<Claim, Failure> {
    const FIELDS: Fields = Fields::of(&["node", "max", "lease_ms", "wait_ms"]);
    let mut c = Claim { node: String::new(), max: 1, lease_ms: None, wait_ms: 0 };
    let mut node = None;
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "node" => node = Some(s.text(FieldPath::field("node"))?.into_owned()),
            "max" => c.max = most(s, "max", limits.claim)?,
            "lease_ms" => c.lease_ms = Some(s.u64(FieldPath::field("lease_ms"))?),
            "wait_ms" => c.wait_ms = s.u64(FieldPath::field("wait_ms"))?.min(MAX_WAIT_MS),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    c.node = worker(node)?;
    Ok(c)
}

/// The query of a job stream: `?node&max&lease_ms&heartbeat_ms`.
pub fn work(query: &Query<'_>, limits: &Limits) -> Result<Claim, Failure> {
    let max = match query.u64("max")? {
        None => 1,
        Some(n) => bounded(n, "max", limits.claim)?,
    };
    let node = worker(query.get("node")?.map(|node| node.into_owned()))?;
    let lease_ms = query.u64("lease_ms")?;
    let wait_ms = query.u64("heartbeat_ms")?.unwrap_or(crate::limits::HEARTBEAT_MS);
    Ok(Claim { node, max, lease_ms, wait_ms: wait_ms.clamp(1000, MAX_WAIT_MS) })
}

fn worker(node: Option<String>) -> Result<String, Failure> {
    node.filter(|node| !node.is_empty()).ok_or_else(|| {
        FieldPath::field("node").invalid("is missing; every worker needs a name of its own")
    })
}

fn most(s: &mut Scanner<'_>, field: &'static str, limit: usize) -> Result<usize, Failure> {
    bounded(s.u64(FieldPath::field(field))?, field, limit)
}

fn bounded(n: u64, field: &'static str, limit: usize) -> Result<usize, Failure> {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    match n {
        0 => Err(FieldPath::field(field).invalid("must be at least 1")),
        n if limit == 0 => Ok(n),
        n => Ok(n.min(limit)),
    }
}

/// The body of an ack, nack or extend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The worker that claimed them.
    pub node: String,
    /// The jobs.
    pub seqs: Vec<u64>,
    /// Their lease ids.
    pub lease_ids: Option<Vec<u64>>,
    /// Nack: the delay before the next claim; `None`: the queue's backoff.
    pub delay_ms: Option<u64>,
    /// Extend: the new length of the leases, from now.
    pub lease_ms: Option<u64>,
}

impl Held {
    /// The leases as an engine argument.
    #[must_use]
    pub fn held(&self) -> topics_engine::Held<'_> {
        let (node, lease_ids) = (self.node.as_bytes(), self.lease_ids.as_deref());
        topics_engine::Held { node, seqs: &self.seqs, lease_ids }
    }
}

/// The body of an ack: `{node, seqs, lease_ids?}`.
pub fn ack(bytes: &[u8]) -> Result<Held, Failure> {
    held(bytes, Fields::of(&["node", "seqs", "lease_ids"]))
}

/// The body of a nack: also `delay_ms?`, where `null` is the queue's backoff.
pub fn nack(bytes: &[u8]) -> Result<Held, Failure> {
    let fields = Fields::of(&["node", "seqs", "lease_ids", "delay_ms"]);
    held(bytes, fields.nullable(&["delay_ms"]))
}

/// The body of an extend: also `lease_ms?`.
pub fn extend(bytes: &[u8]) -> Result<Held, Failure> {
    held(bytes, Fields::of(&["node", "seqs", "lease_ids", "lease_ms"]))
}

fn held(bytes: &[u8], fields: Fields) -> Result<Held, Failure> {
    let mut h = Held { delay_ms: Some(0), ..Held::default() };
    let (mut node, mut seqs) = (None, None);
    read_body(bytes, fields, |s, key| {
        match key {
            "node" => node = Some(s.text(FieldPath::field("node"))?.into_owned()),
            "seqs" => seqs = Some(numbers(s, "seqs")?),
            "lease_ids" => h.lease_ids = Some(numbers(s, "lease_ids")?),
            "delay_ms" => {
                h.delay_ms =
                    if s.null()? { None } else { Some(s.u64(FieldPath::field("delay_ms"))?) };
            }
            "lease_ms" => h.lease_ms = Some(s.u64(FieldPath::field("lease_ms"))?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    h.node = worker(node)?;
    h.seqs = seqs.ok_or_else(|| FieldPath::field("seqs").invalid("is missing"))?;
    if h.lease_ids.as_ref().is_some_and(|ids| ids.len() != h.seqs.len()) {
        let problem = format!("must have one entry for each of the {} seqs", h.seqs.len());
        return Err(FieldPath::field("lease_ids").invalid(problem));
    }
    Ok(h)
}

fn numbers(s: &mut Scanner<'_>, within: &'static str) -> Result<Vec<u64>, Failure> {
    s.expect_type(FieldPath::field(within), "an array of integers", |b| b == b'[')?;
    let mut out = Vec::new();
    s.array(|s, index| {
        if index >= MAX_SEQS {
            let (got, max) = (index as u64 + 1, MAX_SEQS as u64);
            return Err(Failure::from(Error::BatchTooLarge { got, max, unit: "seqs" }));
        }
        out.push(s.u64(FieldPath { within, index: Some(index), field: "" })?);
        Ok(())
    })?;
    Ok(out)
}

/// `{to?, match?, seqs?, limit?, dry_run?}`; an empty body has no fields.
pub fn redrive(bytes: &[u8]) -> Result<Redrive, Failure> {
    const FIELDS: Fields = Fields::of(&["to", "match", "seqs", "limit", "dry_run"]);
    let mut r = Redrive::default();
    if bytes.is_empty() {
        return Ok(r);
    }
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "to" => r.to = Some(s.text(FieldPath::field("to"))?.into_owned()),
            "match" => r.matching = Some(matching(s)?),
            "seqs" => r.seqs = Some(numbers(s, "seqs")?),
            "limit" => r.limit = Some(most(s, "limit", 0)?),
            "dry_run" => r.dry_run = s.bool(FieldPath::field("dry_run"))?,
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok(r)
}

/// `?state&max`.
pub fn jobs(query: &Query<'_>, limits: &Limits) -> Result<(Option<JobState>, usize), Failure> {
    const STATES: [JobState; 4] =
        [JobState::Ready, JobState::Leased, JobState::Delayed, JobState::Dead];
    let state = match query.get("state")? {
        None => None,
        Some(word) => Some(*STATES.iter().find(|s| s.as_str() == word).ok_or_else(|| {
            FieldPath::field("state").invalid_choice(&word, &STATES.map(|s| s.as_str()))
        })?),
    };
    let max = query.u64("max")?.map_or(Ok(100), |n| bounded(n, "max", limits.claim))?;
    Ok((state, max))
}

/// The answer to a claim.
#[must_use]
pub fn claimed(topic: &str, c: &Claimed) -> Vec<u8> {
    let payload: usize = c.iter().map(|(_, r)| r.data.len() + r.meta.len()).sum();
    let mut o = Object::new(160 + payload + c.len() * 192);
    o.name("topic", topic).int("topic_id", c.topic_id);
    let out = o.key("claimed");
    out.push(b'[');
    for i in 0..c.len() {
        if i > 0 {
            out.push(b',');
        }
        push_job(out, c, i);
    }
    out.push(b']');
    o.int("count", c.len() as u64).int("ready", c.ready);
    o.finish()
}

/// Appends the `i`-th job of a claim.
pub fn push_job(out: &mut Vec<u8>, c: &Claimed, i: usize) {
    let Some((lease, record)) = c.get(i) else { return };
    let mut bytes = Vec::with_capacity(192 + record.data.len());
    push_record(&mut bytes, &record, true, true);
    let mut o = Object::reopen(bytes);
    o.int("lease_id", lease.lease_id).int("deadline", lease.deadline);
    o.int("lease_ms", c.lease_ms).int("deliveries", lease.deliveries.into());
    out.extend_from_slice(&o.finish());
}

/// The answer to an ack, nack or extend; `done` is its field of seqs: `acked`, `nacked`, `extended`.
#[must_use]
pub fn leases(topic: &str, done: &str, s: &Settled) -> Vec<u8> {
    let mut o = Object::new(160 + 12 * (s.done.len() + s.skipped.len()));
    o.name("topic", topic);
    list(o.key(done), s.done.iter().copied());
    list(o.key("skipped"), s.skipped.iter().copied());
    if let Some(deadline) = s.deadline {
        list(o.key("deadlines"), s.done.iter().map(|_| deadline));
    }
    o.int("ready", s.queue.ready).int("in_flight", s.queue.in_flight);
    o.finish()
}

fn list(out: &mut Vec<u8>, values: impl Iterator<Item = u64>) {
    out.push(b'[');
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_u64(out, value);
    }
    out.push(b']');
}

/// The answer to a peek.
#[must_use]
pub fn peeked(topic: &str, p: &Peeked) -> Vec<u8> {
    let mut o = Object::new(1024);
    o.name("topic", topic).int("topic_id", p.topic_id);
    let out = o.key("jobs");
    out.push(b'[');
    for (i, (job, record)) in p.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let mut bytes = Vec::with_capacity(192 + record.data.len());
        push_record(&mut bytes, &record, true, true);
        let mut o = Object::reopen(bytes);
        o.name("state", job.state.as_str()).int("deliveries", job.deliveries.into());
        o.int("lane", job.lane.into());
        // `node` is the worker; `$node` is the origin of the record.
        for (name, value) in [("group", &job.group), ("node", &job.node)] {
            if let Some(value) = value {
                crate::json::push_str(o.key(name), value);
            }
        }
        let times = [
            ("lease_id", job.lease_id),
            ("deadline", job.deadline),
            ("visible_at", job.visible_at),
        ];
        for (name, value) in times {
            if let Some(value) = value {
                o.int(name, value);
            }
        }
        out.extend_from_slice(&o.finish());
    }
    out.push(b']');
    o.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims() {
        let limits = Limits::default();
        let c = claim(br#"{"node":"w","max":5000,"wait_ms":99999,"lease_ms":7}"#, &limits).unwrap();
        assert_eq!(c, Claim { node: "w".into(), max: 1000, lease_ms: Some(7), wait_ms: 30_000 });
        assert_eq!(claim(br#"{"node":"w"}"#, &limits).unwrap().max, 1);
        for body in ["{}", r#"{"node":""}"#, r#"{"node":1}"#, r#"{"node":"w","max":0}"#] {
            assert_eq!(claim(body.as_bytes(), &limits).unwrap_err().code, "invalid_request");
        }
        let w = work(&Query::new(b"node=w&max=3&heartbeat_ms=1"), &limits).unwrap();
        assert_eq!((w.node.as_str(), w.max, w.wait_ms), ("w", 3, 1000));
        assert!(work(&Query::new(b"max=3"), &limits).is_err());
    }

    #[test]
    fn leases() {
        let h = nack(br#"{"node":"w","seqs":[1,2],"lease_ids":[5,6],"delay_ms":null}"#).unwrap();
        assert_eq!((h.seqs, h.lease_ids, h.delay_ms), (vec![1, 2], Some(vec![5, 6]), None));
        assert_eq!(nack(br#"{"node":"w","seqs":[]}"#).unwrap().delay_ms, Some(0));
        for other in [&br#"{"node":"w","seqs":[1],"delay_ms":5}"#[..], br#"{"lease_ms":5}"#] {
            assert!(ack(other).unwrap_err().message.starts_with("unknown field"));
        }
        let extended = extend(br#"{"node":"w","seqs":[1],"lease_ms":5,"lease_ids":null}"#).unwrap();
        assert_eq!((extended.lease_ms, extended.lease_ids), (Some(5), None));
        let many = format!(r#"{{"node":"w","seqs":{:?}}}"#, vec![1; MAX_SEQS + 1]);
        assert_eq!(ack(many.as_bytes()).unwrap_err().code, "batch_too_large");
        for body in [
            r#"{"node":"w"}"#,
            r#"{"seqs":[1]}"#,
            r#"{"node":"w","seqs":["1"]}"#,
            r#"{"node":"w","seqs":[1],"lease_ids":[]}"#,
        ] {
            assert_eq!(ack(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn looks_and_redrives() {
        let limits = Limits::default();
        assert_eq!(jobs(&Query::new(b""), &limits).unwrap(), (None, 100));
        let dead = jobs(&Query::new(b"state=dead&max=2"), &limits).unwrap();
        assert_eq!(dead, (Some(JobState::Dead), 2));
        assert!(jobs(&Query::new(b"state=lost"), &limits).is_err());
        assert!(!redrive(b"").unwrap().dry_run);
        let r = redrive(br#"{"to":"a","seqs":[1],"limit":2,"dry_run":true}"#).unwrap();
        assert_eq!(
            (r.to.as_deref(), r.seqs, r.limit, r.dry_run),
            (Some("a"), Some(vec![1]), Some(2), true)
        );
        assert!(redrive(br#"{"limit":0}"#).is_err());
    }
}
