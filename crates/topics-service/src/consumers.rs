//! Consumers: all requests share one handle for each.

use std::sync::Arc;

use topics_engine::{Consumer, ConsumerInfo, ConsumerStart};
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::{Failure, consumers, page};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

/// Maximum number of handles. Above it an idle handle is dropped, and its consumer continues from the
/// stored cursor.
const HANDLES: usize = 65_536;
/// Topic and consumer name.
pub(super) type Key = (String, String);

impl Service {
    /// Creates or reopens a consumer; its reads continue from the stored cursor.
    pub(super) fn put_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = consumers::put(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let created = s.consumer_info(topic, &name).is_err();
            let (mode, start) = (asked.mode, asked.start);
            let handle = s.engine.consumer(topic, &name, mode, start, asked.auto_commit)?;
            s.keep((topic.to_owned(), name.clone()), handle);
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
            s.consumer_reads.handles.lock().remove(&(topic.to_owned(), name.clone()));
            let deleted = s.engine.delete_consumer(topic, &name)?;
            let mut o = Object::new(96);
            o.name("topic", topic).name("consumer", &name).flag("deleted", deleted);
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    pub(super) fn commit_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let seq = consumers::commit(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let handle = s.handle(topic, &name)?;
            handle.commit(seq)?;
            let body = consumers::position(topic, &name, handle.cursor()?);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn seek_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let to = consumers::seek(r.body)?;
        let name = r.subresource.to_owned();
        self.on_worker(r, move |s, topic| {
            let body = consumers::position(topic, &name, s.handle(topic, &name)?.seek(to)?);
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

    fn keep(&self, key: Key, handle: Consumer) -> Arc<Consumer> {
        let handle = Arc::new(handle);
        let mut handles = self.consumer_reads.handles.lock();
        if handles.len() >= HANDLES {
            let idle = handles.iter().find(|(_, h)| Arc::strong_count(h) == 1);
            if let Some(key) = idle.map(|(key, _)| key.clone()) {
                handles.remove(&key);
            }
        }
        let old = handles.insert(key, handle.clone());
        // Dropping a handle stores its position; the lock must not be held for that.
        drop(handles);
        drop(old);
        handle
    }

    /// The handle of an existing consumer.
    pub(super) fn handle(&self, topic: &str, name: &str) -> Result<Arc<Consumer>, Failure> {
        let key = (topic.to_owned(), name.to_owned());
        let kept = self.consumer_reads.handles.lock().get(&key).cloned();
        if let Some(handle) = kept {
            match handle.cursor() {
                Ok(_) => return Ok(handle),
                // The topic or the consumer was deleted, and may have been created again.
                Err(_) => drop(self.consumer_reads.handles.lock().remove(&key)),
            }
        }
        let mode = self.consumer_info(topic, name)?.mode;
        let opened = self.engine.consumer(topic, name, Some(mode), ConsumerStart::Start, false)?;
        Ok(self.keep(key, opened))
    }
}

/// Treats a topic that was deleted meanwhile as one without consumers.
fn absent(failure: Failure) -> Result<(), Failure> {
    if failure.code == "topic_not_found" { Ok(()) } else { Err(failure) }
}
