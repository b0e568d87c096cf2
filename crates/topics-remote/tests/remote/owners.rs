//! Two owners of one prefix: every interleaving of a kind, faults, and an oracle over what each was
//! told and what the store holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use topics_env::objects::{ObjectError, ObjectStore};
use topics_env::{Env, Hook, Site};
use topics_remote::format::catalog::{Catalog, ChainEnd};
use topics_remote::format::head::Head;
use topics_remote::format::keys;
use topics_remote::format::round::{RoundPart, RoundWriter, WAL_HEADER};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry, read};
use topics_sim::{Mutant, ObjectFault, ObjectOp};

use crate::support::{Directory, World, random_seed, sized};
use crate::turns::Turns;

/// What an owner was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Opened(u64),
    /// Round `n` of an epoch counts, with these bytes.
    Shipped(u64, u64, Bytes),
    /// A catalog counts.
    Published(u64, String),
    Closed(u64),
    Fenced(u64, u64),
    Failed(String),
}

/// Opens the prefix by a process of the directory.
fn open(
    store: &Arc<dyn ObjectStore>,
    retry: &Retry,
    directory: &Arc<Directory>,
    client: u32,
) -> Result<RemoteWriter, RemoteError> {
    let claimant = directory.claimant(&format!("client {client}"));
    RemoteWriter::open(store.clone(), retry.clone(), &claimant, &|| Ok(()))
}

/// A round whose content names its writer.
fn round(
    writer: &RemoteWriter,
    client: u32,
    k: u32,
) -> topics_remote::format::sealed::SealedObject {
    let header = writer.header(ObjectKind::Round, 0);
    let mut out = RoundWriter::new(header, u64::from(k));
    let part = RoundPart {
        wal_header: [0; WAL_HEADER],
        file_offset: 0,
        first_lsn: 1,
        end_lsn: 2,
        synced_lsn: 1,
        offset: 0,
        len: 0,
        hash: 0,
    };
    out.push(part, format!("client {client}, round {k}").as_bytes());
    out.finish()
}

/// The ends that a new catalog names: those of the newest catalog, its own epoch's, and HEAD's.
fn ends(store: &dyn ObjectStore, retry: &Retry, head: &Head) -> Result<Vec<ChainEnd>, RemoteError> {
    let mut out = match &head.catalog {
        Some(object) => read::catalog(store, retry, object)?.chain_ends,
        None => Vec::new(),
    };
    let prior = |p: &topics_remote::format::head::PriorEpoch| ChainEnd {
        epoch: p.epoch,
        last_round: p.last_round,
    };
    out.extend(head.priors.iter().map(prior));
    Ok(out)
}

/// The life of an owner: two rounds, a catalog, a round, a close.
/// It dies after as many steps as `steps` says.
fn live(
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    directory: &Arc<Directory>,
    client: u32,
    steps: usize,
) -> Vec<Event> {
    let mut events = Vec::new();
    if let Err(e) = try_live(store, retry, (directory, client), steps, &mut events) {
        let epoch = events.iter().find_map(|t| match t {
            Event::Opened(epoch) => Some(*epoch),
            _ => None,
        });
        events.push(match (e, epoch) {
            (RemoteError::Fenced { epoch: by, .. }, Some(epoch)) => Event::Fenced(epoch, by),
            (e, _) => Event::Failed(e.to_string()),
        });
    }
    events
}

