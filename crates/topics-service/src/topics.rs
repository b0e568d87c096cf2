//! Verbs of topics, and of the engine as a whole.

use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use topics_engine::{Appended, Error, TopicState, TopicSummary};
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::topics::RecordsToDelete;
use topics_wire::write::{Body, Table, Write};
use topics_wire::{Failure, Grant, config, limits, metrics, page, report, topics, write};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

impl Service {
    pub(super) fn state(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let touch = Query::new(r.query).flag("touch")?.unwrap_or(true);
        Ok(topics::state(&self.engine.state(r.name, touch)?))
    }

    pub(super) fn seek(&self, r: &Request<'_>, start_ns: u64) -> Answer {
        let found = self.engine.seek(r.name, topics::parse_seek(r.body)?)?;
        let mut o = Object::new(128);
        o.int("seq", found.seq);
        Ok(Some(Reply::ok(self.with_scan_cost(o.finish(), found.records_scanned, start_ns))))
    }

    pub(super) fn create(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let patch = if r.body.is_empty() { Default::default() } else { config::parse(r.body)? };
        r.grant.check_names(&patch)?;
        let existing = Query::new(r.query).flag("create")?.into();
        self.on_worker(r, move |s, topic| {
            let created = s.engine.create_topic_if(topic, &patch, existing)?;
            let (status, body) = topics::created(topic, &created);
            Ok(Reply { status, body: s.with_timing(body, start_ns) })
        })
    }

