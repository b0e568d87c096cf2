//! Two owners of one prefix: every interleaving of a kind, faults, and an oracle over what each was
//! told and what the store holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use topics_env::objects::{ObjectError, ObjectStore};
use topics_env::{Env, Hook, Site};
use topics_remote::format::base::Base;
use topics_remote::format::head::Head;
use topics_remote::format::keys::{self, Serial};
use topics_remote::format::pack::PackWriter;
use topics_remote::format::sealed::{ObjectHeader, ObjectKind, SealedObject};
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry};
use topics_sim::{Mutant, ObjectFault, ObjectOp, ServerFlaw};

use crate::support::{self, Directory, World, empty_base, random_seed, sized};
use crate::turns::Turns;

/// What an owner was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Opened(u64),
    /// Round `n` of an epoch counts, with these bytes.
    Shipped(u64, u64, Bytes),
    /// A base counts.
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

fn serial(epoch: u64, number: u64) -> Serial {
    Serial { epoch, number }
}

/// A round whose content names its writer.
fn round(writer: &RemoteWriter, client: u32, k: u32) -> SealedObject {
    support::round(writer, u64::from(k), &format!("client {client}, round {k}"))
}

/// The life of an owner: two rounds, a base, a round, a close.
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
            let base = empty_base(&writer, &format!("client {client}"));
            events.push(Event::Published(epoch, writer.publish(&base)?.key));
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

/// Judges a run: `Err` says which promise was broken.
fn judge(run: &Run) -> Result<(), String> {
    let bucket = &run.world.bucket;
    bucket.deliver_delayed();
    ensure!(bucket.violations().is_empty(), "{:?}", bucket.violations());
    let (mut bases, mut lost) = (BTreeSet::new(), BTreeMap::<u64, BTreeSet<String>>::new());
    let (mut seen, mut heads) = (BTreeSet::new(), Vec::<Head>::new());
    for (key, bytes) in bucket.history() {
        if key == keys::HEAD {
            let head = Head::decode(&bytes).map_err(|e| e.to_string())?;
            ensure!(
                head.base.as_ref().is_none_or(|b| seen.contains(&b.key)),
                "HEAD names a base that does not exist yet"
            );
            heads.push(head);
        } else if Base::verify(&key, None, &bytes).is_ok() {
            bases.insert(key.clone());
        } else if let Some(head) = heads.last() {
            // What is written from now on does not count for the epochs before.
            lost.entry(head.epoch).or_default().insert(key.clone());
        }
        seen.insert(key);
    }
    let mut holders: BTreeMap<u64, &str> = BTreeMap::new();
    for (head, next) in heads.iter().zip(heads.iter().skip(1)) {
        ensure!(head.epoch <= next.epoch, "epoch {} after {}", next.epoch, head.epoch);
        ensure!(head.nonce != next.nonce, "a nonce twice");
    }
    for head in &heads {
        let holder = *holders.entry(head.epoch).or_insert(&head.holder);
        ensure!(holder == head.holder, "epoch {} has two owners", head.epoch);
    }
    let found = History { objects: bucket.objects(), heads, bases, lost };
    for event in run.events.iter().flatten() {
        found.judge(event)?;
    }
    // A later owner, without faults, takes the prefix.
    let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(9));
    let last = open(&store, &run.world.retry(), &run.directory, 9);
    last.map(drop).map_err(|e| format!("a later owner fails: {e}"))
}

/// What was written, in its order.
struct History {
    objects: BTreeMap<String, Bytes>,
    heads: Vec<Head>,
    bases: BTreeSet<String>,
    /// What was written while HEAD was of an epoch.
    lost: BTreeMap<u64, BTreeSet<String>>,
}

