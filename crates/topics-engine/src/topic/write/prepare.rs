//! The first stage of a write: checks, encodes and hashes the records, before any lock.

use std::sync::Arc;

use topics_storage::format::attrs::Attrs;
use topics_storage::format::frame::{self, Flags, Frame, FrameType};
use topics_storage::wal::GROUP_HEADROOM;

use super::forward::Forwarding;
use super::part::PartFrames;
use crate::topic::state::dedupe::Key;
use crate::topic::state::index::payload_of;
use crate::types::api::{Append, NewRecord};
use crate::types::config::ConfigPatch;
use crate::types::error::{Error, Result};
use crate::types::options::Options;

/// A checked and encoded write, independent of the caller's buffers.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub topic: Arc<str>,
    /// The Append frames behind [`GROUP_HEADROOM`] bytes; topic id, seq and ts are still 0.
    pub records: Vec<u8>,
    pub count: u64,
    /// Payload bytes.
    pub bytes: u64,
    pub key: Option<Key>,
    pub expect_head: Option<u64>,
    /// Whether this write has waited for an earlier one already.
    pub waited: bool,
    pub sync: bool,
    /// Whether the topic may be created.
    pub create: bool,
    pub config: Option<Box<ConfigPatch>>,
    /// Whether a record has options that only jobs have.
    pub jobs: bool,
    /// Whether the key is kept until it is released, regardless of the window.
    pub is_pinned: bool,
    /// Whether the write waits for a staging permit without limit.
    pub patient: bool,
    /// When the call began, monotonic ns.
    pub began: u64,
    /// Time that the write has waited for permits and memory, ns.
    pub throttled_ns: u64,
    /// Set for copies of a router.
    pub forward: Option<Box<Forwarding>>,
    /// Set for the rows of a transaction.
    pub part: Option<Box<PartFrames>>,
}

/// The longest idempotency key.
const MAX_KEY: usize = 256;
/// The longest name of a group.
pub(crate) const MAX_GROUP: usize = 128;

impl Prepared {
    /// Checks and encodes a request made at wall time `now`.
    pub(crate) fn new(
        options: &Options,
        topic: &str,
        req: &Append<'_>,
        now: u64,
        began: u64,
    ) -> Result<Self> {
        check(options, topic, req)?;
        let mut records = Vec::with_capacity(GROUP_HEADROOM + frames_len(req));
        records.resize(GROUP_HEADROOM, 0);
        let bytes = encode(req, now, &mut records);
        let config = req.config.map(|c| c.checked(topic)).transpose()?.map(Box::new);
        Ok(Self {
            topic: topic.into(),
            records,
            count: req.records.len() as u64,
            bytes,
            key: Key::of(req),
            expect_head: req.expect_head,
            waited: false,
            sync: req.sync,
            create: req.create.unwrap_or_else(|| options.auto_create.allows(topic)),
            config,
            jobs: req.records.iter().any(NewRecord::is_job),
            is_pinned: false,
            patient: req.disable_backpressure,
            began,
            throttled_ns: 0,
            forward: None,
            part: None,
        })
    }

    /// Prepares copies of records. The size limits do not apply: a record that was accepted once stays
    /// one, even with more meta.
    pub(crate) fn of_copies(
        options: &Options,
        topic: &str,
        req: &Append<'_>,
        now: u64,
        began: u64,
    ) -> Result<Self> {
        let options = Options {
            max_batch_bytes: u64::MAX,
            max_record_bytes: usize::MAX,
            max_meta_bytes: usize::MAX,
            max_tag_bytes: usize::from(u16::MAX),
            max_node_bytes: usize::from(u16::MAX),
            ..options.clone()
        };
        Self::new(&options, topic, req, now, began)
    }

    /// The Append frames.
    pub(crate) fn frames(&self) -> &[u8] {
        self.records.get(GROUP_HEADROOM..).unwrap_or(&[])
    }

    /// Payload bytes of each record.
    pub(crate) fn sizes(&self) -> Vec<u32> {
        Frames(self.frames()).map(|(len, flags, _)| payload_of(len, flags) as u32).collect()
    }
}

