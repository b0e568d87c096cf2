//! The metrics of an engine with a remote.

use std::fmt::Write;

use topics_engine::{REMOTE_OPS, REMOTE_OUTCOMES, RemoteSnapshot, RemoteState};

use super::{Row, head, quantile, samples};
use crate::object::Object;

fn gauges(r: &RemoteSnapshot) -> [Row; 3] {
    [
        ("pack_bytes", "Bytes of the packs", r.pack_bytes),
        ("archive_lag_bytes", "Bytes of sealed segments that no pack holds", r.archive_lag_bytes),
        ("remote_dead_objects", "Ranges of objects that wait to be deleted", r.dead),
    ]
}

fn seconds(r: &RemoteSnapshot) -> f64 {
    r.archive_lag_ms as f64 / 1e3
}

const DELETED: &str = "Objects that were deleted because nothing needs them any more";
const LAST_BASE: &str = "remote_last_base_timestamp_seconds";

fn base_seconds(r: &RemoteSnapshot) -> f64 {
    r.last_base_ms as f64 / 1e3
}

pub(super) fn write_text(out: &mut String, r: &RemoteSnapshot) -> std::fmt::Result {
    for (name, help, value) in gauges(r) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {value}")?;
    }
    head(out, "remote_deleted_total", DELETED, "counter")?;
    writeln!(out, "topics_remote_deleted_total {}", r.deleted)?;
    head(out, LAST_BASE, "Time of the newest base, 0: none since the open", "gauge")?;
    writeln!(out, "topics_{LAST_BASE} {}", base_seconds(r))?;
    head(out, "remote_state", "1 for the state of the remote, 0 for the others", "gauge")?;
    for state in RemoteState::ALL {
        let (name, is_it) = (state.name(), u8::from(state == r.state));
        writeln!(out, "topics_remote_state{{state=\"{name}\"}} {is_it}")?;
    }
    head(out, "archive_lag_seconds", "How long a sealed segment has waited for its pack", "gauge")?;
    writeln!(out, "topics_archive_lag_seconds {}", seconds(r))?;
    head(out, "remote_requests_total", "Requests to the remote", "counter")?;
    for (op, counts) in REMOTE_OPS.iter().zip(&r.requests.outcomes) {
        for (outcome, count) in REMOTE_OUTCOMES.iter().zip(counts) {
            let labels = format!("op=\"{op}\",outcome=\"{outcome}\"");
            writeln!(out, "topics_remote_requests_total{{{labels}}} {count}")?;
        }
    }
    head(out, "remote_bytes_total", "Bytes of objects sent to the remote and received", "counter")?;
    for (direction, bytes) in directions(r) {
        writeln!(out, "topics_remote_bytes_total{{direction=\"{direction}\"}} {bytes}")?;
    }
    head(out, "remote_request_seconds", "Time of requests to the remote", "histogram")?;
    for (op, h) in REMOTE_OPS.iter().zip(&r.requests.seconds) {
        samples(out, "remote_request_seconds", &format!("op=\"{op}\""), h)?;
    }
    Ok(())
}

fn directions(r: &RemoteSnapshot) -> [(&'static str, u64); 2] {
    [("sent", r.requests.sent_bytes), ("received", r.requests.received_bytes)]
}

pub(super) fn write_json(o: &mut Object, r: &RemoteSnapshot) {
    for (name, _, value) in gauges(r) {
        o.int(name, value);
    }
    o.int("remote_deleted", r.deleted);
    o.raw(LAST_BASE, base_seconds(r).to_string().as_bytes());
    o.name("remote_state", r.state.name());
    if let Some(reason) = &r.reason {
        o.name("remote_reason", reason);
    }
    o.raw("archive_lag_seconds", seconds(r).to_string().as_bytes());
    let mut requests = Object::new(512);
    for (i, op) in REMOTE_OPS.iter().enumerate() {
        let (counts, h) = (&r.requests.outcomes[i], &r.requests.seconds[i]);
        let mut inner = Object::new(96);
        for (outcome, count) in REMOTE_OUTCOMES.iter().zip(counts).filter(|(_, n)| **n > 0) {
            inner.int(outcome, *count);
        }
        inner.int("p50_ns", quantile(h, 50)).int("p99_ns", quantile(h, 99));
        requests.raw(op, &inner.finish());
    }
    o.raw("remote_requests", &requests.finish());
    let mut bytes = Object::new(64);
    for (direction, n) in directions(r) {
        bytes.int(direction, n);
    }
    o.raw("remote_bytes", &bytes.finish());
}
