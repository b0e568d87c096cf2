//! The steps of queues.

use std::time::Duration;

use topics_engine::{Append, Claim, ConfigPatch, Held, JobState, NewRecord, Redrive, Settled};

use super::hand::{DEAD, Hand, Outcome, must, ok};
use super::model::Rec;
use super::queue::Phase;
use super::step::Step;

const NODES: [&[u8]; 3] = [b"a", b"b", b"c"];
const GROUPS: [&[u8]; 3] = [b"", b"g", b"h"];

/// A lease as the model knows it: holder, seq, id.
type Lease = (usize, u64, u64);

impl Hand {
    /// False: not a step of queues.
    pub fn job(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::Put { n, lane, group, delay } => self.put(*n, *lane, *group, *delay)?,
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
            Step::Ack { pick, n, fenced } => self.ack(*pick, *n, *fenced)?,
            Step::Nack { pick, delay } => self.nack(*pick, *delay)?,
            Step::Extend { pick, ms } => self.extend(*pick, *ms)?,
            Step::Stale { pick } => self.stale_fences(*pick)?,
            Step::Redrive { letters, limit } => self.redrive(*letters, *limit)?,
            Step::Peek { state, max } => self.peek(*state, *max)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub fn sweep(&mut self) {
        let (mono, wall) = (self.mono(), self.wall());
        self.model.queue.sweep(mono, wall);
    }

    fn put(&mut self, n: usize, lane: Option<u8>, group: usize, delay: u64) -> Outcome {
        let names: Vec<String> = (0..n).map(|_| self.name()).collect();
        let record = |name| NewRecord {
            data: String::as_bytes(name),
            lane,
            group: GROUPS[group],
            delay_ms: delay,
            ..NewRecord::default()
        };
        let records: Vec<NewRecord<'_>> = names.iter().map(record).collect();
        let a = ok(self.engine().append("q", &Append { records: &records, ..Append::default() }))?;
        let at = if delay > 0 { self.wall() + delay } else { 0 };
        let q = &mut self.model.queue;
        let put = names.iter().map(|n| q.put(n.clone(), lane.unwrap_or(5), group, at));
        let first = put.min();
        must!(Some(a.first_seq) == first, "first_seq {} is not {first:?}", a.first_seq);
        Ok(())
    }

    fn claim(&mut self, node: usize, max: usize, lease_ms: Option<u64>) -> Outcome {
        self.sweep();
        let lasts = lease_ms.map_or(self.model.queue.lease_ms, |ms| ms.max(100));
        let now = self.mono();
        let given = self.model.queue.claim(node, max, lasts, now);
        let req = Claim { node: NODES[node], max, lease_ms, wait: Duration::ZERO };
        let got = ok(self.engine().claim("q", &req))?;
        let seqs: Vec<u64> = got.iter().map(|(l, _)| l.seq).collect();
        must!(seqs == given.jobs, "a claim gives {seqs:?}, not {:?}", given.jobs);
        let deadline = self.wall() + lasts;
        for (l, r) in got.iter() {
            let Some(job) = self.model.queue.jobs.get_mut(&l.seq) else { continue };
            must!(r.data == job.name.as_bytes(), "{} is not {}", l.seq, job.name);
            let told = (l.deliveries, l.deadline);
            let want = (job.deliveries, deadline);
            must!(told == want, "{}: (deliveries, deadline) {told:?}, not {want:?}", l.seq);
            must!(self.stale.iter().all(|s| s.2 != l.lease_id), "I6: {l:?} was given before");
            job.phase =
                Phase::Leased { id: l.lease_id, node, lease_ms: lasts, deadline: now + lasts };
        }
        for seq in given.over {
            let job = self.model.queue.jobs.remove(&seq).unwrap();
            let letters = self.model.logs[DEAD].as_mut().unwrap();
            letters.push(Rec { name: job.name, tag: "" });
        }
        Ok(())
    }

    /// Some of the leases, those that have run out and that nobody has noticed among them.
    fn pick(&self, pick: u64, n: usize) -> Vec<Lease> {
        let seqs = self.model.queue.leased();
        let Some(at) = (pick as usize).checked_rem(seqs.len()) else { return Vec::new() };
        let lease = |seq: &u64| match self.model.queue.jobs[seq].phase {
            Phase::Leased { id, node, .. } => (node, *seq, id),
            _ => unreachable!(),
        };
        let first = lease(&seqs[at]);
        seqs[at..].iter().map(lease).filter(|l| l.0 == first.0).take(n).collect()
    }

    fn settle(
        &mut self,
        leases: &[Lease],
        fenced: bool,
        run: impl FnOnce(&topics_engine::Engine, &Held<'_>) -> topics_engine::Result<Settled>,
    ) -> Outcome {
        let Some(node) = leases.first().map(|l| NODES[l.0]) else { return Ok(()) };
        let seqs: Vec<u64> = leases.iter().map(|l| l.1).collect();
        let ids: Vec<u64> = leases.iter().map(|l| l.2).collect();
        let held = Held { node, seqs: &seqs, lease_ids: fenced.then_some(&ids) };
        let s = ok(run(&self.engine(), &held))?;
        must!(s.done == seqs && s.skipped.is_empty(), "I6: {seqs:?}: {s:?}");
        Ok(())
    }

    fn over(&mut self, l: Lease, phase: Phase) {
        self.stale.push(l);
        if let Some(job) = self.model.queue.jobs.get_mut(&l.1) {
            job.phase = phase;
        }
    }

    fn ack(&mut self, pick: u64, n: usize, fenced: bool) -> Outcome {
        let leases = self.pick(pick, n);
        self.settle(&leases, fenced, |e, h| e.ack("q", h))?;
        for l in leases {
            self.stale.push(l);
            self.model.queue.jobs.remove(&l.1);
        }
        Ok(())
    }

    fn nack(&mut self, pick: u64, delay: Option<u64>) -> Outcome {
        let leases = self.pick(pick, 1);
        self.settle(&leases, true, |e, h| e.nack("q", h, delay))?;
        for l in leases {
            let n = self.model.queue.jobs[&l.1].deliveries;
            let delay = delay.unwrap_or_else(|| (1_000 << (n - 1)).min(300_000));
            let until = self.mono() + delay;
            self.over(l, if delay == 0 { Phase::Waiting } else { Phase::Delayed(until) });
        }
        Ok(())
    }

    fn extend(&mut self, pick: u64, ms: u64) -> Outcome {
        let leases = self.pick(pick, 2);
        self.settle(&leases, true, |e, h| e.extend("q", h, Some(ms)))?;
        let until = self.mono() + ms;
        for (_, seq, _) in leases {
            if let Some(job) = self.model.queue.jobs.get_mut(&seq)
                && let Phase::Leased { lease_ms, deadline, .. } = &mut job.phase
            {
                (*lease_ms, *deadline) = (ms, until);
            }
        }
        Ok(())
    }

    /// I6: a stale fence changes nothing; nor does another node.
    fn stale_fences(&mut self, pick: u64) -> Outcome {
        let mut fences = self.stale.clone();
        let other = |l: &Lease| ((l.0 + 1) % 3, l.1, l.2);
        fences.extend(self.pick(pick, 3).iter().map(other));
        for (node, seq, id) in fences {
            let (seqs, ids) = ([seq], [id]);
            let held = Held { node: NODES[node], seqs: &seqs, lease_ids: Some(&ids) };
            let e = self.engine();
            let all = [e.ack("q", &held), e.nack("q", &held, None), e.extend("q", &held, None)];
            for s in all {
                let s = ok(s)?;
                must!(s.done.is_empty(), "I6: the stale lease {id} of {seq} counts");
            }
        }
        Ok(())
    }

    fn redrive(&mut self, letters: bool, limit: Option<usize>) -> Outcome {
        let (topic, most) = (if letters { "dead" } else { "q" }, limit.unwrap_or(usize::MAX));
        let moved = ok(self.engine().redrive(topic, &Redrive { limit, ..Redrive::default() }))?;
        let q = &mut self.model.queue;
        let n = if letters {
            let log = self.model.logs[DEAD].as_mut().unwrap();
            let seqs: Vec<u64> = log.records.keys().copied().take(most).collect();
            for seq in &seqs {
                q.put(log.records.remove(seq).unwrap().name, 5, 0, 0);
            }
            seqs.len()
        } else {
            let dead = q.jobs.values_mut().filter(|j| j.phase == Phase::Dead).take(most);
            dead.map(|job| (job.phase, job.deliveries) = (Phase::Waiting, 0)).count()
        };
        must!(moved == n as u64, "{moved} were moved, not {n}");
        Ok(())
    }

    fn peek(&mut self, state: usize, max: usize) -> Outcome {
        self.sweep();
        let q = &self.model.queue;
        let is = |p: &Phase| match state {
            0 => false,
            1 => matches!(p, Phase::Leased { .. }),
            2 => matches!(p, Phase::Scheduled(_) | Phase::Delayed(_)),
            _ => *p == Phase::Dead,
        };
        let want: Vec<u64> = match state {
            0 => q.ready().into_iter().map(|r| r.1).take(max).collect(),
            _ => q.jobs.iter().filter(|j| is(&j.1.phase)).map(|j| *j.0).take(max).collect(),
        };
        let states = [JobState::Ready, JobState::Leased, JobState::Delayed, JobState::Dead];
        let got = ok(self.engine().peek("q", Some(states[state]), max))?;
        let got: Vec<u64> = got.iter().map(|(j, _)| j.seq).collect();
        must!(got == want, "a peek shows {got:?}, not {want:?}");
        Ok(())
    }
}
