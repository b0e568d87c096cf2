//! A queue's section of its topic's snapshot.
//!
//! ```text
//! dead_lettered u64, expired u64, counted u64, number of jobs u32
//! job: seq u64, kind u8 (0 waiting, 1 leased, 2 delayed; 4 more: promoted), deliveries u32, ms u64,
//!      lease id u64, node_len u16, node, error_len u16, error
//! ```
//!
//! `ms` is the whole time of a lease (it begins anew at open) and the rest of a delay; a delayed job
//! has the id of its latest lease. A promoted job does not wait for the due time of its record. When
//! leases are durable the jobs are those that are leased, were delivered, wait after a nack, or are
//! promoted; otherwise the promoted ones, as if they had never been delivered.
//! `counted` is the lsn up to which the counts reflect the log.

use topics_storage::snapshot::ReplayPos;

use super::job::{Job, JobHistory, JobView};
use super::machine::Queue;
use super::tally::Tally;
use crate::types::error::{Error, Result};

/// The version of the encoding.
pub(crate) const VERSION: u16 = 1;
/// Added to the kind of a promoted job.
const PROMOTED: u8 = 4;

/// The section of a queue that reflects the log up to `lsn`; `None` when it would say nothing.
pub(crate) fn encode(queue: &Queue, durable: bool, mono: u64, lsn: u64) -> Option<Vec<u8>> {
    let mut jobs = Vec::new();
    let mut n = 0u32;
    let tally = queue.tally;
    let is_written = |j: &Job| durable || j.promoted;
    for (seq, job) in queue.jobs().filter(|(_, j)| is_written(j)) {
        let (shown, deliveries, promoted) = (job.view(), job.deliveries, job.promoted);
        let (kind, deliveries, ms, id, node) = match &shown {
            _ if !durable => (0, 0, 0, 0, &[][..]),
            // Not in the log yet: what was before.
            JobView::Leased { reserved: true, .. } => (0, deliveries - 1, 0, 0, &[][..]),
            JobView::Leased { id, node, lease_ms, .. } => {
                (1, deliveries, *lease_ms, *id, &node[..])
            }
            JobView::Delayed(until) => {
                (2, deliveries, until.saturating_sub(mono), job.last, &[][..])
            }
            JobView::Ready | JobView::Dead | JobView::Scheduled(_) => {
                (0, deliveries, 0, 0, &[][..])
            }
        };
        if kind == 0 && deliveries == 0 && !promoted {
            continue;
        }
        n += 1;
        jobs.extend_from_slice(&seq.to_le_bytes());
        jobs.push(kind + if promoted { PROMOTED } else { 0 });
        jobs.extend_from_slice(&deliveries.to_le_bytes());
        jobs.extend_from_slice(&ms.to_le_bytes());
        jobs.extend_from_slice(&id.to_le_bytes());
        push_bytes(&mut jobs, node);
        let error = job.error.as_deref().filter(|_| durable);
        push_bytes(&mut jobs, error.unwrap_or_default().as_bytes());
    }
    if n == 0 && tally.is_zero() {
        return None;
    }
    let mut out = Vec::with_capacity(28 + jobs.len());
    out.extend_from_slice(&tally.dead_lettered.to_le_bytes());
    out.extend_from_slice(&tally.expired.to_le_bytes());
    out.extend_from_slice(&lsn.to_le_bytes());
    out.extend_from_slice(&n.to_le_bytes());
    out.extend_from_slice(&jobs);
    Some(out)
}

/// Appends a node or an error, neither of which is longer than its length says.
fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Reads what [`encode`] wrote, at monotonic time `mono`, for a log of this layout. Anything else is an
/// error.
pub(crate) fn decode(bytes: &[u8], mono: u64, layout: u64) -> Result<Queue> {
    let mut r = bytes;
    let queue = read(&mut r, mono, layout).filter(|_| r.is_empty());
    queue.ok_or_else(|| Error::Corrupt {
        file: "a queue's section of the snapshot".into(),
        offset: 0,
        detail: "it cannot be parsed: run verify".into(),
    })
}

fn take<const N: usize>(r: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = r.split_first_chunk::<N>()?;
    *r = rest;
    Some(*head)
}

fn read_tally(r: &mut &[u8], layout: u64) -> Option<Tally> {
    let [dead_lettered, expired] = [u64::from_le_bytes(take(r)?), u64::from_le_bytes(take(r)?)];
    let counted = ReplayPos { layout, lsn: u64::from_le_bytes(take(r)?) };
    Some(Tally { dead_lettered, expired, counted })
}

fn read(r: &mut &[u8], mono: u64, layout: u64) -> Option<Queue> {
    let mut queue = Queue::default();
    queue.tally = read_tally(r, layout)?;
    for _ in 0..u32::from_le_bytes(take(r)?) {
        let seq = u64::from_le_bytes(take(r)?);
        let [kind] = take(r)?;
        let promoted = kind & PROMOTED != 0;
        let deliveries = u32::from_le_bytes(take(r)?);
        let ms = u64::from_le_bytes(take(r)?);
        let id = u64::from_le_bytes(take(r)?);
        let node = take_bytes(r)?;
        let error = std::str::from_utf8(take_bytes(r)?).ok()?;
        let until = mono.saturating_add(ms);
        let shown = match kind & !PROMOTED {
            0 => JobView::Ready,
            1 => JobView::Leased {
                id,
                node: node.into(),
                lease_ms: ms,
                deadline: until,
                reserved: false,
            },
            2 => JobView::Delayed(until),
            _ => return None,
        };
        let error = (!error.is_empty()).then(|| error.into());
        queue.restore(seq, JobHistory { deliveries, error, promoted }, id, shown);
    }
    Some(queue)
}

fn take_bytes<'a>(r: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::from(u16::from_le_bytes(take(r)?));
    let (bytes, rest) = r.split_at_checked(len)?;
    *r = rest;
    Some(bytes)
}
