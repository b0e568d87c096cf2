//! A small thread pool for verbs that wait for the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use topics_env::Guards;

type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of threads. More would not help: their verbs share one disk.
const THREADS: usize = 4;
/// Maximum number of further threads, one for each that waits for the object store.
const BLOCKED: usize = 64;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that do not wait for the object store.
    threads: usize,
    blocked: usize,
    idle: usize,
    stopped: bool,
}

/// Runs jobs in submission order on at most [`THREADS`] threads, which start on demand. A job that
/// panics does not end its thread.
pub struct WorkerPool(Arc<(Mutex<State>, Condvar)>, Arc<Guards>);

impl WorkerPool {
    /// A pool without threads; `guards` count the jobs that panic.
    #[must_use]
    pub fn new(guards: Arc<Guards>) -> Self {
        Self(Arc::default(), guards)
    }

    /// Queues a job. After [`WorkerPool::stop`], and when the system has no thread left, the job
    /// runs in this call.
    pub fn run(&self, job: Job) {
        let (state, wake) = &*self.0;
        let guards = self.1.clone();
        let job: Job = Box::new(move || drop(guards.run("verbs", || "a verb".into(), job)));
        let mut s = state.lock();
        if s.stopped {
            drop(s);
            return job();
        }
        s.jobs.push_back(job);
        let is_at_most = s.threads >= THREADS || (s.blocked > BLOCKED && s.threads > 0);
        if s.idle >= s.jobs.len() || is_at_most {
            wake.notify_one();
            return;
        }
        Self::spawn(&self.0, &mut s);
        if s.threads == 0 {
            let jobs = std::mem::take(&mut s.jobs);
            drop(s);
            jobs.into_iter().for_each(|job| job());
        }
    }

    /// Starts a thread, if the system has one left.
    fn spawn(shared: &Arc<(Mutex<State>, Condvar)>, s: &mut State) {
        let shared = shared.clone();
        let thread = std::thread::Builder::new().name("topics-verb".into());
        match thread.spawn(move || Self::work(&shared)) {
            Ok(_) => s.threads += 1,
            Err(e) => log::error!("no thread for a verb: {e}"),
        }
    }

    /// Another thread takes the place of one that waits for the object store.
    fn on_blocking(shared: &Arc<(Mutex<State>, Condvar)>, begins: bool) {
        let mut s = shared.0.lock();
        if !begins {
            (s.threads, s.blocked) = (s.threads + 1, s.blocked - 1);
            return;
        }
        (s.threads, s.blocked) = (s.threads - 1, s.blocked + 1);
        if !s.jobs.is_empty() && s.idle == 0 && s.threads < THREADS && s.blocked <= BLOCKED {
            Self::spawn(shared, &mut s);
        }
    }

    fn work(shared: &Arc<(Mutex<State>, Condvar)>) {
        let on_blocking = shared.clone();
        topics_engine::on_blocking(move |begins| Self::on_blocking(&on_blocking, begins));
        let (state, wake) = &**shared;
        let mut s = state.lock();
        loop {
            if let Some(job) = s.jobs.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut s, job);
            } else if s.stopped || s.threads > THREADS {
                s.threads -= 1;
                return;
            } else {
                s.idle += 1;
                wake.wait(&mut s);
                s.idle -= 1;
            }
        }
    }

    /// Ends the threads when the queue is empty.
    pub fn stop(&self) {
        self.0.0.lock().stopped = true;
        self.0.1.notify_all();
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool")
            .field("threads", &self.0.0.lock().threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_job_that_panics_ends_no_thread() {
        let guards = Arc::<Guards>::default();
        let pool = WorkerPool::new(guards.clone());
        let (done, all) = channel();
        for i in 0..3 * THREADS {
            let done = done.clone();
            pool.run(Box::new(move || {
                assert!(!i.is_multiple_of(3), "a bug in a verb");
                done.send(i).unwrap();
            }));
        }
        drop(done);
        assert_eq!(all.iter().count(), 2 * THREADS);
        // A job drops its sender before the guard counts its panic.
        let counted = || guards.panics().first().map_or(0, |p| p.count);
        while counted() < THREADS as u64 {
            std::thread::yield_now();
        }
        pool.stop();
        let panics = guards.panics();
        assert_eq!((panics[0].name, panics[0].count), ("verbs", THREADS as u64));
    }
}
