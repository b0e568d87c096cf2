//! One thread that says when waiting reads are due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use topics_env::Clock;

use super::Sink;

#[derive(Default)]
struct State {
    /// When (monotonic ns), which token.
    due: BTreeSet<(u64, u64)>,
    running: bool,
    stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    clock: Arc<dyn Clock>,
    sink: Arc<dyn Sink>,
}

/// Deadlines of tokens. The thread starts with the first one.
pub(super) struct Timer(Arc<Shared>);

impl Timer {
    pub fn new(clock: Arc<dyn Clock>, sink: Arc<dyn Sink>) -> Self {
        let (state, wake) = (Mutex::new(State::default()), Condvar::new());
        Self(Arc::new(Shared { state, wake, clock, sink }))
    }

    /// Calls [`Sink::due`] with the token at this time.
    pub fn set(&self, at_ns: u64, token: u64) {
        let mut s = self.0.state.lock();
        if s.stopped {
            drop(s);
            return self.0.sink.due(token);
        }
        let earliest = s.due.first().is_none_or(|&(first, _)| at_ns < first);
        s.due.insert((at_ns, token));
        if !s.running {
            let shared = self.0.clone();
            let spawned =
                std::thread::Builder::new().name("topics-timer".into()).spawn(move || shared.run());
            match spawned {
                Ok(_) => s.running = true,
                Err(e) => {
                    // Without a timer nothing may wait.
                    log::error!("no thread for the timer: {e}");
                    s.due.remove(&(at_ns, token));
                    drop(s);
                    self.0.sink.due(token);
                }
            }
        } else if earliest {
            self.0.wake.notify_one();
        }
    }

    /// Forgets a deadline.
    pub fn unset(&self, at_ns: u64, token: u64) {
        self.0.state.lock().due.remove(&(at_ns, token));
    }

    /// Ends the thread; what is set from now on is due at once.
    pub fn stop(&self) {
        self.0.state.lock().stopped = true;
        self.0.wake.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut s = self.state.lock();
        while !s.stopped {
            let now = self.clock.mono_ns();
            match s.due.first().copied() {
                None => self.wake.wait(&mut s),
                Some((at, token)) if at <= now => {
                    s.due.pop_first();
                    self.sink.due(token);
                }
                Some((at, _)) => {
                    self.wake.wait_for(&mut s, Duration::from_nanos(at - now));
                }
            }
        }
    }
}