fn try_live(
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    (directory, client): (&Arc<Directory>, u32),
    steps: usize,
    events: &mut Vec<Event>,
) -> Result<(), RemoteError> {
    let mut writer = open(&store, retry, directory, client)?;
    let epoch = writer.head().epoch;
    events.push(Event::Opened(epoch));
    for k in 0..3 {
        if events.len() >= steps {
            return Ok(());
        }
        if k == 2 {
            let head = writer.head().clone();
            let catalog = Catalog {
                header: writer.header(ObjectKind::Catalog, 0),
                made_ms: u64::from(client),
                first_round: writer.shipped() + 1,
                chain_ends: ends(&*store, retry, &head)?,
                packs: Vec::new(),
                deletes: Vec::new(),
                condemned: Vec::new(),
                earlier: Vec::new(),
                snapshot: format!("client {client}").into_bytes(),
            };
            events.push(Event::Published(epoch, writer.publish(&catalog)?.key));
        }
        let round = round(&writer, client, k);
        let bytes = round.bytes.clone();
        let mut shipped = writer.ship(round);
        for _ in 0..2 {
            if matches!(shipped, Err(RemoteError::Object(_))) {
                shipped = writer.ship_pending();
            }
        }
        events.push(Event::Shipped(epoch, shipped?, bytes));
    }
    writer.close()?;
    events.push(Event::Closed(epoch));
    Ok(())
}

/// A run of two owners.
struct Run {
    world: World,
    /// That of both: the second process opens it when the first has lost its lock.
    directory: Arc<Directory>,
    events: Vec<Vec<Event>>,
}

#[derive(Clone, Debug, Default)]
struct Plan {
    schedule: Vec<u32>,
    fault: Option<(u32, usize, ObjectFault)>,
    chaos: Option<(u64, u64)>,
    mutant: Option<&'static str>,
    /// The steps after which each owner dies.
    deaths: Option<[usize; 2]>,
}

fn run(plan: &Plan) -> Run {
    let (world, directory) = (World::new(11), Arc::<Directory>::default());
    let turns = Turns::new(2, plan.schedule.clone());
    if let Some((client, nth, fault)) = plan.fault {
        world.bucket.fail_nth(Some(client), None, nth, fault);
    }
    if let Some((seed, per_mille)) = plan.chaos {
        world.bucket.set_chaos(seed, per_mille);
    }
    let events = std::thread::scope(|scope| {
        let owner = |client: u32| {
            let store = Arc::new(world.bucket.client(client).with_gate(turns.gate()));
            let (turns, world, mutant) = (turns.clone(), &world, plan.mutant);
            let directory = &directory;
            let steps = plan.deaths.map_or(usize::MAX, |d| d[client as usize]);
            scope.spawn(move || {
                let fs = Arc::new(topics_sim::SimFs::new());
                let env = topics_sim::env_on(&fs, &world.clock, 100 + u64::from(client));
                let retry = world.retry_on(mutated(env, mutant));
                let events = live(store, &retry, directory, client, steps);
                turns.finish(client);
                events
            })
        };
        let owners = [owner(0), owner(1)];
        owners.map(|o| o.join().unwrap()).to_vec()
    });
    world.bucket.clear_faults();
    Run { world, directory, events }
}

fn mutated(env: Env, mutant: Option<&'static str>) -> Env {
    match mutant {
        None => env,
        Some(site) => {
            let hook: Arc<dyn Hook> = Arc::new(Mutant::remove(Site::Check(site), None));
            env.with_hook(hook)
        }
    }
}

macro_rules! ensure {
    ($ok:expr, $($what:tt)*) => {
        if !$ok {
            return Err(format!($($what)*));
        }
    };
}

/// The ends that one HEAD, or the catalog that it names, states for earlier epochs.
fn stated_ends(head: &Head, catalogs: &BTreeMap<String, Catalog>) -> BTreeMap<u64, u64> {
    let catalog = head.catalog.as_ref().and_then(|c| catalogs.get(&c.key));
    let mut out: BTreeMap<u64, u64> = catalog.map_or_else(BTreeMap::new, |c| {
        c.chain_ends.iter().map(|e| (e.epoch, e.last_round)).collect()
    });
    out.extend(head.priors.iter().filter(|p| p.is_final).map(|p| (p.epoch, p.last_round)));
    out
}

