//! Consumers: the requests of each reader share one handle, and so do all requests that name no reader.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use topics_engine::{Consumer, ConsumerInfo, ConsumerMode, ConsumerStart, Error};
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::{Failure, consumers, page};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

/// Maximum number of handles. Above it an idle handle is dropped, and its consumer continues from the
/// stored cursor.
const HANDLES: usize = 65_536;
/// Handles from which on those of deleted topics and consumers are looked for.
const SWEEP: usize = 256;
/// Topic, consumer and reader; an empty reader stands for the requests that name none.
pub(super) type Key = (String, String, String);

/// The consumer handles that requests share.
pub(super) struct Handles {
    kept: Mutex<KeptHandles>,
    /// Whether the readers are those of this process: each is forgotten when it reads no more, and
    /// belongs to the topic that it was opened for.
    of_process: bool,
}

#[derive(Default)]
struct KeptHandles {
    all: HashMap<Key, Arc<Consumer>>,
    /// Handles that were kept after the last sweep.
    swept: usize,
}

// Dropping a handle stores its position: no method does it under the lock.
impl Handles {
    pub(super) fn new(of_process: bool) -> Self {
        Self { kept: Mutex::default(), of_process }
    }

    fn get(&self, key: &Key) -> Option<Arc<Consumer>> {
        self.kept.lock().all.get(key).cloned()
    }

    fn insert(&self, key: Key, handle: Arc<Consumer>) {
        let mut kept = self.kept.lock();
        let dropped = kept.make_room(if self.of_process { usize::MAX } else { HANDLES });
        let old = kept.all.insert(key, handle);
        drop(kept);
        drop((dropped, old));
    }

