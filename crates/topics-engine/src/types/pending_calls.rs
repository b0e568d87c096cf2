//! Calls that wait, without a thread for each: one table for an engine.
//!
//! A call is attempted when it comes. If it cannot end yet, it registers for what it waits for (a record,
//! a sync, a fetch, a lock) and is attempted again when that happens, or when its time is over. The thread
//! of the table makes these attempts; an engine without background threads makes them in its `tick`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_env::{Clock, Guards};

use super::wait::Callback;

/// Identifies a call that waits. 0: it did not have to.
pub type WaitId = u64;

/// Registers the callback for a change, and returns what removes it again.
pub(crate) type Register = Box<dyn FnOnce(Callback) -> Callback + Send>;

/// What a call does after an attempt.
pub(crate) enum Next {
    /// Nothing: it has called its completion.
    Done,
    /// It waits for a change until its time is over.
    Wait(Register),
    /// It waits for a change until this time, monotonic ns.
    WaitUntil(Register, u64),
    /// It waits for a change that comes in any case, however long that takes.
    WaitForSure(Register),
}

/// When an attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// In the time of the call.
    InTime,
    /// Its time is over: it must not return [`Next::Wait`].
    Late,
    /// Its wait was ended, or the engine closes: it must return [`Next::Done`] or [`Next::WaitForSure`].
    Ended,
}

/// One attempt.
pub(crate) type Attempt = Box<dyn FnMut(Turn) -> Next + Send>;

/// A call that waits.
struct PendingCall {
    /// `None` during an attempt.
    attempt: Option<Attempt>,
    /// When its time is over, monotonic ns.
    until: u64,
    /// Its entry in the timers.
    timer: Option<u64>,
    /// Removes its callback.
    unregister: Option<Callback>,
    /// It is in the list of those to attempt.
    notified: bool,
    /// Its change came during an attempt.
    missed: bool,
    /// Its next attempt is the last.
    ended: bool,
}

#[derive(Default)]
struct Inner {
    last_id: WaitId,
    calls: HashMap<WaitId, PendingCall>,
    notified: VecDeque<WaitId>,
    timers: BTreeSet<(u64, WaitId)>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

/// When a call is attempted without a notification.
enum Timer {
    OfCall,
    At(u64),
    Never,
}

fn turn_at(until: u64, now: u64) -> Turn {
    if until <= now { Turn::Late } else { Turn::InTime }
}

/// A call that is attempted now.
struct DueCall {
    id: WaitId,
    attempt: Attempt,
    turn: Turn,
    unregister: Option<Callback>,
}

impl Inner {
    /// Has a call attempted; false if that is known already.
    fn notify(&mut self, id: WaitId) -> bool {
        let Some(call) = self.calls.get_mut(&id) else { return false };
        if call.attempt.is_none() {
            call.missed = true;
            return false;
        }
        if call.notified {
            return false;
        }
        call.notified = true;
        self.notified.push_back(id);
        true
    }

    /// Takes out the next call to attempt.
    fn take_due(&mut self, now: u64) -> Option<DueCall> {
        loop {
            let id = self.notified.pop_front().or_else(|| {
                let (_, id) = self.timers.first().copied().filter(|t| t.0 <= now)?;
                Some(id)
            })?;
            let is_closed = self.closed;
            // A call that was cancelled meanwhile is in the list only.
            let Some(call) = self.calls.get_mut(&id) else { continue };
            call.notified = false;
            if let Some(at) = call.timer.take() {
                self.timers.remove(&(at, id));
            }
            let Some(attempt) = call.attempt.take() else { continue };
            let turn = match is_closed || call.ended {
                true => Turn::Ended,
                false => turn_at(call.until, now),
            };
            return Some(DueCall { id, attempt, turn, unregister: call.unregister.take() });
        }
    }

