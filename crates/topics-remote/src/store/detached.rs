//! Requests that may hang: each runs on a thread that can be left behind.
//!
//! Nothing else ends a request to a folder of a network file system whose server is gone. The caller waits
//! until its timeout, or until [`ObjectStore::end_within`], and then goes on without the thread. A thread
//! that was left holds the store and the body of its request, and nothing else; it ends with the request.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore,
};
use topics_env::sync::{Condvar, Instant, Mutex, thread};

/// Maximum number of threads that were left behind. More requests fail at once.
const MAX_LEFT: usize = 16;
/// How long a thread waits for another request.
const IDLE: Duration = Duration::from_secs(10);
/// When a request counts as hung, if its caller does not say: longer than any takes that makes progress. A
/// store with connections of its own notices a stalled one before.
const TIMEOUT: Duration = Duration::from_secs(600);
const PER_MIB: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce(&dyn ObjectStore) + Send>;

#[derive(Default)]
struct Pool {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// Requests whose callers have gone on without them.
    left: usize,
    /// After this time no caller waits.
    until: Option<Instant>,
}

struct Shared {
    store: Arc<dyn ObjectStore>,
    pool: Mutex<Pool>,
    changed: Condvar,
    /// How long a thread waits for another request.
    idle: Duration,
}

/// A store whose requests end for their callers, whatever the store does.
pub struct DetachedStore {
    shared: Arc<Shared>,
}

impl fmt::Debug for DetachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DetachedStore({:?})", self.shared.store)
    }
}

enum Slot<T> {
    Waiting,
    Done(ObjectResult<T>),
    /// The caller has gone on.
    Left,
}

impl DetachedStore {
    /// Over a store.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self::with_idle(store, IDLE)
    }

    fn with_idle(store: Arc<dyn ObjectStore>, idle: Duration) -> Self {
        let (pool, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { store, pool, changed, idle }) }
    }

    /// Runs a write, which may take effect although its caller has gone on.
    fn write<T: Send + 'static>(
        &self,
        body: usize,
        request: impl FnOnce(&dyn ObjectStore) -> ObjectResult<T> + Send + 'static,
    ) -> ObjectResult<T> {
        self.run(true, TIMEOUT + PER_MIB * (body >> 20) as u32, request)
    }

    fn read<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn ObjectStore) -> ObjectResult<T> + Send + 'static,
    ) -> ObjectResult<T> {
        self.run(false, TIMEOUT, request)
    }

    fn run<T: Send + 'static>(
        &self,
        is_write: bool,
        timeout: Duration,
        request: impl FnOnce(&dyn ObjectStore) -> ObjectResult<T> + Send + 'static,
    ) -> ObjectResult<T> {
        let unavailable = |detail| unanswered(false, detail);
        let slot = Arc::new(Mutex::new(Slot::Waiting));
        let due = Instant::now() + timeout;
        let mut pool = self.shared.pool.lock();
        if pool.until.is_some_and(|until| Instant::now() >= until) {
            return Err(unavailable("the program is closing".to_owned()));
        }
        if pool.left >= MAX_LEFT {
            return Err(unavailable(format!("{MAX_LEFT} earlier requests have hung")));
        }
        let (shared, ours) = (self.shared.clone(), slot.clone());
        pool.jobs.push_back(Box::new(move |store| {
            // A caller is answered whatever happens.
            let result = catch_unwind(AssertUnwindSafe(|| request(store)));
            let result = result.unwrap_or_else(|_| {
                Err(unanswered(is_write, "the request panicked: the log has more".to_owned()))
            });
            let mut pool = shared.pool.lock();
            let mut slot = ours.lock();
            match *slot {
                Slot::Left => pool.left -= 1,
                _ => *slot = Slot::Done(result),
            }
            drop((slot, pool));
            shared.changed.notify_all();
        }));
        if pool.idle < pool.jobs.len() {
            let shared = self.shared.clone();
            let started =
                thread::Builder::new().name("topics-request".into()).spawn(move || serve(&shared));
            if let Err(e) = started {
                pool.jobs.pop_back();
                return Err(unavailable(format!("no thread for a request: {e}")));
            }
        }
        self.shared.changed.notify_all();
        loop {
            let mut found = slot.lock();
            if let Slot::Done(result) = std::mem::replace(&mut *found, Slot::Waiting) {
                return result;
            }
            let due = pool.until.map_or(due, |until| until.min(due));
            if Instant::now() >= due {
                *found = Slot::Left;
                pool.left += 1;
                let detail = match pool.until {
                    Some(_) => "the program is closing".to_owned(),
                    None => format!("no answer within {} s", timeout.as_secs_f64()),
                };
                return Err(unanswered(is_write, detail));
            }
            drop(found);
            let _ = self.shared.changed.wait_until(&mut pool, due);
        }
    }
}