impl History {
    fn judge(&self, event: &Event) -> Result<(), String> {
        match event {
            Event::Shipped(epoch, n, bytes) => {
                let key = keys::round(*epoch, *n);
                let found = self.objects.get(&key);
                ensure!(found == Some(bytes), "shipped round {epoch}/{n} has other bytes");
                for before in 1..*n {
                    let is_there = self.objects.contains_key(&keys::round(*epoch, before));
                    ensure!(is_there, "round {epoch}/{before} is missing before {n}");
                }
                let is_late = self.lost.range(epoch + 1..).any(|(_, keys)| keys.contains(&key));
                ensure!(!is_late, "round {epoch}/{n} counts, and a later owner had the prefix");
            }
            Event::Published(epoch, key) => {
                ensure!(self.bases.contains(key), "published base {key} does not exist");
                let named =
                    |h: &Head| h.epoch == *epoch && h.base.as_ref().is_some_and(|b| b.key == *key);
                ensure!(self.heads.iter().any(named), "no HEAD named {key}");
            }
            Event::Closed(epoch) => {
                let closed = self.heads.iter().any(|h| h.epoch == *epoch && h.closed == Some(3));
                ensure!(closed, "no HEAD says that epoch {epoch} was closed after 3 rounds");
            }
            Event::Fenced(epoch, by) => {
                let later = self
                    .heads
                    .iter()
                    .any(|h| h.epoch == *by && by > epoch && h.holder != "client 9");
                ensure!(later, "epoch {epoch} was fenced by epoch {by}, which did not exist");
            }
            Event::Opened(_) | Event::Failed(_) => {}
        }
        Ok(())
    }
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
fn an_idle_owner_makes_no_request_and_a_round_makes_two() {
    let world = World::new(14);
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
    assert_eq!(world.bucket.requests(), 2, "a new prefix: one read, one create");
    let round = round(&writer, 1, 0);
    writer.ship(round).unwrap();
    assert_eq!(world.bucket.requests(), 4, "the round, and the check of HEAD");
    assert_eq!(writer.ship_pending().unwrap(), 1);
    assert_eq!(world.bucket.requests(), 4);
}

#[test]
fn a_round_of_an_owner_that_lost_the_prefix_does_not_count() {
    let (world, directory) = (World::new(15), Arc::<Directory>::default());
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let open = || open(&store, &world.retry(), &directory, 1).unwrap();
    let mut first = open();
    first.ship(round(&first, 1, 0)).unwrap();
    let late = round(&first, 1, 1);
    let mut second = open();
    second.ship(round(&second, 2, 0)).unwrap();
    let e = first.ship(late).unwrap_err();
    assert!(matches!(e, RemoteError::Fenced { epoch: 2, .. }), "{e}");
    assert!(world.bucket.objects().contains_key(&keys::round(1, 2)), "it was written");
    assert_eq!((first.shipped(), second.shipped()), (1, 1));
}

/// A number of a pack names one content, whatever came of the first.
#[test]
fn numbers_of_packs_are_given_once() {
    let pack = |header, text: &[u8]| {
        let mut out = PackWriter::new(header, 0);
        out.push_deletes(1, text).unwrap();
        out.finish().unwrap().0
    };
    for fault in ObjectFault::ALL {
        let (world, directory) = (World::new(17), Arc::<Directory>::default());
        let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
        let mut writer = open(&store, &world.retry(), &directory, 1).unwrap();
        let mut given = BTreeSet::new();
        for n in 1..=4 {
            let header = writer.next_pack().unwrap();
            assert_eq!((header.number, writer.last_pack()), (n, n));
            assert!(given.insert(header.key()));
            world.bucket.fail_all(None, None, fault);
            // The outcome may stay unknown: the next pack has another number all the same.
            let _ = writer.packs().unwrap().put(&pack(header, format!("pack {n}").as_bytes()));
            world.bucket.clear_faults();
        }
        assert_eq!(writer.header(ObjectKind::Base).number, 1, "each kind has its own numbers");
        let mut next = open(&store, &world.retry(), &directory, 2).unwrap();
        assert!(given.insert(next.next_pack().unwrap().key()), "no epoch is continued");
        let e = writer.confirm().unwrap_err();
        assert!(matches!(e, RemoteError::Fenced { .. }), "{e}");
        assert!(writer.next_pack().is_err() && writer.packs().is_err());
        world.bucket.deliver_delayed();
        assert_eq!(world.bucket.violations(), [], "{fault:?}");
    }
}

#[test]
fn a_pack_over_another_one_is_an_error() {
    let world = World::new(19);
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
    let header = writer.next_pack().unwrap();
    let pack = |text: &[u8]| {
        let mut out = PackWriter::new(header, 0);
        out.push_rows("rows", text).unwrap();
        out.finish().unwrap().0
    };
    let packs = writer.packs().unwrap();
    packs.put(&pack(b"one")).unwrap();
    packs.put(&pack(b"one")).unwrap();
    let e = packs.put(&pack(b"two")).unwrap_err();
    assert!(matches!(&e, RemoteError::Usage { detail } if detail.contains("other bytes")), "{e}");
    assert_eq!(world.bucket.objects()[&header.key()], pack(b"one").bytes);
}

/// The bytes of HEAD.
fn head_bytes(world: &World) -> Bytes {
    world.bucket.objects()[keys::HEAD].clone()
}

#[test]
fn a_base_with_another_header_is_refused_without_a_request() {
    let world = World::new(20);
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
    let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
    writer.publish(&empty_base(&writer, "first")).unwrap();
    let good = writer.header(ObjectKind::Base);
    assert_eq!((good.epoch, good.number), (1, 2));
    let (before, requests) = (head_bytes(&world), world.bucket.requests());
    let others = [
        ObjectHeader { number: 1, ..good },
        ObjectHeader { number: 3, ..good },
        ObjectHeader { epoch: 2, ..good },
        ObjectHeader { store_id: [9; 16], ..good },
        ObjectHeader { prefix_id: [9; 16], ..good },
        writer.header(ObjectKind::Round),
    ];
    for header in others {
        let e = writer.publish(&Base { header, ..empty_base(&writer, "second") }).unwrap_err();
        assert!(matches!(e, RemoteError::Usage { .. }), "{header:?}: {e}");
    }
    assert_eq!((world.bucket.requests(), head_bytes(&world)), (requests, before));
    let second = writer.publish(&empty_base(&writer, "second")).unwrap();
    assert_eq!(second.key, good.key(), "no number was used");
}

/// Publishes the first base of an owner on a store that holds other bytes of it than it got. Returns the
/// error. HEAD does not change, and the next base has a new number.
fn publish_wrong(wrong: &dyn Fn(&Bytes) -> Option<Bytes>) -> RemoteError {
    let (world, key) = (World::new(21), keys::base(serial(1, 1)));
    // The store has acked the create when its object is read.
    let stored = Arc::new(Mutex::new(None));
    let (bucket, to_store, of_gate) = (world.bucket.clone(), stored.clone(), key.clone());
    let gate = move |_, op| {
        let is_read = op == ObjectOp::Get && bucket.objects().contains_key(&of_gate);
        if let Some(bytes) = to_store.lock().unwrap().take_if(|_| is_read) {
            bucket.tamper(&of_gate, bytes);
        }
    };
    let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1).with_gate(Arc::new(gate)));
    let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
    let base = empty_base(&writer, "state");
    *stored.lock().unwrap() = Some(wrong(&base.seal().bytes));
    let before = head_bytes(&world);
    let e = writer.publish(&base).unwrap_err();
    assert_eq!((head_bytes(&world), &writer.head().base), (before, &None), "{e}");
    assert!(stored.lock().unwrap().is_none(), "the store holds the other bytes");
    let next = writer.publish(&empty_base(&writer, "state")).unwrap();
    assert_eq!(next.key, keys::base(serial(1, 2)));
    assert_eq!(Head::decode(&head_bytes(&world)).unwrap().base, Some(next));
    e
}