    /// Puts a call back that waits on. Returns what it holds if it was cancelled during the attempt.
    fn put_back(
        &mut self,
        id: WaitId,
        attempt: Attempt,
        timer: Timer,
        unregister: Callback,
    ) -> Option<(Attempt, Callback)> {
        let is_closed = self.closed;
        let Some(call) = self.calls.get_mut(&id) else { return Some((attempt, unregister)) };
        (call.attempt, call.unregister) = (Some(attempt), Some(unregister));
        call.timer = match timer {
            Timer::OfCall => Some(call.until),
            Timer::At(at) => Some(at),
            Timer::Never => None,
        };
        self.timers.extend(call.timer.map(|at| (at, id)));
        if std::mem::take(&mut call.missed) || is_closed || call.ended {
            self.notify(id);
        }
        None
    }
}

/// The calls of an engine that wait.
pub(crate) struct PendingCalls {
    inner: Arc<(Mutex<Inner>, Condvar)>,
    clock: Arc<dyn Clock>,
    guards: Arc<Guards>,
    background: bool,
}

impl fmt::Debug for PendingCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCalls").finish_non_exhaustive()
    }
}

impl PendingCalls {
    pub(crate) fn new(clock: Arc<dyn Clock>, guards: Arc<Guards>, background: bool) -> Self {
        Self { inner: Arc::default(), clock, guards, background }
    }

    /// Attempts a call, and again until it is done. It waits until `until`, monotonic ns.
    pub(crate) fn start(&self, mut attempt: Attempt, until: u64) -> WaitId {
        let now = self.clock.mono_ns();
        let next = attempt(turn_at(until, now));
        if matches!(next, Next::Done) {
            return 0;
        }
        let id = {
            let mut inner = self.inner.0.lock();
            inner.last_id += 1;
            let id = inner.last_id;
            let call = PendingCall {
                attempt: None,
                until,
                timer: None,
                unregister: None,
                notified: false,
                missed: false,
                ended: false,
            };
            inner.calls.insert(id, call);
            if inner.thread.is_none() && self.background && !inner.closed {
                inner.thread = self.spawn();
            }
            id
        };
        wait(&self.inner, id, attempt, next);
        self.pass_without_thread();
        id
    }

    /// Cancels a call: it is not attempted again. False if it has ended, or is being attempted: then its
    /// completion may still be called, or not.
    pub(crate) fn cancel(&self, id: WaitId) -> bool {
        let mut inner = self.inner.0.lock();
        let Some(mut call) = inner.calls.remove(&id) else { return false };
        if let Some(at) = call.timer {
            inner.timers.remove(&(at, id));
        }
        drop(inner);
        let waited = call.attempt.is_some();
        if let Some(unregister) = call.unregister.take() {
            unregister();
        }
        waited
    }

    /// Ends the wait of a call: its next attempt, which is made now, is the last.
    pub(crate) fn end(&self, id: WaitId) {
        let mut inner = self.inner.0.lock();
        if let Some(call) = inner.calls.get_mut(&id) {
            call.ended = true;
            inner.notify(id);
        }
        drop(inner);
        self.inner.1.notify_one();
        self.pass_without_thread();
    }

    /// Attempts what is due in a table that has no thread: of an engine without any, or that is closed.
    pub(crate) fn pass_without_thread(&self) {
        let has_thread = self.inner.0.lock().thread.is_some();
        if !has_thread {
            self.pass();
        }
    }

    fn spawn(&self) -> Option<JoinHandle<()>> {
        let (inner, clock) = (self.inner.clone(), self.clock.clone());
        let serve = move || {
            loop {
                pass(&inner, &*clock);
                let mut guard = inner.0.lock();
                if guard.closed && guard.notified.is_empty() {
                    return;
                }
                if guard.notified.is_empty() {
                    let now = clock.mono_ns();
                    match guard.timers.first().map(|(at, _)| at.saturating_sub(now)) {
                        Some(0) => {}
                        Some(ns) => drop(inner.1.wait_for(&mut guard, Duration::from_nanos(ns))),
                        None => inner.1.wait(&mut guard),
                    }
                }
            }
        };
        let guards = self.guards.clone();
        let run = move || guards.run_loop("pending-calls", serve);
        let spawned = thread::Builder::new().name("topics-calls".into()).spawn(run);
        spawned.inspect_err(|e| log::error!("start the thread of waiting calls: {e}")).ok()
    }