/// Judges a run: `Err` says which promise was broken.
fn judge(run: &Run) -> Result<(), String> {
    let bucket = &run.world.bucket;
    bucket.deliver_delayed();
    ensure!(bucket.violations().is_empty(), "{:?}", bucket.violations());
    ensure!(bucket.count(ObjectOp::List) == 0, "a listing");
    // A later owner, without faults, reads the history.
    let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(9));
    let last = open(&store, &run.world.retry(), &run.directory, 9);
    let last = last.map_err(|e| format!("a later owner fails: {e}"))?;
    let objects = bucket.objects();
    let mut catalogs = BTreeMap::new();
    let (mut seen, mut heads) = (BTreeSet::new(), Vec::new());
    for (key, bytes) in bucket.history() {
        if key == keys::HEAD {
            let head = Head::decode(&bytes).map_err(|e| e.to_string())?;
            ensure!(
                head.catalog.as_ref().is_none_or(|c| seen.contains(&c.key)),
                "HEAD names a catalog that does not exist yet"
            );
            heads.push(head);
        } else if key.starts_with(keys::CATALOGS) {
            let catalog = Catalog::verify(&key, None, &bytes).map_err(|e| e.to_string())?;
            catalogs.insert(key.clone(), catalog);
        }
        seen.insert(key);
    }
    let mut holders: BTreeMap<u64, &str> = BTreeMap::new();
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for (head, next) in heads.iter().zip(heads.iter().skip(1)) {
        ensure!(head.epoch <= next.epoch, "epoch {} after {}", next.epoch, head.epoch);
        ensure!(head.nonce != next.nonce, "a nonce twice");
    }
    for head in &heads {
        let holder = *holders.entry(head.epoch).or_insert(&head.holder);
        ensure!(holder == head.holder, "epoch {} has two owners", head.epoch);
        for (epoch, end) in stated_ends(head, &catalogs) {
            let first = *ends.entry(epoch).or_insert(end);
            ensure!(first == end, "epoch {epoch} ended at {first}, later at {end}");
        }
    }
    let ends = stated_ends(last.head(), &catalogs);
    for (epoch, end) in &ends {
        for n in 1..=*end {
            ensure!(objects.contains_key(&keys::round(*epoch, n)), "round {epoch}/{n} is missing");
        }
    }
    for event in run.events.iter().flatten() {
        judge_event(event, &objects, &ends, &heads, &catalogs)?;
    }
    Ok(())
}

fn judge_event(
    event: &Event,
    objects: &BTreeMap<String, Bytes>,
    ends: &BTreeMap<u64, u64>,
    heads: &[Head],
    catalogs: &BTreeMap<String, Catalog>,
) -> Result<(), String> {
    match event {
        Event::Shipped(epoch, n, bytes) => {
            let found = objects.get(&keys::round(*epoch, *n));
            ensure!(found == Some(bytes), "shipped round {epoch}/{n} has other bytes");
            let end = ends.get(epoch).copied().unwrap_or(0);
            ensure!(
                *n <= end,
                "shipped round {epoch}/{n} is not in the history, which ends at {end}"
            );
        }
        Event::Published(epoch, key) => {
            ensure!(catalogs.contains_key(key), "published catalog {key} does not exist");
            let named =
                |h: &Head| h.epoch == *epoch && h.catalog.as_ref().is_some_and(|c| c.key == *key);
            ensure!(heads.iter().any(named), "no HEAD named {key}");
        }
        Event::Closed(epoch) => {
            let closed = heads.iter().any(|h| h.epoch == *epoch && h.closed);
            ensure!(closed, "no HEAD says that epoch {epoch} was closed");
        }
        Event::Fenced(epoch, by) => {
            let later =
                heads.iter().any(|h| h.epoch == *by && by > epoch && h.holder != "client 9");
            ensure!(later, "epoch {epoch} was fenced by epoch {by}, which did not exist");
        }
        Event::Opened(_) | Event::Failed(_) => {}
    }
    Ok(())
}

/// Client 0 makes `a` requests, client 1 `b`, then both in turn to the end.
fn stalled(a: usize, b: usize) -> Vec<u32> {
    [vec![0; a], vec![1; b], vec![0; 40]].concat()
}

fn check(plan: &Plan) -> Run {
    let run = run(plan);
    if let Err(e) = judge(&run) {
        let log = run.world.bucket.log().join("\n");
        panic!("{plan:?}: {e}\n{:#?}\n{log}", run.events);
    }
    run
}

