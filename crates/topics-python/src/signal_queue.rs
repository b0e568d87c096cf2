//! A queue from engine threads to an event loop: lock-free, with one descriptor that is signalled only
//! while it is not signalled already.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::SegQueue;

/// The queue and its descriptor.
pub(crate) struct SignalQueue<T> {
    items: SegQueue<T>,
    /// Whether the descriptor is signalled, or the loop drains next anyway.
    signalled: AtomicBool,
    signal: Signal,
}

impl<T> SignalQueue<T> {
    pub fn new() -> std::io::Result<Self> {
        let (items, signalled) = (SegQueue::new(), AtomicBool::new(false));
        Ok(Self { items, signalled, signal: Signal::new()? })
    }

    /// The descriptor; readable when the queue has items.
    pub fn fd(&self) -> i32 {
        self.signal.fd()
    }

    pub fn push(&self, item: T) {
        self.items.push(item);
        self.signal_once();
    }

    fn signal_once(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            self.signal.raise();
        }
    }

    /// Runs `work` on the loop's thread without signals, because the loop drains next.
    pub fn without_signals(&self, work: impl FnOnce()) {
        let known = self.signalled.swap(true, Ordering::AcqRel);
        work();
        if !known {
            self.signalled.swap(false, Ordering::AcqRel);
        }
    }

    /// Passes the queued items to `each`. The signal is cleared before the flag, and the flag before
    /// the queue is read: an item pushed before is read here, one pushed later signals again.
    pub fn drain(&self, mut each: impl FnMut(T)) {
        if self.signalled.load(Ordering::Acquire) {
            self.signal.lower();
            self.signalled.swap(false, Ordering::AcqRel);
        }
        // Bounded, so that items which push further items do not block the loop.
        for _ in 0..self.items.len() {
            match self.items.pop() {
                Some(item) => each(item),
                None => break,
            }
        }
        if !self.items.is_empty() {
            self.signal_once();
        }
    }
}

/// A descriptor that a loop can wait for.
#[cfg(target_os = "linux")]
struct Signal(OwnedFd);

#[cfg(target_os = "linux")]
impl Signal {
    fn new() -> std::io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    fn raise(&self) {
        // The write fails only when the counter is full, which is signalled too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    fn lower(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A descriptor that a loop can wait for.
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
