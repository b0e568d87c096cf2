//! The governor: computes the pressure of the engine from samples, and what follows from it.
//! Pure: it reads no clock and takes no lock.

/// Interval between two samples.
pub(crate) const SAMPLE_NS: u64 = 100_000_000;
/// The scheduling latency that contributes half of the maximum pressure by latency, ns.
const LATENCY_NS: f64 = 5_000_000.0;
/// The weight of a new latency sample.
const EWMA: f64 = 0.3;
/// Waiting topics per worker at which the depth is full.
const DEPTH: f64 = 64.0;
/// Consecutive samples above the limit after which the pressure is sustained.
const SUSTAINED: u32 = 5;

const COALESCE: f64 = 0.2;
const STRAIN: f64 = 0.8;
const RELIEF: f64 = 0.6;
/// The longest coalescing window, ns.
const COALESCE_NS: f64 = 20_000_000.0;

/// One measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Topics that wait for a worker.
    pub ready: usize,
    pub workers: usize,
    /// Mean time from dirty to served since the last sample; `None` when no topic was served.
    pub latency_ns: Option<u64>,
    /// Share of the time that syncs took, 0 to 1.
    pub storage: f64,
}

/// The governor's decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub pressure: f64,
    /// Time that a served topic coalesces before it is served again, so that its next frame has more
    /// records, ns; 0: none.
    pub coalesce_ns: u64,
    /// Whether the lowest band pauses and routers yield.
    pub strained: bool,
}

/// The state of the governor between samples.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    latency: f64,
    high: u32,
    strained: bool,
}

impl Governor {
    /// Takes a sample; called every [`SAMPLE_NS`].
    pub(crate) fn observe(&mut self, s: Sample) -> Verdict {
        // Without a served topic the latency is unknown if topics wait, and zero if none waits.
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
        let coalesce = ((p - COALESCE) / (1.0 - COALESCE)).clamp(0.0, 1.0);
        Verdict {
            pressure: p,
            coalesce_ns: (coalesce * COALESCE_NS) as u64,
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
    fn the_window_opens_with_the_pressure() {
        let at = |s| observe_often(&mut Governor::default(), s).coalesce_ns;
        assert_eq!(at(sample(16, 0, 0.0)), 0);
        let (low, high) = (at(sample(48, 0, 0.0)), at(sample(5000, 500, 1.0)));
        assert!(0 < low && low < 10_000_000 && high > 19_000_000, "{low} {high}");
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
