//! Prefetching: several threads read the ranges of a scan, the consumer takes them in order.
//!
//! The consumer reads the next range itself unless a helper thread has started it; then it reads a
//! later one. How far a range reaches is known only after it is read: later ranges that were planned
//! from a wrong start are dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Records after `after`, up to `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub after: u64,
    pub upto: u64,
}

/// Reads a range; `S` is the scratch state of one thread.
pub(super) trait RangeReader<S>: Send + Sync {
    type Output: Send + 'static;

    fn read_range(&self, range: Range, scratch: &mut S) -> Self::Output;
}

#[derive(Debug)]
enum Stage<T> {
    Pending,
    /// A thread reads it.
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
    /// Takes the first range that no thread has started; the caller reads it.
    fn take(&mut self) -> Option<(u64, Range)> {
        let planned = |e: &&mut Entry<T>| matches!(e.stage, Stage::Pending);
        let entry = self.entries.iter_mut().find(planned)?;
        entry.stage = Stage::Taken;
        Some((entry.id, entry.range))
    }

    /// Stores the output of a range, unless the range was dropped.
    fn done(&mut self, id: u64, output: T) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.id == id) {
            entry.stage = Stage::Done(output);
        }
    }

    fn entry(&mut self, range: Range) -> Entry<T> {
        self.next_id += 1;
        Entry { id: self.next_id, range, stage: Stage::Pending }
    }
}

#[derive(Debug)]
struct Shared<T, M> {
    queue: Mutex<Queue<T>>,
    /// A range was planned or read, or the scan ended.
    changed: Condvar,
    reader: M,
}

/// The planned ranges in order, and the helper threads.
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

    /// Starts helper threads up to `n`. If the system has no thread left, the consumer reads alone.
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

    /// The number of threads, including the consumer's.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls the reader on the consumer's thread, independent of the plan.
    pub fn with_reader<T>(&mut self, call: impl FnOnce(&M, &mut S) -> T) -> T {
        call(&self.shared.reader, &mut self.scratch)
    }

    /// Plans a range after the others.
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

    /// Drops all ranges.
    pub fn clear(&self) {
        self.shared.queue.lock().entries.clear();
    }

    /// The number of ranges that are planned or read.
    pub fn planned(&self) -> usize {
        self.shared.queue.lock().entries.len()
    }

    /// The first range and its output; reads it if no helper has.
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
                Some(taken) => shared.read(&mut queue, taken, scratch),
                None => topics_engine::while_blocked(|| shared.changed.wait(&mut queue)),
            }
        }
    }
}

impl<T: Send + 'static, M> Shared<T, M> {
    /// Reads a range that was taken, with the queue unlocked meanwhile, and stores its output.
    fn read<S>(
        &self,
        queue: &mut MutexGuard<'_, Queue<T>>,
        (id, range): (u64, Range),
        scratch: &mut S,
    ) where
        M: RangeReader<S, Output = T>,
    {
        let output = MutexGuard::unlocked(queue, || self.reader.read_range(range, scratch));
        queue.done(id, output);
        self.changed.notify_all();
    }
}

fn help<S, M: RangeReader<S>>(shared: &Shared<M::Output, M>, scratch: &mut S) {
    let mut queue = shared.queue.lock();
    while !queue.over {
        match queue.take() {
            Some(taken) => shared.read(&mut queue, taken, scratch),
            None => shared.changed.wait(&mut queue),
        }
    }
}

impl<S, M: RangeReader<S>> Drop for Prefetcher<S, M> {
    /// Joins the helpers, because the engine that they read from may be closed next.
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
