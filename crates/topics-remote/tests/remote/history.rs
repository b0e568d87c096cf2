//! What a restore finds: the base of a time, and the rounds after it.

use std::sync::Arc;

use topics_env::objects::{ObjectError, ObjectStore};
use topics_remote::format::base::{Base, EarlierBase};
use topics_remote::format::keys::{self, Serial};
use topics_remote::history::{self, RestoreBase};
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry};
use topics_sim::{ObjectFault, ObjectOp};

use crate::support::{Directory, World, empty_base, round};

/// A prefix whose owners keep every base.
struct Prefix {
    world: World,
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    directory: Arc<Directory>,
    kept: Vec<EarlierBase>,
}

impl Prefix {
    fn new(seed: u64) -> Self {
        let world = World::new(seed);
        let store: Arc<dyn ObjectStore> = Arc::new(world.bucket.client(1));
        let retry = world.retry();
        Self { world, store, retry, directory: Arc::default(), kept: Vec::new() }
    }

    fn open(&self, holder: &str) -> RemoteWriter {
        let claimant = self.directory.claimant(holder);
        RemoteWriter::open(self.store.clone(), self.retry.clone(), &claimant, &|| Ok(())).unwrap()
    }

    /// Publishes a base of this time, after the rounds that were shipped.
    fn publish(&mut self, writer: &mut RemoteWriter, made_ms: u64) -> String {
        let (first_round, kept) = (writer.shipped() + 1, self.kept.clone());
        let text = format!("the state at {made_ms}");
        let base = Base { made_ms, first_round, kept, ..empty_base(writer, &text) };
        let object = writer.publish(&base).unwrap();
        self.kept.push(base.as_earlier(&object));
        object.key
    }

    fn base(&self, at_ms: Option<u64>) -> Result<RestoreBase, RemoteError> {
        let head = history::head(&*self.store, &self.retry)?;
        history::base(&*self.store, &self.retry, head, at_ms)
    }

    /// The texts of the rounds that a restore reads.
    fn rounds(&self, from: &RestoreBase) -> Result<Vec<String>, RemoteError> {
        let mut out = Vec::new();
        history::rounds(&*self.store, &self.retry, from, |round| {
            let parts = round.directory.parts.iter().map(|p| round.part(p));
            let texts: Vec<_> = parts.map(String::from_utf8_lossy).collect();
            out.push(format!("{} {}", round.number, texts.join(",")));
            Ok(true)
        })?;
        Ok(out)
    }
}

fn ship(writer: &mut RemoteWriter, texts: &[&str]) {
    for text in texts {
        let round = round(writer, 1, text);
        writer.ship(round).unwrap();
    }
}

#[test]
fn a_time_finds_the_newest_base_that_is_not_after_it() {
    let mut prefix = Prefix::new(51);
    let mut writer = prefix.open("first");
    let keys = [1000, 2000, 3000].map(|ms| prefix.publish(&mut writer, ms));
    let times = [
        (None, 2),
        (Some(u64::MAX), 2),
        (Some(3000), 2),
        (Some(2999), 1),
        (Some(2000), 1),
        (Some(1999), 0),
        (Some(1000), 0),
    ];
    for (at_ms, n) in times {
        let found = prefix.base(at_ms).unwrap();
        assert_eq!((&found.object.key, found.newest_ms), (&keys[n], 3000), "{at_ms:?}");
        assert_eq!(found.base.header.key(), keys[n]);
        assert_eq!(found.base.snapshot, format!("the state at {}", 1000 * (n + 1)).into_bytes());
        assert_eq!(found.head, *writer.head());
    }
    let e = prefix.base(Some(999)).unwrap_err();
    assert!(matches!(&e, RemoteError::Nothing { detail } if detail.contains("1000")), "{e}");
}

/// A base that is not kept is not found, and of two bases the later one counts if the clock went back.
#[test]
fn only_kept_bases_are_found_and_the_later_one_first() {
    let mut prefix = Prefix::new(52);
    let mut writer = prefix.open("first");
    let keys = [1000, 2000, 1500, 3000].map(|ms| prefix.publish(&mut writer, ms));
    assert_eq!(prefix.base(Some(2500)).unwrap().object.key, keys[2]);
    prefix.kept.drain(..2);
    prefix.publish(&mut writer, 4000);
    assert_eq!(prefix.base(Some(1600)).unwrap().object.key, keys[2]);
    let e = prefix.base(Some(1400)).unwrap_err();
    assert!(matches!(&e, RemoteError::Nothing { detail } if detail.contains("1500")), "{e}");
}

#[test]
fn a_prefix_without_a_base_has_nothing_to_restore() {
    let prefix = Prefix::new(53);
    let detail = |prefix: &Prefix| match prefix.base(None) {
        Err(RemoteError::Nothing { detail }) => detail,
        other => panic!("{other:?}"),
    };
    assert!(detail(&prefix).contains("check the URL"), "{}", detail(&prefix));
    let mut writer = prefix.open("first");
    ship(&mut writer, &["a"]);
    assert!(detail(&prefix).contains("no base"), "{}", detail(&prefix));
}

