//! Restarts: which state survives.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::Durability;
use topics_model::queue::{Job, Phase};
use topics_sim::{CrashOptions, DiskImage, SimFs};

use super::driver::{Driver, LOGS, Outcome, must, ok};
use super::flaw::Flaw;

impl Driver {
    /// Closes cleanly and opens again.
    pub fn reopen(&mut self) -> Outcome {
        self.close_handles()?;
        self.close_work(false)?;
        self.watch = None;
        self.model.watch = None;
        ok(self.engine().close())?;
        self.keyed.iter_mut().flatten().for_each(|k| k.durable = true);
        self.begin();
        self.restarted()
    }

    /// Kills the process; its writes are still visible.
    pub fn kill(&mut self) -> Outcome {
        let image = self.fs.kill_image();
        self.another_life(&image)
    }

    pub fn power(&mut self, pick: u64) -> Outcome {
        let forgets = self.flawed(Flaw::LosesSynced);
        if self.class == Durability::Disk && !forgets {
            self.sync()?;
        }
        let mut cursor = self.fs.crash_cursor();
        let upto = if forgets { self.fs.ops_len() * 3 / 4 } else { usize::MAX };
        while cursor.at() < upto && cursor.advance() {}
        let survivals = cursor.survivals(self.seed, &CrashOptions::default());
        let survival = survivals[(pick % survivals.len() as u64) as usize];
        let image = cursor.image(survival);
        self.another_life(&image)?;
        self.ends_again();
        Ok(())
    }

    fn another_life(&mut self, image: &DiskImage) -> Outcome {
        let old = self.engine.take();
        let disk = std::mem::replace(&mut self.fs, Arc::new(SimFs::from_image(image)));
        (self.watch, self.model.watch) = (None, None);
        self.handles.clear();
        self.model.handles.clear();
        self.work = None;
        // The old engine closes on its own disk, which is not used again.
        old.map_or(Ok(()), |e| ok(e.close()))?;
        let held = Arc::strong_count(&disk);
        must!(held == 1, "an engine that is closed and dropped stays in memory: {held}");
        self.begin();
        self.restarted()
    }

    /// Adopts the changes that a restart may make: skipped seqs, clocks that start again.
    fn restarted(&mut self) -> Outcome {
        let engine = self.engine();
        let logs = LOGS.iter().zip(&mut self.model.logs);
        for (name, log) in logs.filter_map(|(n, l)| l.as_mut().map(|l| (n, l))) {
            let s = ok(engine.state(name, false))?;
            must!(s.topic_id == log.id, "{name} is topic {}, not {}", s.topic_id, log.id);
            must!(s.next_seq > log.head, "I2: {name}: next {} at {}", s.next_seq, log.head);
            log.head = s.next_seq - 1;
            log.gaps = s.gaps.iter().map(|g| (g.from, g.to)).collect();
            // A loss before the first record is a floor.
            log.gaps.extend((s.evict_floor > 1).then(|| (1, s.evict_floor - 1)));
        }
        let s = ok(engine.state("q", false))?;
        must!(s.next_seq > self.model.queue.head, "I2: q: next {}", s.next_seq);
        self.model.queue.head = s.next_seq - 1;
        let before = self.model.queue.jobs.clone();
        self.model.queue.restarted();
        self.model.swept_at = None;
        self.leases_again(&before)
    }

    fn leases_again(&mut self, before: &BTreeMap<u64, Job>) -> Outcome {
        let (mono, wall) = (self.mono(), self.wall());
        let peeked = ok(self.engine().peek("q", None, 10_000))?;
        let peeked: BTreeMap<u64, _> = peeked.iter().map(|(j, _)| (j.seq, j.clone())).collect();
        let mut met = false;
        for (seq, job) in &mut self.model.queue.jobs {
            let shown = peeked.get(seq);
            if shown.is_none() && job.expired(wall) {
                let waited = matches!(job.phase, Phase::Leased { .. } | Phase::Delayed(_));
                met |= waited || job.lapsed.is_some();
                // A job whose time is in the future again, because the clock was set back, is among
                // the delayed ones.
                if job.phase == Phase::Waiting && job.new.visible_at > wall {
                    job.phase = Phase::Scheduled(job.new.visible_at);
                }
                continue;
            }
            let alive = job.phase.clone();
            let logged = if alive == Phase::Waiting { job.lapsed.take() } else { Some(alive) };
            // Expired leases may start again, unexpired ones must.
            match logged {
                Some(Phase::Leased { id, node, lease_ms, deadline }) => {
                    let held = shown.is_some_and(|j| j.lease_id == Some(id));
                    must!(held || deadline <= mono, "I6: the lease {id} of {seq} is gone");
                    let deadline = mono + lease_ms;
                    job.phase = Phase::Waiting;
                    if held {
                        job.phase = Phase::Leased { id, node, lease_ms, deadline };
                    }
                }
                Some(Phase::Delayed(until)) => {
                    let at = shown.and_then(|j| j.visible_at);
                    must!(at.is_some() || until <= mono, "the delay of {seq} is gone");
                    job.phase = at.map_or(Phase::Waiting, |at| Phase::Delayed(mono + at - wall));
                }
                // The wall clock may have been set back since.
                _ if job.new.visible_at > wall && shown.is_some_and(|j| j.visible_at.is_some()) => {
                    job.phase = Phase::Scheduled(job.new.visible_at);
                }
                _ => {}
            }
            // Fences of ended leases are stale.
            if let Some(Phase::Leased { id, node, .. }) = before.get(seq).map(|j| &j.phase)
                && !matches!(job.phase, Phase::Leased { .. })
            {
                self.stale.push((*node, *seq, *id));
            }
        }
        // An expired lease or delay may have started again. In that case an expired job of it was
        // met, even if another job of its group hides it now, and all expired jobs are gone.
        let expired = ok(self.engine().queue_state("q"))?.expired;
        if met && expired > self.model.queue.expired {
            self.expire();
        }
        self.shown(None, 10_000);
        Ok(())
    }
}
