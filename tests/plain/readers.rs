//! The steps of routers, watches and consumers.

use topics_engine::{
    ConsumerMode, ConsumerRead, ConsumerStart, Engine, Event, ReadFrom, SeekTo, WatchRequest,
    WatchStart,
};

use super::hand::{Hand, LOGS, Outcome, must, ok};
use super::model::{Cursor, Handle, Router};
use super::step::Step;

const ROUTERS: [&str; 2] = ["sd", "de"];

/// Name, topic, mode, automatic commits.
const CONSUMERS: [(&str, usize, ConsumerMode, bool); 4] = [
    ("once", 0, ConsumerMode::AtMostOnce, false),
    ("again", 0, ConsumerMode::AtLeastOnce, false),
    ("auto", 0, ConsumerMode::AtLeastOnce, true),
    ("other", 1, ConsumerMode::AtLeastOnce, false),
];

/// Logs that the watch names.
const WATCHED: [usize; 2] = [0, 1];

impl Hand {
    pub fn reader(&mut self, step: &Step) -> Outcome {
        match step {
            Step::CreateRouter { router } => self.create_router(*router),
            Step::DeleteRouter { router } => {
                let there = self.model.routers[*router].take().is_some();
                let deleted = ok(self.engine().delete_router(ROUTERS[*router]))?;
                must!(deleted == there, "deleted: {deleted}");
                Ok(())
            }
            Step::RouterProgress => self.progress(),
            Step::WatchOpen { from } => self.watch_open(*from),
            Step::WatchNext => self.watch_next(),
            Step::WatchClose => {
                self.watch = None;
                self.model.watch = None;
                Ok(())
            }
            Step::WatchResume => self.watch_resume(),
            Step::ConsumerOpen { which, end } => self.consumer_open(*which, *end),
            Step::ConsumerRead { which, max } => self.consumer_read(*which, *max, true),
            Step::ConsumerPeek { which, max } => self.consumer_read(*which, *max, false),
            Step::ConsumerCommit { which, back } => self.commit(*which, *back),
            Step::ConsumerSeek { which, to } => self.seek(*which, *to),
            Step::ConsumerClose { which } => self.close_handle(*which),
            Step::ConsumerDelete { which } => self.delete_consumer(*which),
            other => Err(format!("nobody takes {other:?}")),
        }
    }

    fn create_router(&mut self, router: usize) -> Outcome {
        let made = self.engine().create_router(ROUTERS[router], &self.request(router));
        let Some(source) = &self.model.logs[router] else {
            let code = made.map_err(|e| e.code());
            must!(code == Err("topic_not_found"), "a router without a source: {code:?}");
            return Ok(());
        };
        let new = self.model.routers[router].is_none();
        let at = source.head;
        let made = ok(made)?;
        must!(made == new, "created: {made}");
        if new {
            self.model.routers[router] = Some(Router { at });
        }
        if self.model.logs[router + 1].is_none() {
            // It has made its destination; later ones of that name have our class.
            let s = ok(self.engine().state(LOGS[router + 1], false))?;
            let log = super::model::Log { id: s.topic_id, ..Default::default() };
            self.model.logs[router + 1] = Some(log);
            let patch =
                topics_engine::ConfigPatch { durability: Some(self.class), ..Default::default() };
            ok(self.engine().create_topic(LOGS[router + 1], &patch))?;
        }
        Ok(())
    }

    /// Lets the routers copy everything, the second what the first has copied.
    fn progress(&mut self) -> Outcome {
        for _ in 0..4 {
            ok(self.engine().tick())?;
            ok(self.engine().sync())?;
        }
        ok(self.engine().tick())?;
        for router in 0..2 {
            let due = self.model.due(router, self.filters[router]);
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
            // What the source announces as lost takes seqs here.
            for ((seq, ..), rec) in new.iter().zip(due) {
                dest.head = *seq - 1;
                dest.push(rec);
            }
            dest.head = head;
            dest.gaps = gaps;
        }
        Ok(())
    }