/// Length, flags and bytes of each encoded frame of a buffer.
pub(crate) struct Frames<'a>(pub &'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = (u32, u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = u32::from_le_bytes(*self.0.first_chunk()?).checked_add(4)?;
        let (bytes, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some((len, *bytes.get(5)?, bytes))
    }
}

fn node_of<'a>(r: &NewRecord<'a>, default: &'a [u8]) -> &'a [u8] {
    if r.node.is_empty() { default } else { r.node }
}

/// The attributes of a record that is written now.
fn attrs_of<'a>(r: &NewRecord<'a>, now: u64) -> Attrs<'a> {
    let some = |v: u64| Some(v).filter(|v| *v > 0);
    let after = |ms: u64| some(ms).map(|ms| now.saturating_add(ms));
    Attrs {
        visible_at: after(r.delay_ms).max(some(r.deliver_at)),
        expires_at: after(r.ttl_ms),
        group: Some(r.group).filter(|g| !g.is_empty()),
        lane: r.lane,
    }
}

/// Bytes of the attributes with their length.
fn attrs_len(r: &NewRecord<'_>) -> usize {
    let group = if r.group.is_empty() { 0 } else { 2 + r.group.len() };
    let due = r.delay_ms > 0 || r.deliver_at > 0;
    let list = 10 * (usize::from(r.ttl_ms > 0) + usize::from(due))
        + 3 * usize::from(r.lane.is_some())
        + group;
    if list == 0 { 0 } else { 2 + list }
}

fn encoded_len(r: &NewRecord<'_>, node: &[u8]) -> usize {
    frame::FRAME_HEADER
        + frame::FRAME_TRAILER
        + node_of(r, node).len()
        + r.tag.len()
        + if r.meta.is_empty() { 0 } else { 4 + r.meta.len() }
        + attrs_len(r)
        + r.data.len()
}

/// The length of the frames of a request's records.
pub(crate) fn frames_len(req: &Append<'_>) -> usize {
    req.records.iter().map(|r| encoded_len(r, req.node)).sum()
}

/// Appends the frames of a checked request made at wall time `now`; topic id, seq and ts are 0. Returns
/// the payload bytes.
pub(crate) fn encode(req: &Append<'_>, now: u64, out: &mut Vec<u8>) -> u64 {
    let mut bytes = 0;
    let mut attrs = Vec::new();
    for r in req.records {
        attrs.clear();
        if r.ttl_ms > 0 || r.is_job() {
            attrs_of(r, now).encode(&mut attrs);
        }
        let frame = Frame {
            kind: FrameType::Append,
            flags: Flags(if r.binary { Flags::BINARY } else { 0 }),
            topic_id: 0,
            seq: 0,
            ts: 0,
            node: node_of(r, req.node),
            tag: r.tag,
            attrs: &attrs,
            meta: r.meta,
            data: r.data,
        };
        bytes += frame.payload_bytes();
        frame::encode(out, &frame);
    }
    bytes
}

/// Checks the topic's name and the sizes of a request.
pub(crate) fn check(options: &Options, topic: &str, req: &Append<'_>) -> Result<()> {
    crate::types::name::check(topic)?;
    if req.records.is_empty() {
        return Err(Error::InvalidRequest("a write needs at least one record".into()));
    }
    if req.records.len() > options.max_batch_records {
        return Err(Error::BatchTooLarge {
            got: req.records.len() as u64,
            max: options.max_batch_records as u64,
            unit: "records",
        });
    }
    if req.key.len() > MAX_KEY {
        return Err(Error::InvalidRequest(format!(
            "the idempotency key is {} bytes, the limit is {MAX_KEY}",
            req.key.len()
        )));
    }
    let mut total = 0u64;
    for (index, r) in req.records.iter().enumerate() {
        let parts = [
            ("data + meta", r.data.len() + r.meta.len(), options.max_record_bytes),
            ("meta", r.meta.len(), options.max_meta_bytes),
            ("tag", r.tag.len(), options.max_tag_bytes),
            ("node", node_of(r, req.node).len(), options.max_node_bytes),
        ];
        for (what, got, max) in parts {
            if got > max {
                let (got, max) = (got as u64, max as u64);
                return Err(Error::RecordTooLarge { index, what, got, max });
            }
        }
        if r.lane.is_some_and(|l| l > 9) {
            return Err(Error::InvalidRequest(format!("record {index}: lanes are 0 to 9")));
        }
        if r.group.len() > MAX_GROUP {
            let (what, got, max) = ("group", r.group.len() as u64, MAX_GROUP as u64);
            return Err(Error::RecordTooLarge { index, what, got, max });
        }
        total += (r.data.len() + r.meta.len() + r.tag.len() + r.node.len()) as u64;
    }
    if total > options.max_batch_bytes {
        return Err(Error::BatchTooLarge {
            got: total,
            max: options.max_batch_bytes,
            unit: "bytes",
        });
    }
    Ok(())
}

