//! Delivers replies and wakes from engine threads to an event loop.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use topics_service::{Reply, Service, Sink, UnsentBytes};

use crate::hot::{StreamWriters, WaitingConnections};
use crate::signal_queue::SignalQueue;

pub(crate) enum LoopEvent {
    /// The reply of a call.
    Reply(u64, Reply),
    /// A waiting call or stream continues.
    Wake(u64),
    /// Streams or connections wait for the next turn of the loop.
    NextTurn,
}

/// The events of one loop, and the connections that they go to.
pub(crate) struct LoopQueue {
    /// Counts the replies from when they are built until their connection has them.
    pub unsent: Arc<UnsentBytes>,
    pub events: SignalQueue<LoopEvent>,
    /// The hot connections that wait.
    pub hot: WaitingConnections,
    /// The streams that `drain` writes to their transports.
    pub writers: StreamWriters,
}

impl LoopQueue {
    pub fn new(unsent: Arc<UnsentBytes>) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            unsent,
            events: SignalQueue::new()?,
            hot: WaitingConnections::default(),
            writers: StreamWriters::default(),
        }))
    }
}

impl Sink for LoopQueue {
    fn reply(&self, token: u64, reply: Reply) {
        self.unsent.add(reply.body.len() as u64);
        self.events.push(LoopEvent::Reply(token, reply));
    }

    fn wake(&self, token: u64) {
        self.events.push(LoopEvent::Wake(token));
    }
}

/// The receiving end of a [`LoopQueue`].
#[pyclass(frozen)]
pub(crate) struct Bridge {
    pub queue: Arc<LoopQueue>,
    pub service: Arc<Service>,
}

#[pymethods]
impl Bridge {
    #[getter]
    fn fd(&self) -> i32 {
        self.queue.events.fd()
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (mut replies, mut items, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        self.queue.events.drain(|event| match event {
            LoopEvent::Reply(token, reply) => replies.push((token, reply)),
            LoopEvent::Wake(token) => {
                streams.extend(self.service.has_stream(token).then_some(token))
            }
            LoopEvent::NextTurn => {}
        });
        for (token, reply) in replies {
            let size = reply.body.len() as u64;
            if let Some(reply) = self.queue.hot.deliver(py, token, reply) {
                items.push((token, reply.status, PyBytes::new(py, &reply.body)));
            }
            self.queue.unsent.remove(size);
        }
        let connections_wait = self.queue.hot.serve_yielded(py);
        if self.queue.writers.run(py, &mut streams) || connections_wait {
            self.queue.events.push(LoopEvent::NextTurn);
        }
        items.extend(streams.into_iter().map(|token| (token, 0, PyBytes::new(py, b""))));
        PyList::new(py, items)
    }
}
