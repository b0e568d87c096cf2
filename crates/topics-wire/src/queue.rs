//! Queues: claims; ack, nack, release and extend; peek, remove, promote and redrive.

use topics_engine::{Claimed, Error, JobState, LeaseOutcome, Peeked, Redrive};

use crate::error::Failure;
use crate::filter::matching;
use crate::json::{FieldPath, Fields, Reader, Scanner, push_u64, read_body};
use crate::limits::{Limits, MAX_SEQS, MAX_WAIT_MS};
use crate::object::Object;
use crate::query::Query;
use crate::read::push_record;
use crate::routes::bodies;
use crate::words::JOB_STATES;

/// The body of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
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
    const FIELDS: Fields = Fields::of(bodies::CLAIM);
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

/// The body of an ack, nack, release or extend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The worker that claimed them.
    pub node: String,
    pub seqs: Vec<u64>,
    pub lease_ids: Option<Vec<u64>>,
    /// Nack: the delay before the next claim; `None`: the queue's backoff.
    pub delay_ms: Option<u64>,
    /// Nack: why the jobs are released; empty: the worker does not say.
    pub error: String,
    /// Extend: the new length of the leases, from now.
    pub lease_ms: Option<u64>,
    /// Release and extend: all jobs of this stream of the worker, in place of `seqs`.
    pub stream: Option<u64>,
}

impl LeaseRequest {
    /// The leases as an engine argument.
    #[must_use]
    pub fn jobs(&self) -> topics_engine::LeasedJobs<'_> {
        let (node, lease_ids) = (self.node.as_bytes(), self.lease_ids.as_deref());
        topics_engine::LeasedJobs { node, seqs: &self.seqs, lease_ids }
    }
}

/// The body of an ack: `{node, seqs, lease_ids?}`.
pub fn ack(bytes: &[u8]) -> Result<LeaseRequest, Failure> {
    lease_request(bytes, Fields::of(bodies::ACK))
}

/// The body of a nack: also `error?`, and `delay_ms?`, where `null` is the queue's backoff.
pub fn nack(bytes: &[u8]) -> Result<LeaseRequest, Failure> {
    lease_request(bytes, Fields::of(bodies::NACK))
}

/// The body of a release: that of an ack, or `{node, stream}`.
pub fn release(bytes: &[u8]) -> Result<LeaseRequest, Failure> {
    lease_request(bytes, Fields::of(bodies::RELEASE))
}

/// The body of an extend: that of a release, and `lease_ms?`.
pub fn extend(bytes: &[u8]) -> Result<LeaseRequest, Failure> {
    lease_request(bytes, Fields::of(bodies::EXTEND))
}

