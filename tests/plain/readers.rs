//! The steps of routers, watches and consumers.

use topics_engine::{Append, Event, NewRecord, ReadFrom, WatchRequest, WatchStart};

use super::driver::{Driver, LOGS, Outcome, must, ok};
use super::flaw::Flaw;
use super::model::{Router, written};
use super::step::Step;

const ROUTERS: [&str; 2] = ["sd", "de"];

/// The start of a watch, by topic.
type Starts = Vec<(String, WatchStart)>;

/// The logs that the watch names.
const WATCHED: [usize; 2] = [0, 1];

impl Driver {
    pub fn reader(&mut self, step: &Step) -> Outcome {
        match step {
            Step::CreateRouter { router } => self.create_router(*router),
            Step::DeleteRouter { router } => {
                let there = self.model.routers[*router].take().is_some();
                let deleted = ok(self.engine().delete_router(ROUTERS[*router]))?;
                must!(deleted == there, "deleted: {deleted}");
                Ok(())
            }
            Step::Ticks => self.progress(),
            Step::WatchOpen { from } => self.watch_open(*from),
            Step::WatchNext => self.watch_next(),
            Step::WatchClose => {
                self.watch = None;
                self.model.watch = None;
                Ok(())
            }
            Step::WatchResume => self.watch_resume(),
            other => Err(format!("nobody takes {other:?}")),
        }
    }

    fn create_router(&mut self, router: usize) -> Outcome {
        let mut req = self.request(router);
        if req.filter.is_some() && self.flawed(Flaw::IgnoresFilter) {
            req.filter = None;
        }
        let made = ok(self.engine().create_router(ROUTERS[router], &req))?;
        // It has created the topics that were missing.
        self.adopt(router)?;
        let at = self.model.logs[router].as_ref().map_or(0, |source| source.head);
        let new = self.model.routers[router].is_none();
        must!(made == new, "created: {made}");
        if new {
            self.model.routers[router] = Some(Router { at });
        }
        self.adopt(router + 1)
    }

    /// Runs the routers until everything is copied; the second copies the copies of the first.
    pub fn progress(&mut self) -> Outcome {
        for _ in 0..4 {
            self.tick()?;
            self.sync()?;
        }
        self.tick()?;
        let wall = self.wall();
        for router in 0..2 {
            let due = self.model.due(router, self.filters[router]);
            if let Some(rec) = due.last()
                && self.flawed(Flaw::DoublesCopy)
            {
                let (data, tag) = (rec.name.as_bytes(), rec.tag.as_bytes());
                let records = [NewRecord { data, tag, ..NewRecord::default() }];
                let req = Append { records: &records, ..Append::default() };
                ok(self.engine().append(LOGS[router + 1], &req))?;
            }
            let source_head = self.model.logs[router].as_ref().map_or(0, |l| l.head);
            let Some(r) = &mut self.model.routers[router] else { continue };
            r.at = source_head;
            let info = ok(self.engine().router(ROUTERS[router]))?;
            must!(info.lag == 0, "I7: {info:?}");
            let name = LOGS[router + 1];
            let (records, gaps) = super::check::read(&self.engine(), name)?;
            let head = ok(self.engine().state(name, false))?.next_seq - 1;
            let Some(dest) = &mut self.model.logs[router + 1] else { continue };
            let before = dest.head;
            let new: Vec<_> = records.iter().filter(|r| r.0 > before).collect();
            let got: Vec<&str> = new.iter().map(|r| r.1.as_str()).collect();
            let want: Vec<&str> = due.iter().map(|r| r.name.as_str()).collect();
            must!(got == want, "I7: {name}: the copies are {got:?}, not {want:?}");
            // Losses that the source announces use seqs here.
            for ((seq, ..), rec) in new.iter().zip(due) {
                dest.head = *seq - 1;
                dest.push(written(&rec.name, &rec.tag, wall));
            }
            dest.head = head;
            dest.gaps = gaps;
        }
        Ok(())
    }

    fn open_watch(&mut self, topics: Starts) -> Outcome {
        let req = WatchRequest { topics, lenient: true, ..WatchRequest::default() };
        self.watch = Some(ok(self.engine().watch(&req))?);
        Ok(())
    }

