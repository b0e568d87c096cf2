//! Whose a prefix is: every short sequence of opens, crashes, lost and late answers, writes that hang, copies
//! of the directory and a prefix that is away for a while, against an oracle that knows who wrote what.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_env::objects::ObjectStore;
use topics_env::{Env, Site};
use topics_remote::claim::{Claimant, KeepRecord, Refusal};
use topics_remote::format::head::Head;
use topics_remote::format::keys::HEAD;
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry};
use topics_sim::{Mutant, ObjectFault, ObjectOp, SimFs, env_on};
use topics_storage::dir::RemoteRecord;

use crate::support::{Directory, World, empty_base, sized};

/// A step. The number is that of a directory: 0 is the first one, 1 begins empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A process opens the prefix.
    Open(usize),
    /// The same, and it dies before its write of HEAD is sent.
    Dies(usize),
    /// It dies before the answer.
    AnswerLost(usize),
    /// It dies, and the write arrives after two further requests.
    Late(usize),
    /// Its write hangs: the process goes on without it, and it stays under way.
    Hangs(usize),
    /// The process writes HEAD again.
    Write(usize),
    /// The same, and the write hangs.
    WriteHangs(usize),
    /// The writes that hang arrive, however much later.
    Arrives,
    /// The directory becomes a copy of the other one.
    Copy(usize),
    /// The prefix is empty for a while.
    PutAside,
    BringBack,
}

const STEPS: [Step; 19] = [
    Step::Open(0),
    Step::Open(1),
    Step::Dies(0),
    Step::Dies(1),
    Step::AnswerLost(0),
    Step::AnswerLost(1),
    Step::Late(0),
    Step::Late(1),
    Step::Hangs(0),
    Step::Hangs(1),
    Step::Write(0),
    Step::Write(1),
    Step::WriteHangs(0),
    Step::WriteHangs(1),
    Step::Arrives,
    Step::Copy(0),
    Step::Copy(1),
    Step::PutAside,
    Step::BringBack,
];

/// What a directory may know, by what its processes did.
#[derive(Clone, Default)]
struct Known {
    /// Of the HEADs that its processes wrote or tried to.
    nonces: BTreeSet<[u8; 16]>,
    /// Its processes.
    processes: BTreeSet<String>,
    /// Whether a process of it had the prefix.
    has_opened: bool,
}

struct Owner {
    directory: Arc<Directory>,
    known: Known,
    writer: Option<RemoteWriter>,
    holder: String,
}

struct Life {
    world: World,
    env: Env,
    owners: [Owner; 2],
    processes: usize,
    has_copies: bool,
    was_away: bool,
    late_record: bool,
    /// What became of opens and of writes that hung, with the number of each.
    outcomes: Outcomes,
}

type Outcomes = BTreeMap<&'static str, u64>;

/// A record that is durable only with the next one: that of a program which writes it after HEAD.
#[derive(Debug)]
struct LateRecord {
    kept: Arc<dyn KeepRecord>,
    next: std::sync::Mutex<Option<RemoteRecord>>,
}

impl KeepRecord for LateRecord {
    fn load(&self) -> topics_remote::Result<Option<RemoteRecord>> {
        self.kept.load()
    }

    fn save(&self, record: &RemoteRecord) -> topics_remote::Result<()> {
        let before = self.next.lock().unwrap().replace(record.clone());
        before.map_or(Ok(()), |r| self.kept.save(&r))
    }
}

macro_rules! ensure {
    ($ok:expr, $($what:tt)*) => {
        if !$ok {
            return Err(format!($($what)*));
        }
    };
}

