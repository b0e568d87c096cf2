//! Copies of a router: a write with a Forward frame in its batch, or the gap for records that the
//! source lost.

use std::sync::Arc;

use topics_storage::format::record::{Body, Forward, Gap as GapBody, HeadWatermark};
use topics_storage::wal::Level;

use super::append_state::apply_level;
use super::pending_batch::{Frames, Order, PendingBatch, Undo};
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::topic::load::Hints;
use crate::topic::{Life, Topic};
use crate::types::api::Completion;
use crate::types::api::GapReason;
use crate::types::error::{Error, Result};

/// The Forward frame of a write of copies.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding {
    /// The id of the destination; a later topic of the same name has another one.
    pub dest: u64,
    pub body: Forward,
}

impl Forwarding {
    /// Encodes the frame for copies from `first` on.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, first: u64) {
        let body = Forward { first_seq: first, ..self.body.clone() };
        body.encode_frame(out, self.dest, 0, 0);
    }
}

/// Logs a gap of `n` seqs in the destination, for records that the source has lost.
pub(crate) fn forward_gap(
    ctx: &Arc<Ctx>,
    dest: &Arc<Topic>,
    n: u64,
    body: Forward,
    done: Completion<()>,
) -> Result<()> {
    dest.check_sound()?;
    ctx.check_open()?;
    let Some(mut a) = dest.try_admit(ctx, 1024, Wait::No)? else {
        return Err(Error::Throttled { limit: "topic_held", max: 1, retry_after_ms: 10 });
    };
    if a.closed || dest.life() != Life::Live {
        return Err(Error::TopicNotFound(dest.name.to_string()));
    }
    let class = a.config.durability;
    let (first, last) = (a.next_seq, a.next_seq + n - 1);
    let mut frames = Frames::default();
    let reserve = a.reserve.next(class, last, ctx.base().time.mono_ms());
    if let Some(reserve) = reserve {
        HeadWatermark { reserved_to: reserve.to, lowered: false }.encode_frame(
            &mut frames.head,
            dest.id(),
            0,
            0,
        );
    }
    Forwarding { dest: dest.id(), body }.encode(&mut frames.head, first);
    GapBody { from: first, to: last, reason: GapReason::SourceTrim.code() }.encode_frame(
        &mut frames.head,
        dest.id(),
        0,
        0,
    );
    let level = apply_level(class);
    let order = Order { ts: a.last_ts.max(ctx.base().time.steady()), level, frees_space: false };
    let pending = PendingBatch::plain(ctx, dest, Hints::default(), Undo::None);
    let (ticket, _) = a.stage(pending, frames, order)?;
    // These seqs stay assigned even if the batch fails: a later write makes them a gap.
    a.next_seq = last + 1;
    if let Some(reserve) = reserve {
        a.reserve = reserve;
    }
    drop(a);
    if let Some(reserve) = reserve {
        let topic = dest.clone();
        let synced = move |outcome: topics_storage::Result<()>| {
            if outcome.is_ok() {
                topic.reservation_synced(reserve.to);
            }
        };
        ctx.wal.on_level(ticket, Level::Synced, Box::new(synced));
    }
    let done = move |outcome: topics_storage::Result<()>| done(outcome.map_err(Error::from));
    ctx.wal.on_level(ticket, level, Box::new(done));
    Ok(())
}
