//! The metrics of an engine with a remote.

use std::fmt::Write;

use topics_engine::{MetricsSnapshot, REMOTE_OPS, REMOTE_OUTCOMES, RemoteSnapshot, RemoteState};

use super::{Row, head, quantile, samples};
use crate::object::Object;

/// Name, without `_total`, help and value of each counter.
fn counters(m: &MetricsSnapshot, r: &RemoteSnapshot) -> [Row; 4] {
    [
        ("remote_rounds", "Rounds of the log shipped to the object store", m.ship_rounds),
        ("remote_round_bytes", "Bytes of the log in them", m.ship_bytes),
        (
            "remote_chain_broken",
            "Times that the log to ship was given up for want of space",
            m.ship_chain_broken,
        ),
        ("remote_deleted", "Objects deleted because nothing needs them any more", r.deleted),
    ]
}

fn gauges(m: &MetricsSnapshot, r: &RemoteSnapshot) -> [Row; 4] {
    [
        ("remote_lag_bytes", "Bytes of the log that are not shipped", m.ship_lag_bytes),
        ("pack_bytes", "Bytes of the packs", r.pack_bytes),
        ("archive_lag_bytes", "Bytes of sealed segments that no pack holds", r.archive_lag_bytes),
        ("remote_dead_objects", "Ranges of objects that wait to be deleted", r.dead),
    ]
}

/// Name, help and value of each gauge in seconds, in milliseconds.
fn seconds(m: &MetricsSnapshot, r: &RemoteSnapshot) -> [Row; 4] {
    [
        (
            "remote_lag_seconds",
            "Age of the newest state that can be restored; 0 if nothing was logged since",
            m.ship_lag_ms,
        ),
        (
            "remote_last_success_timestamp_seconds",
            "Time of that state; 0: none since the open",
            m.ship_restorable_ms,
        ),
        (
            "remote_last_base_timestamp_seconds",
            "Time of the newest base, 0: none since the open",
            r.last_base_ms,
        ),
        (
            "archive_lag_seconds",
            "How long a sealed segment has waited for its pack",
            r.archive_lag_ms,
        ),
    ]
}

pub(super) fn write_text(
    out: &mut String,
    m: &MetricsSnapshot,
    r: &RemoteSnapshot,
) -> std::fmt::Result {
    for (name, help, value) in counters(m, r) {
        head(out, &format!("{name}_total"), help, "counter")?;
        writeln!(out, "topics_{name}_total {value}")?;
    }
    for (name, help, value) in gauges(m, r) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {value}")?;
    }
    for (name, help, ms) in seconds(m, r) {
        head(out, name, help, "gauge")?;
        writeln!(out, "topics_{name} {}", ms as f64 / 1e3)?;
    }
    head(out, "remote_state", "1 for the state of the remote, 0 for the others", "gauge")?;
    for state in RemoteState::ALL {
        let (name, is_it) = (state.name(), u8::from(state == r.state));
        writeln!(out, "topics_remote_state{{state=\"{name}\"}} {is_it}")?;
    }
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

pub(super) fn write_json(o: &mut Object, m: &MetricsSnapshot, r: &RemoteSnapshot) {
    for (name, _, value) in counters(m, r).into_iter().chain(gauges(m, r)) {
        o.int(name, value);
    }
    for (name, _, ms) in seconds(m, r) {
        o.raw(name, (ms as f64 / 1e3).to_string().as_bytes());
    }
    o.name("remote_state", r.state.name());
    if let Some(reason) = &r.reason {
        o.name("remote_reason", reason);
    }
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
