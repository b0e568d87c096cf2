//! Control frames of a topic: decided and staged under its append lock.

use std::sync::Arc;

use topics_storage::wal::{Level, Ticket};

use super::append_state::{AppendState, apply_level};
use super::pending_batch::{Frames, Order, PendingBatch, Undo};
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::topic::load::Hints;
use crate::topic::{Life, Topic};
use crate::types::error::{Error, Result};

/// Stages control frames of a topic. `decide` makes them, of about `bytes` bytes, under the append
/// lock, and returns what their failure must undo; `None`: there is nothing to log.
pub(crate) fn stage_with(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    bytes: usize,
    wait: Wait,
    decide: impl FnOnce(&AppendState) -> Result<Option<(Frames, Undo)>>,
) -> Result<Option<(Ticket, Level)>> {
    let admitted = match wait {
        Wait::No => topic.try_admit(ctx, bytes, wait)?,
        _ => Some(topic.admit(ctx, bytes, wait)?),
    };
    let Some(mut a) = admitted else {
        let (limit, max) = ("topic_busy", 0);
        return Err(Error::Throttled { limit, max, retry_after_ms: 10 });
    };
    if a.closed || topic.life() != Life::Live {
        return Err(Error::TopicNotFound(topic.name.to_string()));
    }
    let Some((frames, undo)) = decide(&a)? else { return Ok(None) };
    let level = apply_level(a.config.durability);
    let order = Order { ts: a.last_ts.max(ctx.base().time.steady()), level, frees_space: true };
    let pending = PendingBatch::plain(ctx, topic, Hints::default(), undo);
    let (ticket, _) = a.stage(pending, frames, order)?;
    Ok(Some((ticket, level)))
}