/// Runs a call on a thread that is left behind if it takes longer: `None`. A thread that cannot be started gives
/// `None` too.
pub fn run_within<T: Send + 'static>(
    wait: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let answer = Arc::new((Mutex::new(None), Condvar::new()));
    let theirs = answer.clone();
    let thread = thread::Builder::new().name("topics-request".into()).spawn(move || {
        let done = call();
        *theirs.0.lock() = Some(done);
        theirs.1.notify_all();
    });
    thread.ok()?;
    let due = Instant::now() + wait;
    let mut slot = answer.0.lock();
    while slot.is_none() && Instant::now() < due {
        let _ = answer.1.wait_until(&mut slot, due);
    }
    slot.take()
}

/// The error of a request without an answer.
fn unanswered(is_write: bool, detail: String) -> ObjectError {
    match is_write {
        true => ObjectError::Ambiguous { detail },
        false => ObjectError::Unavailable { detail },
    }
}

/// A thread that runs requests until none comes.
fn serve(shared: &Shared) {
    let mut pool = shared.pool.lock();
    loop {
        match pool.jobs.pop_front() {
            Some(job) => {
                drop(pool);
                job(&*shared.store);
                pool = shared.pool.lock();
            }
            None => {
                pool.idle += 1;
                let due = Instant::now() + shared.idle;
                while pool.jobs.is_empty() && pool.until.is_none() && Instant::now() < due {
                    let _ = shared.changed.wait_until(&mut pool, due);
                }
                pool.idle -= 1;
                if pool.jobs.is_empty() {
                    return;
                }
            }
        }
    }
}

impl Drop for DetachedStore {
    /// Ends the threads that wait for a request: they hold the store, which has threads and connections.
    fn drop(&mut self) {
        self.end_within(Duration::ZERO);
    }
}

impl ObjectStore for DetachedStore {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        let (key, body) = (key.to_owned(), body.clone());
        self.write(body.len(), move |store| store.create(&key, &body))
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        let (key, body, etag) = (key.to_owned(), body.clone(), etag.clone());
        self.write(body.len(), move |store| store.replace(&key, &body, &etag))
    }

    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes> {
        let (key, if_match) = (key.to_owned(), if_match.cloned());
        self.read(move |store| store.get(&key, range, if_match.as_ref()))
    }

    fn get_within(&self, key: &str, range: ByteRange, wait: Duration) -> ObjectResult<ObjectBytes> {
        let key = key.to_owned();
        self.run(false, wait.min(TIMEOUT), move |store| store.get(&key, range, None))
    }

    fn end_within(&self, wait: Duration) {
        self.shared.pool.lock().until = Some(Instant::now() + wait);
        self.shared.changed.notify_all();
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        let (key, etag) = (key.to_owned(), etag.clone());
        self.read(move |store| store.get_if_changed(&key, &etag))
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        let key = key.to_owned();
        self.read(move |store| store.head(&key))
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        let key = key.to_owned();
        self.write(0, move |store| store.delete(&key))
    }
}

#[cfg(test)]
mod tests {
    use topics_sim::{Bucket, SimClock};

    use super::*;

    #[test]
    fn threads_that_wait_for_a_request_end_with_the_store() {
        let bucket = Bucket::new(&Arc::new(SimClock::new(1000)));
        let inner: Arc<dyn ObjectStore> = Arc::new(bucket.client(1));
        let idle = Duration::from_secs(3600);
        let store = DetachedStore::with_idle(inner.clone(), idle);
        store.create("key", &Bytes::new()).unwrap();
        while store.shared.pool.lock().idle == 0 {
            thread::yield_now();
        }
        drop(store);
        let due = Instant::now() + Duration::from_secs(120);
        while Arc::strong_count(&inner) > 1 {
            assert!(Instant::now() < due, "a thread holds the store");
            thread::yield_now();
        }
    }
}
