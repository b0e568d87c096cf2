//! The keys of copies: held until the original is gone for good, so that an open can tell what was
//! interrupted, and finish it.

use std::sync::Arc;

use topics_storage::format::record::{Body, Idempotency};
use topics_storage::wal::{Level, Ticket};

use super::Queues;
use super::job_meta;
use crate::catalog::Catalog;
use crate::ctx::Wait;
use crate::queue::records::fetch;
use crate::queue::stage;
use crate::topic::events::Ctx;
use crate::topic::state::dedupe::Remembered;
use crate::topic::state::queue::RemovalReason;
use crate::topic::write::pending_batch::Frames;
use crate::topic::{Life, Topic, delete};
use crate::types::api::Appended;
use crate::types::error::Result;

/// The hash of the request under a key of ours: the key itself says everything.
pub(crate) const REQUEST: u64 = 0x6d6f_7665;

/// Held keys and what is remembered under them.
type Keys = Vec<(u128, Remembered)>;

/// The key of the copy of a record: ids are never given again, so it names one record for ever.
pub(crate) fn key_of(source: u64, seq: u64) -> u128 {
    (u128::from(source) << 64) | u128::from(seq)
}

fn origin_of(key: u128) -> (u64, u64) {
    ((key >> 64) as u64, key as u64)
}

/// The keys need be held no longer when the deletion is durable.
pub(crate) fn release_when_synced(
    queues: &Arc<Queues>,
    source: u64,
    ticket: Ticket,
    moved: Vec<(u64, Arc<str>, Appended)>,
) {
    let at = queues.clone();
    let done = move |outcome: topics_storage::Result<()>| {
        if outcome.is_err() {
            return;
        }
        for (seq, dest, a) in moved {
            let Some(dest) =
                at.catalog().table.loaded.named(&dest).filter(|t| t.id() == a.topic_id)
            else {
                continue;
            };
            // If this fails the key is held until the next open releases it.
            let key = (key_of(source, seq), a.first_seq);
            if let Err(e) = release(at.ctx(), &dest, &[key], Wait::No) {
                log::debug!("topic {:?}: a key stays: {e}", dest.name);
            }
        }
    };
    queues.ctx().wal.on_level(ticket, Level::Synced, Box::new(done));
}

/// Logs that held keys are remembered for the window only.
fn release(ctx: &Arc<Ctx>, dest: &Arc<Topic>, keys: &[(u128, u64)], wait: Wait) -> Result<()> {
    let window = dest.state.read().config.idempotency_window_ms;
    let expires_at = ctx.base().time.steady().saturating_add(window);
    let mut frames = Frames::default();
    for &(key, seq) in keys {
        Idempotency { key, request: REQUEST, first_seq: seq, last_seq: seq, expires_at }
            .encode_frame(&mut frames.head, dest.id(), 0, 0);
    }
    stage(ctx, dest, frames, wait).map(|_| ())
}

/// Finishes moves that a crash interrupted: the copy is there, so the original goes.
pub(crate) fn finish(catalog: &Arc<Catalog>) {
    let mut held: Vec<(Arc<Topic>, Keys)> = Vec::new();
    catalog.table.loaded.each(|t| {
        let keys = t.state.read().dedupe.as_ref().map(|d| d.pinned()).unwrap_or_default();
        if !keys.is_empty() {
            held.push((t.clone(), keys));
        }
    });
    for (dest, keys) in held {
        if let Err(e) = finish_into(catalog, &dest, &keys) {
            log::warn!("topic {:?}: interrupted moves into it stay unfinished: {e}", dest.name);
        }
    }
}

fn finish_into(catalog: &Catalog, dest: &Arc<Topic>, keys: &[(u128, Remembered)]) -> Result<()> {
    let copies: Vec<u64> = keys.iter().map(|(_, r)| r.first_seq).collect();
    let (batch, slots) = fetch(catalog.ctx(), dest, &copies, true)?;
    for ((key, _), slot) in keys.iter().zip(slots) {
        let (id, seq) = origin_of(*key);
        let Some(source) = catalog.by_id(id)?.filter(|t| t.life() == Life::Live) else {
            continue;
        };
        if source.state.read().may_live(seq) {
            let copy = slot.and_then(|slot| batch.get(slot));
            let why =
                copy.map_or(RemovalReason::REQUESTED, |c| job_meta::why(c.meta, &source.name, seq));
            delete::delete_seqs(catalog.ctx(), &source, &[seq], why)?;
        }
        catalog.ctx().wal.sync(catalog.ctx().shard(id))?;
    }
    let keys: Vec<(u128, u64)> = keys.iter().map(|(k, r)| (*k, r.first_seq)).collect();
    release(catalog.ctx(), dest, &keys, Wait::Bounded)?;
    catalog.ctx().wal.drive(catalog.ctx().shard(dest.id()));
    Ok(())
}