    fn remove(&self, key: &Key) {
        let old = self.kept.lock().all.remove(key);
        drop(old);
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<Key> {
        self.kept.lock().all.keys().cloned().collect()
    }
}

impl KeptHandles {
    /// Takes out the handles of deleted topics and consumers, which would keep their memory, whenever
    /// the handles have doubled; an idle one, if there are `most` of them.
    fn make_room(&mut self, most: usize) -> Vec<Arc<Consumer>> {
        let mut dropped = Vec::new();
        if self.all.len() >= SWEEP.max(2 * self.swept) {
            let gone = self.all.extract_if(|_, handle| handle.cursor().is_err());
            dropped.extend(gone.map(|(_, handle)| handle));
            self.swept = self.all.len();
        }
        if self.all.len() >= most {
            let idle = self.all.iter().find(|(_, handle)| Arc::strong_count(handle) == 1);
            let key = idle.map(|(key, _)| key.clone());
            dropped.extend(key.and_then(|key| self.all.remove(&key)));
        }
        dropped
    }
}

impl Service {
    /// Creates or reopens a consumer; its reads continue from the stored cursor.
    pub(super) fn put_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = consumers::put(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let created = s.consumer_info(topic, &name).is_err();
            let (mode, start) = (asked.mode, asked.start);
            let handle = s.engine.consumer(topic, &name, mode, start, asked.auto_commit)?;
            s.keep(topic, &name, asked.reader.as_deref(), handle);
            let mut o = Object::reopen(consumers::info(&s.consumer_info(topic, &name)?));
            o.flag("auto_commit", asked.auto_commit).flag("created", created);
            let body = s.with_timing(o.finish(), start_ns);
            Ok(Reply { status: if created { 201 } else { 200 }, body })
        })
    }

    pub(super) fn consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let body = consumers::info(&s.consumer_info(topic, &name)?);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn drop_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            s.consumers.remove(&key(topic, &name, None));
            let deleted = s.engine.delete_consumer(topic, &name)?;
            let mut o = Object::new(96);
            o.name("topic", topic).name("consumer", &name).flag("deleted", deleted);
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    pub(super) fn commit_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (seq, reader) = consumers::commit(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let handle = s.consumer_handle(topic, &name, reader.as_deref())?;
            handle.commit(seq)?;
            let body = consumers::position(topic, &name, handle.cursor()?);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn seek_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (to, reader) = consumers::seek(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let handle = s.consumer_handle(topic, &name, reader.as_deref())?;
            let body = consumers::position(topic, &name, handle.seek(to)?);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    /// Lists the consumers of the topic in the path, or of every topic that the query selects.
    pub(super) fn list_consumers(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let query = Query::new(r.query);
        let page = page::parse(&query)?;
        let topic = query.get("topic")?.map(|t| t.into_owned());
        if let Some(topic) = &topic {
            r.grant.check(topic)?;
        }
        // The cursor holds a topic name that the client may have made up, so it is checked too.
        let after = match &page.after {
            None => None,
            Some(after) => Some(after.split_once('\n').ok_or_else(page::invalid_cursor)?),
        };
        if let Some((topic, _)) = after {
            r.grant.check(topic)?;
        }
        let after = after.map(|(topic, name)| (topic.to_owned(), name.to_owned()));
        let grant = r.grant.clone();
        self.on_worker(r, move |s, named| {
            let one = if named.is_empty() { topic } else { Some(named.to_owned()) };
            let (mut found, size) = (Vec::new(), page.size + 1);
            let after = after.as_ref().map(|(topic, name)| (topic.as_str(), name.as_str()));
            match one {
                Some(topic) => s.consumers_of(&topic, after, &page.prefix, size, &mut found)?,
                None => {
                    let mut from = after.map(|a| a.0.to_owned());
                    if let Some((topic, _)) = after {
                        let rest = s.consumers_of(topic, after, &page.prefix, size, &mut found);
                        rest.or_else(absent)?;
                    }
                    while found.len() < size {
                        let topics = s.names(&grant, "", from.as_deref(), 256);
                        let Some(last) = topics.last() else { break };
                        from = Some(last.topic.clone());
                        for t in &topics {
                            let all =
                                s.consumers_of(&t.topic, None, &page.prefix, size, &mut found);
                            all.or_else(absent)?;
                        }
                    }
                }
            }
            let more = found.len() > page.size;
            found.truncate(page.size);
            let last = found.last().filter(|_| more);
            let next = last.map(|c| page::cursor(&format!("{}\n{}", c.topic, c.name)));
            Ok(Reply::ok(s.with_timing(consumers::list(&found, next.as_deref()), start_ns)))
        })
    }

    /// Appends consumers of a topic to `found`, up to `most` in all.
    fn consumers_of(
        &self,
        topic: &str,
        after: Option<(&str, &str)>,
        prefix: &str,
        most: usize,
        found: &mut Vec<ConsumerInfo>,
    ) -> Result<(), Failure> {
        let limit = most.saturating_sub(found.len());
        if limit > 0 {
            let after = after.filter(|(t, _)| *t == topic).map(|(_, name)| name);
            found.extend(self.engine.consumers_page(topic, prefix, after, limit)?);
        }
        Ok(())
    }

    fn consumer_info(&self, topic: &str, name: &str) -> Result<ConsumerInfo, Failure> {
        Ok(self.engine.consumer_info(topic, name)?)
    }

    /// Keeps a handle for the requests of a reader. All readers of `at_most_once` share one, which has the
    /// batches that did not reach a client.
    fn keep(
        &self,
        topic: &str,
        name: &str,
        reader: Option<&str>,
        handle: Consumer,
    ) -> Arc<Consumer> {
        if handle.mode() == ConsumerMode::AtMostOnce
            && let Some(kept) = self.consumers.get(&key(topic, name, None))
            && kept.cursor().is_ok()
        {
            return kept;
        }
        let reader = reader.filter(|_| handle.mode() == ConsumerMode::AtLeastOnce);
        let handle = Arc::new(if reader.is_some() { handle.into_reader() } else { handle });
        self.consumers.insert(key(topic, name, reader), handle.clone());
        handle
    }

    /// Forgets the handle of a reader that sends no more requests.
    pub fn forget_reader(&self, topic: &str, name: &str, reader: &str) {
        self.consumers.remove(&key(topic, name, Some(reader)));
    }

    /// What a transaction needs to know of a reader; `None` for one that has sent no request since the
    /// start of the server.
    pub(super) fn reader_fence(&self, topic: &str, name: &str, reader: &str) -> Option<u64> {
        self.consumers.get(&key(topic, name, Some(reader)))?.fence()
    }

    /// Whether a reader has one handle for good: another topic of the name is none of its.
    fn is_of_process(&self, reader: Option<&str>) -> bool {
        reader.is_some() && self.consumers.of_process
    }

    /// The handle of an existing consumer for the requests of a reader, or of those that name none.
    pub fn consumer_handle(
        &self,
        topic: &str,
        name: &str,
        reader: Option<&str>,
    ) -> Result<Arc<Consumer>, Failure> {
        let key = key(topic, name, reader);
        if let Some(handle) = self.consumers.get(&key) {
            match handle.cursor() {
                Ok(_) => return Ok(handle),
                Err(e) if self.is_of_process(reader) => return Err(e.into()),
                // The topic or the consumer was deleted, and may have been created again.
                Err(_) => self.consumers.remove(&key),
            }
        }
        if self.is_of_process(reader) {
            let (topic, consumer) = (topic.to_owned(), name.to_owned());
            return Err(Error::ConsumerNotFound { topic, consumer }.into());
        }
        let mode = self.consumer_info(topic, name)?.mode;
        if reader.is_some() && mode == ConsumerMode::AtMostOnce {
            return self.consumer_handle(topic, name, None);
        }
        let opened = self.engine.consumer(topic, name, Some(mode), ConsumerStart::Start, false)?;
        Ok(self.keep(topic, name, reader, opened))
    }
}

fn key(topic: &str, name: &str, reader: Option<&str>) -> Key {
    (topic.to_owned(), name.to_owned(), reader.unwrap_or_default().to_owned())
}

/// Treats a topic that was deleted meanwhile as one without consumers.
fn absent(failure: Failure) -> Result<(), Failure> {
    if failure.code == "topic_not_found" { Ok(()) } else { Err(failure) }
}
