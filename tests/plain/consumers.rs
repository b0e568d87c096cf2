//! The steps of consumers.

use topics_engine::{ConsumerMode, ConsumerRead, ConsumerStart, Engine, SeekTo};

use super::driver::{Driver, LOGS, Outcome, must, ok};
use super::flaw::Flaw;
use super::model::{Cursor, Handle};
use super::step::Step;

/// Name, topic, mode, automatic commits.
pub const CONSUMERS: [(&str, usize, ConsumerMode, bool); 4] = [
    ("once", 0, ConsumerMode::AtMostOnce, false),
    ("again", 0, ConsumerMode::AtLeastOnce, false),
    ("auto", 0, ConsumerMode::AtLeastOnce, true),
    ("other", 1, ConsumerMode::AtLeastOnce, false),
];

impl Driver {
    /// False: the step does not concern consumers.
    pub fn consumer(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::ConsumerOpen { which, end } => self.consumer_open(*which, *end)?,
            Step::ConsumerRead { which, max } => self.consumer_read(*which, *max, true)?,
            Step::ConsumerPeek { which, max } => self.consumer_read(*which, *max, false)?,
            Step::ConsumerCommit { which, back } => self.commit(*which, *back)?,
            Step::ConsumerSeek { which, to } => self.seek(*which, *to)?,
            Step::ConsumerSeekTime { which, back } => self.seek_time(*which, *back)?,
            Step::ConsumerClose { which } => self.close_handle(*which)?,
            Step::ConsumerDelete { which } => self.delete_consumer(*which)?,
            _ => return Ok(false),
        }
        Ok(true)
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
        self.model.handles.insert(which, Handle { next: cursor.stored });
        Ok(())
    }

    fn consumer_read(&mut self, which: usize, max: usize, moves: bool) -> Outcome {
        let Some(handle) = self.handles.get(&which) else { return Ok(()) };
        let (_, topic, mode, auto) = CONSUMERS[which];
        let once = mode == ConsumerMode::AtMostOnce;
        let from = match once {
            true => self.model.cursors[&which].stored,
            false => self.model.handles[&which].next,
        };
        let req = ConsumerRead { max_records: max, checkpoint: moves, ..ConsumerRead::default() };
        let b = ok(handle.read(&req))?;
        let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
        let mut got: Vec<(u64, String)> = b.iter().map(|r| (r.seq, text(r.data))).collect();
        if got.len() > 1 && self.flawed(Flaw::SkipsRecord) {
            got.remove(0);
        }
        let log = self.model.logs[topic].as_ref().unwrap();
        let cursor = self.model.cursors.get_mut(&which).unwrap();
        let h = self.model.handles.get_mut(&which).unwrap();
        let want = log.after(from).take(got.len()).map(|(seq, r)| (seq, r.name.clone()));
        let want: Vec<_> = want.collect();
        must!(got == want, "{got:?} is handed out after {from}, not {want:?}");
        let next = b.next_from_seq;
        must!(next >= from && next <= log.head, "the next position is {next} after {from}");
        // Fewer records than requested: there are no more, or a loss comes before the next.
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
            // The reader has processed what the read before returned.
            cursor.stored = cursor.stored.max(h.next);
        }
        h.next = next;
        // An automatic commit is visible when it is logged.
        if auto { self.sync() } else { Ok(()) }
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
        let stored = cursor.stored;
        if stored > 0 && self.flawed(Flaw::RewindsCursor) {
            ok(self.handles[&which].seek(SeekTo::Seq(stored - 1)))?;
        }
        Ok(())
    }

    /// Seeks after everything that was committed before a time.
    fn seek_time(&mut self, which: usize, back: u64) -> Outcome {
        let Some(handle) = self.handles.get(&which) else { return Ok(()) };
        let at = self.wall() - back;
        let got = ok(handle.seek(SeekTo::Ts(at)))?;
        let log = self.model.logs[CONSUMERS[which].1].as_ref().unwrap();
        must!(got <= log.head, "sought to {got}, above the head {}", log.head);
        for (seq, rec) in log.after(0) {
            must!((rec.ts < at) == (seq <= got), "sought to {got} by {at}: {seq} is of {}", rec.ts);
        }
        self.model.cursors.get_mut(&which).unwrap().stored = got;
        self.model.handles.get_mut(&which).unwrap().next = got;
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
        self.model.handles.get_mut(&which).unwrap().next = at;
        Ok(())
    }

    fn close_handle(&mut self, which: usize) -> Outcome {
        if self.model.handles.remove(&which).is_none() {
            return Ok(());
        }
        self.handles.remove(&which);
        self.sync()
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

    /// Stored cursors must have the positions of the model.
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
