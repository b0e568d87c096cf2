//! Compares the engine's state with the model's.

use topics_engine::{Engine, JobState, PeekedJob, ReadFrom, ReadRequest};
use topics_model::queue::Phase;
use topics_model::topic::Topic;

use super::driver::{DEAD, Driver, LOGS, Outcome, must, ok};
use crate::run::meta_value;

/// Records and losses, front included.
type Contents = (Vec<Shown>, Vec<(u64, u64)>);
/// A record: seq, payload, tag, time.
type Shown = (u64, String, String, u64);

/// The complete content of a topic.
pub fn read(engine: &Engine, topic: &str) -> Result<Contents, String> {
    let (mut out, mut at) = (Vec::new(), 0);
    let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
    loop {
        let from = ReadFrom::After(at);
        let b = ok(engine.read(topic, &ReadRequest { from, ..ReadRequest::default() }))?;
        out.extend(b.iter().map(|r| (r.seq, text(r.data), text(r.tag), r.ts)));
        if b.caught_up || b.next_from_seq == at {
            break;
        }
        at = b.next_from_seq;
    }
    let s = ok(engine.state(topic, false))?;
    let mut gaps: Vec<(u64, u64)> = s.gaps.iter().map(|g| (g.from, g.to)).collect();
    gaps.extend((s.evict_floor > 1).then(|| (1, s.evict_floor - 1)));
    Ok((out, gaps))
}

/// The commit times of new records: at or after the previous record's, and at or after the write; later
/// only if the clock was set back.
fn adopt_times(log: &mut Topic, got: &[Shown], latest: u64) -> Outcome {
    let mut before = 0;
    for (seq, _, _, ts) in got {
        must!(*ts >= before, "{seq} is of {ts}, after {before}");
        before = *ts;
        let Some(rec) = log.records.get_mut(seq).filter(|r| r.ts == 0) else { continue };
        must!((rec.wall..=latest).contains(ts), "{seq} is of {ts}, written at {}", rec.wall);
        rec.ts = *ts;
    }
    Ok(())
}

impl Driver {
    /// Both sides must have the same state.
    pub fn check(&mut self) -> Outcome {
        let engine = self.engine();
        self.latest = self.latest.max(self.wall());
        for (name, log) in LOGS.iter().zip(&mut self.model.logs) {
            let Some(log) = log else {
                let gone = engine.state(name, false).map_err(|e| e.code()).err();
                must!(gone == Some("topic_not_found"), "{name} is there: {gone:?}");
                continue;
            };
            let (got, _) = read(&engine, name)?;
            adopt_times(log, &got, self.latest).map_err(|e| format!("{name}: {e}"))?;
            let want = log.after(0);
            let want: Vec<Shown> =
                want.map(|(s, r)| (s, r.name.clone(), r.tag.to_owned(), r.ts)).collect();
            must!(got == want, "{name} holds {got:?}, not {want:?}");
        }
        self.check_letters()?;
        self.check_cursors()?;
        self.check_writers()?;
        self.check_queue()
    }

    /// Each dead letter has the last error of its job.
    fn check_letters(&self) -> Outcome {
        if self.model.letters.is_empty() {
            return Ok(());
        }
        let got = ok(self.engine().read(LOGS[DEAD], &ReadRequest::default()))?;
        for r in got.iter() {
            let error = meta_value(r.meta, "$dead_letter_error");
            let want = self.model.letters.get(&r.seq).and_then(|l| l.1.clone());
            must!(error == want, "dead letter {}: error {error:?}, not {want:?}", r.seq);
        }
        Ok(())
    }

    fn check_queue(&mut self) -> Outcome {
        let (mono, wall) = (self.mono(), self.wall());
        let peeked = ok(self.engine().peek("q", None, 10_000))?;
        self.shown(None, 10_000);
        let q = &self.model.queue;
        let ready = q.ready();
        let got = peeked.iter().filter(|(j, _)| j.state == JobState::Ready);
        let got: Vec<(u8, u64)> = got.map(|(j, _)| (j.lane, j.seq)).collect();
        must!(got == ready, "(lane, seq) {got:?} can be claimed, not {ready:?}");
        for (j, r) in peeked.iter() {
            let Some(job) = q.jobs.get(&j.seq) else {
                return Err(format!("the queue shows {j:?}"));
            };
            must!(r.data == job.new.name.as_bytes(), "{} is not {}", j.seq, job.new.name);
            let told = (j.deliveries, j.lane);
            let want = (job.deliveries, job.new.lane);
            must!(told == want, "{}: (deliveries, lane) {told:?}, not {want:?}", j.seq);
            must!(j.error == job.error, "{}: error {:?}, not {:?}", j.seq, j.error, job.error);
            must!(fits(j, &job.phase, mono, wall), "{j:?} is {:?} at {wall}", job.phase);
        }
        let waiting = q.jobs.values().filter(|j| j.phase == Phase::Waiting).count();
        let hidden = waiting - ready.len();
        must!(peeked.iter().count() + hidden == q.jobs.len(), "jobs are missing in {peeked:?}");
        let s = ok(self.engine().queue_state("q"))?;
        let told = (s.ready, s.in_flight, s.delayed, s.dead);
        let (leased, delayed, dead) = q.counts();
        let want = (waiting as u64, leased, delayed, dead);
        must!(told == want, "(ready, in flight, delayed, dead) is {told:?}, not {want:?}");
        let (told, want) = ((s.dead_lettered, s.expired), (q.dead_lettered, q.expired));
        must!(told == want, "(dead-lettered, expired) is {told:?}, not {want:?}");
        Ok(())
    }
}

/// Whether a job is in the state that the model expects.
fn fits(j: &PeekedJob, phase: &Phase, mono: u64, wall: u64) -> bool {
    match phase {
        Phase::Waiting => j.state == JobState::Ready,
        Phase::Dead => j.state == JobState::Dead,
        Phase::Scheduled(at) => j.state == JobState::Delayed && j.visible_at == Some(*at),
        Phase::Delayed(until) => {
            j.state == JobState::Delayed && j.visible_at == Some(wall + (until - mono))
        }
        Phase::Leased { id, deadline, .. } => {
            j.state == JobState::Leased
                && j.lease_id == Some(*id)
                && j.deadline == Some(wall + (deadline - mono))
        }
    }
}
