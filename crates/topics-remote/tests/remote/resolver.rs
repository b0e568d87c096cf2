//! Every outcome of a create and of a replace, with a fault at every request.

use bytes::Bytes;
use topics_env::objects::{ETag, ObjectBytes, ObjectError, ObjectStore};
use topics_remote::resolve::{Created, ReadBack, Replaced, create_resolved, replace_resolved};
use topics_sim::{ObjectFault, ObjectOp};

use crate::support::{World, random_seed, sized};

const KEY: &str = "p/00/object";
const FAULTS: [ObjectFault; 10] = ObjectFault::ALL;

/// An object with a checksum as its last byte.
fn object(text: &str) -> Bytes {
    let sum = text.bytes().fold(7u8, |a, b| a.wrapping_mul(31).wrapping_add(b));
    Bytes::from([text.as_bytes(), &[sum]].concat())
}

fn is_valid(found: &ObjectBytes) -> bool {
    let text = found.bytes.split_last().map(|(_, t)| String::from_utf8_lossy(t).into_owned());
    found.bytes.len() as u64 == found.len && text.is_some_and(|t| object(&t) == found.bytes)
}

/// What is under the key before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Ours,
    Other,
}

fn create(world: &World) -> Result<Created, ObjectError> {
    let store = world.bucket.client(1);
    create_resolved(&store, &world.retry(), KEY, &object("ours"), ReadBack::Full, &is_valid)
}

fn prepare(world: &World, before: Before) {
    let body = match before {
        Before::Nothing => return,
        Before::Ours => object("ours"),
        Before::Other => object("theirs"),
    };
    world.bucket.client(2).create(KEY, &body).unwrap();
}

/// Judges an outcome: what it says is true, now and after every delayed request has arrived.
fn judge(world: &World, before: Before, outcome: &Result<Created, ObjectError>) {
    for _ in 0..2 {
        let now = world.bucket.objects().get(KEY).cloned();
        let log = || world.bucket.log().join("\n");
        match outcome {
            Ok(Created::Written(_)) => assert_eq!(now, Some(object("ours")), "{}", log()),
            Ok(Created::Taken) => assert_eq!(now, Some(object("theirs")), "{}", log()),
            Err(ObjectError::Ambiguous { .. }) => {}
            // Every other error says that this operation changed nothing.
            Err(e) => assert!(before != Before::Nothing || now.is_none(), "{e}\n{}", log()),
        }
        world.bucket.deliver_delayed();
    }
    assert_eq!(world.bucket.violations(), []);
}

