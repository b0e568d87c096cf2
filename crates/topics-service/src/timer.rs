//! Heartbeats and deadlines of streams: one thread that wakes tokens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use topics_env::{Clock, Guards};

use super::Sink;

#[derive(Default)]
struct State {
    /// Deadline (monotonic ns) and token.
    due: BTreeSet<(u64, u64)>,
    running: bool,
    stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    clock: Arc<dyn Clock>,
    sink: Arc<dyn Sink>,
    guards: Arc<Guards>,
}

/// Deadlines by token. The thread starts with the first deadline.
pub(super) struct Timer(Arc<Shared>);

impl Timer {
    pub fn new(clock: Arc<dyn Clock>, sink: Arc<dyn Sink>, guards: Arc<Guards>) -> Self {
        let (state, wake) = (Mutex::new(State::default()), Condvar::new());
        Self(Arc::new(Shared { state, wake, clock, sink, guards }))
    }

    /// Calls [`Sink::wake`] with the token at `at_ns`.
    pub fn set(&self, at_ns: u64, token: u64) {
        let mut s = self.0.state.lock();
        if s.stopped {
            drop(s);
            return self.0.sink.wake(token);
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
                    // Without a timer thread no call may wait.
                    log::error!("no thread for the timer: {e}");
                    s.due.remove(&(at_ns, token));
                    drop(s);
                    self.0.sink.wake(token);
                }
            }
        } else if earliest {
            self.0.wake.notify_one();
        }
    }

    /// Removes a deadline.
    pub fn unset(&self, at_ns: u64, token: u64) {
        self.0.state.lock().due.remove(&(at_ns, token));
    }

    /// Ends the thread. A deadline that is set later wakes its token immediately.
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
                    let due = || self.sink.wake(token);
                    // A panic of one token must not stop the deadlines of the others.
                    let _ = self.guards.run("timer", || format!("token {token}"), due);
                }
                Some((at, _)) => {
                    self.wake.wait_for(&mut s, Duration::from_nanos(at - now));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use topics_sim::SimClock;

    use super::*;
    use crate::Reply;

    struct Odd(Mutex<Sender<u64>>);

    impl Sink for Odd {
        fn reply(&self, _: u64, _: Reply) {}

        fn wake(&self, token: u64) {
            assert!(token % 2 == 1, "a bug in what is due");
            self.0.lock().send(token).unwrap();
        }
    }

    #[test]
    fn a_deadline_that_panics_ends_no_other() {
        let guards = Arc::<Guards>::default();
        let (sender, due) = channel();
        let sink = Arc::new(Odd(Mutex::new(sender)));
        let timer = Timer::new(Arc::new(SimClock::new(0)), sink, guards.clone());
        for token in [2, 3, 4, 5] {
            timer.set(0, token);
        }
        let wait = Duration::from_secs(60);
        assert_eq!([due.recv_timeout(wait), due.recv_timeout(wait)], [Ok(3), Ok(5)]);
        timer.stop();
        assert_eq!((guards.panics()[0].name, guards.panics()[0].count), ("timer", 2));
    }
}
