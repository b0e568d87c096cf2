//! How much pressure the engine is under, and what follows. Pure: fed with samples.

/// Between two samples.
pub(crate) const SAMPLE_NS: u64 = 100_000_000;
/// The scheduling latency that means half of the pressure that latency can make.
const LATENCY_NS: f64 = 5_000_000.0;
/// The weight of a new latency sample.
const EWMA: f64 = 0.3;
/// Waiting topics for each worker that count as full depth.
const DEPTH: f64 = 64.0;
/// Samples in a row above the limit that count as sustained.
const SUSTAINED: u32 = 5;

const COALESCE: f64 = 0.2;
const COMMIT: f64 = 0.4;
const STRAIN: f64 = 0.8;
const RELIEF: f64 = 0.6;
/// The longest window of coalescing.
const COALESCE_NS: f64 = 20_000_000.0;
/// The shortest and the longest commit window.
const COMMIT_NS: (f64, f64) = (500_000.0, 10_000_000.0);

/// What is measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Topics that wait.
    pub ready: usize,
    pub workers: usize,
    /// Mean time from dirty to served since the last sample; `None`: nothing was served.
    pub latency_ns: Option<u64>,
    /// The share of time that the storage was busy, 0 to 1.
    pub storage: f64,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    /// 0 to 1.
    pub pressure: f64,
    /// How long a topic that was just served rests, so that its next frame holds more; 0: not.
    pub coalesce_ns: u64,
    /// How long a group commit may wait for company; 0: not.
    pub commit_ns: u64,
    /// The lowest band pauses and routers yield.
    pub strained: bool,
}

/// The governor's memory.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    latency: f64,
    high: u32,
    strained: bool,
}

impl Governor {
    /// Takes a sample, every [`SAMPLE_NS`].
    pub(crate) fn observe(&mut self, s: Sample) -> Verdict {
        // Nothing served while something waits says nothing; with nothing waiting it says zero.
        match (s.latency_ns, s.ready) {
            (Some(ns), _) => self.latency += EWMA * (ns as f64 - self.latency),
            (None, 0) => self.latency *= 1.0 - EWMA,
            (None, _) => {}
        }
        let depth = (s.ready as f64 / (DEPTH * s.workers.max(1) as f64)).min(1.0);
        let latency = (self.latency / (2.0 * LATENCY_NS)).min(1.0);
        let mut p = 0.4 * depth + 0.4 * latency + 0.2 * s.storage.clamp(0.0, 1.0);
        if p < 0.01 {
            (p, self.latency) = (0.0, 0.0);
        }
        self.high = if p > STRAIN { self.high + 1 } else { 0 };
        if self.high >= SUSTAINED {
            self.strained = true;
        } else if p < RELIEF {
            self.strained = false;
        }
        let above = |limit: f64| ((p - limit) / (1.0 - limit)).clamp(0.0, 1.0);
        let commit = COMMIT_NS.0 + above(COMMIT) * (COMMIT_NS.1 - COMMIT_NS.0);
        Verdict {
            pressure: p,
            coalesce_ns: (above(COALESCE) * COALESCE_NS) as u64,
            commit_ns: if p > COMMIT { commit as u64 } else { 0 },
            strained: self.strained,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ready: usize, latency_ms: u64, storage: f64) -> Sample {
        Sample { ready, workers: 1, latency_ns: Some(latency_ms * 1_000_000), storage }
    }

    fn observe_often(g: &mut Governor, s: Sample) -> Verdict {
        (0..40).map(|_| g.observe(s)).last().unwrap()
    }

    #[test]
    fn idle_is_no_pressure() {
        let mut g = Governor::default();
        assert_eq!(g.observe(Sample { workers: 2, ..Sample::default() }), Verdict::default());
        observe_often(&mut g, sample(1000, 50, 1.0));
        let v = observe_often(&mut g, Sample { workers: 1, ..Sample::default() });
        assert_eq!(v, Verdict::default());
    }

    #[test]
    fn each_part_counts_and_all_together_are_one() {
        let of = |s| observe_often(&mut Governor::default(), s).pressure;
        assert!((of(sample(64, 0, 0.0)) - 0.4).abs() < 0.01);
        assert!((of(sample(0, 5, 0.0)) - 0.2).abs() < 0.01);
        assert!((of(sample(0, 0, 1.0)) - 0.2).abs() < 0.01);
        assert!((of(sample(5000, 500, 9.0)) - 1.0).abs() < 0.01);
        let two = Sample { workers: 2, ..sample(64, 0, 0.0) };
        assert!((of(two) - 0.2).abs() < 0.01);
    }

    #[test]
    fn windows_open_with_the_pressure() {
        let at = |s| observe_often(&mut Governor::default(), s);
        assert_eq!(at(sample(16, 0, 0.0)).coalesce_ns, 0);
        let v = at(sample(48, 0, 0.0));
        assert!(v.coalesce_ns > 0 && v.commit_ns == 0, "{v:?}");
        let v = at(sample(64, 2, 0.5));
        assert!(v.commit_ns >= 500_000 && v.commit_ns < 10_000_000, "{v:?}");
        let v = at(sample(5000, 500, 1.0));
        assert!(v.coalesce_ns > 19_000_000 && v.commit_ns > 9_500_000, "{v:?}");
    }

    #[test]
    fn strain_must_last_and_ends_below_relief() {
        let mut g = Governor { latency: 1e9, ..Governor::default() };
        let high = sample(640, 1000, 1.0);
        for _ in 1..SUSTAINED {
            assert!(!g.observe(high).strained);
        }
        assert!(g.observe(high).strained);
        // Between the two limits it stays as it is.
        let middle = observe_often(&mut g, sample(64, 8, 0.0));
        assert!(middle.strained && middle.pressure < STRAIN && middle.pressure > RELIEF);
        assert!(!observe_often(&mut g, sample(16, 5, 0.0)).strained);
        assert!(!observe_often(&mut g, sample(64, 8, 0.0)).strained);
    }
}
