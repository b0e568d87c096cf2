//! Two owners of one prefix: the first one stalls before each of its requests in turn, another one takes the
//! prefix over, and then the first one goes on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use topics_env::Site;
use topics_env::sync::Mutex;
use topics_remote::Retry;
use topics_sim::{Bucket, Mutant, RequestGate, SimClock, SimFs};

use super::garbage_tests::{WINDOW_MS, assert_needed_exist, outdate};
use super::tests::{fill, limits};
use crate::restore::tests::{restored_and_opened_at, state};
use crate::restore::{RestoreRequest, restore};
use crate::topic::tests::{DIR, World, small};
use crate::types::error::Result;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};
use crate::types::requests::RemoteState;

const DAY_MS: u64 = 86_400_000;

/// How the second owner gets its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Successor {
    /// It restores the prefix and goes on with it.
    Adopts,
    /// It has a copy of the first one's directory.
    Copies,
}

type TakeOver = Box<dyn FnOnce() -> Option<Second> + Send>;

/// The second owner, and the state that it began with.
struct Second {
    world: World,
    found: BTreeMap<String, String>,
}

/// Where the first owner stalls.
#[derive(Default)]
struct Stall {
    /// The number of the request that waits while the other one takes over.
    nth: u64,
    /// Requests of rounds and bases.
    requests: AtomicU64,
    is_counting: AtomicBool,
    take_over: Mutex<Option<TakeOver>>,
    second: Mutex<Option<Second>>,
}

impl Stall {
    fn gate(self: &Arc<Self>) -> RequestGate {
        let stall = self.clone();
        Arc::new(move |_, _| {
            let is_counted = stall.is_counting.load(Ordering::Relaxed);
            if is_counted && stall.requests.fetch_add(1, Ordering::Relaxed) + 1 == stall.nth {
                stall.end();
            }
        })
    }

    /// Runs the second owner.
    fn end(&self) {
        let take_over = self.take_over.lock().take();
        let second = take_over.and_then(|take_over| take_over());
        *self.second.lock() = second;
    }

    fn is_over(&self) -> bool {
        self.second.lock().is_some()
    }
}

/// The remote of a client with short rounds and few local segments.
fn remote(bucket: &Arc<Bucket>, id: u32, gate: Option<RequestGate>) -> RemoteOptions {
    let client = bucket.client(id);
    let client = match gate {
        Some(gate) => client.with_gate(gate),
        None => client,
    };
    let limits = RemoteLimits { interval: Duration::from_secs(1), hot_segments: 2, ..limits() };
    RemoteOptions { store: Arc::new(client), limits }
}

/// The second owner; `None`: nothing can be adopted yet.
fn second(
    kind: Successor,
    bucket: &Arc<Bucket>,
    fs: &Arc<SimFs>,
    clock: &Arc<SimClock>,
) -> Option<Second> {
    let options = Options { remote: Some(remote(bucket, 2, None)), ..small() };
    let mut world = World::unopened(options);
    (world.clock, world.seed) = (clock.clone(), 1000);
    clock.advance_ms(10);
    match kind {
        Successor::Copies => world.fs = Arc::new(SimFs::from_image(&fs.kill_image())),
        Successor::Adopts => {
            let (env, store) = (world.env(), Arc::new(bucket.client(2)));
            let request = RestoreRequest::default();
            let done = restore(&env, store, &Retry::once(env.clone()), Path::new(DIR), &request);
            if let Err(e) = done {
                let text = e.to_string();
                assert!(text.contains("no base") || text.contains("prefix is empty"), "{text}");
                return None;
            }
        }
    }
    world.open();
    let found = state(&world);
    write_and_publish(&world);
    Some(Second { world, found })
}

/// What the second owner does: rounds, bases, and records that are deleted again.
fn write_and_publish(w: &World) {
    fill(w, "a", 7);
    fill(w, "e", 6);
    w.engine().ship().unwrap();
    w.engine().archive().unwrap();
    w.delete("e", Some(5), None);
    w.clock.advance_ms(DAY_MS);
    for _ in 0..3 {
        fill(w, "e", 3);
        w.engine().archive().unwrap();
    }
}

/// A state that the first owner tried to ship.
struct Tried {
    at_ms: u64,
    state: BTreeMap<String, String>,
    is_base: bool,
    has_succeeded: bool,
    /// Whether the prefix was another one's when it began.
    is_late: bool,
}

/// The first owner.
struct First {
    world: World,
    stall: Arc<Stall>,
    tried: Vec<Tried>,
}

impl First {
    fn publish(&mut self, is_base: bool) {
        let (w, stall) = (&self.world, &self.stall);
        let (at_ms, state, is_late) = (w.clock_wall(), state(w), stall.is_over());
        stall.is_counting.store(true, Ordering::Relaxed);
        let done: Result<()> = match is_base {
            true => w.engine().archive().map(drop),
            false => w.engine().ship().map(drop),
        };
        stall.is_counting.store(false, Ordering::Relaxed);
        w.clock.advance_ms(10);
        let has_succeeded = done.is_ok();
        self.tried.push(Tried { at_ms, state, is_base, has_succeeded, is_late });
    }