    fn watch_open(&mut self, from: usize) -> Outcome {
        let mut cursors = [(0, 0); 2];
        let mut topics = Vec::new();
        let start = [ReadFrom::After(0), ReadFrom::Earliest, ReadFrom::Tail(0)][from];
        for (i, topic) in WATCHED.into_iter().enumerate() {
            self.ensure(topic);
            let Some(log) = &self.model.logs[topic] else { continue };
            let at = [0, log.start(), log.head][from];
            cursors[i] = (log.id, at);
            topics.push((LOGS[topic].to_owned(), WatchStart { from: start, topic_id: None }));
        }
        self.model.watch = Some(cursors);
        self.open_watch(topics)
    }

    /// Ends the watch and resumes from its cursors.
    fn watch_resume(&mut self) -> Outcome {
        let (Some(old), Some(cursors)) = (self.watch.take(), self.model.watch.take()) else {
            return Ok(());
        };
        let mut topics = Vec::new();
        for (name, id, seq) in old.cursors() {
            let from = WatchStart { from: ReadFrom::After(seq), topic_id: Some(id) };
            topics.push((name.to_string(), from));
            if let Some(c) = cursors.iter().find(|c| c.0 == id) {
                must!(seq >= c.1, "the watch's cursor of {name} is {seq}, behind {}", c.1);
            }
        }
        drop(old);
        if topics.is_empty() {
            return Ok(());
        }
        let (cursors, topics) = self.resumed(cursors, topics);
        self.model.watch = Some(cursors);
        self.open_watch(topics)
    }

    /// Deleted topics start again.
    fn resumed(
        &mut self,
        mut cursors: [(u64, u64); 2],
        mut topics: Starts,
    ) -> ([(u64, u64); 2], Starts) {
        for (i, topic) in WATCHED.into_iter().enumerate() {
            self.ensure(topic);
            let id = self.model.logs[topic].as_ref().map_or(0, |l| l.id);
            if cursors[i].0 == id && topics.iter().any(|t| t.0 == LOGS[topic]) {
                continue;
            }
            cursors[i] = (id, 0);
            topics.retain(|t| t.0 != LOGS[topic]);
            let from = WatchStart { from: ReadFrom::After(0), topic_id: None };
            topics.push((LOGS[topic].to_owned(), from));
        }
        (cursors, topics)
    }

    /// Every record up to the head is delivered, in order and once.
    fn watch_next(&mut self) -> Outcome {
        let (Some(mut watch), Some(mut cursors)) = (self.watch.take(), self.model.watch.take())
        else {
            return Ok(());
        };
        // Records become watchable when the workers run, including copies by routers.
        self.progress()?;
        let mut seen: [Vec<(u64, String)>; 2] = Default::default();
        while let Some(event) = ok(watch.try_next())? {
            match event {
                Event::Records(frame) => {
                    let i = usize::from(&**frame.topic() == LOGS[1]);
                    let batch = frame.batch();
                    if cursors[i].0 != batch.topic_id {
                        cursors[i] = (batch.topic_id, 0);
                        seen[i].clear();
                    }
                    let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
                    seen[i].extend(batch.iter().map(|r| (r.seq, text(r.data))));
                    if self.flawed(Flaw::ShowsTwice) {
                        let again = seen[i].last().cloned();
                        seen[i].extend(again);
                    }
                }
                Event::Failed { topic, error, .. } => {
                    return Err(format!("the watch of {topic} fails: {error}"));
                }
                _ => {}
            }
        }
        for (i, topic) in WATCHED.into_iter().enumerate() {
            let Some(log) = &self.model.logs[topic] else { continue };
            if cursors[i].0 != log.id {
                // Frames that were in flight when the topic was deleted.
                let grave = self.model.graves.get(&cursors[i].0);
                for (seq, name) in seen[i].drain(..) {
                    let was = grave.and_then(|g| g.get(&seq)).map(|r| r.name.as_str());
                    must!(was == Some(&name), "the watch shows {name} at {seq}, not {was:?}");
                }
                cursors[i] = (log.id, 0);
            }
            let mut last = cursors[i].1;
            for (seq, name) in &seen[i] {
                must!(*seq > last, "I4: the watch shows {seq} after {last}");
                last = *seq;
                let was = log.records.get(seq).map(|r| r.name.as_str());
                must!(was == Some(name), "the watch shows {name} at {seq}, not {was:?}");
            }
            for (seq, rec) in log.after(cursors[i].1) {
                let shown = seen[i].iter().any(|s| s.0 == seq);
                must!(shown, "the watch of {} leaves {seq} {} out", LOGS[topic], rec.name);
            }
            cursors[i].1 = log.head.max(last);
        }
        (self.watch, self.model.watch) = (Some(watch), Some(cursors));
        Ok(())
    }
}