impl Life {
    fn new(mutant: Option<&'static str>, late_record: bool) -> Self {
        let world = World::new(31);
        let env = env_on(&Arc::new(SimFs::new()), &world.clock, 77);
        let env = match mutant {
            None => env,
            Some(site) => env.with_hook(Arc::new(Mutant::remove(Site::Check(site), None))),
        };
        let owner = || Owner {
            directory: Arc::default(),
            known: Known::default(),
            writer: None,
            holder: String::new(),
        };
        let owners = [owner(), owner()];
        let (processes, has_copies, was_away) = (0, false, false);
        let outcomes = Outcomes::new();
        Self { world, env, owners, processes, has_copies, was_away, late_record, outcomes }
    }

    fn heads(&self) -> Vec<Head> {
        let history = self.world.bucket.history();
        history.iter().filter(|(k, _)| k == HEAD).map(|(_, b)| Head::decode(b).unwrap()).collect()
    }

    /// The present HEAD.
    fn head(&self) -> Option<Head> {
        self.world.bucket.objects().get(HEAD).map(|b| Head::decode(b).unwrap())
    }

    /// What the processes of a directory have written is known to it.
    fn learn(&mut self, d: usize) {
        let under_way = self.world.bucket.under_way();
        let under_way = under_way.iter().filter(|(k, _)| k == HEAD);
        let mut heads = self.heads();
        heads.extend(under_way.map(|(_, b)| Head::decode(b).unwrap()));
        let owner = &mut self.owners[d];
        let own = heads.iter().filter(|h| h.holder == owner.holder);
        owner.known.nonces.extend(own.map(|h| h.nonce));
    }

    fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    fn open(&mut self, d: usize, fault: Option<ObjectFault>) -> Result<(), String> {
        self.processes += 1;
        let (client, holder) = (self.processes as u32, format!("process {}", self.processes));
        let owner = &mut self.owners[d];
        (owner.writer, owner.holder) = (None, holder.clone());
        owner.known.processes.insert(holder.clone());
        let mut claimant: Claimant = owner.directory.claimant(&holder);
        if self.late_record {
            claimant.record =
                Arc::new(LateRecord { kept: claimant.record, next: std::sync::Mutex::default() });
        }
        let bucket = self.world.bucket.clone();
        if let Some(fault) = fault {
            for op in [ObjectOp::Create, ObjectOp::Replace] {
                bucket.fail_nth(Some(client), Some(op), 1, fault);
            }
            // Nothing is read back: the process is dead.
            bucket.fail_nth(Some(client), Some(ObjectOp::Get), 2, ObjectFault::Unavailable);
        }
        let (before, count) = (self.head(), self.heads().len());
        let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(client));
        let retry = Retry::once(self.env.clone());
        let opened = RemoteWriter::open(store, retry, &claimant, &|| Ok(()));
        bucket.clear_faults();
        // A late write of another process may have arrived with the requests of this one.
        let heads = self.heads();
        let before = heads[count..].iter().rfind(|h| h.holder != holder).cloned().or(before);
        self.count(match (&opened, fault) {
            (Err(RemoteError::NotOurs(_)), _) => "refused",
            (_, None) => "opened",
            (_, Some(ObjectFault::Hangs)) => "hung",
            (_, Some(_)) => "died",
        });
        match opened {
            Ok(writer) if fault.is_none() => {
                self.check_opened(d, before.as_ref())?;
                let owner = &mut self.owners[d];
                (owner.writer, owner.known.has_opened) = (Some(writer), true);
            }
            Ok(_) => {}
            Err(RemoteError::NotOurs(why)) => {
                let wrote = self.heads()[count..].iter().any(|h| h.holder == holder);
                ensure!(!wrote, "a refused process wrote HEAD");
                let known = &self.owners[d].known;
                let is_own = before.is_some_and(|h| known.processes.contains(&h.holder));
                let has_reason = self.has_copies || self.was_away || !is_own;
                ensure!(has_reason, "refused without a reason: {why}");
            }
            Err(e) => ensure!(fault.is_some(), "an open without a fault fails: {e}"),
        }
        self.learn(d);
        Ok(())
    }

    /// A process writes HEAD again, if it has the prefix.
    fn write(&mut self, d: usize, fault: Option<ObjectFault>) {
        let Some(writer) = &mut self.owners[d].writer else { return };
        if let Some(fault) = fault {
            self.world.bucket.fail_nth(None, Some(ObjectOp::Replace), 1, fault);
        }
        let base = empty_base(writer, "");
        let written = writer.publish(&base);
        self.world.bucket.clear_faults();
        if fault.is_some() && written.is_err() {
            self.count("hung");
        }
        self.learn(d);
    }

    /// The writes that hang arrive.
    fn arrive(&mut self) {
        let (hung, before) = (self.world.bucket.under_way().len(), self.heads().len());
        self.world.bucket.deliver_delayed();
        let arrived = self.heads().len() - before;
        (0..arrived).for_each(|_| self.count("arrived"));
        (arrived..hung).for_each(|_| self.count("arrived too late"));
    }

    /// An open that succeeded did so over what the directory knew.
    fn check_opened(&self, d: usize, before: Option<&Head>) -> Result<(), String> {
        let known = &self.owners[d].known;
        let Some(h) = before else {
            ensure!(!known.has_opened, "a prefix that was lost is begun anew");
            return Ok(());
        };
        let is_known = known.nonces.contains(&h.nonce);
        ensure!(is_known, "directory {d} took the prefix from {}", h.holder);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Open(d) => self.open(d, None)?,
            Step::Dies(d) => self.open(d, Some(ObjectFault::Unavailable))?,
            Step::AnswerLost(d) => self.open(d, Some(ObjectFault::AnswerLost))?,
            Step::Late(d) => self.open(d, Some(ObjectFault::Delayed(2)))?,
            Step::Hangs(d) => self.open(d, Some(ObjectFault::Hangs))?,
            Step::Write(d) => self.write(d, None),
            Step::WriteHangs(d) => self.write(d, Some(ObjectFault::Hangs)),
            Step::Arrives => self.arrive(),
            Step::Copy(d) => {
                let from = &self.owners[1 - d];
                let (directory, known) = (from.directory.copy(), from.known.clone());
                let writer = None;
                self.owners[d] = Owner { directory, known, writer, holder: String::new() };
                self.has_copies = true;
            }
            Step::PutAside => {
                self.world.bucket.put_aside();
                self.was_away = true;
            }
            Step::BringBack => self.world.bucket.bring_back(),
        }
        let heads = self.heads();
        let nonces: BTreeSet<_> = heads.iter().map(|h| h.nonce).collect();
        ensure!(nonces.len() == heads.len(), "a nonce twice");
        Ok(())
    }
}

/// Whether a sequence says something: the second directory exists, what is away can come back, and what
/// arrives hung before.
fn is_useful(steps: &[Step]) -> bool {
    let (mut copied, mut away, mut hung) = (false, false, false);
    steps.iter().all(|step| match step {
        Step::Copy(1) => {
            copied = true;
            true
        }
        Step::Copy(_) | Step::Write(1) => copied,
        Step::WriteHangs(d) => {
            hung = true;
            *d == 0 || copied
        }
        Step::Hangs(_) => {
            hung = true;
            true
        }
        Step::Arrives => std::mem::replace(&mut hung, false),
        Step::PutAside => !std::mem::replace(&mut away, true),
        Step::BringBack => std::mem::replace(&mut away, false),
        _ => true,
    })
}