/// The requests of an owner whose life nothing disturbs, at most.
const REQUESTS: usize = 20;

#[test]
fn an_owner_stalled_at_every_request_is_fenced_or_wins() {
    let (mut runs, mut fenced, mut outcomes) = (0, 0, BTreeSet::new());
    for a in 0..=REQUESTS {
        for b in 0..=REQUESTS {
            let run = check(&Plan { schedule: stalled(a, b), ..Plan::default() });
            let is_fenced = |t: &Vec<Event>| matches!(t.last(), Some(Event::Fenced(..)));
            let closed =
                run.events.iter().filter(|t| matches!(t.last(), Some(Event::Closed(_)))).count();
            assert!(closed >= 1, "without faults one of two owners completes: {:?}", run.events);
            fenced += run.events.iter().filter(|t| is_fenced(t)).count();
            outcomes.insert(format!("{:?}", run.events));
            runs += 1;
        }
    }
    println!("{runs} interleavings, {} distinct outcomes, {fenced} owners fenced", outcomes.len());
    assert!(fenced > 100, "{fenced}");
}

#[test]
fn a_fault_at_every_request_of_every_interleaving() {
    let (step, mut runs, mut fired) = (sized(7, 3, 1) as usize, 0u64, 0);
    for a in (0..=REQUESTS).step_by(step) {
        for b in (0..=REQUESTS).step_by(step) {
            for (i, fault) in ObjectFault::ALL.into_iter().enumerate() {
                for nth in (1 + (a + b + i) % step..=REQUESTS).step_by(step) {
                    for client in [0, 1] {
                        let fault = Some((client, nth, fault));
                        let run =
                            check(&Plan { schedule: stalled(a, b), fault, ..Plan::default() });
                        fired += run.world.bucket.faults_fired();
                        runs += 1;
                    }
                }
            }
        }
    }
    println!("{runs} runs with one fault each, {fired} took effect");
    assert!(fired * 2 > runs);
}

fn chaotic(run: u64, seed: u64) -> Plan {
    let mut draw = seed ^ run.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        draw
    };
    let schedule = (0..80).map(|_| (next() >> 33) as u32 % 2).collect();
    let deaths = Some([1 + next() as usize % 7, 1 + next() as usize % 7]);
    Plan { schedule, chaos: Some((next(), run % 7 * 50)), deaths, ..Plan::default() }
}

#[test]
fn random_interleavings_under_chaos() {
    let (runs, random) = (sized(300, 3_000, 200_000), random_seed());
    println!("second seed {random:#x}");
    let mut counts = BTreeMap::new();
    for i in 0..runs {
        let run = check(&chaotic(i, if i % 2 == 0 { 0x5eed } else { random | 1 }));
        for events in &run.events {
            let name = format!("{:?}", events.last());
            let name = name.split(['(', '{']).nth(1).unwrap_or_default().to_owned();
            *counts.entry(name).or_insert(0) += 1;
        }
    }
    println!("{runs} runs; the owners ended with {counts:?}");
}

/// Each check of the protocol, removed, is noticed.
#[test]
fn mutants_of_the_protocol_are_caught() {
    for site in ["remote.head-check", "remote.read-back", "remote.read-back-valid"] {
        let stalls = (0..=REQUESTS).flat_map(|a| (0..=REQUESTS).map(move |b| stalled(a, b)));
        let plans = stalls.map(|schedule| Plan { schedule, ..Plan::default() });
        let plans = plans.chain((0..2000).map(|i| chaotic(i, 0x5eed)));
        let mut tried = 0;
        let caught = plans.map(|p| Plan { mutant: Some(site), ..p }).find_map(|plan| {
            tried += 1;
            judge(&run(&plan)).err()
        });
        println!("mutant {site}: run {tried}: {caught:?}");
        assert!(caught.is_some(), "{site} was not caught in {tried} runs");
    }
}

