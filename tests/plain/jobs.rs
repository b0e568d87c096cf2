//! The steps of queues.

use std::time::Duration;

use topics_engine::{
    Append, Claim, Claimed, ConfigPatch, DeleteRequest, JobState, LeaseOutcome, LeasedJobs,
    NewRecord, ReadRequest, Redrive,
};
use topics_model::queue::{Job, NewJob, Phase};

use super::driver::{DEAD, Driver, Outcome, must, ok};
use super::flaw::Flaw;
use super::model::written;
use super::step::Step;

pub const NODES: [&[u8]; 3] = [b"a", b"b", b"c"];
pub const GROUPS: [&[u8]; 3] = [b"", b"g", b"h"];

/// A lease as the model knows it: holder, seq, id.
pub type Lease = (usize, u64, u64);

impl Driver {
    /// False: the step does not concern queues.
    pub fn job(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::Put { n, lane, group, delay, ttl } => {
                self.put(*n, *lane, *group, (*delay, *ttl))?;
            }
            Step::Configure { lease_ms, paused, max_deliveries } => {
                let q = &mut self.model.queue;
                (q.lease_ms, q.paused, q.max_deliveries) = (*lease_ms, *paused, *max_deliveries);
                let patch = ConfigPatch {
                    lease_ms: Some(*lease_ms),
                    paused: Some(*paused),
                    max_deliveries: Some(*max_deliveries),
                    ..ConfigPatch::default()
                };
                ok(self.engine().create_topic("q", &patch))?;
            }
            Step::Claim { node, max, lease_ms } => self.claim(*node, *max, *lease_ms)?,
            Step::WorkOpen { node, max } => self.open_work(*node, *max)?,
            Step::WorkNext => self.work_next()?,
            Step::WorkClose { release } => self.close_work(*release)?,
            Step::Ack { pick, n, fenced } => self.ack(*pick, *n, *fenced)?,
            Step::Nack { pick, delay } => self.nack(*pick, *delay)?,
            Step::Release { pick } => self.release(*pick)?,
            Step::Extend { pick, ms } => self.extend(*pick, *ms)?,
            Step::Stale { pick } => self.stale_fences(*pick)?,
            Step::UseUp { node } => self.use_up(*node)?,
            Step::Redrive { letters, limit } => self.redrive(*letters, *limit)?,
            Step::Peek { state, max } => self.peek(*state, *max)?,
            Step::Remove { pick, n, force } => self.remove(*pick, *n, *force)?,
            Step::Promote { pick, n } => self.promote(*pick, *n)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn sweep(&mut self) {
        let (mono, wall) = (self.mono(), self.wall());
        self.model.queue.sweep(mono, wall);
    }

    /// The effect of the engine's timer: leases and delays end, jobs without deliveries left are
    /// dead.
    pub fn exhaust(&mut self) {
        self.sweep();
        let over = self.model.queue.exhausted();
        self.mark_dead(&over);
    }

    /// Expired jobs leave the queue: to the dead letters, if the queue has some.
    pub fn expire(&mut self) {
        let (mono, wall) = (self.mono(), self.wall());
        self.model.queue.sweep(mono, wall);
        let gone = self.model.queue.gone(wall);
        self.model.queue.expired += gone.len() as u64;
        self.mark_dead(&gone);
    }

    /// Jobs leave the queue, ascending.
    fn mark_dead(&mut self, seqs: &[u64]) {
        let wall = self.wall();
        for seq in seqs {
            let Some(job) = self.model.queue.jobs.remove(seq) else { continue };
            if let Phase::Leased { id, node, .. } = job.phase {
                self.stale.push((node, *seq, id));
            }
            if self.model.queue.letters {
                self.model.queue.dead_lettered += 1;
                let letters = self.model.logs[DEAD].as_mut().unwrap();
                let seq = letters.push(written(&job.new.name, "", wall));
                self.model.letters.insert(seq, (job.new, job.error));
            }
        }
    }

    fn put(&mut self, n: usize, lane: Option<u8>, group: usize, times: (u64, u64)) -> Outcome {
        let names: Vec<String> = (0..n).map(|_| self.name()).collect();
        let (delay, ttl) = times;
        let mut record = NewRecord {
            lane,
            group: GROUPS[group],
            delay_ms: delay,
            ttl_ms: ttl,
            ..NewRecord::default()
        };
        if lane.is_some_and(|l| l != 5) && self.flawed(Flaw::ForgetsLane) {
            record.lane = None;
        }
        if group > 0 && n > 1 && self.flawed(Flaw::ForgetsGroup) {
            record.group = b"";
        }
        if delay > 0 && self.flawed(Flaw::ForgetsDelay) {
            record.delay_ms = 0;
        }
        let mut records: Vec<NewRecord<'_>> =
            names.iter().map(|name| NewRecord { data: name.as_bytes(), ..record }).collect();
        if n > 1 && self.flawed(Flaw::LosesJob) {
            records.pop();
        }
        let a = ok(self.engine().append("q", &Append { records: &records, ..Append::default() }))?;
        let at = |ms| if ms > 0 { self.wall() + ms } else { 0 };
        let (visible_at, expires_at, lane) = (at(delay), at(ttl), lane.unwrap_or(5));
        let q = &mut self.model.queue;
        let put = names.into_iter();
        let put = put.map(|name| q.put(NewJob { name, lane, group, visible_at, expires_at }));
        let first = put.min();
        must!(Some(a.first_seq) == first, "first_seq {} is not {first:?}", a.first_seq);
        Ok(())
    }

    fn claim(&mut self, node: usize, max: usize, lease_ms: Option<u64>) -> Outcome {
        let lasts = lease_ms.map_or(self.model.queue.lease_ms, |ms| ms.max(100));
        let short = lease_ms.is_some() && self.flawed(Flaw::ForgetsLease);
        let lease_ms = lease_ms.filter(|_| !short);
        let req = Claim { node: NODES[node], max, lease_ms, wait: Duration::ZERO };
        let got = ok(self.engine().claim("q", &req))?;
        self.claimed(node, max, lasts, &got).map(drop)
    }

    /// Checks the jobs that a claim for up to `max` jobs returned; returns their lease ids.
    fn claimed(
        &mut self,
        node: usize,
        max: usize,
        lasts: u64,
        got: &Claimed,
    ) -> Result<Vec<u64>, String> {
        self.sweep();
        let (now, wall) = (self.mono(), self.wall());
        let mut given = Vec::new();
        loop {
            let taken = self.model.queue.take(node, max - given.len(), lasts, now);
            self.mark_dead(&taken.over);
            let jobs = &self.model.queue.jobs;
            let (gone, there): (Vec<u64>, Vec<u64>) =
                taken.jobs.into_iter().partition(|seq| jobs[seq].expired(wall));
            given.extend(there);
            if gone.is_empty() {
                break;
            }
            // Expired jobs do not block others.
            self.expire();
        }
        let seqs: Vec<u64> = got.iter().map(|(l, _)| l.seq).collect();
        must!(seqs == given, "a claim gives {seqs:?}, not {given:?}");
        let deadline = wall + lasts;
        for (l, r) in got.iter() {
            let Some(job) = self.model.queue.jobs.get_mut(&l.seq) else { continue };
            must!(r.data == job.new.name.as_bytes(), "{} is not {}", l.seq, job.new.name);
            let told = (l.deliveries, l.deadline);
            let want = (job.deliveries, deadline);
            must!(told == want, "{}: (deliveries, deadline) {told:?}, not {want:?}", l.seq);
            must!(self.stale.iter().all(|s| s.2 != l.lease_id), "I6: {l:?} was given before");
            job.phase =
                Phase::Leased { id: l.lease_id, node, lease_ms: lasts, deadline: now + lasts };
        }
        Ok(got.iter().map(|(l, _)| l.lease_id).collect())
    }

    fn open_work(&mut self, node: usize, max: usize) -> Outcome {
        self.close_work(false)?;
        let work = ok(self.engine().work("q", NODES[node], max, None))?;
        self.work = Some((work, node, max, Vec::new()));
        Ok(())
    }

    /// The unsettled jobs of a stream.
    fn load(&self, ids: &[u64]) -> Vec<u64> {
        let has = |p: &Phase| matches!(p, Phase::Leased { id, .. } if ids.contains(id));
        let jobs = &self.model.queue.jobs;
        jobs.iter().filter(|j| has(&j.1.phase)).map(|j| *j.0).collect()
    }

    /// A stream receives as many jobs as it has capacity for.
    fn work_next(&mut self) -> Outcome {
        let Some((work, node, max, mut ids)) = self.work.take() else { return Ok(()) };
        let room = max - self.load(&ids).len();
        let got = ok(work.next(Duration::ZERO))?;
        ids.extend(self.claimed(node, room, self.model.queue.lease_ms, &got)?);
        self.work = Some((work, node, max, ids));
        Ok(())
    }

    /// A stream ends: its jobs can be claimed immediately. Jobs that it released were not delivered.
    pub fn close_work(&mut self, release: bool) -> Outcome {
        let Some((work, node, _, ids)) = self.work.take() else { return Ok(()) };
        let seqs = self.load(&ids);
        if release {
            let released = ok(self.engine().release_stream("q", NODES[node], work.stream()))?;
            must!(released.done == seqs, "a stream releases {:?}, not {seqs:?}", released.done);
        }
        drop(work);
        for seq in seqs {
            if let Phase::Leased { id, .. } = self.model.queue.jobs[&seq].phase {
                self.stale.push((node, seq, id));
                match release {
                    true => self.model.queue.release(seq),
                    false => self.model.queue.nack(seq, None, ""),
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, pick: u64) -> Outcome {
        let leases = self.pick(pick, 2);
        let counts = !leases.is_empty() && self.flawed(Flaw::CountsReleased);
        self.update_leases(&leases, true, |e, h| match counts {
            true => e.nack("q", h, Some(0)),
            false => e.release("q", h),
        })?;
        for l in leases {
            self.stale.push(l);
            self.model.queue.release(l.1);
        }
        Ok(())
    }

    /// Some of the leases, including expired ones that were not noticed yet.
    pub fn pick(&self, pick: u64, n: usize) -> Vec<Lease> {
        let seqs = self.model.queue.leased();
        let Some(at) = (pick as usize).checked_rem(seqs.len()) else { return Vec::new() };
        let lease = |seq: &u64| match self.model.queue.jobs[seq].phase {
            Phase::Leased { id, node, .. } => (node, *seq, id),
            _ => unreachable!(),
        };
        let first = lease(&seqs[at]);
        seqs[at..].iter().map(lease).filter(|l| l.0 == first.0).take(n).collect()
    }

    fn update_leases(
        &mut self,
        leases: &[Lease],
        fenced: bool,
        run: impl FnOnce(&topics_engine::Engine, &LeasedJobs<'_>) -> topics_engine::Result<LeaseOutcome>,
    ) -> Outcome {
        let Some(node) = leases.first().map(|l| NODES[l.0]) else { return Ok(()) };
        let seqs: Vec<u64> = leases.iter().map(|l| l.1).collect();
        let ids: Vec<u64> = leases.iter().map(|l| l.2).collect();
        let held = LeasedJobs { node, seqs: &seqs, lease_ids: fenced.then_some(&ids) };
        let s = ok(run(&self.engine(), &held))?;
        must!(s.done == seqs && s.skipped.is_empty(), "I6: {seqs:?}: {s:?}");
        Ok(())
    }

    fn ack(&mut self, pick: u64, n: usize, fenced: bool) -> Outcome {
        let leases = self.pick(pick, n);
        if leases.is_empty() || !self.flawed(Flaw::KeepsAcked) {
            self.update_leases(&leases, fenced, |e, h| e.ack("q", h))?;
        }
        for l in leases {
            self.stale.push(l);
            self.model.queue.jobs.remove(&l.1);
        }
        Ok(())
    }

    fn nack(&mut self, pick: u64, delay: Option<u64>) -> Outcome {
        let leases = self.pick(pick, 1);
        let hasty = !leases.is_empty() && delay != Some(0) && self.flawed(Flaw::ForgetsBackoff);
        let asked = if hasty { Some(0) } else { delay };
        let error = if pick.is_multiple_of(3) { String::new() } else { format!("error {pick}") };
        self.update_leases(&leases, true, |e, h| e.nack_with_error("q", h, asked, &error))?;
        for l in leases {
            let n = self.model.queue.jobs[&l.1].deliveries;
            let delay = delay.unwrap_or_else(|| (1_000 << (n - 1)).min(300_000));
            let until = (delay > 0).then(|| self.mono() + delay);
            self.stale.push(l);
            self.model.queue.nack(l.1, until, &error);
        }
        Ok(())
    }

    /// Fails every job that a worker claims, until none is left.
    fn use_up(&mut self, node: usize) -> Outcome {
        for n in 0..=self.model.queue.max_deliveries {
            self.claim(node, 9, None)?;
            // Every second nack says why; the others leave the error as it is.
            let error = if n % 2 == 0 { format!("used up {n}") } else { String::new() };
            let jobs = self.model.queue.jobs.iter();
            let mine = jobs.filter_map(|(seq, job)| match job.phase {
                Phase::Leased { id, node: of, .. } if of == node => Some((node, *seq, id)),
                _ => None,
            });
            let mine: Vec<Lease> = mine.collect();
            self.update_leases(&mine, true, |e, h| e.nack_with_error("q", h, Some(0), &error))?;
            for l in mine {
                self.stale.push(l);
                self.model.queue.nack(l.1, None, &error);
            }
        }
        Ok(())
    }

    fn extend(&mut self, pick: u64, ms: u64) -> Outcome {
        let leases = self.pick(pick, 2);
        self.update_leases(&leases, true, |e, h| e.extend("q", h, Some(ms)))?;
        let now = self.mono();
        for (_, seq, _) in leases {
            self.model.queue.extend(seq, ms, now);
        }
        Ok(())
    }

    /// I6: a stale fence changes nothing; nor does another node.
    fn stale_fences(&mut self, pick: u64) -> Outcome {
        let mut fences = self.stale.clone();
        let other = |l: &Lease| ((l.0 + 1) % 3, l.1, l.2);
        fences.extend(self.pick(pick, 3).iter().map(other));
        for (mut node, seq, mut id) in fences {
            let (seqs, jobs) = ([seq], &self.model.queue.jobs);
            if let Some(Phase::Leased { id: now, node: holder, .. }) =
                jobs.get(&seq).map(|j| j.phase.clone())
                && self.flawed(Flaw::AcceptsStale)
            {
                (node, id) = (holder, now);
            }
            let ids = [id];
            let held = LeasedJobs { node: NODES[node], seqs: &seqs, lease_ids: Some(&ids) };
            let e = self.engine();
            let all = [
                e.ack("q", &held),
                e.nack("q", &held, None),
                e.release("q", &held),
                e.extend("q", &held, None),
            ];
            for s in all {
                let s = ok(s)?;
                must!(s.done.is_empty(), "I6: the stale lease {id} of {seq} counts");
            }
        }
        Ok(())
    }

    fn redrive(&mut self, letters: bool, limit: Option<usize>) -> Outcome {
        let (topic, most) = (if letters { "dead" } else { "q" }, limit.unwrap_or(usize::MAX));
        let wall = self.wall();
        let shows = |j: &NewJob| j.lane != 5 || j.group > 0 || j.visible_at > wall;
        let shown = letters && limit.is_none() && self.model.letters.values().any(|l| shows(&l.0));
        let moved = match shown && self.flawed(Flaw::ForgetsOptions) {
            true => self.copy_letters()?,
            false => {
                ok(self.engine().redrive(topic, &Redrive { limit, ..Redrive::default() }))?.moved
            }
        };
        let q = &mut self.model.queue;
        let n = if letters {
            let log = self.model.logs[DEAD].as_mut().unwrap();
            let seqs: Vec<u64> = log.live().map(|(seq, _)| seq).take(most).collect();
            for seq in &seqs {
                log.remove(*seq);
                // Lane and group stay; times in the past are dropped.
                let (mut job, _) = self.model.letters.remove(seq).unwrap();
                for at in [&mut job.visible_at, &mut job.expires_at] {
                    *at = if *at > wall { *at } else { 0 };
                }
                q.put(job);
            }
            seqs.len()
        } else {
            let is_due = |job: &Job| job.phase == Phase::Dead && !job.expired(wall);
            let dead = q.jobs.iter().filter(|(_, job)| is_due(job)).map(|(seq, _)| *seq);
            let dead: Vec<u64> = dead.take(most).collect();
            dead.iter().for_each(|seq| q.revive(*seq));
            dead.len()
        };
        must!(moved == n as u64, "{moved} were moved, not {n}");
        Ok(())
    }

    /// A redrive that copies only the records.
    fn copy_letters(&mut self) -> Result<u64, String> {
        let engine = self.engine();
        let letters = ok(engine.read("dead", &ReadRequest::default()))?;
        for r in letters.iter() {
            let records = [NewRecord { data: r.data, ..NewRecord::default() }];
            ok(engine.append("q", &Append { records: &records, ..Append::default() }))?;
        }
        let before_seq = Some(letters.head_seq + 1);
        let gone = DeleteRequest { before_seq, matching: None };
        Ok(ok(engine.delete("dead", &gone))?.deleted)
    }

    /// The jobs of a state (all: `None`) in a peek; expired jobs are removed when they are met.
    pub fn shown(&mut self, state: Option<JobState>, max: usize) -> Vec<u64> {
        self.sweep();
        let wall = self.wall();
        loop {
            let q = &self.model.queue;
            let ready = q.ready().into_iter().map(|r| r.1).take(max);
            let mut seqs: Vec<u64> = match state {
                None | Some(JobState::Ready) => ready.collect(),
                _ => Vec::new(),
            };
            for one in [JobState::Leased, JobState::Delayed, JobState::Dead] {
                let of = q.jobs.iter().filter(|j| is(&j.1.phase, one)).map(|j| *j.0).take(max);
                if state.is_none_or(|s| s == one) {
                    seqs.extend(of);
                }
            }
            if seqs.iter().all(|seq| !q.jobs[seq].expired(wall)) {
                return seqs;
            }
            self.expire();
        }
    }

    /// Some jobs in a row, whatever they are in, and one that is not there.
    fn some_jobs(&self, pick: u64, n: usize) -> Vec<u64> {
        let jobs = &self.model.queue.jobs;
        let first = (pick as usize).checked_rem(jobs.len()).unwrap_or(0);
        let seqs = jobs.keys().skip(first).take(n).copied();
        seqs.chain([self.model.queue.head + 1]).collect()
    }

    /// Deletes jobs; leased ones only with `force`.
    fn remove(&mut self, pick: u64, n: usize, force: bool) -> Outcome {
        self.sweep();
        let seqs = self.some_jobs(pick, n);
        let s = ok(self.engine().remove_jobs("q", &seqs, force))?;
        let q = &mut self.model.queue;
        let (done, skipped): (Vec<u64>, Vec<u64>) =
            seqs.iter().partition(|seq| q.jobs.get(seq).is_some_and(|j| force || !j.leased()));
        must!((&s.done, &s.skipped) == (&done, &skipped), "{s:?}, not {done:?} and {skipped:?}");
        for seq in done {
            if let Some(Phase::Leased { id, node, .. }) = q.remove(seq, force).map(|j| j.phase) {
                self.stale.push((node, seq, id));
            }
        }
        Ok(())
    }

    /// Ends delays; the due time of a record counts no more.
    fn promote(&mut self, pick: u64, n: usize) -> Outcome {
        self.sweep();
        let seqs = self.some_jobs(pick, n);
        let s = ok(self.engine().promote_jobs("q", &seqs))?;
        let q = &mut self.model.queue;
        let (done, skipped): (Vec<u64>, Vec<u64>) = seqs.iter().partition(|seq| q.promote(**seq));
        must!((&s.done, &s.skipped) == (&done, &skipped), "{s:?}, not {done:?} and {skipped:?}");
        Ok(())
    }

    fn peek(&mut self, state: usize, max: usize) -> Outcome {
        let states = [JobState::Ready, JobState::Leased, JobState::Delayed, JobState::Dead];
        let got = ok(self.engine().peek("q", Some(states[state]), max))?;
        let got: Vec<u64> = got.iter().map(|(j, _)| j.seq).collect();
        let want = self.shown(Some(states[state]), max);
        must!(got == want, "a peek shows {got:?}, not {want:?}");
        Ok(())
    }
}

fn is(phase: &Phase, state: JobState) -> bool {
    match state {
        JobState::Ready => false,
        JobState::Leased => matches!(phase, Phase::Leased { .. }),
        JobState::Delayed => matches!(phase, Phase::Scheduled(_) | Phase::Delayed(_)),
        JobState::Dead => *phase == Phase::Dead,
    }
}