/// Runs every sequence of this length until one breaks a promise. Returns how many ran, what became of their
/// steps, and the breach.
fn run_all(len: usize, new: impl Fn() -> Life) -> (u64, Outcomes, Option<String>) {
    let (mut runs, mut outcomes) = (0, Outcomes::new());
    for n in 0..STEPS.len().pow(len as u32) {
        let mut rest = n;
        let steps: Vec<Step> = (0..len)
            .map(|_| {
                let step = STEPS[rest % STEPS.len()];
                rest /= STEPS.len();
                step
            })
            .collect();
        let begins = matches!(
            steps[0],
            Step::Open(0) | Step::Dies(0) | Step::AnswerLost(0) | Step::Late(0) | Step::Hangs(0)
        );
        if !begins || !is_useful(&steps) {
            continue;
        }
        runs += 1;
        let mut life = new();
        for step in &steps {
            if let Err(e) = life.step(*step) {
                return (runs, outcomes, Some(format!("{steps:?} at {step:?}: {e}")));
            }
        }
        life.outcomes.into_iter().for_each(|(name, n)| *outcomes.entry(name).or_default() += n);
    }
    (runs, outcomes, None)
}

#[test]
fn no_directory_takes_a_prefix_that_it_did_not_leave() {
    let len = sized(4, 5, 6) as usize;
    let (runs, outcomes, breach) = run_all(len, || Life::new(None, false));
    println!("{runs} sequences of {len} steps: {outcomes:?}");
    assert_eq!(breach, None);
    assert!(runs > 1000);
    for outcome in ["opened", "refused", "died", "hung", "arrived", "arrived too late"] {
        assert!(outcomes.get(outcome).is_some_and(|n| *n > 100), "{outcome}: {outcomes:?}");
    }
}

/// Without the record, or with one that is written after HEAD, a promise is broken.
#[test]
fn mutants_of_the_record_are_caught() {
    for (mutant, late) in [(Some("remote.record"), false), (None, true)] {
        let (runs, _, breach) = run_all(4, || Life::new(mutant, late));
        println!("{mutant:?}, late {late}: sequence {runs}: {breach:?}");
        assert!(breach.is_some(), "{mutant:?} was not caught in {runs} sequences");
    }
}

/// Every refusal, and what it says.
#[test]
fn a_refusal_says_what_to_do() {
    let refusal = |steps: &[Step]| {
        let mut life = Life::new(None, false);
        let (last, before) = steps.split_last().unwrap();
        before.iter().for_each(|s| life.step(*s).unwrap());
        let Step::Open(d) = *last else { panic!("the last step opens") };
        let store: Arc<dyn ObjectStore> = Arc::new(life.world.bucket.client(9));
        let claimant = life.owners[d].directory.claimant("the last");
        let retry = Retry::once(life.env.clone());
        match RemoteWriter::open(store, retry, &claimant, &|| Ok(())) {
            Err(RemoteError::NotOurs(why)) => why,
            other => panic!("{steps:?}: {other:?}"),
        }
    };
    use Step::{BringBack, Copy, Open, PutAside};
    let holder = "process 1".to_owned();
    let in_use = refusal(&[Open(0), Open(1)]);
    assert_eq!(in_use, Refusal::InUse { holder: holder.clone() });
    assert!(in_use.to_string().contains("topics restore"), "{in_use}");
    let emptied = refusal(&[Open(0), PutAside, Open(0)]);
    assert_eq!(emptied, Refusal::Emptied { epoch: 1 });
    assert!(emptied.to_string().contains("not mounted"), "{emptied}");
    let other = refusal(&[Open(0), PutAside, Open(1), Open(0)]);
    assert_eq!(other, Refusal::OtherPrefix { holder: "process 2".to_owned() });
    let copied = refusal(&[Open(0), Copy(1), Open(0), Open(1)]);
    assert_eq!(copied, Refusal::Copied { holder: "process 2".to_owned(), epoch: 2 });
    let older = refusal(&[Open(0), Copy(1), Open(1), Open(0)]);
    assert_eq!(older, Refusal::Copied { holder: "process 2".to_owned(), epoch: 2 });
    let mut life = Life::new(None, false);
    for step in [Open(0), PutAside, Open(1), BringBack, Open(0)] {
        life.step(step).unwrap();
    }
    assert_eq!(life.head().unwrap().epoch, 2, "the owner goes on after its prefix is back");
}
