//! Repeated attempts: jitter, growing pauses, one deadline.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use topics_env::Env;

/// How requests are repeated. Cheap to clone.
#[derive(Clone)]
pub struct Retry {
    env: Env,
    sleep: Arc<dyn Fn(Duration) + Send + Sync>,
    /// The upper bound of the first pause. It doubles with each attempt.
    pub first_pause: Duration,
    /// The upper bound of every pause.
    pub longest_pause: Duration,
    /// The time after which no further attempt begins.
    pub deadline: Duration,
}

impl Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retry({:?}…{:?}, {:?})", self.first_pause, self.longest_pause, self.deadline)
    }
}

impl Retry {
    /// Pauses by `sleep`, measured by the clock of `env`, with randomness of `env`.
    pub fn new(env: Env, sleep: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self {
            env,
            sleep: Arc::new(sleep),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
            deadline: Duration::from_secs(60),
        }
    }

    /// One attempt, without a sleep: the caller repeats what failed, later.
    #[must_use]
    pub fn once(env: Env) -> Self {
        Self { deadline: Duration::ZERO, ..Self::new(env, |_| ()) }
    }

    /// Begins an operation.
    #[must_use]
    pub fn attempts(&self) -> Attempts<'_> {
        Attempts { retry: self, began_ns: self.env.clock.mono_ns(), pauses: 0 }
    }

    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }
}

/// The attempts of one operation.
#[derive(Debug)]
pub struct Attempts<'a> {
    retry: &'a Retry,
    began_ns: u64,
    pauses: u32,
}

impl Attempts<'_> {
    /// Sleeps before the next attempt. Returns `false`, without sleeping, if that attempt would
    /// begin after the deadline.
    pub fn pause(&mut self) -> bool {
        let retry = self.retry;
        let bound = retry.first_pause.saturating_mul(1 << self.pauses.min(16));
        let bound_ns = bound.min(retry.longest_pause).as_nanos() as u64;
        // At least half of the bound: a pause of nearly zero only repeats what has just failed.
        let pause_ns = bound_ns / 2 + retry.env.rng.next_u64() % (bound_ns / 2 + 1);
        let elapsed_ns = retry.env.clock.mono_ns().saturating_sub(self.began_ns);
        if elapsed_ns.saturating_add(pause_ns) > retry.deadline.as_nanos() as u64 {
            return false;
        }
        self.pauses += 1;
        (retry.sleep)(Duration::from_nanos(pause_ns));
        true
    }
}
