//! What a recovery must show, given what had been called and answered. Pure: notes and a probe's
//! findings in, problems out.
//!
//! * `records`: what was written and shown stays as it was (I1, I2, I4, I5).
//! * `copies`: routers (I7).
//! * `jobs`: leases, places, order of jobs (I6).
//! * `cursors`: consumers (I8).
//! * `units`: transactions (I5).

mod copies;
mod cursors;
mod jobs;
mod records;
mod units;

use super::note::Past;
use super::see::Seen;

/// Everything that is wrong with a recovery.
pub fn judge(past: &Past<'_>, seen: &Seen) -> Vec<String> {
    let mut out = seen.problems.clone();
    if out.iter().any(|p| p.contains("open is refused")) {
        return out;
    }
    records::judge(past, seen, &mut out);
    copies::judge(past, seen, &mut out);
    if let Some(queue) = &seen.queue {
        jobs::judge(past, queue, &mut out);
    }
    cursors::judge(past, seen, &mut out);
    if let Some(txns) = &seen.txns {
        units::judge(past, seen, txns, &mut out);
    }
    out
}
