//! A prefix seen from outside: its status, and what a verification finds.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use topics_env::objects::ObjectStore;
use topics_remote::RemoteError;
use topics_remote::format::base::{Base, BasePack};
use topics_remote::format::keys::{self, HEAD};
use topics_remote::format::pack::PackWriter;
use topics_remote::inspect::{self, ABSENT_IN_A_ROW, PrefixReport, VerifyDepth};
use topics_remote::writer::RemoteWriter;
use topics_sim::{ObjectFault, ObjectOp, SimStore};

use crate::support::{Directory, World, empty_base, round, segment};

const FOOTERS: VerifyDepth = VerifyDepth::Footers;
const DATA: VerifyDepth = VerifyDepth::Data;

/// A prefix with a base of three packs, and rounds of which the base needs the last four.
struct Prefix {
    world: World,
    store: SimStore,
    writer: RemoteWriter,
    packs: Vec<BasePack>,
}

const FIRST_ROUND: u64 = 2;
const LAST_ROUND: u64 = 5;

impl Prefix {
    fn new() -> Self {
        let world = World::new(61);
        let store = world.bucket.client(1);
        let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
        let claimant = Arc::<Directory>::default().claimant("owner");
        let mut writer = RemoteWriter::open(shared, world.retry(), &claimant, &|| Ok(())).unwrap();
        let mut packs = Vec::new();
        for n in 1..=3 {
            let header = writer.next_pack().unwrap();
            let mut pack = PackWriter::new(header, 0);
            pack.push_segment(&world.env, &segment(n, 1, 4, 10, true).files()).unwrap();
            pack.push_rows("rows", b"staged").unwrap();
            let (sealed, _) = pack.finish().unwrap();
            writer.packs().unwrap().put(&sealed).unwrap();
            let (len, hash) = (sealed.object.len, sealed.object.hash);
            packs.push(BasePack { serial: header.serial(), len, hash });
        }
        let mut out = Self { world, store, writer, packs };
        out.ship(1);
        let (first_round, packs) = (FIRST_ROUND, out.packs.clone());
        let base = Base { first_round, packs, ..empty_base(&out.writer, "state") };
        out.writer.publish(&base).unwrap();
        out.ship(LAST_ROUND - 1);
        out
    }

    fn ship(&mut self, n: u64) {
        for _ in 0..n {
            let round = round(&self.writer, 1, "frames");
            self.writer.ship(round).unwrap();
        }
    }

    fn verify(&self, depth: VerifyDepth) -> Result<PrefixReport, RemoteError> {
        let (mut before, mut total) = (0, 0);
        let mut progress = |done, of| {
            assert_eq!(done, before + 1, "each object is reported once");
            assert!(done <= of && of >= total, "{done} of {of}, before of {total}");
            (before, total) = (done, of);
        };
        let found = inspect::verify(&self.store, &self.world.retry(), depth, &mut progress)?;
        let report = found.unwrap();
        assert_eq!(report.objects, before);
        Ok(report)
    }

    /// The keys of the problems, sorted.
    fn problems(&self, depth: VerifyDepth) -> Vec<String> {
        let report = self.verify(depth).unwrap();
        let mut keys: Vec<String> = report.problems.into_iter().map(|p| p.key).collect();
        keys.sort();
        keys
    }

    /// The key of the base.
    fn base(&self) -> String {
        self.writer.head().base.as_ref().unwrap().key.clone()
    }

    /// Runs with this content under the key; `None`: without the object.
    fn with<T>(&self, key: &str, bytes: Option<Bytes>, run: impl FnOnce() -> T) -> T {
        let good = self.world.bucket.objects()[key].clone();
        self.world.bucket.tamper(key, bytes);
        let out = run();
        self.world.bucket.tamper(key, Some(good));
        out
    }
}

fn flipped(bytes: &Bytes, at: usize) -> Bytes {
    let mut out = bytes.to_vec();
    out[at] ^= 4;
    out.into()
}

