//! Stretches of a scan, made by several threads and taken in their order.
//!
//! Whoever wants the next stretch makes it, unless a helper is at it already; then he makes one
//! further on. How far a stretch really reaches is known only when it is made: what was planned
//! on from the wrong place is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Records after `after`, up to `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub after: u64,
    pub upto: u64,
}

/// Makes what lies in a range; `S` is what one thread keeps between two calls.
pub(super) trait RangeReader<S>: Send + Sync {
    type Output: Send + 'static;

    fn read_range(&self, range: Range, scratch: &mut S) -> Self::Output;
}

#[derive(Debug)]
enum Stage<T> {
    Planned,
    /// A thread is at it.
    Taken,
    Done(T),
}

#[derive(Debug)]
struct Entry<T> {
    id: u64,
    range: Range,
    stage: Stage<T>,
}

#[derive(Debug)]
struct Queue<T> {
    entries: VecDeque<Entry<T>>,
    next_id: u64,
    over: bool,
}

impl<T> Queue<T> {
    /// The first range that nobody is at; whoever gets it makes it.
    fn take(&mut self) -> Option<(u64, Range)> {
        let planned = |e: &&mut Entry<T>| matches!(e.stage, Stage::Planned);
        let entry = self.entries.iter_mut().find(planned)?;
        entry.stage = Stage::Taken;
        Some((entry.id, entry.range))
    }

    /// Keeps what was made, unless it is not wanted any more.
    fn done(&mut self, id: u64, output: T) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.id == id) {
            entry.stage = Stage::Done(output);
        }
    }

    fn entry(&mut self, range: Range) -> Entry<T> {
        self.next_id += 1;
        Entry { id: self.next_id, range, stage: Stage::Planned }
    }
}

#[derive(Debug)]
struct Shared<T, M> {
    queue: Mutex<Queue<T>>,
    /// Something to make, something made, or the end.
    changed: Condvar,
    reader: M,
}

/// Ranges in order, and the threads that help.
#[derive(Debug)]
pub(super) struct Prefetcher<S, M: RangeReader<S>> {
    shared: Arc<Shared<M::Output, M>>,
    helpers: Vec<JoinHandle<()>>,
    scratch: S,
}

impl<S: Default, M: RangeReader<S> + 'static> Prefetcher<S, M> {
    pub fn new(reader: M) -> Self {
        let queue = Queue { entries: VecDeque::new(), next_id: 0, over: false };
        let shared = Shared { queue: Mutex::new(queue), changed: Condvar::new(), reader };
        Self { shared: Arc::new(shared), helpers: Vec::new(), scratch: S::default() }
    }

    /// Has `n` threads beside the caller's. Where they cannot be had the caller does it all.
    pub fn help(&mut self, n: usize) {
        while self.helpers.len() < n {
            let shared = self.shared.clone();
            let helper = std::thread::Builder::new().name("topics-scan".into());
            match helper.spawn(move || help(&shared, &mut S::default())) {
                Ok(helper) => self.helpers.push(helper),
                Err(e) => return log::debug!("no thread to help a scan: {e}"),
            }
        }
    }

    /// The threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Something that the caller makes at once, whatever is planned.
    pub fn with_reader<T>(&mut self, call: impl FnOnce(&M, &mut S) -> T) -> T {
        call(&self.shared.reader, &mut self.scratch)
    }

    /// Plans a range behind the others.
    pub fn plan(&self, range: Range) {
        let mut queue = self.shared.queue.lock();
        let entry = queue.entry(range);
        queue.entries.push_back(entry);
        self.shared.changed.notify_all();
    }

    /// Plans a range before the others.
    pub fn plan_first(&self, range: Range) {
        let mut queue = self.shared.queue.lock();
        let entry = queue.entry(range);
        queue.entries.push_front(entry);
        self.shared.changed.notify_all();
    }

    /// Drops what is planned.
    pub fn clear(&self) {
        self.shared.queue.lock().entries.clear();
    }

    /// The ranges that are planned or made.
    pub fn planned(&self) -> usize {
        self.shared.queue.lock().entries.len()
    }

    /// What lies in the first range.
    pub fn next(&mut self) -> Option<(Range, M::Output)> {
        let Self { shared, scratch, .. } = self;
        let mut queue = shared.queue.lock();
        loop {
            let first = queue.entries.front()?;
            if matches!(first.stage, Stage::Done(_))
                && let Some(Entry { range, stage: Stage::Done(output), .. }) =
                    queue.entries.pop_front()
            {
                return Some((range, output));
            }
            match queue.take() {
                Some((id, range)) => {
                    drop(queue);
                    let output = shared.reader.read_range(range, scratch);
                    queue = shared.queue.lock();
                    queue.done(id, output);
                }
                None => shared.changed.wait(&mut queue),
            }
        }
    }
}

fn help<S, M: RangeReader<S>>(shared: &Shared<M::Output, M>, scratch: &mut S) {
    let mut queue = shared.queue.lock();
    while !queue.over {
        match queue.take() {
            Some((id, range)) => {
                drop(queue);
                let output = shared.reader.read_range(range, scratch);
                queue = shared.queue.lock();
                queue.done(id, output);
                shared.changed.notify_all();
            }
            None => shared.changed.wait(&mut queue),
        }
    }
}

impl<S, M: RangeReader<S>> Drop for Prefetcher<S, M> {
    /// No helper outlives the scan: what it reads from may be closed next.
    fn drop(&mut self) {
        {
            let mut queue = self.shared.queue.lock();
            queue.over = true;
            queue.entries.clear();
        }
        self.shared.changed.notify_all();
        for helper in self.helpers.drain(..) {
            if helper.join().is_err() {
                log::error!("a thread that helped a scan ended with a panic");
            }
        }
    }
}
