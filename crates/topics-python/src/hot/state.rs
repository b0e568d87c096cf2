//! The state of a hot connection, and the connections that wait.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_service::Reply;

use super::Connection;
use crate::http::Http;

/// Connections that continue in one turn of the loop; the others continue in the next one.
const TURN_CONNECTIONS: usize = 64;

/// The connections that wait.
#[derive(Default)]
pub(crate) struct WaitingConnections {
    /// For a reply, by the token of the request.
    pub(super) replies: Mutex<HashMap<u64, Py<Connection>>>,
    /// For the next turn of the loop, with requests that were received.
    pub(super) yielded: Mutex<VecDeque<Py<Connection>>>,
}

impl WaitingConnections {
    /// Serves the connections that waited for this turn. Returns whether others wait for the next one.
    pub fn serve_yielded(&self, py: Python<'_>) -> bool {
        let due: Vec<_> = {
            let mut yielded = self.yielded.lock();
            let count = yielded.len().min(TURN_CONNECTIONS);
            yielded.drain(..count).collect()
        };
        for connection in &due {
            Connection::resume(connection.bind(py));
        }
        !self.yielded.lock().is_empty()
    }

    /// Sends a reply to the connection that waits for it; returns the reply when none does.
    pub fn deliver(&self, py: Python<'_>, token: u64, reply: Reply) -> Option<Reply> {
        let found = self.replies.lock().remove(&token);
        match found {
            Some(connection) => {
                Connection::on_reply(connection.bind(py), &reply);
                None
            }
            None => Some(reply),
        }
    }
}

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first request.
    First,
    /// The rest of a body.
    Body,
    /// The reply of the engine.
    Busy,
    /// The next request.
    Next,
    /// The client to acknowledge every byte; the transport is closed.
    Closed,
}

/// A request whose reply comes later: its token, and where to cancel it.
pub(super) struct PendingRequest {
    pub token: u64,
    pub http: Py<Http>,
}

/// The request that is being answered.
pub(super) struct CurrentRequest {
    pub verb: &'static str,
    pub start_ns: u64,
    /// Its `X-Request-Id`.
    pub id: Option<Box<[u8]>>,
}

pub(super) struct Io {
    pub transport: Option<Py<PyAny>>,
    /// Received bytes of requests without an answer.
    pub buffer: Vec<u8>,
    /// Bytes of the request at the start of `buffer`, once its head is known.
    pub need: usize,
    /// The request whose reply comes later.
    pub pending: Option<PendingRequest>,
    /// The label whose slot the current request holds.
    pub slot: Option<Py<PyAny>>,
    /// Bytes of the current body that are reserved in the budget of all bodies.
    pub received: usize,
    pub current: Option<CurrentRequest>,
    pub phase: Phase,
    pub since: u64,
    /// The tick at which a closing connection is aborted.
    pub close_by: u64,
    pub paused: bool,
    /// The connection has had its part of this turn of the loop, and waits for the next one.
    pub yielded: bool,
    /// Bytes of the transport that count as unsent.
    pub unsent: u64,
    /// Its bytes at the last check for progress, and the tick of that.
    pub unsent_checked: (u64, u64),
    /// The connection closes after the current reply.
    pub closes_after_reply: bool,
}

impl Io {
    /// Whether received requests wait, for a reply or for the next turn of the loop.
    pub fn waits(&self) -> bool {
        self.yielded || self.phase == Phase::Busy
    }
}