#[test]
fn a_status_says_what_the_base_names_and_how_far_the_rounds_go() {
    let world = World::new(62);
    let store = world.bucket.client(1);
    assert!(inspect::status(&store, &world.retry()).unwrap().is_none(), "a new prefix");
    let shared: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let claimant = Arc::<Directory>::default().claimant("owner");
    let mut writer = RemoteWriter::open(shared, world.retry(), &claimant, &|| Ok(())).unwrap();
    let shipped = round(&writer, 1, "frames");
    writer.ship(shipped).unwrap();
    let status = inspect::status(&store, &world.retry()).unwrap().unwrap();
    assert!(status.base.is_none() && status.packs().is_empty());
    assert_eq!((status.last_round, status.named_bytes()), (0, 0), "no base, no restore");

    let prefix = Prefix::new();
    let status = inspect::status(&prefix.store, &prefix.world.retry()).unwrap().unwrap();
    assert_eq!(status.head, *prefix.writer.head());
    assert_eq!(status.head_ms, prefix.world.env.clock.wall_ms());
    assert_eq!((status.packs(), status.last_round), (&prefix.packs[..], LAST_ROUND));
    let bytes: u64 = prefix.packs.iter().map(|p| p.len).sum();
    let base = prefix.world.bucket.objects()[&prefix.base()].len() as u64;
    assert_eq!((status.pack_bytes(), status.named_bytes()), (bytes, bytes + base));
    // A round after one that is missing is not replayed.
    let after = |n| {
        let status = || inspect::status(&prefix.store, &prefix.world.retry()).unwrap().unwrap();
        prefix.with(&keys::round(1, n), None, || status().last_round)
    };
    assert_eq!([after(2), after(4), after(5), after(1)], [0, 3, 4, LAST_ROUND]);
}

#[test]
fn a_whole_prefix_has_no_problem() {
    let prefix = Prefix::new();
    let objects = 2 + 3 + LAST_ROUND + 1 - FIRST_ROUND;
    for (depth, read) in [(FOOTERS, 0), (DATA, objects - 2)] {
        let report = prefix.verify(depth).unwrap();
        assert_eq!((report.objects, report.read, report.problems), (objects, read, vec![]));
        assert_eq!(report.bytes > 0, read > 0);
    }
    let (new, mut progress) = (World::new(63), |_, _| ());
    let found = inspect::verify(&new.bucket.client(1), &new.retry(), DATA, &mut progress);
    assert_eq!(found.unwrap(), None, "a new prefix");
}

/// Each object that is named, missing and cut: every depth finds it, and nothing else.
#[test]
fn an_object_that_is_missing_or_cut_is_a_problem() {
    let prefix = Prefix::new();
    let mut all: Vec<String> = prefix.packs.iter().map(|p| p.object().key).collect();
    all.extend([prefix.base(), keys::round(1, 3)]);
    for key in &all {
        for depth in [FOOTERS, DATA] {
            let found = prefix.with(key, None, || prefix.verify(depth)).unwrap();
            let [problem] = &found.problems[..] else { panic!("{key}: {found:?}") };
            assert_eq!((&problem.key, &problem.detail[..]), (key, "it is missing"));
        }
    }
    all.pop();
    for key in all.iter().map(String::as_str).chain([HEAD]) {
        let cut = prefix.world.bucket.objects()[key].clone();
        let cut = cut.slice(..cut.len() - 1);
        for depth in [FOOTERS, DATA] {
            let found = prefix.with(key, Some(cut.clone()), || prefix.problems(depth));
            assert_eq!(found, [key], "{depth:?}");
        }
    }
}

#[test]
fn damage_is_found_by_the_depth_that_reads_it() {
    let prefix = Prefix::new();
    let objects = prefix.world.bucket.objects();
    let changed = |key: &str, at: usize, depth| {
        prefix.with(key, Some(flipped(&objects[key], at)), || prefix.problems(depth))
    };
    let pack = prefix.packs[1].object().key;
    let end = objects[&pack].len();
    for (at, found) in [(200, [false, true]), (end - 30, [true, true])] {
        for (depth, is_found) in [FOOTERS, DATA].into_iter().zip(found) {
            assert_eq!(changed(&pack, at, depth).is_empty(), !is_found, "byte {at}, {depth:?}");
        }
    }
    let base = prefix.base();
    let round = keys::round(1, 4);
    for at in 0..objects[&round].len() {
        assert_eq!(changed(&round, at, DATA), [&round[..]], "byte {at}");
    }
    assert_eq!(changed(&base, 100, FOOTERS), [&base[..]]);
    assert_eq!(changed(HEAD, 30, FOOTERS), [HEAD]);
}