/// A store that holds other bytes than it got: each byte changed, the object cut, gone, or another base.
#[test]
fn head_never_names_a_base_that_the_store_holds_otherwise() {
    let (mut at, mut len) = (0, 1);
    while at < len {
        let length = std::cell::Cell::new(0);
        let e = publish_wrong(&|bytes| {
            length.set(bytes.len());
            let mut out = bytes.to_vec();
            out[at] ^= 1 << (at % 8);
            Some(out.into())
        });
        assert!(matches!(e, RemoteError::Damaged { .. }), "byte {at}: {e}");
        (at, len) = (at + 1, length.get());
    }
    assert!(len > 200, "{len}");
    let e = publish_wrong(&|bytes| Some(bytes.slice(..100)));
    assert!(matches!(e, RemoteError::Damaged { .. }), "{e}");
    let e = publish_wrong(&|_| None);
    assert!(matches!(e, RemoteError::Object(ObjectError::NotFound { .. })), "{e}");
    // A valid base of the same key, with another snapshot.
    let e = publish_wrong(&|bytes| {
        let base = Base::verify(&keys::base(serial(1, 1)), None, bytes).unwrap();
        Some(Base { snapshot: b"other".to_vec(), ..base }.seal().bytes)
    });
    assert!(matches!(&e, RemoteError::Damaged { detail, .. } if detail.contains("another")), "{e}");
}

