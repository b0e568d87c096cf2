//! Takes samples for the governor and applies its verdicts.

use topics_env::sync::atomic::Ordering;

use super::Shared;
use crate::delivery::governor::{SAMPLE_NS, Sample, Verdict};
use crate::delivery::ready::Schedule;
use crate::topic::events::{Base, Ctx};
use crate::types::priority;

impl Shared {
    /// Number of waiting topics by band.
    #[cfg(test)]
    pub(crate) fn bands(&self) -> [usize; crate::delivery::ready::BANDS] {
        let all: Vec<_> = self.shards.iter().map(|s| s.inner.lock().ready.depths()).collect();
        std::array::from_fn(|b| all.iter().map(|d| d[b]).sum())
    }

    /// Takes a sample when [`SAMPLE_NS`] have passed since the last one.
    pub(crate) fn sample(&self, ctx: &Ctx) {
        let now = self.now();
        let last = self.sampled.load(Ordering::Relaxed);
        if now.saturating_sub(last) < SAMPLE_NS {
            return;
        }
        let Some(mut governor) = self.governor.try_lock() else { return };
        self.sampled.store(now, Ordering::Relaxed);
        let (at, synced) = (governor.1, governor.2);
        let sync_ns = ctx.wal.counters().syncs.sum_ns;
        let n = self.latency.1.swap(0, Ordering::Relaxed);
        let sum = self.latency.0.swap(0, Ordering::Relaxed);
        let spent = sync_ns.saturating_sub(synced) as f64;
        let sample = Sample {
            ready: self.depth(),
            workers: self.shards.len(),
            latency_ns: sum.checked_div(n),
            storage: match at {
                0 => 0.0,
                at => spent / (now.saturating_sub(at).max(1) as f64 * ctx.wal.shards() as f64),
            },
        };
        (governor.1, governor.2) = (now, sync_ns);
        let verdict = governor.0.observe(sample);
        drop(governor);
        self.apply_verdict(ctx.base(), verdict);
    }

    /// Applies a verdict: pressure, coalescing, strain.
    pub(crate) fn apply_verdict(&self, base: &Base, verdict: Verdict) {
        let Verdict { pressure, coalesce_ns, strained } = verdict;
        self.pressure.set((pressure * 1e6) as u64);
        self.coalesce_ns.store(coalesce_ns, Ordering::Relaxed);
        if self.strained.swap(strained, Ordering::Relaxed) != strained {
            base.metrics.strains.add(u64::from(strained));
            log::info!("delivery is {}under strain", if strained { "" } else { "no longer " });
        }
        if strained {
            self.notify_throttled();
        }
    }

    /// Notifies the watchers of topics in the lowest band, which is not served under strain, once for
    /// each wait of a topic.
    fn notify_throttled(&self) {
        let now = self.now();
        for shard in &self.shards {
            let paused: Vec<_> = {
                let inner = shard.inner.lock();
                let unnotified = inner.ready.lowest().filter(|w| w.item.mark_throttled());
                unnotified.map(|w| (w.item.clone(), w.since)).collect()
            };
            for (subscribers, since) in paused {
                let waited = now.saturating_sub(since) / 1_000_000;
                let p = subscribers.base(now).saturating_add(priority::age(waited));
                // The priority of a waiting topic rises by a hundred a second.
                subscribers.notify_throttled(u64::from(p.min(0).unsigned_abs()) * 10);
            }
        }
    }
}