#[test]
fn a_create_with_faults_at_two_requests_is_resolved() {
    let mut cases = 0;
    for before in [Before::Nothing, Before::Ours, Before::Other] {
        for first in FAULTS {
            for at in 1..=4 {
                for second in FAULTS {
                    let world = World::new(1);
                    prepare(&world, before);
                    world.bucket.fail_nth(Some(1), None, 1, first);
                    // Counted from the start too: the fault of the first request comes first.
                    world.bucket.fail_nth(Some(1), None, at, second);
                    let outcome = create(&world);
                    judge(&world, before, &outcome);
                    // Nothing is tried again after a hang: it takes longer than the attempts may.
                    let is_last =
                        |fault| matches!(fault, ObjectFault::Refused | ObjectFault::Hangs);
                    let refused = [first, second].into_iter().any(is_last);
                    let is_known = match before {
                        Before::Other => outcome == Ok(Created::Taken),
                        _ => matches!(outcome, Ok(Created::Written(_))),
                    };
                    let log = world.bucket.log().join("\n");
                    assert!(is_known || refused, "{before:?}: {outcome:?}\n{log}");
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} creates with two faults");
}

#[test]
fn a_create_that_fails_for_ever_says_whether_it_may_have_had_an_effect() {
    use ObjectFault::{AnswerLost, Lost, Refused, Unavailable};
    let forever = |faults: &[ObjectFault], rest| {
        let world = World::new(2);
        for (i, fault) in faults.iter().enumerate() {
            // Each is counted after the ones before it have taken effect.
            world.bucket.fail_nth(Some(1), None, i + 1 - i.min(1) * i, *fault);
        }
        world.bucket.fail_all(Some(1), None, rest);
        let outcome = create(&world).unwrap_err();
        judge(&world, Before::Nothing, &Err(outcome.clone()));
        outcome
    };
    assert!(matches!(forever(&[], Unavailable), ObjectError::Unavailable { .. }));
    assert!(matches!(forever(&[], Refused), ObjectError::Refused { .. }));
    assert!(matches!(forever(&[], Lost), ObjectError::Ambiguous { .. }));
    for first in [Lost, AnswerLost] {
        for rest in [Unavailable, Refused] {
            let e = forever(&[first], rest);
            assert!(matches!(e, ObjectError::Ambiguous { .. }), "{first:?}, {rest:?}: {e}");
        }
    }
}

#[test]
fn creates_under_chaos_never_say_what_is_not_true() {
    let (runs, seed) = (sized(3_000, 20_000, 500_000), random_seed());
    println!("second seed {seed:#x}");
    let mut outcomes = [0; 4];
    for run in 0..runs {
        let world = World::new(run);
        let before = [Before::Nothing, Before::Ours, Before::Other][(run % 3) as usize];
        prepare(&world, before);
        let start = if run % 2 == 0 { 0x5eed } else { seed };
        world.bucket.set_chaos(start ^ run << 8, 300 + run % 600);
        let outcome = create(&world);
        world.bucket.clear_faults();
        judge(&world, before, &outcome);
        outcomes[match outcome {
            Ok(Created::Written(_)) => 0,
            Ok(Created::Taken) => 1,
            Err(ObjectError::Ambiguous { .. }) => 2,
            Err(_) => 3,
        }] += 1;
    }
    println!("{runs} creates: written, taken, ambiguous, other errors: {outcomes:?}");
    assert!(outcomes.iter().all(|n| *n > 0), "{outcomes:?}");
}

fn replace(world: &World, etag: &ETag) -> Result<Replaced, ObjectError> {
    let store = world.bucket.client(1);
    replace_resolved(&store, &world.retry(), "HEAD", &object("ours"), etag, &is_valid)
}

#[test]
fn a_replace_with_faults_at_two_requests_is_resolved() {
    let mut cases = 0;
    for other_wins in [false, true] {
        for first in FAULTS {
            for at in 1..=4 {
                for second in FAULTS {
                    let world = World::new(3);
                    let other = world.bucket.client(2);
                    let etag = other.create("HEAD", &object("old")).unwrap();
                    if other_wins {
                        other.replace("HEAD", &object("theirs"), &etag).unwrap();
                    }
                    world.bucket.fail_nth(Some(1), None, 1, first);
                    world.bucket.fail_nth(Some(1), None, at, second);
                    let outcome = replace(&world, &etag);
                    world.bucket.deliver_delayed();
                    let now = world.bucket.objects()["HEAD"].clone();
                    let log = world.bucket.log().join("\n");
                    match &outcome {
                        Ok(Replaced::Written(_)) => assert_eq!(now, object("ours"), "{log}"),
                        Ok(Replaced::Other(o)) => {
                            assert_eq!((&now, &o.bytes), (&object("theirs"), &now), "{log}");
                        }
                        Err(ObjectError::Ambiguous { .. }) => {}
                        Err(e) => assert_ne!(now, object("ours"), "{e}\n{log}"),
                    }
                    // Nothing is tried again after a hang: it takes longer than the attempts may.
                    let is_last =
                        |fault| matches!(fault, ObjectFault::Refused | ObjectFault::Hangs);
                    let refused = [first, second].into_iter().any(is_last);
                    let is_known = matches!(outcome, Ok(Replaced::Other(_))) == other_wins;
                    assert!(outcome.is_ok() && is_known || refused, "{outcome:?}\n{log}");
                    cases += 1;
                }
            }
        }
    }
    println!("{cases} replaces with two faults");
}

#[test]
fn a_damaged_read_back_is_no_evidence() {
    // The answer of the create is lost; the read back is damaged on its way.
    for fault in [ObjectFault::Wrong, ObjectFault::Truncated] {
        let world = World::new(4);
        world.bucket.fail_nth(None, Some(ObjectOp::Create), 1, ObjectFault::AnswerLost);
        world.bucket.fail_nth(None, Some(ObjectOp::Get), 1, fault);
        assert!(matches!(create(&world), Ok(Created::Written(_))), "{fault:?}");
        assert_eq!(world.bucket.count(ObjectOp::Create), 1, "{fault:?}: nothing was sent again");
    }
}

#[test]
fn an_object_with_the_same_end_is_not_the_same() {
    let world = World::new(6);
    let body = object("ours");
    let longer = Bytes::from([b"longer ", &body[..]].concat());
    world.bucket.client(2).create(KEY, &longer).unwrap();
    let read_back = ReadBack::Last(3);
    let create = |valid: bool| {
        let store = world.bucket.client(1);
        create_resolved(&store, &world.retry(), KEY, &body, read_back, &|_| valid)
    };
    assert_eq!(create(true), Ok(Created::Taken));
    // A damaged object under the key, for ever: this operation has changed nothing.
    assert!(matches!(create(false), Err(ObjectError::Unavailable { .. })));
}

#[test]
fn pauses_grow_and_end_at_the_deadline() {
    let world = World::new(5);
    world.bucket.fail_all(None, None, ObjectFault::Unavailable);
    let before = topics_env::Clock::mono_ns(&*world.clock);
    create(&world).unwrap_err();
    let took = topics_env::Clock::mono_ns(&*world.clock) - before;
    assert!((50_000_000_000..=60_000_000_000).contains(&took), "{took} ns");
    // 50 ms doubling to 5 s within a minute: about seven short pauses and fifteen long ones.
    let requests = world.bucket.requests();
    assert!((15..40).contains(&requests), "{requests} requests");
}