#[test]
fn ten_opens_without_a_catalog_keep_every_round() {
    let (world, directory) = (World::new(13), Arc::<Directory>::default());
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    for epoch in 1..=10 {
        let mut writer = open(&store, &world.retry(), &directory, 1).unwrap();
        let found: Vec<_> = writer.head().priors.iter().map(|p| (p.epoch, p.last_round)).collect();
        let shipped = (1..epoch).filter(|e| e % 3 != 0).map(|e| (e, e % 3)).collect::<Vec<_>>();
        assert_eq!(found, shipped, "epochs without rounds are left out");
        for k in 0..epoch % 3 {
            let round = round(&writer, 1, k as u32);
            writer.ship(round).unwrap();
        }
    }
}

#[test]
fn an_idle_owner_makes_no_request_and_a_round_makes_two() {
    let world = World::new(14);
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
    assert_eq!(world.bucket.requests(), 2, "a new prefix: one read, one create");
    let round = round(&writer, 1, 0);
    writer.ship(round).unwrap();
    assert_eq!(world.bucket.requests(), 4, "the round, and the check of HEAD");
    assert!(!writer.has_pending_round());
    assert_eq!(writer.ship_pending().unwrap(), 1);
    assert_eq!(world.bucket.requests(), 4);
}

#[test]
fn the_end_of_an_epoch_is_final_before_the_next_ships() {
    let (world, directory) = (World::new(15), Arc::<Directory>::default());
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let open = || open(&store, &world.retry(), &directory, 1).unwrap();
    let mut first = open();
    first.ship(round(&first, 1, 0)).unwrap();
    let late = round(&first, 1, 1);
    // The second owner dies after one round. Only then a request of the first one arrives.
    let mut second = open();
    second.ship(round(&second, 2, 0)).unwrap();
    drop(second);
    let e = first.ship(late).unwrap_err();
    assert!(matches!(e, RemoteError::Fenced { epoch: 2, .. }), "{e}");
    assert!(world.bucket.objects().contains_key(&keys::round(1, 2)), "it was written");
    let third = open();
    let ends: Vec<_> = third.head().priors.iter().map(|p| (p.epoch, p.last_round)).collect();
    assert_eq!(ends, [(1, 1), (2, 1)]);
}

#[test]
fn a_write_whose_outcome_stayed_unknown_is_repeated_before_the_next() {
    let catalog = |writer: &RemoteWriter| Catalog {
        header: writer.header(ObjectKind::Catalog, 0),
        made_ms: 1,
        first_round: 1,
        chain_ends: Vec::new(),
        packs: Vec::new(),
        deletes: Vec::new(),
        condemned: Vec::new(),
        earlier: Vec::new(),
        snapshot: Vec::new(),
    };
    for fault in [ObjectFault::AnswerLost, ObjectFault::Lost, ObjectFault::Delayed(5)] {
        let world = World::new(16);
        let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
        let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
        let black_hole = |op| {
            world.bucket.fail_nth(None, Some(op), 1, fault);
            world.bucket.fail_all(None, Some(ObjectOp::Get), ObjectFault::Unavailable);
        };
        black_hole(ObjectOp::Create);
        let shipped = round(&writer, 1, 0);
        let e = writer.ship(shipped).unwrap_err();
        assert!(matches!(e, RemoteError::Object(ObjectError::Ambiguous { .. })), "{e}");
        assert!(writer.has_pending_round());
        let other = round(&writer, 1, 1);
        let e = writer.ship(other).unwrap_err();
        assert!(matches!(e, RemoteError::Usage { .. }), "{e}");
        world.bucket.clear_faults();
        assert_eq!(writer.ship_pending().unwrap(), 1, "{fault:?}");
        black_hole(ObjectOp::Replace);
        let e = writer.publish(&catalog(&writer)).unwrap_err();
        assert!(matches!(e, RemoteError::Object(ObjectError::Ambiguous { .. })), "{e}");
        world.bucket.clear_faults();
        let second = writer.publish(&catalog(&writer)).unwrap();
        assert_eq!(writer.head().catalog, Some(second), "{fault:?}");
        writer.close().unwrap();
    }
}