fn lease_request(bytes: &[u8], fields: Fields) -> Result<LeaseRequest, Failure> {
    let mut h = LeaseRequest { delay_ms: Some(0), ..LeaseRequest::default() };
    let (mut node, mut seqs) = (None, None);
    read_body(bytes, fields, |s, key| {
        match key {
            "node" => node = Some(s.text(FieldPath::field("node"))?.into_owned()),
            "seqs" => seqs = Some(numbers(s, "seqs")?),
            "lease_ids" => h.lease_ids = Some(lease_ids(s, FieldPath::field("lease_ids"))?),
            "stream" => {
                let (path, text) =
                    (FieldPath::field("stream"), s.text(FieldPath::field("stream"))?);
                let problem = || format!("must be the id of a job stream, not {text:?}");
                h.stream = Some(text.parse().map_err(|_| path.invalid(problem()))?);
            }
            "error" => h.error = s.text(FieldPath::field("error"))?.into_owned(),
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
    h.seqs = match (seqs, h.stream) {
        (Some(seqs), None) => seqs,
        (None, Some(_)) if h.lease_ids.is_none() => Vec::new(),
        (None, None) => return Err(FieldPath::field("seqs").invalid("is missing")),
        (_, Some(_)) => {
            return Err(FieldPath::field("stream").invalid("cannot be given beside seqs"));
        }
    };
    h.lease_ids = h.lease_ids.filter(|ids| !ids.is_empty());
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
        check_count(index)?;
        out.push(s.u64(FieldPath { within, index: Some(index), field: "" })?);
        Ok::<_, Failure>(())
    })?;
    Ok(out)
}

/// The lease ids of an ack, nack, release or extend: the strings of a claim, or the numbers in them.
pub(crate) fn lease_ids(s: &mut Scanner<'_>, path: FieldPath) -> Result<Vec<u64>, Failure> {
    s.expect_type(path, "an array of lease ids", |b| b == b'[')?;
    let mut out = Vec::new();
    s.array(|s, index| {
        check_count(index)?;
        let path = match path.within {
            "" => FieldPath { within: path.field, index: Some(index), field: "" },
            _ => path,
        };
        out.push(if s.peek() == Some(b'"') {
            let text = s.text(path)?;
            let problem = || format!("must be a lease_id as a claim gave it, not {text:?}");
            text.strip_prefix(LEASE)
                .unwrap_or(&text)
                .parse()
                .map_err(|_| path.invalid(problem()))?
        } else {
            s.u64(path)?
        });
        Ok::<_, Failure>(())
    })?;
    Ok(out)
}

fn check_count(index: usize) -> Result<(), Failure> {
    if index < MAX_SEQS {
        return Ok(());
    }
    let (got, max) = (index as u64 + 1, MAX_SEQS as u64);
    Err(Error::BatchTooLarge { got, max, unit: "seqs" }.into())
}

/// The body of a removal: `{seqs, force?}`.
pub fn remove(bytes: &[u8]) -> Result<(Vec<u64>, bool), Failure> {
    jobs_named(bytes, Fields::of(bodies::JOBS_REMOVE))
}

/// The body of a promotion: `{seqs}`.
pub fn promote(bytes: &[u8]) -> Result<Vec<u64>, Failure> {
    jobs_named(bytes, Fields::of(bodies::JOBS_PROMOTE)).map(|(seqs, _)| seqs)
}

fn jobs_named(bytes: &[u8], fields: Fields) -> Result<(Vec<u64>, bool), Failure> {
    let (mut seqs, mut force) = (None, false);
    read_body(bytes, fields, |s, key| {
        match key {
            "seqs" => seqs = Some(numbers(s, "seqs")?),
            "force" => force = s.bool(FieldPath::field("force"))?,
            _ => s.skip()?,
        }
        Ok(())
    })?;
    let seqs = seqs.ok_or_else(|| FieldPath::field("seqs").invalid("is missing"))?;
    Ok((seqs, force))
}

/// `{to?, match?, seqs?, limit?, dry_run?}`; an empty body has no fields.
pub fn redrive(bytes: &[u8]) -> Result<Redrive, Failure> {
    const FIELDS: Fields = Fields::of(bodies::REDRIVE);
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
    let state = query.get("state")?;
    let state =
        state.map(|word| FieldPath::field("state").choose(&word, &JOB_STATES)).transpose()?;
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
    push_lease_id(o.key("lease_id"), lease.lease_id);
    o.int("deadline", lease.deadline);
    o.int("lease_ms", c.lease_ms).int("deliveries", lease.deliveries.into());
    out.extend_from_slice(&o.finish());
}

/// The prefix of every lease id.
const LEASE: &str = "lease_";

/// A lease id is a string, because clients must not calculate with it.
fn push_lease_id(out: &mut Vec<u8>, id: u64) {
    out.push(b'"');
    out.extend_from_slice(LEASE.as_bytes());
    push_u64(out, id);
    out.push(b'"');
}

/// The answer to a verb over named jobs; `done` is its field with their number: `acked`, `nacked`,
/// `released`, `extended`, `removed`, `promoted`.
#[must_use]
pub fn counted(topic: &str, done: &str, s: &LeaseOutcome) -> Vec<u8> {
    let mut o = Object::new(160 + 12 * s.skipped.len() + 40 * s.done.len());
    o.name("topic", topic).int(done, s.done.len() as u64);
    list(o.key("skipped"), s.skipped.iter().copied());
    if !s.reasons.is_empty() {
        let out = o.key("reasons");
        for (i, reason) in s.reasons.iter().enumerate() {
            out.extend_from_slice(if i > 0 { b",\"" } else { b"[\"" });
            out.extend_from_slice(reason.as_str().as_bytes());
            out.push(b'"');
        }
        out.push(b']');
    }
    if let Some(deadline) = s.deadline {
        let mut seqs = s.done.clone();
        seqs.sort_unstable();
        seqs.dedup();
        let mut deadlines = Object::new(40 * seqs.len());
        for seq in seqs {
            deadlines.int(&seq.to_string(), deadline);
        }
        o.raw("deadlines", &deadlines.finish());
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
        if let Some(error) = &job.error {
            o.name("error", error);
        }
        if let Some(id) = job.lease_id {
            push_lease_id(o.key("lease_id"), id);
        }
        for (name, value) in [("deadline", job.deadline), ("visible_at", job.visible_at)] {
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
    use topics_engine::LeaseEnd;

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
        let all = extend(br#"{"node":"w","stream":"7","lease_ms":5}"#).unwrap();
        assert_eq!((all.stream, all.seqs, all.lease_ms), (Some(7), vec![], Some(5)));
        assert_eq!(release(br#"{"node":"w","stream":"7"}"#).unwrap().stream, Some(7));
        for both in [
            r#"{"node":"w","stream":"7","seqs":[1]}"#,
            r#"{"node":"w","stream":"7","lease_ids":["1"]}"#,
            r#"{"node":"w","stream":"x"}"#,
        ] {
            let failure = release(both.as_bytes()).unwrap_err();
            assert!(failure.message.starts_with("stream "), "{}", failure.message);
        }
        assert!(ack(br#"{"node":"w","stream":"7"}"#).is_err());
        let ids = |ids: &str| {
            let body = format!(r#"{{"node":"w","seqs":[1,2],"lease_ids":{ids}}}"#);
            ack(body.as_bytes()).map(|h| h.lease_ids)
        };
        assert_eq!(ids(r#"["lease_4294967297",8]"#).unwrap(), Some(vec![4_294_967_297, 8]));
        assert_eq!(ids(r#"["4294967297",8]"#).unwrap(), Some(vec![4_294_967_297, 8]));
        assert_eq!(ids("[]").unwrap(), None, "no fence");
        for (wrong, what) in [
            ("[1]", "one entry for each of the 2 seqs"),
            (r#"["x",1]"#, r#"lease_ids[0] must be a lease_id as a claim gave it, not "x""#),
            (r#"[1,""]"#, "lease_ids[1]"),
            (r#"[1,"lease_"]"#, "lease_ids[1]"),
            ("[1,-1]", "lease_ids[1]"),
            (r#""1""#, "lease_ids must be an array of lease ids"),
        ] {
            let failure = ids(wrong).unwrap_err();
            assert_eq!(failure.code, "invalid_request");
            assert!(failure.message.contains(what), "{}", failure.message);
        }
        let failed = nack(br#"{"node":"w","seqs":[1],"error":"it \"broke\""}"#).unwrap();
        assert_eq!((failed.error.as_str(), failed.delay_ms), ("it \"broke\"", Some(0)));
        assert!(ack(br#"{"node":"w","seqs":[1],"error":"x"}"#).is_err());
        let many = format!(r#"{{"node":"w","seqs":{:?}}}"#, vec![1; MAX_SEQS + 1]);
        assert_eq!(ack(many.as_bytes()).unwrap_err().code, "batch_too_large");
        for body in [r#"{"node":"w"}"#, r#"{"seqs":[1]}"#, r#"{"node":"w","seqs":["1"]}"#] {
            assert_eq!(ack(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn removals_and_promotions() {
        assert_eq!(remove(br#"{"seqs":[1,2]}"#).unwrap(), (vec![1, 2], false));
        assert_eq!(remove(br#"{"seqs":[],"force":true}"#).unwrap(), (vec![], true));
        assert_eq!(promote(br#"{"seqs":[7]}"#).unwrap(), [7]);
        for body in ["", "{}", r#"{"seqs":[1],"force":1}"#, r#"{"seqs":["1"]}"#] {
            assert_eq!(remove(body.as_bytes()).unwrap_err().code, "invalid_request", "{body}");
        }
        assert!(promote(br#"{"seqs":[1],"force":true}"#).is_err());
        let many = format!(r#"{{"seqs":{:?}}}"#, vec![1; MAX_SEQS + 1]);
        assert_eq!(promote(many.as_bytes()).unwrap_err().code, "batch_too_large");
    }

    #[test]
    fn answers_count_jobs() {
        let s = LeaseOutcome {
            done: vec![9, 3, 9],
            skipped: vec![4],
            reasons: vec![LeaseEnd::Restarted],
            deadline: Some(77),
            ..LeaseOutcome::default()
        };
        let json: serde_json::Value =
            serde_json::from_slice(&counted("q", "extended", &s)).unwrap();
        assert_eq!((json["extended"].as_u64(), json["skipped"][0].as_u64()), (Some(3), Some(4)));
        assert_eq!(json["deadlines"], serde_json::json!({"3": 77, "9": 77}));
        assert_eq!(json["reasons"], serde_json::json!(["restarted"]));
        let none = counted("q", "acked", &LeaseOutcome::default());
        let json: serde_json::Value = serde_json::from_slice(&none).unwrap();
        assert_eq!((json["acked"].as_u64(), json.get("deadlines")), (Some(0), None));
        assert_eq!(json.get("reasons"), None);
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
