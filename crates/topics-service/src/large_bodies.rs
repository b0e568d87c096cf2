//! Calls with large bodies: a worker thread parses them, so that the event loop goes on.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::Error;
use topics_wire::write::Body;
use topics_wire::{Failure, Grant, TraceContext};

use super::{Reply, Request, Service, Verb};

/// Larger bodies and messages are parsed on a worker thread. Smaller ones take less than about half
/// a millisecond.
pub const LARGE_BODY: usize = 256 << 10;

/// A request that outlives its call.
pub(super) struct OwnedRequest {
    verb: Verb,
    name: String,
    subresource: String,
    query: Vec<u8>,
    body: Bytes,
    key: Vec<u8>,
    grant: Grant,
    kind: Body,
    arrow: bool,
    json: bool,
    trace: Option<TraceContext>,
    token: u64,
}

impl OwnedRequest {
    pub fn of(r: &Request<'_>, body: Bytes) -> Self {
        Self {
            verb: r.verb,
            name: r.name.to_owned(),
            subresource: r.subresource.to_owned(),
            query: r.query.to_vec(),
            body,
            key: r.key.to_vec(),
            grant: r.grant.clone(),
            kind: r.kind,
            arrow: r.arrow,
            json: r.json,
            trace: r.trace.cloned(),
            token: r.token,
        }
    }

    fn as_request(&self) -> Request<'_> {
        Request {
            verb: self.verb,
            name: &self.name,
            subresource: &self.subresource,
            query: &self.query,
            body: &self.body,
            owned_body: Some(&self.body),
            key: &self.key,
            grant: &self.grant,
            kind: self.kind,
            arrow: self.arrow,
            json: self.json,
            trace: self.trace.as_ref(),
            token: self.token,
        }
    }
}

/// The calls that a worker thread starts: whether their client has left meanwhile.
#[derive(Default)]
pub(super) struct LargeCalls(Mutex<HashMap<u64, bool>>);

impl LargeCalls {
    pub fn enter(&self, token: u64) {
        self.0.lock().insert(token, false);
    }
}

impl Service {
    /// Starts a call on a worker thread; its reply goes to the sink.
    pub(super) fn call_on_worker(self: &Arc<Self>, owned: OwnedRequest, start_ns: u64) {
        let (service, token) = (self.clone(), owned.token);
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.large_calls.enter(token);
        self.pool.run(Box::new(move || {
            let call = || service.answer(&owned.as_request(), start_ns);
            let reply = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
                Some(Failure::from(Error::Internal("a verb panicked".into())).into())
            });
            // The loop does not know of writes that are staged here.
            if service.staged() {
                service.flush();
            }
            service.pending.fetch_sub(1, Ordering::Relaxed);
            service.finish_large_call(token, reply);
        }));
    }

    pub(super) fn finish_large_call(self: &Arc<Self>, token: u64, reply: Option<Reply>) {
        let left = self.large_calls.0.lock().remove(&token) == Some(true);
        if left {
            // The call may wait by now: the client left before that.
            self.cancel(token);
        }
        if let Some(reply) = reply {
            self.sink.reply(token, reply);
        }
    }

    /// Notes that the client of a call has left; false when no worker thread is starting the call.
    pub(super) fn leave_large_call(&self, token: u64) -> bool {
        match self.large_calls.0.lock().get_mut(&token) {
            Some(left) => {
                *left = true;
                true
            }
            None => false,
        }
    }
}