#[test]
fn the_rounds_are_those_of_the_epoch_of_the_base() {
    let mut prefix = Prefix::new(54);
    let mut first = prefix.open("first");
    ship(&mut first, &["a", "b"]);
    prefix.publish(&mut first, 1000);
    ship(&mut first, &["c", "d"]);
    prefix.publish(&mut first, 2000);
    ship(&mut first, &["e"]);
    // A later owner without a base yet: what it ships belongs to none.
    let mut second = prefix.open("second");
    ship(&mut second, &["f"]);
    let rounds = |prefix: &Prefix, at| prefix.rounds(&prefix.base(at).unwrap()).unwrap();
    assert_eq!(rounds(&prefix, None), ["5 e"]);
    assert_eq!(rounds(&prefix, Some(1500)), ["3 c", "4 d", "5 e"]);
    prefix.publish(&mut second, 3000);
    assert_eq!(rounds(&prefix, None), [""; 0]);
    ship(&mut second, &["g"]);
    assert_eq!(rounds(&prefix, None), ["2 g"]);
    assert_eq!(rounds(&prefix, Some(2500)), ["5 e"]);
    assert_eq!(rounds(&prefix, Some(1500)), ["3 c", "4 d", "5 e"]);
}

#[test]
fn the_rounds_end_where_one_is_missing_or_the_reader_has_enough() {
    let mut prefix = Prefix::new(55);
    let mut writer = prefix.open("first");
    prefix.publish(&mut writer, 1000);
    ship(&mut writer, &["a", "b", "c", "d"]);
    let base = prefix.base(None).unwrap();
    let before = prefix.world.bucket.requests();
    let mut seen = 0;
    let enough = |_: &history::Round| {
        seen += 1;
        Ok(seen < 2)
    };
    history::rounds(&*prefix.store, &prefix.retry, &base, enough).unwrap();
    assert_eq!((seen, prefix.world.bucket.requests() - before), (2, 2));
    prefix.world.bucket.tamper(&keys::round(1, 3), None);
    assert_eq!(prefix.rounds(&base).unwrap(), ["1 a", "2 b"]);
    let failed = history::rounds(&*prefix.store, &prefix.retry, &base, |_| {
        Err(RemoteError::Usage { detail: "stop".to_owned() })
    });
    assert!(matches!(failed, Err(RemoteError::Usage { .. })), "{failed:?}");
}

/// A round that was put and never confirmed, by an owner that had lost the prefix.
#[test]
fn a_round_that_does_not_count_is_restored_all_the_same() {
    let mut prefix = Prefix::new(56);
    let mut first = prefix.open("first");
    prefix.publish(&mut first, 1000);
    ship(&mut first, &["a"]);
    let late = round(&first, 1, "b");
    drop(prefix.open("second"));
    assert!(matches!(first.ship(late), Err(RemoteError::Fenced { .. })));
    assert_eq!(first.shipped(), 1);
    assert_eq!(prefix.rounds(&prefix.base(None).unwrap()).unwrap(), ["1 a", "2 b"]);
}

#[test]
fn damage_on_the_way_is_fetched_again_and_damage_in_the_store_is_an_error() {
    let mut prefix = Prefix::new(57);
    let mut writer = prefix.open("first");
    let earlier = prefix.publish(&mut writer, 1000);
    let newest = prefix.publish(&mut writer, 2000);
    ship(&mut writer, &["a", "b"]);
    let bucket = prefix.world.bucket.clone();
    for fault in [ObjectFault::Wrong, ObjectFault::Truncated, ObjectFault::Unavailable] {
        for nth in 1..=6 {
            bucket.fail_nth(None, Some(ObjectOp::Get), nth, fault);
            let base = prefix.base(Some(1500)).unwrap();
            assert_eq!(base.object.key, earlier, "{fault:?} {nth}");
            assert_eq!(prefix.rounds(&base).unwrap(), ["1 a", "2 b"], "{fault:?} {nth}");
            bucket.clear_faults();
        }
    }
    for key in [&newest, &earlier, &keys::round(1, 2), &keys::HEAD.to_owned()] {
        let good = bucket.objects()[key].clone();
        let mut wrong = good.to_vec();
        wrong[good.len() / 2] ^= 1;
        bucket.tamper(key, Some(wrong.into()));
        let read = prefix.base(Some(1500)).and_then(|base| prefix.rounds(&base));
        assert!(matches!(&read, Err(RemoteError::Damaged { key: k, .. }) if k == key), "{read:?}");
        bucket.tamper(key, Some(good));
    }
    bucket.tamper(&earlier, None);
    let e = prefix.base(Some(1500)).unwrap_err();
    assert!(matches!(e, RemoteError::Object(ObjectError::NotFound { .. })), "{e}");
    assert_eq!(prefix.base(None).unwrap().base.header.serial(), Serial { epoch: 1, number: 2 });
}
