//! How far a reader is behind: the records that it has not read, and how long the first of them waits.

use topics_storage::StorageError;

use crate::topic::Topic;
use crate::topic::events::Base;
use crate::topic::load::Loader;
use crate::topic::load::provide;
use crate::topic::retention::with_expired;
use crate::topic::state::State;
use crate::topic::state::index::Unknown;
use crate::types::error::{Error, Result};

/// How far a reader is behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lag {
    /// The live records after its cursor.
    pub records: u64,
    /// Milliseconds since the first of them was committed, 0 without one.
    pub ms: u64,
}

/// How far a reader with this cursor is behind. Deleted, evicted, lost and expired records do not count.
pub(crate) fn lag(base: &Base, topic: &Topic, cursor: u64) -> Result<Lag> {
    topic.check_sound()?;
    let (from, head) = with_expired(base, topic, |_, expired| {
        let head = topic.gate.head();
        // A cursor of an earlier life of the topic: its reader begins at the first record.
        let next = if cursor > head { 1 } else { cursor + 1 };
        (next.max(expired.map_or(0, |e| e.below)), head)
    })?;
    match unread(base, topic, from, head)? {
        Some((records, first)) => Ok(Lag { records, ms: age(base, topic, first)? }),
        None => Ok(Lag::default()),
    }
}

/// The number of live records in `from..=head`, and the first of them; `None` without one. Where only
/// the object store knows which records of a segment are dead: at most as many.
pub(crate) fn unread(
    base: &Base,
    topic: &Topic,
    from: u64,
    head: u64,
) -> Result<Option<(u64, u64)>> {
    loop {
        let unknown = {
            let state = topic.state.read();
            match counted(&state, from.max(state.range.earliest), head) {
                Ok(found) => return Ok(found),
                Err(unknown) => unknown,
            }
        };
        if let Err(e) = provide(base, topic, &unknown.into()) {
            let Error::ColdPending(_) = e else { return Err(e) };
            let state = topic.state.read();
            let from = from.max(state.range.earliest);
            let records = state.live.count.min((head + 1).saturating_sub(from));
            return Ok((records > 0).then_some((records, from)));
        }
    }
}

fn counted(
    state: &State,
    from: u64,
    head: u64,
) -> std::result::Result<Option<(u64, u64)>, Unknown> {
    let records = state.live_in(from, head)?;
    if records == 0 {
        return Ok(None);
    }
    Ok(state.index.next_live(from)?.map(|first| (records, first)))
}

/// Milliseconds since a record was committed; 0 if it is gone. If only the object store knows, the record
/// counts as old as the first of its segment.
pub(crate) fn age(base: &Base, topic: &Topic, seq: u64) -> Result<u64> {
    let ts = committed_at(base, topic, seq)?;
    Ok(ts.map_or(0, |ts| base.time.steady().saturating_sub(ts)))
}

fn committed_at(base: &Base, topic: &Topic, seq: u64) -> Result<Option<u64>> {
    let meta = {
        let state = topic.state.read();
        match (state.index.entry(seq), state.index.seg_of(seq)) {
            (Some(entry), _) => return Ok(Some(entry.ts)),
            (None, Some(seg)) => seg.meta,
            (None, None) => return Ok(None),
        }
    };
    match Loader::without_hints(&base.segments, topic.key).segment(&meta).entries(seq, seq) {
        Ok(entries) => Ok(entries.first().map(|e| e.ts)),
        Err(StorageError::Fetching(_)) => Ok(Some(meta.first_ts)),
        Err(StorageError::Missing { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}
