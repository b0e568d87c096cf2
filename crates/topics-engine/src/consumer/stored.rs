//! Logs stored cursors: stages the frames that move them and waits for their commit.

use std::sync::Arc;

use topics_storage::format::record::{self, Body};
use topics_storage::wal::{Level, Ticket};

use crate::ctx::Wait;
use crate::topic::Topic;
use crate::topic::cursors::{Consumers, stored};
use crate::topic::events::Ctx;
use crate::topic::write::control::stage_with;
use crate::topic::write::pending_batch::{Frames, Undo};
use crate::types::error::{Error, Result};

/// The outcome of a decision about a cursor.
pub(crate) enum Staged {
    /// Its frame is staged; the level of the topic's class.
    Frame(Ticket, Level),
    /// No frame was needed: the cursor has the wanted position, or a staged batch moves it there. In the
    /// latter case the topic's newest batch, and the level of its class.
    Nothing(Option<(Ticket, Level)>),
}

/// Stages a `Consumer` frame that `decide` makes under the locks of the topic.
pub(crate) fn stage_cursor(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    name: &str,
    wait: Wait,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<Staged> {
    let mut planned = None;
    let mut covered = None;
    let staged = stage_with(ctx, topic, 512, wait, |a| {
        let mut state = topic.state.write();
        let all = state.consumers.get_or_insert_default();
        let Some(body) = decide(all)? else {
            covered = a.last.filter(|_| all.is_planned(name));
            return Ok(None);
        };
        let undo = match body.cursor.map(|to| all.plan(name, to)) {
            Some(cursor) => {
                planned = Some(cursor.clone());
                Undo::Cursor(cursor)
            }
            None => Undo::None,
        };
        let mut frames = Frames::default();
        body.encode_frame(&mut frames.head, topic.id(), 0, 0);
        Ok(Some((frames, undo)))
    });
    match staged {
        Ok(Some((ticket, level))) => Ok(Staged::Frame(ticket, level)),
        Ok(None) => Ok(Staged::Nothing(covered)),
        Err(e) => {
            // It was not staged; earlier staged frames are still pending (I8).
            if let (Some(planned), Some(all)) = (planned, &mut topic.state.write().consumers) {
                all.undo(&planned);
            }
            Err(e)
        }
    }
}

/// Stages a frame and waits: with `Some(true)` until it is durable, with `Some(false)` as the topic's
/// class requires. `None` never waits, neither for the topic nor for a staging permit nor for a write.
pub(crate) fn log(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    name: &str,
    wait: Option<bool>,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<()> {
    let permit_wait = if wait.is_some() { Wait::Bounded } else { Wait::No };
    let staged = stage_cursor(ctx, topic, name, permit_wait, decide)?;
    let Some(durable) = wait else {
        if let Staged::Frame(ticket, _) = staged {
            ctx.wal.lead_later(ticket.shard as usize);
        }
        return Ok(());
    };
    let (ticket, level) = match staged {
        // The batch that moves the cursor may still fail.
        Staged::Frame(ticket, level) | Staged::Nothing(Some((ticket, level))) => (ticket, level),
        Staged::Nothing(None) => {
            if durable {
                ctx.wal.sync(ctx.shard(topic.id()))?;
            }
            return Ok(());
        }
    };
    ctx.wait(ticket, if durable { Level::Synced } else { level })
}

/// Refuses a commit for an unknown consumer or above the head.
pub(crate) fn check_cursor(topic: &Topic, name: &str, seq: u64) -> Result<()> {
    stored(topic, name).ok_or_else(|| no_consumer(topic, name))?;
    let head = topic.gate.head();
    if seq > head {
        let text = format!("commit of seq {seq} is above the head {head}");
        return Err(Error::InvalidRequest(text));
    }
    Ok(())
}

/// The frames that move cursors forwards (I8). The caller has exclusive access to the topic and stages
/// them: no batch of the topic is pending, so the stored cursors count, not the planned ones of a failed
/// attempt.
pub(crate) fn plan_cursors(topic: &Topic, cursors: &[(String, u64)]) -> Vec<record::Consumer> {
    let mut frames = Vec::new();
    if cursors.is_empty() {
        return frames;
    }
    let mut state = topic.state.write();
    let all = state.consumers.get_or_insert_default();
    for (name, seq) in cursors {
        let Some(s) = all.0.get_mut(name.as_str()).filter(|s| *seq > s.cursor) else { continue };
        s.planned = *seq;
        let (name, mode) = (name.clone(), s.mode as u8);
        frames.push(record::Consumer { name, mode, cursor: Some(*seq) });
    }
    frames
}

/// Reverts [`plan_cursors`] after the frames were not staged or not logged. The caller still has exclusive
/// access to the topic.
pub(crate) fn unplan_cursors(topic: &Topic, cursors: &[(String, u64)]) {
    if let Some(all) = &mut topic.state.write().consumers {
        for (name, _) in cursors {
            if let Some(s) = all.0.get_mut(name.as_str()) {
                s.planned = s.cursor;
            }
        }
    }
}

pub(crate) fn no_consumer(topic: &Topic, name: &str) -> Error {
    Error::ConsumerNotFound { topic: topic.name.to_string(), consumer: name.to_owned() }
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
