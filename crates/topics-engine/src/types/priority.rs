//! The effective priority of a topic, in whole numbers.

use super::config::TopicConfig;

/// Time in which the recency halves, ms.
const HALF_LIFE_MS: u64 = 30_000;
/// Time after which the recency is 0, ms.
const FORGOTTEN_MS: u64 = 300_000;
/// The recency of a topic that is being consumed.
const FRESH: u64 = 500;

/// `2^(−k/64)` in 1/65536, for k in 0..64.
const POWERS: [u32; 64] = powers();

const fn powers() -> [u32; 64] {
    // 2^(−1/64) in 1/2^60; each step multiplies once, which keeps the error below one part in 2^50.
    const STEP: u128 = 1_140_502_877_606_003_000;
    let mut out = [0; 64];
    let (mut value, mut k) = (1u128 << 60, 0);
    while k < 64 {
        out[k] = ((value + (1 << 43)) >> 44) as u32;
        value = (value * STEP) >> 60;
        k += 1;
    }
    out
}

/// `500 · 2^(−elapsed / 30 s)`, 0 after 5 minutes.
pub(crate) fn recency(elapsed_ms: u64) -> i32 {
    if elapsed_ms > FORGOTTEN_MS {
        return 0;
    }
    let steps = elapsed_ms * 64 / HALF_LIFE_MS;
    let (halves, k) = (steps / 64, (steps % 64) as usize);
    (((FRESH * u64::from(POWERS[k])) >> halves) >> 16) as i32
}

/// The bonus for waiting: 100 per second, at most 1000.
pub(crate) fn age(waited_ms: u64) -> i32 {
    (waited_ms / 10).min(1000) as i32
}

/// The priority of a topic that is not waiting for delivery. `last_read` is 0 before the first.
pub(crate) fn effective(config: &TopicConfig, last_read: u64, now: u64) -> i32 {
    match config.priority {
        Some(p) => p.clamp(-1000, 1000),
        None if config.auto_priority && last_read > 0 => recency(now.saturating_sub(last_read)),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recency_halves_every_30_seconds() {
        assert_eq!(recency(0), 500);
        assert_eq!(recency(30_000), 250);
        assert_eq!(recency(60_000), 125);
        assert_eq!(recency(300_001), 0);
        for ms in (0..=300_000).step_by(97) {
            let exact = 500.0 * (-(ms as f64) / 30_000.0).exp2();
            assert!((f64::from(recency(ms)) - exact).abs() < 7.0, "{ms}");
        }
    }

    #[test]
    fn waiting_adds_a_hundred_a_second_up_to_a_thousand() {
        assert_eq!(
            [0, 9, 10, 1000, 9_999, 10_000, u64::MAX].map(age),
            [0, 0, 1, 100, 999, 1000, 1000]
        );
    }

    #[test]
    fn manual_wins() {
        let c = |priority, auto_priority| TopicConfig {
            priority,
            auto_priority,
            ..TopicConfig::default()
        };
        assert_eq!(effective(&c(Some(-7), true), 1, 1), -7);
        assert_eq!(effective(&c(None, true), 10, 10), 500);
        assert_eq!(effective(&c(None, true), 0, 10), 0);
        assert_eq!(effective(&c(None, false), 10, 10), 0);
    }
}
