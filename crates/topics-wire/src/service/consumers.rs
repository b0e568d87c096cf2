//! Consumers: one handle for each, which all requests share, and reads that wait.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{Consumer, ConsumerInfo, ConsumerRead, ConsumerStart, Error};

use super::verbs::Answer;
use super::{Reply, Request, Service};
use crate::consumers;
use crate::error::Failure;
use crate::limits::MAX_WAIT_MS;
use crate::query::Query;
use crate::render::Object;
use crate::small;

/// Handles kept; above, one that is idle goes, and its consumer reads on from where it is stored.
const HANDLES: usize = 65_536;
/// When a consumer that is busy is tried again.
const BUSY_NS: u64 = 5_000_000;

type Key = (String, String);

/// A read that was taken and is not answered.
struct Reading {
    consumer: Key,
    asked: ConsumerRead,
    start_ns: u64,
    deadline_ns: u64,
    /// Where it waits; while a thread reads for it, nowhere.
    parked: Option<Parked>,
}

#[derive(Clone, Copy)]
struct Parked {
    timer_ns: u64,
    head: Option<u64>,
}

/// The reads that wait, by token, and the handles.
#[derive(Default)]
pub(super) struct Readers {
    reading: Mutex<HashMap<u64, Reading>>,
    handles: Mutex<HashMap<Key, Arc<Consumer>>>,
}

impl Readers {
    /// The tokens of those that wait.
    pub fn close(&self) -> Vec<u64> {
        self.reading.lock().keys().copied().collect()
    }
}

/// What becomes of a read.
enum Step {
    Answer(Reply),
    /// Behind this seq there is nothing yet.
    Wait(u64),
    /// All of what was read was passed over.
    Again,
    /// Another one has its turn.
    Busy,
}

impl Service {
    pub(super) fn consumers(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Option<Answer> {
        Some(match r.route {
            "consumer_put" => self.put_consumer(r, start_ns),
            "consumer" => self.later(r, {
                let name = r.part.to_owned();
                move |s, topic| {
                    let body = consumers::info(&s.consumer_info(topic, &name)?);
                    Ok(Reply::ok(s.timed(body, start_ns)))
                }
            }),
            "consumer_drop" => self.drop_consumer(r, start_ns),
            "consumer_read" => self.read_consumer(r, start_ns),
            "consumer_commit" => self.commit_consumer(r, start_ns),
            "consumer_seek" => self.seek_consumer(r, start_ns),
            "consumers" => self.list_consumers(r, start_ns),
            _ => return None,
        })
    }

    /// Opens a consumer anew: its reads go on where it is stored.
    fn put_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = consumers::put(r.body)?;
        let name = r.part.to_owned();
        self.later(r, move |s, topic| {
            let created = s.consumer_info(topic, &name).is_err();
            let (mode, start) = (asked.mode, asked.start);
            let handle = s.engine.consumer(topic, &name, mode, start, asked.auto_commit)?;
            s.keep((topic.to_owned(), name.clone()), handle);
            let mut o = Object::reopen(consumers::info(&s.consumer_info(topic, &name)?));
            o.flag("auto_commit", asked.auto_commit).flag("created", created);
            let body = s.timed(o.finish(), start_ns);
            Ok(Reply { status: if created { 201 } else { 200 }, body })
        })
    }