/// A server that cuts what it stores: HEAD does not name a base that is not there as it was written.
#[test]
fn a_base_is_read_back_before_head_names_it() {
    for mutant in [None, Some("remote.base-read-back")] {
        let world = World::new(18);
        let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
        let retry = world.retry_on(mutated(world.env.clone(), mutant));
        let mut writer = open(&store, &retry, &Arc::default(), 1).unwrap();
        let base = empty_base(&writer, &"x".repeat(2000));
        world.bucket.set_flaw(Some(ServerFlaw::SizeLimit(900)));
        let published = writer.publish(&base);
        assert_eq!(published.is_ok(), mutant.is_some(), "{published:?}");
        assert_eq!(writer.head().base.is_some(), mutant.is_some());
        world.bucket.set_flaw(None);
        let again = writer.publish(&base).unwrap_err();
        assert!(matches!(again, RemoteError::Usage { .. }), "its number was used: {again}");
        writer.publish(&empty_base(&writer, "y")).unwrap();
    }
}

#[test]
fn a_write_whose_outcome_stayed_unknown_is_repeated_before_the_next() {
    for fault in [ObjectFault::AnswerLost, ObjectFault::Lost, ObjectFault::Delayed(5)] {
        let world = World::new(16);
        let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
        let mut writer = open(&store, &world.retry(), &Arc::default(), 1).unwrap();
        let black_hole = |op, nth_get| {
            world.bucket.fail_nth(None, Some(op), 1, fault);
            world.bucket.fail_from(Some(ObjectOp::Get), nth_get, ObjectFault::Unavailable);
        };
        black_hole(ObjectOp::Create, 1);
        let shipped = round(&writer, 1, 0);
        let e = writer.ship(shipped).unwrap_err();
        assert!(matches!(e, RemoteError::Object(ObjectError::Ambiguous { .. })), "{e}");
        let other = round(&writer, 1, 1);
        let e = writer.ship(other).unwrap_err();
        assert!(matches!(e, RemoteError::Usage { .. }), "{e}");
        world.bucket.clear_faults();
        assert_eq!(writer.ship_pending().unwrap(), 1, "{fault:?}");
        // The base is read back, HEAD is not.
        black_hole(ObjectOp::Replace, 2);
        let e = writer.publish(&empty_base(&writer, "")).unwrap_err();
        assert!(matches!(e, RemoteError::Object(ObjectError::Ambiguous { .. })), "{e}");
        world.bucket.clear_faults();
        let second = writer.publish(&empty_base(&writer, "")).unwrap();
        assert_eq!(writer.head().base, Some(second), "{fault:?}");
        writer.close().unwrap();
    }
}
