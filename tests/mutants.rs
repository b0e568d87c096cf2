//! Durability mutants: the engine without one of its syncs, renames or checks, or with one that
//! takes effect a call late. A crash, fault or damage suite must detect each.

mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};

use topics_env::Site;
use topics_sim::CrashOptions;

pub use self::table::{SITES, UNREACHED};
use crate::crash::{Limits, Report, again, enumerate, panic_text, second, spread};
use crate::damage::{self, Corpus, Damage, judge, must_refuse};
use crate::delivery;
use crate::faults::{self, Fault};
use crate::run::HookSpec;
use crate::workloads::{AIMED, ALL, Workload};

/// A site that is skipped, or takes effect one call late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    pub site: Site,
    pub reordered: bool,
}

/// A detector of mutants; workloads and kinds of damage by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// Crashes at every call of a workload.
    Crash(&'static str),
    /// Crashes during some of these recoveries.
    Second(&'static str),
    /// Crashes at every call of a workload of queues, routers, consumers, transactions.
    Delivery(&'static str),
    /// Repeated recovery.
    Again(&'static str),
    /// Calls that fail.
    Fault(&'static str),
    /// Damages of a kind, of files whose path contains this text.
    Damage(&'static str, &'static str),
    /// Damages of a kind to these files; an open must refuse each and name the file.
    Refuses(&'static str, &'static str),
    /// A log that is damaged while it is in use, or a directory composed of files of others.
    Rot(&'static str),
}

/// Every mutant: a check can only be skipped.
pub fn mutants() -> Vec<(Mutant, &'static [Detector])> {
    let of = |&(site, by): &(Site, &'static [Detector])| {
        let removed = (Mutant { site, reordered: false }, by);
        let late = (Mutant { site, reordered: true }, by);
        let both = !matches!(site, Site::Check(_));
        std::iter::once(removed).chain(both.then_some(late))
    };
    SITES.iter().flat_map(of).collect()
}

fn workload(name: &str) -> &'static Workload {
    ALL.iter().chain(AIMED).find(|w| w.name == name).unwrap_or_else(|| panic!("no workload {name}"))
}

impl Detector {
    pub fn name(self) -> String {
        match self {
            Self::Crash(w) => format!("crash/{w}"),
            Self::Second(w) => format!("second crash/{w}"),
            Self::Delivery(w) => format!("delivery/{w}"),
            Self::Again(w) => format!("recovering again/{w}"),
            Self::Fault(w) => format!("fault/{w}"),
            Self::Damage(kind, "") => format!("damage/{kind}"),
            Self::Damage(kind, of) => format!("damage/{kind} of {of}"),
            Self::Refuses(kind, of) => format!("refusal/{kind} of {of}"),
            Self::Rot(how) => format!("rot/{how}"),
        }
    }

    /// Whether only the table states this expectation: no other suite shows that it holds without a
    /// mutant.
    pub fn is_pinned(self) -> bool {
        matches!(self, Self::Rot(_) | Self::Refuses(..))
    }

    /// In the order in which a search tries them: cheap ones first.
    pub fn all() -> Vec<Self> {
        let names = || ALL.iter().map(|w| w.name);
        let tried = std::env::var("TOPICS_DETECTOR").unwrap_or_default();
        let damage = damage::KINDS.iter().map(|k| Self::Damage(k.0, ""));
        let rots = damage::ROTS.iter().map(|r| Self::Rot(r.0));
        let all = rots.chain(names().map(Self::Crash)).chain(names().map(Self::Again));
        let all = all
            .chain(AIMED.iter().map(|w| Self::Crash(w.name)))
            .chain(damage)
            .chain(names().map(Self::Second))
            .chain(delivery::ALL.iter().map(|w| Self::Delivery(w.name)))
            .chain(names().map(Self::Fault));
        all.filter(|d| d.name().contains(&tried)).collect()
    }

    /// The problem that this detector finds under a hook, if any. Its number of steps is bounded,
    /// not its time. An error if the mutant took no effect: then the detector itself fails.
    pub fn notices(self, seed: u64, hook: &HookSpec) -> Result<Option<String>, String> {
        let run = AssertUnwindSafe(|| self.look(seed, hook));
        let found =
            catch_unwind(run).unwrap_or_else(|p| Some(format!("panic: {}", panic_text(&*p))));
        match found {
            Some(what) if hook.hits() == 0 => Err(format!("fails by itself: {what}")),
            found => Ok(found),
        }
    }

    fn look(self, seed: u64, hook: &HookSpec) -> Option<String> {
        match self {
            Self::Crash(w) => crashes(workload(w), seed, hook),
            Self::Second(w) => {
                let rec = workload(w).run(seed, hook.clone());
                rec.problems.first().cloned().or_else(|| first(&second(&rec, 400, hook, true)))
            }
            Self::Delivery(w) => {
                let workload = delivery::ALL.iter().find(|d| d.name == w)?;
                let script = delivery::run_with(workload, seed, hook.clone());
                let options = CrashOptions { random: 1, torn_bytes: 0, names: 2, single: true };
                delivery::first_failure(&script, &options)
            }
            Self::Again(w) => {
                let rec = workload(w).run(seed, hook.clone());
                rec.problems.first().cloned().or_else(|| first(&again(&rec, 60, hook, true)))
            }
            Self::Fault(w) => failures(workload(w), seed, hook),
            Self::Damage(kind, of) => damages(kind, of, seed, hook, |c, d| {
                judge(c, d, false).and_then(|_| judge(c, d, true)).map(|_| ())
            }),
            Self::Refuses(kind, of) => damages(kind, of, seed, hook, must_refuse),
            Self::Rot(how) => {
                let rot = damage::ROTS.iter().find(|r| r.0 == how)?;
                rot.1(seed, hook).into_iter().next()
            }
        }
    }
}

fn first(report: &Report) -> Option<String> {
    let failure = report.failures.first()?;
    Some(failure.messages.first().cloned().unwrap_or_default())
}

fn crashes(w: &Workload, seed: u64, hook: &HookSpec) -> Option<String> {
    let rec = w.run(seed, hook.clone());
    if let Some(p) = rec.problems.first() {
        return Some(p.clone());
    }
    let options = CrashOptions { random: 1, torn_bytes: 0, names: 2, single: true };
    let hook = hook.clone();
    let limits = Limits { first: true, threads: 1, rounds: 1, hook, options, ..Limits::default() };
    first(&enumerate(&rec, &limits))
}

fn failures(w: &Workload, seed: u64, hook: &HookSpec) -> Option<String> {
    let rec = w.run(seed, hook.clone());
    let ways = faults::calls(&rec).into_iter().flat_map(|(call, n)| {
        let nth = move |kind| (1..=n).map(move |nth| Fault { call, nth, kind });
        faults::kinds(call).into_iter().flat_map(nth)
    });
    let ways: Vec<Fault> = ways.collect();
    let mut order = spread(ways.len()).into_iter().map(|i| ways[i]).take(FAULTS);
    order.find_map(|fault| {
        let found = faults::run(w, seed, fault, hook);
        found.first().map(|f| format!("{fault:?}: {f}"))
    })
}

/// The maximum number of damages of a kind on a directory, and of faults on a workload.
const DAMAGES: usize = 4_000;
const FAULTS: usize = 2_000;

fn damages(
    kind: &str,
    of: &str,
    seed: u64,
    hook: &HookSpec,
    judged: impl Fn(&Corpus, &Damage) -> Result<(), String>,
) -> Option<String> {
    let kind = damage::KINDS.iter().find(|k| k.0 == kind)?;
    for c in damage::corpora(seed, hook) {
        let makes = kind.1(&c, seed, of);
        for i in spread(makes.len()).into_iter().take(DAMAGES) {
            let damage = Damage { thorough: true, ..makes[i]() };
            if let Err(e) = judged(&c, &damage) {
                return Some(format!("{}: {}: {e}", c.name, damage.what));
            }
        }
    }
    None
}
