use topics_sim::{SimClock, sim_env};

use super::*;

const YEARS: u64 = 10 * 365 * 86_400_000;

struct Rig {
    env: Env,
    clock: Arc<SimClock>,
}

impl Rig {
    fn new() -> Self {
        let (env, _, clock) = sim_env(1);
        Self { env, clock }
    }

    /// The clock of an open that finds `sections` and records up to `ts`.
    fn open(&self, saved: Option<&Section>, ts: u64) -> Time {
        let t = Time::recovering(&self.env);
        if let Some(s) = saved {
            assert!(t.restore(s).unwrap());
        }
        t.met(ts);
        t.resume();
        t
    }

    fn fresh(&self) -> Time {
        self.open(None, 0)
    }

    fn wall(&self) -> u64 {
        self.env.clock.wall_ms()
    }
}

fn of_another_boot(s: &Section) -> Section {
    let mut bytes = s.bytes.clone();
    bytes[0] ^= 1;
    Section { bytes, ..s.clone() }
}

#[test]
fn a_small_step_forward_is_followed_and_one_back_is_caught_up() {
    let r = Rig::new();
    let t = r.fresh();
    r.clock.step_wall_ms(STEP_MS as i64);
    assert_eq!(t.steady(), r.wall());
    r.clock.step_wall_ms(-(STEP_MS as i64));
    let before = t.steady();
    assert_eq!(before, r.wall() + STEP_MS);
    // A TTL of 7 s ends after 8.
    for _ in 0..8_000 {
        r.clock.advance_ms(1);
        t.steady();
    }
    assert_eq!(t.steady(), before + 7_000);
    assert_eq!(t.steps(), 2, "one in each direction");
    r.clock.advance_ms((STEP_MS - 1_000) * SLEW);
    assert_eq!(t.steady(), r.wall());
}

#[test]
fn jitter_is_not_a_step() {
    let r = Rig::new();
    let t = r.fresh();
    for ms in [500, -900, 40_000, -59_000] {
        r.clock.step_wall_ms(ms);
        let before = t.steady();
        r.clock.advance_ms(8);
        assert!(t.steady() >= before + 7);
    }
    assert_eq!(t.steps(), 0);
}

#[test]
fn a_large_step_forward_must_persist() {
    let r = Rig::new();
    let t = r.fresh();
    let before = t.steady();
    r.clock.step_wall_ms(YEARS as i64);
    assert_eq!(t.steady(), before);
    r.clock.advance_ms(PERSIST_MS - 1);
    assert_eq!(t.steady(), before + PERSIST_MS - 1);
    r.clock.advance_ms(1);
    assert_eq!(t.steady(), r.wall());
    assert_eq!(t.steps(), 1);
}

#[test]
fn a_second_large_step_must_persist_by_itself() {
    let r = Rig::new();
    let t = r.fresh();
    let before = t.steady();
    r.clock.step_wall_ms(2 * STEP_MS as i64);
    t.steady();
    r.clock.advance_ms(PERSIST_MS - 1);
    r.clock.step_wall_ms(YEARS as i64);
    t.steady();
    r.clock.advance_ms(PERSIST_MS - 1);
    assert_eq!(t.steady(), before + 2 * (PERSIST_MS - 1));
    assert_eq!(t.steps(), 2);
}

#[test]
fn a_large_step_back_never_takes_time_back() {
    let r = Rig::new();
    let t = r.fresh();
    let before = t.steady();
    r.clock.step_wall_ms(-(YEARS as i64));
    assert_eq!(t.steady(), before);
    r.clock.advance_ms(8 * PERSIST_MS);
    assert_eq!(t.steady(), before + 7 * PERSIST_MS);
    assert_eq!(t.steps(), 1);
}

#[test]
fn a_step_that_is_taken_back_is_forgotten() {
    let r = Rig::new();
    let t = r.fresh();
    r.clock.step_wall_ms(YEARS as i64);
    t.steady();
    r.clock.advance_ms(1000);
    r.clock.step_wall_ms(-(YEARS as i64));
    assert_eq!(t.steady(), r.wall());
    r.clock.advance_ms(PERSIST_MS);
    assert_eq!(t.steady(), r.wall());
}

#[test]
fn in_the_same_boot_a_reopen_changes_nothing() {
    for step in [YEARS as i64, -(YEARS as i64), 0, -30_000] {
        for closed in [0, 1_000, 30 * 86_400_000] {
            let r = Rig::new();
            let t = r.fresh();
            let (before, saved) = (t.steady(), t.capture());
            r.clock.step_wall_ms(step);
            r.clock.advance_ms(closed);
            let t = r.open(Some(&saved), before - 5);
            assert_eq!(t.steady(), before + closed, "{step} {closed}");
            assert_eq!(t.steps(), u64::from(step.abs() > COUNTED_MS as i64));
            r.clock.advance_ms(PERSIST_MS);
            if step > 0 {
                assert_eq!(t.steady(), r.wall(), "what persists is believed");
            }
        }
    }
}

#[test]
fn after_a_reboot_a_plausible_downtime_is_believed() {
    for (closed, believed) in
        [(0, true), (DOWNTIME_MS, true), (DOWNTIME_MS + 1, false), (YEARS, false)]
    {
        for with_snapshot in [true, false] {
            let r = Rig::new();
            let t = r.fresh();
            let (before, saved) = (t.steady(), of_another_boot(&t.capture()));
            r.clock.advance_ms(closed);
            let t = r.open(with_snapshot.then_some(&saved), before);
            assert_eq!(t.steady(), if believed { r.wall() } else { before }, "{closed}");
            assert_eq!(t.steps(), u64::from(!believed));
            r.clock.advance_ms(PERSIST_MS);
            assert_eq!(t.steady(), r.wall());
        }
    }
}

#[test]
fn time_is_never_before_a_record_that_is_kept() {
    let r = Rig::new();
    let saved = r.fresh().capture();
    for other in [false, true] {
        let saved = if other { of_another_boot(&saved) } else { saved.clone() };
        let t = r.open(Some(&saved), r.wall() + 5_000);
        assert_eq!(t.steady(), r.wall() + 5_000);
    }
}

#[test]
fn a_monotonic_clock_that_went_back_is_of_another_boot() {
    let r = Rig::new();
    r.clock.advance_ms(60_000);
    let (saved, wall) = (r.fresh().capture(), r.wall());
    let (mut env, _, clock) = sim_env(1);
    clock.step_wall_ms(86_400_000);
    env.clock = clock.clone();
    let later = Rig { env, clock };
    assert!(later.wall() > wall);
    assert_eq!(later.open(Some(&saved), 0).steady(), later.wall());
}

#[test]
fn a_section_of_another_form_is_refused() {
    let r = Rig::new();
    let s = r.fresh().capture();
    let t = r.fresh();
    assert!(!t.restore(&Section { kind: 1, ..s.clone() }).unwrap());
    assert_eq!(t.restore(&Section { version: 2, ..s.clone() }).unwrap_err().code(), "version");
    let bytes = s.bytes[1..].to_vec();
    assert_eq!(t.restore(&Section { bytes, ..s }).unwrap_err().code(), "corrupt");
}
