//! The verbs of an embedded engine over bytes: requests of this process, without a socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use topics_engine::Engine;
use topics_env::Clock;
use topics_service::{Reply, Request, Service, Sink, Verb};
use topics_wire::{Grant, Limits};

/// The replies that came after their call, by token.
#[derive(Default)]
struct Replies {
    arrived: Mutex<HashMap<u64, Reply>>,
    changed: Condvar,
}

impl Replies {
    fn wait(&self, token: u64) -> Reply {
        let mut arrived = self.arrived.lock();
        loop {
            if let Some(reply) = arrived.remove(&token) {
                return reply;
            }
            self.changed.wait(&mut arrived);
        }
    }
}

impl Sink for Replies {
    fn reply(&self, token: u64, reply: Reply) {
        self.arrived.lock().insert(token, reply);
        self.changed.notify_all();
    }

    // No stream is open here.
    fn wake(&self, _: u64) {}
}

/// A request that its thread owns.
pub(crate) struct LocalRequest {
    pub verb: Verb,
    pub name: String,
    pub subresource: String,
    pub query: Vec<u8>,
    pub body: Vec<u8>,
    /// Answer metrics with JSON.
    pub json: bool,
}

/// The service of one engine for the threads of this process.
pub(crate) struct LocalService {
    service: Arc<Service>,
    replies: Arc<Replies>,
    last: AtomicU64,
    grant: Grant,
}

impl LocalService {
    pub fn new(engine: Engine, clock: Arc<dyn Clock>) -> Self {
        let replies = Arc::new(Replies::default());
        let service = Service::local(engine, clock, Limits::default(), replies.clone());
        Self { service, replies, last: AtomicU64::new(0), grant: Grant::all() }
    }

    /// Runs a request in the calling thread, which waits for its reply.
    pub fn call(&self, request: &LocalRequest) -> Reply {
        let token = self.last.fetch_add(1, Ordering::Relaxed);
        let r = Request {
            verb: request.verb,
            name: &request.name,
            subresource: &request.subresource,
            query: &request.query,
            body: &request.body,
            grant: &self.grant,
            json: request.json,
            token,
            ..Request::default()
        };
        let Some(reply) = self.service.call(&r) else {
            if self.service.staged() {
                self.service.flush();
            }
            return self.replies.wait(token);
        };
        reply
    }
}