    pub(super) fn drop_topic(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let if_empty = Query::new(r.query).flag("if_empty")?.unwrap_or(false);
        let grant = r.grant.clone();
        self.on_worker(r, move |s, topic| {
            let mut dropped = s.engine.delete_topic(topic, if_empty)?;
            dropped.routers_removed.retain(|router| grant.covers(router));
            let body = topics::dropped(topic, &dropped);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn delete(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let wanted = topics::parse_delete(r.body)?;
        self.on_worker(r, move |s, topic| {
            let (done, scanned) = match &wanted {
                RecordsToDelete::Range(request) => {
                    (s.engine.delete(topic, request)?, request.matching.is_some())
                }
                RecordsToDelete::Seqs(seqs) => (s.engine.delete_seqs(topic, seqs)?, false),
            };
            let body = topics::deleted(topic, &done);
            Ok(Reply::ok(match scanned {
                true => s.with_scan_cost(body, done.records_scanned, start_ns),
                false => s.with_timing(body, start_ns),
            }))
        })
    }

    pub(super) fn trim(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let count = topics::parse_trim(r.body)?;
        self.on_worker(r, move |s, topic| {
            let body = topics::deleted(topic, &s.engine.trim(topic, count)?);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn write(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let query = Query::new(r.query);
        let table;
        let mut w = match r.kind {
            Body::Arrow => {
                table = Table::read(r.body, self.limits.batch_records, self.limits.body_bytes)?;
                write::parse_table(&table, &query, r.key, &self.limits)?
            }
            kind => write::parse(kind, r.body, &query, r.key, &self.limits)?,
        };
        w.restrict(r.grant)?;
        if let Some(trace) = r.trace {
            w.add_trace_context(trace, &self.limits);
        }
        if w.disable_backpressure {
            return self.write_on_worker(r, start_ns);
        }
        let (return_seqs, is_restricted) = (w.return_seqs, w.is_restricted);
        let (topic, service) = (r.name.to_owned(), self.clone());
        let reply = move |outcome: topics_engine::Result<Appended>| match outcome {
            Ok(a) => {
                let ns = service.elapsed(start_ns);
                let (status, body) = write::answer(&topic, &a, return_seqs, ns);
                Reply { status, body }
            }
            Err(e) => Write::failure(is_restricted, e).into(),
        };
        let answer = self.stage_verb(r.token, |done| {
            w.with_append(|append| {
                self.engine.append_async(r.name, append, Box::new(move |o| done(reply(o))))
            });
            true
        });
        Ok(answer.flatten())
    }

    /// Runs a write that may wait for a staging permit on a worker thread, over its own copy of the
    /// request.
    fn write_on_worker(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (body, query, key) = (r.body_bytes(), r.query.to_vec(), r.key.to_vec());
        let (kind, trace, grant) = (r.kind, r.trace.cloned(), r.grant.clone());
        self.on_worker(r, move |s, topic| {
            let query = Query::new(&query);
            let mut w = write::parse(kind, &body, &query, &key, &s.limits)?;
            w.restrict(&grant)?;
            if let Some(trace) = &trace {
                w.add_trace_context(trace, &s.limits);
            }
            let a = w.with_append(|append| s.engine.append(topic, append));
            let a = a.map_err(|e| Write::failure(w.is_restricted, e))?;
            let (status, body) = write::answer(topic, &a, w.return_seqs, s.elapsed(start_ns));
            Ok(Reply { status, body })
        })
    }

    pub(super) fn list(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let query = Query::new(r.query);
        let page = page::parse(&query)?;
        let touch = query.flag("touch")?.unwrap_or(false);
        let mut found = self.names(r.grant, &page.prefix, page.after.as_deref(), page.size + 1);
        let more = found.len() > page.size;
        found.truncate(page.size);
        let next = found.last().filter(|_| more).map(|t| page::cursor(&t.topic));
        if touch {
            // A topic that was deleted since the list has nothing to touch.
            found.iter().for_each(|t| drop(self.engine.state(&t.topic, true)));
        }
        Ok(topics::list(&found, next.as_deref()))
    }

    /// The topics that the client may see, in name order.
    pub(super) fn names(
        &self,
        grant: &Grant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<TopicSummary> {
        let mut found = Vec::new();
        for prefix in grant.within(prefix) {
            found.extend(self.engine.list(&prefix, after, limit - found.len()));
        }
        found
    }

    pub(super) fn states(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let wanted = topics::parse_states(r.body)?;
        let mut names = wanted.topics;
        names.iter().try_for_each(|name| r.grant.check(name))?;
        for prefix in &wanted.prefixes {
            let found = self.names(r.grant, prefix, None, limits::MAX_STATES + 1);
            names.extend(found.into_iter().map(|t| t.topic));
            if names.len() > limits::MAX_STATES {
                let message = format!(
                    "the request matches more than {} topics; name fewer",
                    limits::MAX_STATES
                );
                return Err(Failure::invalid(message));
            }
        }
        names.sort();
        names.dedup();
        let mut found: Vec<TopicState> = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            match self.engine.state(&name, false) {
                Ok(state) => found.push(state),
                Err(Error::TopicNotFound(_)) => missing.push(name),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(topics::states(&found, &missing))
    }

    pub(super) fn sync(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let topic = topics::parse_sync(r.body)?;
        if let Some(topic) = &topic {
            r.grant.check(topic)?;
        }
        self.on_worker(r, move |s, _| {
            match &topic {
                Some(topic) => s.engine.sync_topic(topic),
                None => s.engine.sync(),
            }?;
            Ok(Reply::ok(s.with_timing(done("synced"), start_ns)))
        })
    }

    pub(super) fn checkpoint(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.on_worker_without_body(r, move |s, _| {
            s.engine.checkpoint()?;
            Ok(Reply::ok(s.with_timing(done("checkpointed"), start_ns)))
        })
    }

    /// Backs the engine up into a directory, or into a prefix of an object store, below what was allowed.
    pub(super) fn backup(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let dir = report::parse_backup(r.body)?;
        let Some(backups) = self.backups.get() else {
            return Err(Failure::invalid(
                "this server makes no backups: set backup_dir (TOPICS_BACKUP_DIR) to the \
                 directory that is to have them, or run `topics backup` on its machine",
            ));
        };
        let target = match &backups.below {
            Some(below) if is_prefix(below) => below_prefix(below, &dir)?,
            Some(below) => below_directory(Path::new(below), &dir)?,
            None => dir.clone(),
        };
        let put = backups.put.clone();
        self.on_worker(r, move |s, _| {
            let made = match is_prefix(&target) {
                true => put(&s.engine, &target)?,
                false => s.engine.backup(Path::new(&target))?,
            };
            Ok(Reply::ok(s.with_timing(report::backup(&dir, &made), start_ns)))
        })
    }

    pub(super) fn verify(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.on_worker_without_body(r, move |s, _| {
            Ok(Reply::ok(s.with_timing(report::verification(&s.engine.verify()?), start_ns)))
        })
    }

    /// The metrics; on a worker thread, because they visit every topic.
    pub(super) fn metrics(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let text = if r.json { metrics::json } else { metrics::prometheus };
        let grant = r.grant.clone();
        self.on_worker(r, move |s, _| Ok(Reply::ok(text(&s.engine, &grant))))
    }

    pub(super) fn health(&self) -> Vec<u8> {
        let mut o = Object::new(96);
        o.name("status", "ok").name("version", env!("CARGO_PKG_VERSION"));
        o.int("uptime_ms", self.elapsed(self.started_ns) / 1_000_000);
        o.finish()
    }

    pub(super) fn ready(&self, start_ns: u64) -> Answer {
        if !self.ready.load(Ordering::Relaxed) {
            return Err(Failure::from(Error::Closed));
        }
        let mut o = Object::new(96);
        o.name("status", "ready").flag("wal_replay_complete", true);
        o.int("topics", self.engine.metrics().topics);
        // Names only, because this verb needs no key. The log has the details.
        let mut loops = Object::new(32);
        for p in self.engine.loop_panics() {
            loops.int(p.name, p.count);
        }
        o.raw("loop_panics", &loops.finish());
        if let Some(state) = self.engine.remote_state() {
            o.name("remote_state", state.name());
        }
        self.reply(o.finish(), start_ns)
    }
}

/// The longest name of a directory, bytes.
const MAX_DIR_NAME: usize = 255;
/// The longest path of a directory, bytes: the paths of its files are longer.
const MAX_DIR_PATH: usize = 3000;

/// Whether a path is the URL of a prefix of an object store.
#[must_use]
pub fn is_prefix(path: &str) -> bool {
    path.starts_with("file://") || path.starts_with("s3://")
}

/// The URL of a prefix below another one, whose query it keeps.
fn below_prefix(below: &str, dir: &str) -> Result<String, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = |name: &str| name.chars().all(is_plain) && name.chars().any(|c| c != '.');
    if dir.len() > MAX_DIR_NAME || !dir.split('/').all(is_name) {
        return Err(Failure::invalid(format!(
            "dir is {dir:?}; below the server's backup_dir, a URL, it is at most {MAX_DIR_NAME} letters, \
             digits, -, _ and ., and / between names"
        )));
    }
    let (url, query) = below.split_at(below.find('?').unwrap_or(below.len()));
    Ok(format!("{}/{dir}{query}", url.trim_end_matches('/')))
}

/// The path of a directory below another one. A client must not choose any other.
fn below_directory(below: &Path, dir: &str) -> Result<String, Failure> {
    let inside = |part| matches!(part, Component::Normal(_));
    if dir.is_empty() || !Path::new(dir).components().all(inside) {
        return Err(Failure::invalid(format!(
            "dir is {dir:?}; it must be a path below the server's backup_dir, without .."
        )));
    }
    if dir.contains('\0') {
        return Err(Failure::invalid(format!("dir is {dir:?}; a path has no NUL character")));
    }
    let path = below.join(dir);
    let longest = Path::new(dir).components().map(|c| c.as_os_str().len()).max().unwrap_or(0);
    if longest > MAX_DIR_NAME || path.as_os_str().len() > MAX_DIR_PATH {
        return Err(Failure::invalid(format!(
            "dir is too long: a name in it has at most {MAX_DIR_NAME} bytes, and with the server's \
             backup_dir it has at most {MAX_DIR_PATH}; shorten it"
        )));
    }
    Ok(path.to_string_lossy().into_owned())
}

fn done(what: &str) -> Vec<u8> {
    let mut o = Object::new(96);
    o.flag(what, true);
    o.finish()
}
