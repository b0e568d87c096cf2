//! Completions on their way from engine threads to an event loop: a lock-free queue and one
//! descriptor, which is signalled only when it is not already.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::SegQueue;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use topics_wire::service::{Reply, Service, Sink};

use crate::hot::Waiting;

/// A completion.
enum Done {
    /// The reply of a call.
    Reply(u64, Reply),
    /// A waiting read is to look again.
    Due(u64),
}

/// The queue and its descriptor.
pub(crate) struct Queue {
    done: SegQueue<Done>,
    /// Whether the loop knows that there is something, or is about to look anyway.
    signalled: AtomicBool,
    signal: Signal,
    /// The hot connections that wait for a reply.
    pub hot: Waiting,
}

impl Queue {
    pub fn new() -> std::io::Result<Arc<Self>> {
        let (done, signalled) = (SegQueue::new(), AtomicBool::new(false));
        let (signal, hot) = (Signal::new()?, Waiting::default());
        Ok(Arc::new(Self { done, signalled, signal, hot }))
    }

    fn push(&self, done: Done) {
        self.done.push(done);
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.signal.raise();
        }
    }

    /// Runs `work` on the loop's thread, which drains next: until then nobody need signal.
    pub fn quietly(&self, work: impl FnOnce()) {
        let known = self.signalled.swap(true, Ordering::AcqRel);
        work();
        if !known {
            self.signalled.swap(false, Ordering::AcqRel);
        }
    }

    /// Everything that is there. The signal is lowered before the flag, and the flag before the
    /// queue is emptied: what is pushed before is popped here, what is pushed after signals again.
    fn drain(&self, service: &Arc<Service>) -> Vec<(u64, Reply)> {
        if self.signalled.load(Ordering::Acquire) {
            self.signal.lower();
            self.signalled.swap(false, Ordering::AcqRel);
        }
        // Bounded, so that reads which keep waking do not keep the loop.
        let most = self.done.len();
        let mut out = Vec::with_capacity(most);
        for _ in 0..most {
            match self.done.pop() {
                Some(Done::Reply(token, reply)) => out.push((token, reply)),
                Some(Done::Due(token)) => {
                    out.extend(service.resume(token).map(|reply| (token, reply)));
                }
                None => break,
            }
        }
        if !self.done.is_empty() && !self.signalled.swap(true, Ordering::AcqRel) {
            self.signal.raise();
        }
        out
    }
}

impl Sink for Queue {
    fn reply(&self, token: u64, reply: Reply) {
        self.push(Done::Reply(token, reply));
    }

    fn due(&self, token: u64) {
        self.push(Done::Due(token));
    }
}

/// Something a loop can wait for.
#[cfg(target_os = "linux")]
struct Signal(OwnedFd);

#[cfg(target_os = "linux")]
impl Signal {
    fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    fn raise(&self) {
        // A full counter is a raised signal.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Something a loop can wait for.
#[cfg(not(target_os = "linux"))]
struct Signal {
    read: OwnedFd,
    write: OwnedFd,
}

#[cfg(not(target_os = "linux"))]
impl Signal {
    fn new() -> std::io::Result<Self> {
        let (read, write) = rustix::pipe::pipe()?;
        for fd in [&read, &write] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(Self { read, write })
    }

    fn raise(&self) {
        let _ = rustix::io::write(&self.write, &[1]);
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.read, &mut [0u8; 64]);
    }

    fn fd(&self) -> i32 {
        self.read.as_raw_fd()
    }
}

/// The loop's end of the queue.
#[pyclass(frozen)]
pub(crate) struct Bridge {
    pub queue: Arc<Queue>,
    pub service: Arc<Service>,
}

#[pymethods]
impl Bridge {
    #[getter]
    fn fd(&self) -> i32 {
        self.queue.signal.fd()
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // Waiting reads are read here; small replies are not worth releasing the GIL, but nobody
        // knows their number beforehand.
        let done = py.detach(|| self.queue.drain(&self.service));
        let mut items = Vec::new();
        for (token, reply) in done {
            if let Some(reply) = self.queue.hot.settle(py, token, reply) {
                items.push((token, reply.status, PyBytes::new(py, &reply.body)));
            }
        }
        PyList::new(py, items)
    }
}
