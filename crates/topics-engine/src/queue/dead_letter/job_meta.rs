//! What a dead letter says of the job that it was, in its meta under `$dead_letter_*`: where it came
//! from and why, and the options that a redrive gives back.

use std::fmt::Write as _;

use topics_storage::format::attrs::Attrs;

use crate::topic::state::queue::{JobHistory, RemovalReason};
use crate::topic::write::prepare::MAX_GROUP;
use crate::types::api::NewRecord;
use crate::types::batch::RecordView;
use crate::types::meta;

/// What all of the keys begin with.
const PREFIX: &str = "$dead_letter_";
/// The topic that it came from.
const FROM: &str = "$dead_letter_from";
/// Its seq there.
const SEQ: &str = "$dead_letter_src_seq";
/// How often it was given.
const DELIVERIES: &str = "$dead_letter_deliveries";
/// Why a worker released it, the latest that said so.
const ERROR: &str = "$dead_letter_error";
/// Why it is here.
const REASON: &str = "$dead_letter_reason";
/// The options that it had.
const LANE: &str = "$dead_letter_lane";
const GROUP: &str = "$dead_letter_group";
/// In place of that where a group is no text.
const GROUP_HEX: &str = "$dead_letter_group_hex";
/// Times, wall clock, ms.
const DELIVER_AT: &str = "$dead_letter_deliver_at";
const EXPIRES_AT: &str = "$dead_letter_expires_at";

/// Why a job becomes a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    MaxDeliveries,
    Expired,
}

impl Reason {
    fn as_str(self) -> &'static str {
        match self {
            Self::MaxDeliveries => "max_deliveries",
            Self::Expired => "expired",
        }
    }

    /// What its queue counts.
    pub fn why(self) -> RemovalReason {
        match self {
            Self::MaxDeliveries => RemovalReason::DEAD_LETTER,
            Self::Expired => RemovalReason::EXPIRED_DEAD_LETTER,
        }
    }
}

/// What a job is written with beside its record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobOptions {
    lane: Option<u8>,
    group: Vec<u8>,
    /// Wall clock, ms; 0: none.
    deliver_at: u64,
    expires_at: u64,
}

impl JobOptions {
    /// From a record's attributes. A promoted job has no due time any more.
    pub fn of(attrs: &[u8], history: &JobHistory) -> Self {
        let attrs = Attrs::decode(attrs).unwrap_or_default();
        Self {
            lane: attrs.lane,
            group: attrs.group.unwrap_or_default().to_vec(),
            deliver_at: attrs.visible_at.filter(|_| !history.promoted).unwrap_or(0),
            expires_at: attrs.expires_at.unwrap_or(0),
        }
    }

    /// From a dead letter; what no job can have does not count.
    pub fn of_dead_letter(meta: &[u8]) -> Self {
        let number = |key| meta::get(meta, key).and_then(|text| text.parse().ok());
        let group = match meta::get(meta, GROUP) {
            Some(text) => text.into_bytes(),
            None => meta::get(meta, GROUP_HEX).and_then(|text| bytes(&text)).unwrap_or_default(),
        };
        Self {
            lane: number(LANE).and_then(|l| u8::try_from(l).ok()).filter(|l| *l <= 9),
            group: if group.len() <= MAX_GROUP { group } else { Vec::new() },
            deliver_at: number(DELIVER_AT).unwrap_or(0),
            expires_at: number(EXPIRES_AT).unwrap_or(0),
        }
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        all.extend(self.lane.map(|l| (LANE, l.to_string())));
        match std::str::from_utf8(&self.group) {
            Ok("") => {}
            Ok(text) => all.push((GROUP, text.to_owned())),
            Err(_) => all.push((GROUP_HEX, hex(&self.group))),
        }
        let times = [(DELIVER_AT, self.deliver_at), (EXPIRES_AT, self.expires_at)];
        all.extend(times.into_iter().filter(|t| t.1 > 0).map(|(key, at)| (key, at.to_string())));
        all
    }

    /// Gives them to a record that is written at wall time `now`; of what only jobs have nothing,
    /// unless it is a `job`. A time that has passed is no option any more.
    pub fn give<'a>(&'a self, record: &mut NewRecord<'a>, job: bool, now: u64) {
        record.ttl_ms = self.expires_at.saturating_sub(now);
        if job {
            (record.lane, record.group) = (self.lane, &self.group);
            record.deliver_at = if self.deliver_at > now { self.deliver_at } else { 0 };
        }
    }
}

/// The meta of the dead letter that a job of the queue `from` becomes.
pub(crate) fn meta_of(
    r: &RecordView<'_>,
    attrs: &[u8],
    (from, history): (&str, &JobHistory),
    reason: Reason,
) -> Vec<u8> {
    let mut ours = vec![
        (FROM, from.to_owned()),
        (DELIVERIES, history.deliveries.to_string()),
        (SEQ, r.seq.to_string()),
        (REASON, reason.as_str().to_owned()),
    ];
    ours.extend(history.error.as_ref().map(|error| (ERROR, error.to_string())));
    ours.extend(JobOptions::of(attrs, history).entries());
    meta::replace(r.meta, PREFIX, &ours)
}

/// The meta that a dead letter had as a job.
pub(crate) fn meta_before(dead_letter: &[u8]) -> Vec<u8> {
    meta::replace(dead_letter, PREFIX, &[])
}

/// Where a dead letter came from; `None`: it is none.
pub(crate) fn came_from(meta: &[u8]) -> Option<String> {
    meta::get(meta, FROM)
}

/// What a queue counts of its job `seq` that was copied with this meta.
pub(crate) fn why(meta: &[u8], from: &str, seq: u64) -> RemovalReason {
    let is = |key, value: &str| meta::get(meta, key).as_deref() == Some(value);
    let of = [Reason::MaxDeliveries, Reason::Expired];
    match of.into_iter().find(|r| is(REASON, r.as_str())) {
        Some(reason) if is(FROM, from) && is(SEQ, &seq.to_string()) => reason.why(),
        // It was moved by a redrive.
        _ => RemovalReason::REQUESTED,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, b| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{b:02x}");
        text
    })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digit = |d: Option<&u8>| char::from(*d?).to_digit(16);
    let byte = |pair: &[u8]| Some((digit(pair.first())? << 4 | digit(pair.get(1))?) as u8);
    hex.as_bytes().chunks(2).map(byte).collect()
}
