//! The allowed and forbidden results of opening a damaged directory.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use topics_engine::{Append, Engine, Error, NewRecord, ReadFrom, ReadRequest, verify};
use topics_sim::{CallKind, FaultKind, env_on};

use super::corpus::{Corpus, TAIL, files};
use super::kinds::Damage;
use crate::crash::{Mounted, panic_text};
use crate::oracle::{Observation, Seen, TopicObs, observe_damaged};
use crate::run::DIR;

/// The result of one damaged open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenOutcome {
    Refused,
    Reported,
    Same,
}

/// Opens a damaged directory and judges the result.
pub fn judge(c: &Corpus, damage: &Damage, salvage: bool) -> Result<OpenOutcome, String> {
    let mut plan = c.plan.clone();
    plan.tuning.salvage = salvage;
    let mut disk = Mounted::new(&damage.image, &plan);
    // A call budget instead of a clock: an engine that spends it hangs.
    for kind in [CallKind::Read, CallKind::Write, CallKind::Open, CallKind::Create] {
        disk.fs.fail_from(kind, 60_000, FaultKind::EIO);
    }
    let fs = disk.fs.clone();
    let case = Case { c, damage, salvage };
    let run = AssertUnwindSafe(|| case.opened(&mut disk));
    let outcome = catch_unwind(run).unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p))));
    if fs.faults_fired() > 0 {
        return Err("the op budget is spent".into());
    }
    outcome
}

/// An open with `strict` must refuse this, name a damaged file, and create no file. After a clean
/// close, segment files are checked when their topic is first used: then that use must be refused.
pub fn must_refuse(c: &Corpus, damage: &Damage) -> Result<(), String> {
    let mut disk = Mounted::new(&damage.image, &c.plan);
    match disk.open() {
        Ok(engine) => return refuses_a_topic(&engine, damage),
        Err(Error::Corrupt { file, .. })
            if damage.touched.iter().any(|t| t.ends_with(&file) || file.contains(t)) => {}
        Err(Error::Version { what, .. }) if !what.is_empty() => {}
        Err(e) => return Err(format!("refused for another reason: {e}")),
    }
    let names = |image| files(image).into_iter().map(|f| f.0).collect::<Vec<_>>();
    let (is, was) = (names(&disk.fs.kill_image()), names(&damage.image));
    if is == was { Ok(()) } else { Err(format!("a refused open made {is:?} of {was:?}")) }
}

/// Every use of the topic must fail and name the damaged file, even a write, which reads no file.
fn refuses_a_topic(engine: &Engine, damage: &Damage) -> Result<(), String> {
    let records = [NewRecord { data: b"1", ..NewRecord::default() }];
    for topic in engine.list("", None, 1000) {
        let write = Append { records: &records, ..Append::default() };
        match engine.append(&topic.topic, &write) {
            Err(Error::Corrupt { file, .. })
                if damage.touched.iter().any(|t| t.ends_with(&file)) =>
            {
                return Ok(());
            }
            _ => {}
        }
    }
    Err("it is opened, and no topic is refused".into())
}

fn refused(e: &Error) -> Result<OpenOutcome, String> {
    match e {
        Error::Corrupt { file, .. } if !file.is_empty() => Ok(OpenOutcome::Refused),
        Error::Version { what, .. } if !what.is_empty() => Ok(OpenOutcome::Refused),
        e => Err(format!("refused without a place: {e:?}")),
    }
}

struct Case<'a> {
    c: &'a Corpus,
    damage: &'a Damage,
    salvage: bool,
}

