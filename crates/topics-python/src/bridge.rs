//! Replies of the routes on their way to an event loop.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use topics_wire::service::{Reply, Service, Sink};

use crate::completions::Completions;

/// A completion.
pub(crate) enum Done {
    /// The reply of a call.
    Reply(u64, Reply),
    /// A waiting read is to look again.
    Due(u64),
}

impl Sink for Completions<Done> {
    fn reply(&self, token: u64, reply: Reply) {
        self.push(Done::Reply(token, reply));
    }

    fn due(&self, token: u64) {
        self.push(Done::Due(token));
    }
}

/// The loop's end of the queue.
#[pyclass(frozen)]
pub(crate) struct Bridge {
    pub queue: Arc<Completions<Done>>,
    pub service: Arc<Service>,
}

impl Bridge {
    fn replies(&self) -> Vec<(u64, Reply)> {
        let mut out = Vec::new();
        self.queue.drain(|done| match done {
            Done::Reply(token, reply) => out.push((token, reply)),
            Done::Due(token) => {
                out.extend(self.service.resume(token).map(|reply| (token, reply)));
            }
        });
        out
    }
}

#[pymethods]
impl Bridge {
    #[getter]
    fn fd(&self) -> i32 {
        self.queue.fd()
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // Waiting reads are read here; small replies are not worth releasing the GIL, but nobody
        // knows their number beforehand.
        let done = py.detach(|| self.replies());
        let items: Vec<_> = done
            .into_iter()
            .map(|(token, reply)| (token, reply.status, PyBytes::new(py, &reply.body)))
            .collect();
        PyList::new(py, items)
    }
}