    /// Rounds, bases, cold segments and garbage.
    fn live(&mut self) {
        fill(&self.world, "a", 27);
        fill(&self.world, "b", 16);
        self.publish(false);
        self.publish(true);
        outdate(&self.world);
        self.publish(false);
        self.publish(true);
        self.world.clock.advance_ms(WINDOW_MS + 1);
        fill(&self.world, "a", 22);
        self.publish(true);
        for _ in 0..2 {
            fill(&self.world, "a", 8);
            self.publish(false);
            self.world.put("d", &["in a round"]);
            self.publish(true);
        }
    }
}

/// What came of a run.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The first owner made fewer requests.
    NoStall,
    /// Nothing could be adopted.
    NotTakenOver,
    /// The state of the first owner's remote after it.
    Lost(RemoteState),
}

fn run(
    kind: Successor,
    nth: u64,
    mutant: Option<&'static str>,
) -> std::result::Result<Outcome, String> {
    let mut world = World::unopened(small());
    world.hook = mutant.map(|site| Arc::new(Mutant::remove(Site::Check(site), None)) as _);
    let bucket = Bucket::new(&world.clock);
    bucket.set_mutable(&["HEAD"]);
    let (fs, clock, of_second) = (world.fs.clone(), world.clock.clone(), bucket.clone());
    let take_over: TakeOver = Box::new(move || second(kind, &of_second, &fs, &clock));
    let take_over = Mutex::new(Some(take_over));
    let stall = Arc::new(Stall { nth, take_over, ..Stall::default() });
    world.options.remote = Some(remote(&bucket, 1, Some(stall.gate())));
    world.open();
    let mut first = First { world, stall: stall.clone(), tried: Vec::new() };
    first.live();
    let found = stall.second.lock().take();
    match found {
        None if stall.take_over.lock().is_some() => Ok(Outcome::NoStall),
        None => Ok(Outcome::NotTakenOver),
        Some(second) => judge(&first, &second, &bucket),
    }
}

/// Judges a run in which the prefix was taken over: `Err` says which promise was broken.
fn judge(
    first: &First,
    second: &Second,
    bucket: &Arc<Bucket>,
) -> std::result::Result<Outcome, String> {
    let (w, s) = (&first.world, &second.world);
    // What has succeeded is in the state that the other one found, and nothing succeeds after that.
    let found = first.tried.iter().rposition(|t| t.state == second.found);
    let confirmed = first.tried.iter().rposition(|t| t.has_succeeded);
    if found < confirmed || found.is_none() {
        return Err(format!("found state {found:?}, but {confirmed:?} was confirmed"));
    }
    if let Some(late) = first.tried.iter().position(|t| t.is_late && t.has_succeeded) {
        return Err(format!("step {late} succeeded after the prefix was taken over"));
    }
    assert_eq!(first.tried.last().map(|t| &t.state), Some(&state(w)), "a record cannot be read");
    w.put("a", &["too late"]);
    let after = (w.engine().ship().is_err(), w.engine().archive().is_err());
    let remote = w.engine().remote_state();
    if after != (true, true) || !matches!(remote, Some(RemoteState::Fenced | RemoteState::Refused))
    {
        return Err(format!("the first owner goes on: {after:?} {remote:?}"));
    }
    assert_needed_exist(s, bucket);
    s.put("a", &["the owner goes on"]);
    s.engine().ship().unwrap();
    let restored = |at_ms| restored_and_opened_at(s, bucket, at_ms, &s.clock).unwrap().0;
    assert_eq!(state(&restored(None)), state(s), "the newest state");
    // What the first one had shipped can be restored within the window.
    let has_base = first.tried.iter().position(|t| t.has_succeeded && t.is_base);
    if let Some(at) = confirmed.filter(|at| has_base.is_some_and(|base| base <= *at)) {
        let t = &first.tried[at];
        assert_eq!(state(&restored(Some(t.at_ms))), t.state, "the state of step {at}");
    }
    s.clock.advance_ms(WINDOW_MS + 1);
    for _ in 0..3 {
        fill(s, "d", 3);
        s.engine().archive().unwrap();
    }
    assert_needed_exist(s, bucket);
    assert_eq!(state(&restored(None)), state(s), "the newest state, after the window");
    Ok(Outcome::Lost(remote.unwrap_or(RemoteState::Ok)))
}

#[test]
fn an_owner_that_stalled_at_any_request_changes_nothing_for_its_successor() {
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    for kind in [Successor::Adopts, Successor::Copies] {
        for nth in 1.. {
            let outcome = run(kind, nth, None).unwrap_or_else(|e| panic!("{kind:?} {nth}: {e}"));
            if outcome == Outcome::NoStall {
                assert!(nth > 40, "{nth}");
                break;
            }
            *outcomes.entry(format!("{kind:?}: {outcome:?}")).or_default() += 1;
        }
    }
    eprintln!("stalls: {outcomes:?}");
    assert!(outcomes["Adopts: Lost(Fenced)"] > 20, "{outcomes:?}");
    assert!(outcomes["Copies: Lost(Fenced)"] > 20, "{outcomes:?}");
}

#[test]
fn without_the_check_of_head_a_round_counts_after_a_takeover() {
    let breach =
        (1..60).find_map(|nth| run(Successor::Adopts, nth, Some("remote.head-check")).err());
    assert!(breach.is_some(), "the check has no effect");
}