impl Case<'_> {
    fn opened(&self, disk: &mut Mounted) -> Result<OpenOutcome, String> {
        let must_open = self.salvage && self.damage.whole;
        let engine = match disk.open() {
            Ok(engine) => engine,
            Err(e) if must_open => return Err(format!("salvage refuses: {e}")),
            Err(e) => return refused(&e),
        };
        let (seen, unread, outcome) = self.look(&engine, None)?;
        if must_open {
            self.is_stated(&seen, &unread)?;
            self.is_settled(disk, &seen)?;
        }
        if self.damage.thorough {
            self.lives_on(disk, engine, &seen, &unread)?;
        }
        if must_open { self.is_clean(disk) } else { Ok(()) }.map(|()| outcome)
    }

    /// Lost records are in gaps; reads do not detect losses again.
    fn is_stated(&self, seen: &Observation, unread: &[String]) -> Result<(), String> {
        if let Some(name) = unread.first() {
            return Err(format!("{name} cannot be read after a salvage"));
        }
        let unexplained = |t: &TopicObs| t.unexplained().next().copied();
        match seen.topics.iter().find_map(|t| Some((t, unexplained(t)?))) {
            Some((t, lost)) => Err(format!("{}: {lost:?} is in no gap", t.state.topic)),
            None => Ok(()),
        }
    }

    /// A crash immediately after the open leaves a directory that `strict` opens with the same
    /// state.
    fn is_settled(&self, disk: &Mounted, seen: &Observation) -> Result<(), String> {
        let mut plan = self.c.plan.clone();
        plan.tuning.salvage = false;
        let mut other = Mounted::new(&disk.fs.kill_image(), &plan);
        let engine = other.open().map_err(|e| format!("strict refuses after a salvage: {e}"))?;
        let (again, ..) =
            self.look(&engine, Some(seen)).map_err(|e| format!("strict after a salvage: {e}"))?;
        for (was, is) in seen.topics.iter().zip(&again.topics) {
            if was.records != is.records || is.state.next_seq < was.state.next_seq {
                return Err(format!("{}: strict shows something else", was.state.topic));
            }
        }
        Ok(())
    }

    /// `verify` reports no problem after a close.
    fn is_clean(&self, disk: &mut Mounted) -> Result<(), String> {
        let engine = disk.open().map_err(|e| format!("a further open: {e}"))?;
        engine.close().map_err(|e| format!("a close after a salvage: {e}"))?;
        drop(engine);
        let env = env_on(&disk.fs, &disk.clock, 1);
        let report = verify(&env, Path::new(DIR), &mut |_| {}).map_err(|e| e.to_string())?;
        match report.problems.first() {
            Some(p) => Err(format!("verify after a salvage: {p:?}")),
            None => Ok(()),
        }
    }

    /// The state that the engine serves, and the topics that cannot be read completely.
    fn look(
        &self,
        engine: &Engine,
        before: Option<&Observation>,
    ) -> Result<(Observation, Vec<String>, OpenOutcome), String> {
        let (seen, problems, unread) = observe_damaged(engine, self.c.plan.wall, 50);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let now = Now { case: self, engine, before };
        let mut outcome = now.compare(&seen, &unread)?;
        for name in &unread {
            self.unread(engine, name)?;
            outcome = OpenOutcome::Reported;
        }
        Ok((seen, unread, outcome))
    }

    /// A checkpoint and a reopen keep the served state: no damaged record is copied as undamaged.
    fn lives_on(
        &self,
        disk: &mut Mounted,
        engine: Engine,
        seen: &Observation,
        unread: &[String],
    ) -> Result<(), String> {
        // A checkpoint or close that meets the damage may fail with an error.
        let _ = engine.checkpoint();
        let _ = engine.close();
        drop(engine);
        let engine = match disk.open() {
            Ok(engine) => engine,
            Err(e) => return refused(&e).map(|_| ()),
        };
        let (again, still, _) =
            self.look(&engine, Some(seen)).map_err(|e| format!("after a checkpoint: {e}"))?;
        if let Some(new) = still.iter().find(|t| !unread.contains(t)) {
            return Err(format!("{new}: cannot be read after a checkpoint"));
        }
        for topic in &seen.topics {
            let later = again.topic(&topic.state.topic);
            let lost = topic.records.iter().find(|r| later.is_none_or(|l| l.get(r.seq) != Some(r)));
            if let Some(r) = lost.filter(|r| later.is_none_or(|l| l.tombstone(r.seq).is_none())) {
                return Err(format!("{}: seq {} went in a checkpoint", topic.state.topic, r.seq));
            }
        }
        Ok(())
    }

    /// A topic with failing reads: every read from any cursor names a damaged file or returns
    /// unchanged records.
    fn unread(&self, engine: &Engine, name: &str) -> Result<(), String> {
        let Some(whole) = self.c.whole.topic(name) else { return Err(format!("{name} is new")) };
        let mut failed = 0;
        for cursor in 0..=whole.state.head_seq {
            let from = ReadFrom::After(cursor);
            match engine.read(name, &ReadRequest { from, touch: false, ..Default::default() }) {
                Ok(batch) => {
                    let wrong = batch.iter().find(|r| {
                        let was = whole.get(r.seq);
                        was.is_none_or(|w| w.data != r.data || w.tag != r.tag || w.ts != r.ts)
                    });
                    if let Some(r) = wrong {
                        return Err(format!("{name}: seq {} was not there: {:?}", r.seq, r.data));
                    }
                }
                Err(Error::Corrupt { file, .. })
                    if self.damage.touched.iter().any(|t| t.ends_with(&file)) =>
                {
                    failed += 1;
                }
                Err(e) => return Err(format!("{name}: read after {cursor}: {e}")),
            }
        }
        if failed > 0 { Ok(()) } else { Err(format!("{name}: a read failed, and then none")) }
    }

    /// Damage to the last group of a killed log reads like a torn tail.
    fn torn(&self, topic: &str) -> bool {
        topic == TAIL && self.c.tail_harmed(&self.damage.image)
    }
}