#[test]
fn a_round_that_is_missing_before_later_ones_is_a_problem() {
    let mut prefix = Prefix::new();
    let round = |n| keys::round(1, n);
    for depth in [FOOTERS, DATA] {
        for n in FIRST_ROUND..LAST_ROUND {
            assert_eq!(prefix.with(&round(n), None, || prefix.problems(depth)), [round(n)]);
        }
        // Nothing says that there was one, or that one is needed.
        for n in [LAST_ROUND, FIRST_ROUND - 1] {
            assert_eq!(prefix.with(&round(n), None, || prefix.problems(depth)), [""; 0]);
        }
        let two = prefix
            .with(&round(2), None, || prefix.with(&round(4), None, || prefix.problems(depth)));
        assert_eq!(two, [round(2), round(4)]);
    }
    // As many as an owner leaves out at most, and one more: what is behind is not seen.
    let most = ABSENT_IN_A_ROW as u64;
    prefix.ship(most);
    for (gap, seen) in [(most - 1, most - 1), (most, 0)] {
        for n in FIRST_ROUND..FIRST_ROUND + gap {
            prefix.world.bucket.tamper(&round(n), None);
        }
        let missing: Vec<_> = (FIRST_ROUND..FIRST_ROUND + seen).map(round).collect();
        assert_eq!(prefix.problems(FOOTERS), missing);
    }
}

/// An owner ships while the rounds behind the last one are looked up: none of them is missing.
#[test]
fn rounds_that_are_shipped_meanwhile_are_no_problem() {
    for (depth, op) in [(FOOTERS, ObjectOp::Head), (DATA, ObjectOp::Get)] {
        for at in 1..30 {
            let Prefix { world, store, writer, packs } = Prefix::new();
            let (writer, requests) = (Mutex::new(writer), Mutex::new(0));
            let gate = move |_, gated| {
                let mut requests = requests.lock().unwrap();
                if gated != op {
                    return;
                }
                *requests += 1;
                if *requests == at {
                    let mut writer = writer.lock().unwrap();
                    for _ in 0..2 {
                        let round = round(&writer, 1, "more");
                        writer.ship(round).unwrap();
                    }
                }
            };
            let retry = world.retry();
            let gated = store.clone().with_gate(Arc::new(gate));
            let found = inspect::verify(&gated, &retry, depth, &mut |_, _| ()).unwrap().unwrap();
            assert_eq!(found.problems, [], "at request {at} of {depth:?}");
            assert!(found.objects >= 2 + packs.len() as u64 + LAST_ROUND + 1 - FIRST_ROUND);
        }
    }
}

#[test]
fn a_failed_request_is_no_problem_of_the_prefix_but_an_error() {
    let prefix = Prefix::new();
    for (depth, op) in [(FOOTERS, ObjectOp::Get), (FOOTERS, ObjectOp::Head), (DATA, ObjectOp::Get)]
    {
        for fault in [ObjectFault::Unavailable, ObjectFault::Refused] {
            prefix.world.bucket.fail_all(None, Some(op), fault);
            let found = prefix.verify(depth);
            assert!(matches!(found, Err(RemoteError::Object(_))), "{op:?} {fault:?}: {found:?}");
            prefix.world.bucket.clear_faults();
        }
        // Once: it is asked again.
        for fault in [ObjectFault::Unavailable, ObjectFault::Wrong, ObjectFault::Truncated] {
            for nth in 1..=12 {
                prefix.world.bucket.fail_nth(None, Some(op), nth, fault);
                assert_eq!(prefix.problems(depth), [""; 0], "{op:?} {fault:?} {nth}");
                prefix.world.bucket.clear_faults();
            }
        }
    }
}
