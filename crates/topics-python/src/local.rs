//! The verbs of an embedded engine over bytes: requests of this process, without a socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use topics_engine::{Consumer, Engine};
use topics_env::Env;
use topics_service::{LARGE_BODY, Reply, Request, Service, Sink, Verb};
use topics_wire::{Failure, Grant, Limits};

use crate::remote::put_backup;

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
    pub fn new(engine: Engine, env: &Env) -> Self {
        let replies = Arc::new(Replies::default());
        // A caller of this process has the bounds of the engine only.
        let limits = Limits {
            body_bytes: usize::MAX,
            batch_records: usize::MAX,
            record_bytes: usize::MAX,
            meta_bytes: usize::MAX,
            tag_bytes: usize::MAX,
            node_bytes: usize::MAX,
            limit: usize::MAX,
            claim: usize::MAX,
            watch_topics: usize::MAX,
        };
        let (clock, put) = (env.clock.clone(), put_backup(env));
        let service = Service::local(engine, clock, limits, replies.clone(), put);
        Self { service, replies, last: AtomicU64::new(0), grant: Grant::all() }
    }

    /// The handle of a consumer for a reader, or for those that name none.
    pub fn consumer(
        &self,
        topic: &str,
        name: &str,
        reader: Option<&str>,
    ) -> Result<Arc<Consumer>, Failure> {
        self.service.consumer_handle(topic, name, reader)
    }

    /// Forgets a reader, which reads no more.
    pub fn forget_reader(&self, topic: &str, name: &str, reader: &str) {
        self.service.forget_reader(topic, name, reader);
    }

    /// Runs a request in the calling thread, which waits for its reply.
    pub fn call(&self, request: LocalRequest) -> Reply {
        let token = self.last.fetch_add(1, Ordering::Relaxed);
        let r = Request {
            verb: request.verb,
            name: &request.name,
            subresource: &request.subresource,
            query: &request.query,
            grant: &self.grant,
            json: request.json,
            token,
            ..Request::default()
        };
        let reply = if request.body.len() > LARGE_BODY {
            self.service.call_with_body(&r, Bytes::from(request.body))
        } else {
            self.service.call(&Request { body: &request.body, ..r })
        };
        let Some(reply) = reply else {
            if self.service.staged() {
                self.service.flush();
            }
            return self.replies.wait(token);
        };
        reply
    }
}
