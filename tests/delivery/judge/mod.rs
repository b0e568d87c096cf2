//! The oracle of the delivery suite: what a recovery must serve, given the calls and their answers.
//! Pure: takes notes and the results of a probe, returns problems.
//!
//! * `records`: written and observed records stay unchanged (I1, I2, I4, I5).
//! * `copies`: routers (I7).
//! * `jobs`: leases, locations and order of jobs (I6).
//! * `cursors`: consumers (I8).
//! * `units`: transactions (I5).

mod copies;
mod cursors;
mod jobs;
mod records;
mod units;

use super::note::Past;
use super::see::Seen;

/// All problems of a recovery.
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