/// An engine over a damaged directory, and the state that the open before it served.
struct Now<'a> {
    case: &'a Case<'a>,
    engine: &'a Engine,
    before: Option<&'a Observation>,
}

impl Now<'_> {
    /// Whether a change of this topic can come from frames that `salvage` declared lost and
    /// counted; with `seq`, a change to this record. Compares with the state served before, because
    /// the damaged log may be gone later.
    fn given_up(&self, topic: &str, seq: Option<u64>) -> bool {
        if !self.case.salvage {
            return false;
        }
        let Some(before) = self.before else { return self.engine.metrics().lost_lsns > 0 };
        match (before.topic(topic), seq) {
            (None, _) => seq.is_none(),
            (Some(t), Some(seq)) => t.get(seq).is_some(),
            (Some(_), None) => false,
        }
    }

    fn compare(&self, seen: &Observation, unread: &[String]) -> Result<OpenOutcome, String> {
        let (c, mut outcome) = (self.case.c, OpenOutcome::Same);
        for whole in &c.whole.topics {
            let name = &whole.state.topic;
            match seen.topic(name) {
                Some(t) => outcome = outcome.min(self.topic(whole, t)?),
                None if unread.contains(name) => outcome = OpenOutcome::Reported,
                // Its creation was in the range that was declared lost and reported.
                None if self.given_up(name, None) => outcome = OpenOutcome::Reported,
                None if self.case.torn(name) => outcome = OpenOutcome::Reported,
                None => return Err(format!("{name} is gone")),
            }
        }
        for t in &seen.topics {
            if c.whole.topic(&t.state.topic).is_none() {
                let known = c.world.names.contains_key(&t.state.topic);
                let was = self.before.is_some_and(|b| b.topic(&t.state.topic).is_some());
                if !(known && (was || self.given_up(&t.state.topic, None))) {
                    return Err(format!("{} was not there", t.state.topic));
                }
                outcome = OpenOutcome::Reported;
            }
        }
        Ok(outcome)
    }

    fn topic(&self, whole: &TopicObs, t: &TopicObs) -> Result<OpenOutcome, String> {
        let name = &whole.state.topic;
        let mut outcome = OpenOutcome::Same;
        for r in &whole.records {
            match t.get(r.seq) {
                Some(s) if s == r => {}
                Some(s) => return Err(format!("{name}: seq {} is {s:?}, was {r:?}", r.seq)),
                None if t.tombstone(r.seq).is_some() => outcome = OpenOutcome::Reported,
                None if self.case.torn(name) => outcome = OpenOutcome::Reported,
                None => return Err(format!("{name}: seq {} is missing in silence", r.seq)),
            }
        }
        self.in_band(whole, t)?;
        for r in t.records.iter().filter(|r| whole.get(r.seq).is_none()) {
            self.resurrected(name, r)?;
            outcome = OpenOutcome::Reported;
        }
        let config = t.state.config == whole.state.config;
        if !self.case.salvage && (!config || t.state.epoch != whole.state.epoch) {
            return Err(format!("{name}: config or epoch differ"));
        }
        if t.state.next_seq < whole.state.next_seq && !self.case.torn(name) {
            let (is, was) = (t.state.next_seq, whole.state.next_seq);
            return Err(format!("I2: {name}: next_seq {is}, was {was}"));
        }
        Ok(outcome)
    }

    /// A tombstone that no gap explains must cover only damaged records of a segment, and must be
    /// counted.
    fn in_band(&self, whole: &TopicObs, t: &TopicObs) -> Result<(), String> {
        let (name, id) = (&whole.state.topic, whole.state.topic_id);
        for lost in t.unexplained() {
            for seq in lost.gap_from..=lost.gap_to {
                if whole.get(seq).is_none() {
                    return Err(format!("{name}: {lost:?} covers seq {seq}, which was not there"));
                }
                if !self.case.c.harmed(&self.case.damage.image, id, seq) {
                    return Err(format!("{name}: {lost:?} covers seq {seq}, which is whole"));
                }
            }
            let n = lost.gap_to + 1 - lost.gap_from;
            if self.engine.metrics().corrupt_records < n {
                return Err(format!("{name}: {lost:?} is not counted"));
            }
        }
        Ok(())
    }

    /// A deleted or evicted record is back. Allowed only if the frame that removed it was declared
    /// lost with its range, which is counted.
    fn resurrected(&self, name: &str, r: &Seen) -> Result<(), String> {
        let attempted = self.case.c.world.attempts.iter().flat_map(|a| a.recs.iter());
        let known = attempted.into_iter().any(|a| a.data == r.data);
        if known && self.given_up(name, Some(r.seq)) {
            return Ok(());
        }
        Err(format!("{name}: seq {} was not there: {r:?}", r.seq))
    }
}
