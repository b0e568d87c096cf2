//! Steps during a shortage: acked changes take effect, refused ones do not, and a transaction with
//! an unknown outcome takes effect once when it is repeated.

use topics_engine::{Append, Error, NewRecord, TxnRequest};
use topics_model::queue::NewJob;
use topics_sim::{CallFilter, CallKind, FaultKind};

use super::consumers::CONSUMERS;
use super::driver::{Driver, LOGS, Outcome, must, ok};
use super::model::written;
use super::step::Shortage;
use super::txns::WRITERS;

/// The work during a shortage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// The log of the writes, their number, and the size of their records.
    pub topic: usize,
    pub writes: usize,
    pub size: usize,
    /// The targets of a transaction: one bit each for the source, the destination and the queue; 0:
    /// no transaction.
    pub to: usize,
}

/// Whether a call succeeded. Only the shortage may have refused it.
fn went<T>(result: topics_engine::Result<T>) -> Result<Option<T>, String> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Error::StorageUnavailable { reason: "no_space" | "no_descriptors" | "io", .. }) => {
            Ok(None)
        }
        Err(e) => Err(format!("{}: {e}", e.code())),
    }
}

impl Driver {
    pub fn shortage(&mut self, of: Shortage, work: Work) -> Outcome {
        // Topics that a refused transaction creates stay.
        let targets = (0..2).filter(|t| *t == work.topic || work.to & (1 << t) != 0);
        targets.for_each(|topic| self.ensure(topic));
        // Due work runs before the shortage: a refused move of dead letters is retried only a
        // second later.
        if self.model.routers.iter().any(Option::is_some) {
            self.progress()?;
        } else {
            self.tick()?;
        }
        self.sync()?;
        let log = |call| CallFilter::on_path(call, "wal-");
        match of {
            Shortage::NextFile => self.fs.fail_from(log(CallKind::Allocate), 1, FaultKind::ENOSPC),
            Shortage::Descriptors => self.fs.fail_from(CallKind::Create, 1, FaultKind::EMFILE),
            Shortage::Group(nth) => self.fs.fail_nth(log(CallKind::Write), nth, FaultKind::ENOSPC),
            Shortage::Space(free) => self.fs.set_free_space(Some(free)),
        }
        for _ in 0..work.writes {
            self.write_short(work.topic, work.size)?;
        }
        self.put_short(work.size)?;
        self.commits_short()?;
        // A router's copy may come before or after records that are published later.
        let routed = self.model.routers.iter().any(Option::is_some);
        let undecided = if work.to > 0 && !routed { self.transact_short(work.to)? } else { None };
        self.fs.clear_faults();
        self.fs.set_free_space(None);
        if routed {
            return self.progress();
        }
        self.tick()?;
        self.sync()?;
        undecided.map_or(Ok(()), |ask| self.repeat(ask))
    }

    fn padded(&mut self, size: usize) -> String {
        let name = self.name();
        format!("\"{}{}\"", name.trim_matches('"'), "x".repeat(size))
    }

    fn write_short(&mut self, topic: usize, size: usize) -> Outcome {
        let name = self.padded(size);
        let records = [NewRecord { data: name.as_bytes(), ..NewRecord::default() }];
        let req = Append { records: &records, ..Append::default() };
        if let Some(a) = went(self.engine().append(LOGS[topic], &req))? {
            let wall = self.wall();
            let seq = self.model.logs[topic].as_mut().unwrap().push(written(&name, "", wall));
            must!(a.first_seq == seq, "first_seq {} is not {seq}", a.first_seq);
        }
        Ok(())
    }

    fn put_short(&mut self, size: usize) -> Outcome {
        let name = self.padded(size);
        let records = [NewRecord { data: name.as_bytes(), ..NewRecord::default() }];
        let req = Append { records: &records, ..Append::default() };
        if let Some(a) = went(self.engine().append("q", &req))? {
            let job = NewJob { name, lane: 5, group: 0, visible_at: 0, expires_at: 0 };
            let seq = self.model.queue.put(job);
            must!(a.first_seq == seq, "first_seq {} is not {seq}", a.first_seq);
        }
        Ok(())
    }

    /// Every consumer commits the head.
    fn commits_short(&mut self) -> Outcome {
        for (which, handle) in &self.handles {
            let head = self.model.logs[CONSUMERS[*which].1].as_ref().map_or(0, |l| l.head);
            if went(handle.commit(head))?.is_some() {
                let cursor = self.model.cursors.get_mut(which).unwrap();
                cursor.stored = cursor.stored.max(head);
            }
        }
        Ok(())
    }

    /// If the outcome is unknown: the writer and epoch of the transaction, and its rows.
    fn transact_short(&mut self, to: usize) -> Result<Option<Repeat>, String> {
        let rows = self.new_rows(to);
        let epoch = self.model.writers[0].last.as_ref().map_or(0, |l| l.epoch) + 1;
        let repeat = Repeat { epoch, rows };
        let answer = self.send(&repeat);
        match went(answer)? {
            Some(answer) => self.done(&repeat, &answer).map(|()| None),
            None => Ok(Some(repeat)),
        }
    }

    /// Repeats it after the shortage: it takes effect once, whether or not it was decided before.
    fn repeat(&mut self, repeat: Repeat) -> Outcome {
        let answer = ok(self.send(&repeat))?;
        self.done(&repeat, &answer)
    }

    fn send(&self, repeat: &Repeat) -> topics_engine::Result<topics_engine::Committed> {
        let engine = self.engine();
        let (writer, epoch) = (Some(WRITERS[0]), Some(repeat.epoch));
        super::txns::with_rows(&repeat.rows, |rows| {
            engine.transact(&TxnRequest { writer, epoch, rows, ..TxnRequest::default() })
        })
    }

    fn done(&mut self, repeat: &Repeat, answer: &topics_engine::Committed) -> Outcome {
        self.published(repeat.epoch, &repeat.rows, answer)
    }
}

/// A transaction that is to be repeated.
struct Repeat {
    epoch: u64,
    rows: Vec<super::model::Row>,
}