/// Bytes for the control frames of a write, beside its name and config.
const CONTROL: usize = 1024;

impl Prepared {
    /// Maximum bytes of the write in a queue.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.frames().len() + CONTROL + self.topic.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(options: &Options, req: &Append<'_>) -> Result<Prepared> {
        Prepared::new(options, "t", req, 1000, 0)
    }

    #[test]
    fn encodes_what_it_measured() {
        let r = NewRecord {
            data: b"{}",
            tag: b"tag",
            meta: b"{\"a\":\"b\"}",
            ttl_ms: 5,
            ..NewRecord::default()
        };
        let records = [r, NewRecord { binary: true, ..NewRecord::default() }];
        let p = prepare(
            &Options::default(),
            &Append { records: &records, node: b"node", ..Append::default() },
        )
        .unwrap();
        assert_eq!(p.records.len(), p.records.capacity());
        let sizes = p.sizes();
        // data + meta + tag + node + attributes
        assert_eq!(sizes, [2 + 9 + 3 + 4 + 10, 4]);
        assert_eq!(p.bytes, u64::from(sizes[0] + sizes[1]));
        let (f, _) = frame::parse(p.frames()).unwrap();
        assert_eq!((f.node, f.tag, f.data), (&b"node"[..], &b"tag"[..], &b"{}"[..]));
        assert_eq!(Attrs::decode(f.attrs).unwrap().expires_at, Some(1005));
    }

    #[test]
    fn limits_at_and_above() {
        let o = Options {
            max_batch_records: 2,
            max_record_bytes: 4,
            max_meta_bytes: 3,
            max_tag_bytes: 2,
            max_node_bytes: 1,
            max_batch_bytes: 6,
            ..Options::default()
        };
        let rec = |data: &'static [u8]| NewRecord { data, ..NewRecord::default() };
        let code = |records: &[NewRecord<'_>]| {
            prepare(&o, &Append { records, ..Append::default() })
                .map_or_else(|e| e.code(), |_| "ok")
        };
        assert_eq!(code(&[]), "invalid_request");
        assert_eq!(code(&[rec(b"1234")]), "ok");
        assert_eq!(code(&[rec(b"12345")]), "record_too_large");
        assert_eq!(code(&[rec(b"1234"), rec(b"12")]), "ok");
        assert_eq!(code(&[rec(b"1234"), rec(b"123")]), "batch_too_large");
        assert_eq!(code(&[rec(b"1"); 3]), "batch_too_large");
        assert_eq!(code(&[NewRecord { tag: b"ab", ..rec(b"1") }]), "ok");
        assert_eq!(code(&[NewRecord { tag: b"abc", ..rec(b"1") }]), "record_too_large");
        assert_eq!(code(&[NewRecord { node: b"ab", ..rec(b"1") }]), "record_too_large");
        assert_eq!(code(&[NewRecord { meta: b"abcd", ..rec(b"") }]), "record_too_large");
        let (records, key) = ([rec(b"1")], [7; 257]);
        let key = |n: usize| Append { records: &records, key: &key[..n], ..Append::default() };
        assert!(prepare(&o, &key(256)).is_ok());
        assert_eq!(prepare(&o, &key(257)).unwrap_err().code(), "invalid_request");
    }
}