    fn drop_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let name = r.part.to_owned();
        self.later(r, move |s, topic| {
            s.readers.handles.lock().remove(&(topic.to_owned(), name.clone()));
            let deleted = s.engine.delete_consumer(topic, &name)?;
            let mut o = Object::new(96);
            o.name("topic", topic).name("consumer", &name).flag("deleted", deleted);
            Ok(Reply::ok(s.timed(o.finish(), start_ns)))
        })
    }

    fn commit_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let seq = consumers::commit(r.body)?;
        let name = r.part.to_owned();
        self.later(r, move |s, topic| {
            let handle = s.handle(topic, &name)?;
            handle.commit(seq)?;
            let body = consumers::position(topic, &name, handle.cursor()?);
            Ok(Reply::ok(s.timed(body, start_ns)))
        })
    }

    fn seek_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let to = consumers::seek(r.body)?;
        let name = r.part.to_owned();
        self.later(r, move |s, topic| {
            let body = consumers::position(topic, &name, s.handle(topic, &name)?.seek(to)?);
            Ok(Reply::ok(s.timed(body, start_ns)))
        })
    }

    /// The consumers of the topic in the path, or of all topics that the query means.
    fn list_consumers(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let query = Query::new(r.query);
        let page = small::page(&query)?;
        let topic = query.get("topic")?.map(|t| t.into_owned());
        if let Some(topic) = &topic {
            r.grant.check(topic)?;
        }
        let grant = r.grant.clone();
        self.later(r, move |s, named| {
            let one = if named.is_empty() { topic } else { Some(named.to_owned()) };
            let (mut found, size) = (Vec::new(), page.size + 1);
            // A cursor names a topic and a consumer.
            let after = page.after.as_deref().and_then(|a| a.split_once('\n'));
            match one {
                Some(topic) => s.consumers_of(&topic, after, &page.prefix, &mut found)?,
                None => {
                    let mut from = after.map(|a| a.0.to_owned());
                    if let Some((topic, _)) = after {
                        s.consumers_of(topic, after, &page.prefix, &mut found).or_else(absent)?;
                    }
                    while found.len() < size {
                        let topics = s.names(&grant, "", from.as_deref(), 256);
                        let Some(last) = topics.last() else { break };
                        from = Some(last.topic.clone());
                        for t in &topics {
                            let all = s.consumers_of(&t.topic, None, &page.prefix, &mut found);
                            all.or_else(absent)?;
                        }
                    }
                }
            }
            let more = found.len() > page.size;
            found.truncate(page.size);
            let last = found.last().filter(|_| more);
            let next = last.map(|c| small::cursor(&format!("{}\n{}", c.topic, c.name)));
            Ok(Reply::ok(s.timed(consumers::list(&found, next.as_deref()), start_ns)))
        })
    }

    fn consumers_of(
        &self,
        topic: &str,
        after: Option<(&str, &str)>,
        prefix: &str,
        found: &mut Vec<ConsumerInfo>,
    ) -> Result<(), Failure> {
        let after = after.filter(|(t, _)| *t == topic).map(|(_, name)| name);
        let all = self.engine.consumers(topic)?.into_iter();
        found.extend(all.filter(|c| {
            c.name.starts_with(prefix) && after.is_none_or(|after| c.name.as_str() > after)
        }));
        Ok(())
    }

    fn consumer_info(&self, topic: &str, name: &str) -> Result<ConsumerInfo, Failure> {
        let all = self.engine.consumers(topic)?;
        all.into_iter().find(|c| c.name == name).ok_or_else(|| {
            let (topic, consumer) = (topic.to_owned(), name.to_owned());
            Error::ConsumerNotFound { topic, consumer }.into()
        })
    }

    fn keep(&self, key: Key, handle: Consumer) -> Arc<Consumer> {
        let handle = Arc::new(handle);
        let mut handles = self.readers.handles.lock();
        if handles.len() >= HANDLES {
            let idle = handles.iter().find(|(_, h)| Arc::strong_count(h) == 1);
            if let Some(key) = idle.map(|(key, _)| key.clone()) {
                handles.remove(&key);
            }
        }
        let old = handles.insert(key, handle.clone());
        // Its last position is stored when it goes: not under the lock.
        drop(handles);
        drop(old);
        handle
    }

    /// The handle of a consumer that is there.
    fn handle(&self, topic: &str, name: &str) -> Result<Arc<Consumer>, Failure> {
        let key = (topic.to_owned(), name.to_owned());
        let kept = self.readers.handles.lock().get(&key).cloned();
        if let Some(handle) = kept {
            match handle.cursor() {
                Ok(_) => return Ok(handle),
                // The topic or the consumer went, and may have come again.
                Err(_) => drop(self.readers.handles.lock().remove(&key)),
            }
        }
        let mode = self.consumer_info(topic, name)?.mode;
        let opened = self.engine.consumer(topic, name, Some(mode), ConsumerStart::Start, false)?;
        Ok(self.keep(key, opened))
    }

    fn read_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (asked, wait_ms) = consumers::read(r.body)?;
        let consumer = (r.name.to_owned(), r.part.to_owned());
        let deadline_ns = start_ns + wait_ms * 1_000_000;
        let reading = Reading { consumer, asked, start_ns, deadline_ns, parked: None };
        self.readers.reading.lock().insert(r.token, reading);
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.read_on(r.token);
        Ok(None)
    }

    /// Has a thread look for what a read is due.
    fn read_on(self: &Arc<Self>, token: u64) {
        let service = self.clone();
        self.pool.run(Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| service.step(token)));
            let step = match outcome {
                Ok(Some(Ok(step))) => step,
                Ok(Some(Err(failure))) => Step::Answer(failure.into()),
                Ok(None) => return,
                Err(_) => {
                    Step::Answer(Failure::from(Error::Internal("a verb panicked".into())).into())
                }
            };
            match step {
                Step::Answer(reply) => {
                    if service.readers.reading.lock().remove(&token).is_some() {
                        service.pending.fetch_sub(1, Ordering::Relaxed);
                        service.sink.reply(token, reply);
                    }
                }
                Step::Wait(seq) => service.park_reader(token, Some(seq)),
                Step::Again => service.read_on(token),
                Step::Busy => service.park_reader(token, None),
            }
        }));
    }

    /// One look; `None`: the read was cancelled.
    fn step(&self, token: u64) -> Option<Result<Step, Failure>> {
        let (consumer, mut asked, start_ns, deadline_ns) = {
            let all = self.readers.reading.lock();
            let r = all.get(&token)?;
            (r.consumer.clone(), r.asked.clone(), r.start_ns, r.deadline_ns)
        };
        let told_not_to_wait = std::mem::replace(&mut asked.fail_if_busy, true);
        let handle = match self.handle(&consumer.0, &consumer.1) {
            Ok(handle) => handle,
            Err(failure) => return Some(Err(failure)),
        };
        let open = self.is_ready();
        let now = self.clock.mono_ns();
        Some(match handle.read(&asked) {
            Ok(batch)
                if batch.is_empty() && batch.tombstone.is_none() && open && now < deadline_ns =>
            {
                match batch.caught_up || !asked.checkpoint {
                    true => Ok(Step::Wait(batch.next_from_seq)),
                    false => Ok(Step::Again),
                }
            }
            Ok(batch) => {
                let ns = self.elapsed(start_ns);
                let body = consumers::records(&consumer.0, &consumer.1, &batch, ns);
                Ok(Step::Answer(Reply::ok(body)))
            }
            // A reader waits for its turn as long as the one before it may read.
            Err(Error::ConsumerBusy { .. })
                if !told_not_to_wait
                    && open
                    && now < deadline_ns.max(start_ns + MAX_WAIT_MS * 1_000_000) =>
            {
                Ok(Step::Busy)
            }
            Err(e) => Err(e.into()),
        })
    }

    /// Waits for records behind `seq`, or a moment.
    fn park_reader(self: &Arc<Self>, token: u64, seq: Option<u64>) {
        let (topic, timer_ns) = {
            let mut all = self.readers.reading.lock();
            let Some(reading) = all.get_mut(&token) else { return };
            let soon = self.clock.mono_ns() + BUSY_NS;
            let timer_ns = if seq.is_some() { reading.deadline_ns } else { soon };
            reading.parked = Some(Parked { timer_ns, head: None });
            (reading.consumer.0.clone(), timer_ns)
        };
        self.timer.set(timer_ns, token);
        if !self.is_ready() {
            // A close that did not see it waiting.
            return self.sink.due(token);
        }
        let Some(seq) = seq else { return };
        let sink = self.sink.clone();
        match self.engine.on_head(&topic, seq, Box::new(move || sink.due(token))) {
            Ok(id) => {
                let mut all = self.readers.reading.lock();
                if let Some(p) = all.get_mut(&token).and_then(|r| r.parked.as_mut()) {
                    p.head = Some(id);
                } else {
                    drop(all);
                    self.engine.cancel_on_head(&topic, id);
                }
            }
            // It is told when it looks.
            Err(_) => self.sink.due(token),
        }
    }

    /// A read that waits looks again.
    pub(super) fn resume_reader(self: &Arc<Self>, token: u64) {
        let parked = {
            let mut all = self.readers.reading.lock();
            let Some(reading) = all.get_mut(&token) else { return };
            let Some(parked) = reading.parked.take() else { return };
            (reading.consumer.0.clone(), parked)
        };
        self.unpark(token, &parked.0, parked.1);
        self.read_on(token);
    }

    pub(super) fn cancel_reader(&self, token: u64) -> bool {
        let Some(reading) = self.readers.reading.lock().remove(&token) else { return false };
        if let Some(parked) = reading.parked {
            self.unpark(token, &reading.consumer.0, parked);
        }
        true
    }

    fn unpark(&self, token: u64, topic: &str, parked: Parked) {
        self.timer.unset(parked.timer_ns, token);
        if let Some(id) = parked.head {
            self.engine.cancel_on_head(topic, id);
        }
    }
}

/// A topic that has gone meanwhile has no consumers.
fn absent(failure: Failure) -> Result<(), Failure> {
    if failure.code == "topic_not_found" { Ok(()) } else { Err(failure) }
}