    fn pass(&self) {
        pass(&self.inner, &*self.clock);
    }

    /// Attempts every call for the last time, and ends the thread.
    pub(crate) fn close(&self) {
        let thread = {
            let mut inner = self.inner.0.lock();
            inner.closed = true;
            let all: Vec<WaitId> = inner.calls.keys().copied().collect();
            for id in all {
                inner.notify(id);
            }
            inner.thread.take()
        };
        self.inner.1.notify_one();
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id())
            && thread.join().is_err()
        {
            log::error!("the thread of waiting calls panicked");
        }
        self.pass();
    }
}

impl Drop for PendingCalls {
    fn drop(&mut self) {
        self.close();
    }
}

/// Attempts every call that is due.
fn pass(inner: &Arc<(Mutex<Inner>, Condvar)>, clock: &dyn Clock) {
    loop {
        let Some(due) = inner.0.lock().take_due(clock.mono_ns()) else { return };
        let DueCall { id, mut attempt, turn, unregister } = due;
        if let Some(unregister) = unregister {
            unregister();
        }
        let next = attempt(turn);
        wait(inner, id, attempt, next);
    }
}

/// Has a call wait for what its attempt returned.
fn wait(inner: &Arc<(Mutex<Inner>, Condvar)>, id: WaitId, attempt: Attempt, next: Next) {
    let (register, timer) = match next {
        Next::Done => {
            inner.0.lock().calls.remove(&id);
            return;
        }
        Next::Wait(register) => (register, Timer::OfCall),
        Next::WaitUntil(register, at) => (register, Timer::At(at)),
        Next::WaitForSure(register) => (register, Timer::Never),
    };
    let weak = Arc::downgrade(inner);
    let wake = move || {
        if let Some(inner) = weak.upgrade()
            && inner.0.lock().notify(id)
        {
            inner.1.notify_one();
        }
    };
    let unregister = register(Box::new(wake));
    let cancelled = inner.0.lock().put_back(id, attempt, timer, unregister);
    match cancelled {
        Some((attempt, unregister)) => {
            unregister();
            drop(attempt);
        }
        // Its deadline may be the next one, and it may be notified already.
        None => {
            inner.1.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use topics_env::sync::atomic::{AtomicUsize, Ordering};
    use topics_sim::SimClock;

    use super::*;

    /// A call that is done at its attempt number `last`, or at the last one; it notes what happens to it.
    #[derive(Clone, Default)]
    struct Noted {
        attempts: Arc<AtomicUsize>,
        wake: Arc<Mutex<Option<Callback>>>,
        /// Registrations less removals.
        registered: Arc<AtomicUsize>,
        /// Whether the attempt that ended it was the last.
        ended: Arc<Mutex<Option<bool>>>,
    }

    impl Noted {
        fn attempt(&self, done_at: usize) -> Attempt {
            let noted = self.clone();
            Box::new(move |turn| {
                let is_last = turn != Turn::InTime;
                if noted.attempts.fetch_add(1, Ordering::SeqCst) + 1 >= done_at || is_last {
                    *noted.ended.lock() = Some(is_last);
                    return Next::Done;
                }
                let noted = noted.clone();
                Next::Wait(Box::new(move |wake| {
                    *noted.wake.lock() = Some(wake);
                    noted.registered.fetch_add(1, Ordering::SeqCst);
                    Box::new(move || {
                        noted.registered.fetch_sub(1, Ordering::SeqCst);
                    })
                }))
            })
        }

        fn notify(&self) {
            let wake = self.wake.lock().take();
            wake.into_iter().for_each(|wake| wake());
        }

        fn state(&self) -> (usize, usize, Option<bool>) {
            let load = |n: &AtomicUsize| n.load(Ordering::SeqCst);
            (load(&self.attempts), load(&self.registered), *self.ended.lock())
        }
    }

    fn calls() -> (PendingCalls, Arc<SimClock>) {
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        (PendingCalls::new(clock.clone(), Arc::default(), false), clock)
    }

    fn second(clock: &SimClock) -> u64 {
        clock.mono_ns() + 1_000_000_000
    }

    #[test]
    fn a_call_is_attempted_when_it_comes_and_at_each_change() {
        let (calls, clock) = calls();
        let (now, later) = (Noted::default(), Noted::default());
        assert_eq!(calls.start(now.attempt(1), second(&clock)), 0);
        assert_eq!(now.state(), (1, 0, Some(false)));
        assert_ne!(calls.start(later.attempt(3), second(&clock)), 0);
        calls.pass_without_thread();
        assert_eq!(later.state(), (1, 1, None), "nothing has changed");
        later.notify();
        calls.pass_without_thread();
        assert_eq!(later.state(), (2, 1, None));
        later.notify();
        calls.pass_without_thread();
        assert_eq!(later.state(), (3, 0, Some(false)));
    }

    #[test]
    fn a_deadline_an_end_and_a_close_make_the_last_attempt() {
        let (calls, clock) = calls();
        let [late, ended, closed] = [(); 3].map(|()| Noted::default());
        calls.start(late.attempt(9), second(&clock));
        clock.advance_ms(500);
        let id = calls.start(ended.attempt(9), second(&clock));
        calls.start(closed.attempt(9), second(&clock));
        clock.advance_ms(499);
        calls.pass_without_thread();
        assert_eq!(late.state(), (1, 1, None));
        clock.advance_ms(1);
        calls.pass_without_thread();
        assert_eq!(late.state(), (2, 0, Some(true)));
        assert_eq!(ended.state(), (1, 1, None));
        calls.end(id);
        assert_eq!(ended.state(), (2, 0, Some(true)));
        calls.close();
        assert_eq!(closed.state(), (2, 0, Some(true)));
        let after = Noted::default();
        calls.start(after.attempt(9), second(&clock));
        assert_eq!(after.state(), (2, 0, Some(true)));
    }

    #[test]
    fn a_cancelled_call_is_not_attempted_again() {
        let (calls, clock) = calls();
        let gone = Noted::default();
        let id = calls.start(gone.attempt(9), second(&clock));
        assert!(calls.cancel(id) && !calls.cancel(id));
        gone.notify();
        clock.advance_ms(2_000);
        calls.close();
        assert_eq!(gone.state(), (1, 0, None));
    }

    /// The change comes while the call registers for it.
    #[test]
    fn a_change_during_the_registration_is_not_missed() {
        let (calls, clock) = calls();
        let mut attempts = 0;
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let attempt = move |_| {
            attempts += 1;
            count.store(attempts, Ordering::SeqCst);
            if attempts == 3 {
                return Next::Done;
            }
            Next::WaitForSure(Box::new(|wake| {
                wake();
                Box::new(|| {})
            }))
        };
        calls.start(Box::new(attempt), second(&clock));
        assert_eq!(made.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn a_thread_attempts_what_is_due() {
        let clock: Arc<dyn Clock> = Arc::new(topics_env::real::SystemClock);
        let calls = PendingCalls::new(clock.clone(), Arc::default(), true);
        let (woken, late) = (Noted::default(), Noted::default());
        calls.start(woken.attempt(2), clock.mono_ns() + 3_600_000_000_000);
        calls.start(late.attempt(9), clock.mono_ns() + 1_000_000);
        woken.notify();
        for noted in [&woken, &late] {
            while noted.state().2.is_none() {
                thread::yield_now();
            }
        }
        assert_eq!((woken.state(), late.state()), ((2, 0, Some(false)), (2, 0, Some(true))));
        calls.close();
    }
}