    fn open_watch(&mut self, topics: Vec<(String, WatchStart)>) -> Outcome {
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

    /// Ends the watch and goes on from its cursors.
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

    /// Topics that went begin anew.
    fn resumed(
        &mut self,
        mut cursors: [(u64, u64); 2],
        mut topics: Vec<(String, WatchStart)>,
    ) -> ([(u64, u64); 2], Vec<(String, WatchStart)>) {
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

    /// Everything up to the head comes, in order and once.
    fn watch_next(&mut self) -> Outcome {
        let (Some(mut watch), Some(mut cursors)) = (self.watch.take(), self.model.watch.take())
        else {
            return Ok(());
        };
        // Records become watchable as the workers run, the routers' copies among them.
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
                cursors[i] = (log.id, 0);
            }
            let mut last = cursors[i].1;
            for (seq, name) in &seen[i] {
                must!(*seq > last, "I4: the watch shows {seq} after {last}");
                last = *seq;
                let was = log.ever.get(seq).map(|r| r.name.as_str());
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

    fn consumer_open(&mut self, which: usize, end: bool) -> Outcome {
        self.close_handle(which)?;
        let (name, topic, mode, auto) = CONSUMERS[which];
        self.ensure(topic);
        let Some(log) = &self.model.logs[topic] else { return Ok(()) };
        let start = if end { ConsumerStart::End } else { ConsumerStart::Start };
        let at = if end { log.head } else { log.start() };
        let opened = self.engine().consumer(LOGS[topic], name, Some(mode), start, auto);
        self.handles.insert(which, ok(opened)?);
        let cursor = self.model.cursors.entry(which).or_insert(Cursor { topic, stored: at });
        let next = cursor.stored;
        let handle = Handle { next, done: None, reads: 0, logged_at: self.mono() };
        self.model.handles.insert(which, handle);
        Ok(())
    }

    fn consumer_read(&mut self, which: usize, max: usize, moves: bool) -> Outcome {
        let Some(handle) = self.handles.get(&which) else { return Ok(()) };
        let (_, topic, mode, auto) = CONSUMERS[which];
        let once = mode == ConsumerMode::AtMostOnce;
        let log = self.model.logs[topic].as_ref().unwrap();
        let now = self.mono();
        let cursor = self.model.cursors.get_mut(&which).unwrap();
        let h = self.model.handles.get_mut(&which).unwrap();
        let from = if once { cursor.stored } else { h.next };
        let req = ConsumerRead { max_records: max, checkpoint: moves, ..ConsumerRead::default() };
        let b = ok(handle.read(&req))?;
        let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
        let got: Vec<(u64, String)> = b.iter().map(|r| (r.seq, text(r.data))).collect();
        let want = log.after(from).take(got.len()).map(|(seq, r)| (seq, r.name.clone()));
        let want: Vec<_> = want.collect();
        must!(got == want, "{got:?} is handed out after {from}, not {want:?}");
        let next = b.next_from_seq;
        must!(next >= from && next <= log.head, "the next position is {next} after {from}");
        // Fewer than asked for: there are no more, or a loss comes between.
        if let Some((seq, _)) = log.after(got.last().map_or(from, |g| g.0)).next()
            && got.len() < max
        {
            must!(log.gap_in(from, seq), "{} of {max} after {from}, {seq} comes", got.len());
        }
        must!(log.after(next).next().is_none_or(|(s, _)| got.iter().all(|g| g.0 < s)), "{next}");
        must!(log.after(from).take_while(|r| r.0 <= next).count() == got.len(), "{next} skips");
        if !moves {
            return Ok(());
        }
        if once {
            cursor.stored = next;
            return Ok(());
        }
        if auto {
            h.done = Some(h.next);
            if h.reads >= 100 || now - h.logged_at >= 1_000 {
                cursor.stored = cursor.stored.max(h.next);
                (h.done, h.reads, h.logged_at) = (None, 0, now);
            }
        }
        h.next = next;
        h.reads += 1;
        // What is stored by itself is visible when it is logged.
        if auto { ok(self.engine().sync()) } else { Ok(()) }
    }

    fn commit(&mut self, which: usize, back: u64) -> Outcome {
        let Some(handle) = self.handles.get(&which) else { return Ok(()) };
        let head = self.model.logs[CONSUMERS[which].1].as_ref().map_or(0, |l| l.head);
        let above = handle.commit(head + 1).map_err(|e| e.code());
        must!(above == Err("invalid_request"), "a commit above the head: {above:?}");
        let seq = head.saturating_sub(back);
        ok(handle.commit(seq))?;
        let cursor = self.model.cursors.get_mut(&which).unwrap();
        cursor.stored = cursor.stored.max(seq);
        Ok(())
    }

    fn seek(&mut self, which: usize, to: u64) -> Outcome {
        let Some(handle) = self.handles.get(&which) else { return Ok(()) };
        let log = self.model.logs[CONSUMERS[which].1].as_ref().unwrap();
        let (to, at) = match to {
            0 => (SeekTo::Start, log.start()),
            1 => (SeekTo::End, log.head),
            n => (SeekTo::Seq(log.head.saturating_sub(n)), log.head.saturating_sub(n)),
        };
        let got = ok(handle.seek(to))?;
        must!(got == at, "sought to {got}, not {at}");
        self.model.cursors.get_mut(&which).unwrap().stored = at;
        let h = self.model.handles.get_mut(&which).unwrap();
        (h.next, h.done) = (at, None);
        Ok(())
    }

    fn close_handle(&mut self, which: usize) -> Outcome {
        let Some(h) = self.model.handles.remove(&which) else { return Ok(()) };
        self.handles.remove(&which);
        if let (Some(done), Some(c)) = (h.done, self.model.cursors.get_mut(&which)) {
            c.stored = c.stored.max(done);
        }
        ok(self.engine().sync())
    }

    pub fn close_handles(&mut self) -> Outcome {
        (0..CONSUMERS.len()).try_for_each(|which| self.close_handle(which))
    }

    fn delete_consumer(&mut self, which: usize) -> Outcome {
        self.close_handle(which)?;
        let (name, topic, ..) = CONSUMERS[which];
        if self.model.logs[topic].is_none() {
            return Ok(());
        }
        let there = self.model.cursors.remove(&which).is_some();
        let deleted = ok(Engine::delete_consumer(&self.engine(), LOGS[topic], name))?;
        must!(deleted == there, "deleted: {deleted}");
        Ok(())
    }

    /// Stored cursors are where the model has them.
    pub fn check_cursors(&self) -> Outcome {
        for (topic, name) in LOGS.iter().enumerate().take(2) {
            if self.model.logs[topic].is_none() {
                continue;
            }
            let got = ok(self.engine().consumers(name))?;
            let got: Vec<(String, u64)> = got.into_iter().map(|c| (c.name, c.cursor)).collect();
            let of = self.model.cursors.iter().filter(|(_, c)| c.topic == topic);
            let mut want: Vec<(String, u64)> =
                of.map(|(w, c)| (CONSUMERS[*w].0.to_owned(), c.stored)).collect();
            want.sort();
            must!(got == want, "I8: the cursors of {name} are {got:?}, not {want:?}");
        }
        let routers = self.engine().routers("").len();
        let want = self.model.routers.iter().flatten().count();
        must!(routers == want, "{routers} routers, not {want}");
        Ok(())
    }
}
