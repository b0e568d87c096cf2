//! Durability mutants: the engine without one of its syncs, renames or checks, or with one that
//! takes effect a call late. Each must be noticed by a crash, a fault or a damage.

mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use topics_env::Site;
use topics_env::sim::CrashOptions;

pub use self::table::{EQUIVALENT, SITES, UNREACHED};
use crate::crash::{Limits, Report, again, enumerate, panic_text, second};
use crate::damage;
use crate::faults::{self, Fault};
use crate::harness::setting;
use crate::run::HookSpec;
use crate::workloads::{ALL, WIDE, Workload};

/// How long one detector looks for one mutant: what takes longer is no test of the commit gate.
fn patience() -> Instant {
    Instant::now() + Duration::from_millis(setting("TOPICS_PATIENCE_MS", 8_000))
}

/// A site left out, or taking effect one call late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    pub site: Site,
    pub reordered: bool,
}

/// What may notice a mutant; workloads and kinds of damage by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// Crashes at every call of a workload.
    Crash(&'static str),
    /// Crashes during the recoveries from some of these.
    Second(&'static str),
    /// Recovering again.
    Again(&'static str),
    /// Calls that fail.
    Fault(&'static str),
    /// Damages of a kind, of files whose path contains this text.
    Damage(&'static str, &'static str),
}

/// Every mutant: a check can only be left out.
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
    ALL.iter()
        .chain([&WIDE])
        .find(|w| w.name == name)
        .unwrap_or_else(|| panic!("no workload {name}"))
}

impl Detector {
    pub fn name(self) -> String {
        match self {
            Self::Crash(w) => format!("crash/{w}"),
            Self::Second(w) => format!("second crash/{w}"),
            Self::Again(w) => format!("recovering again/{w}"),
            Self::Fault(w) => format!("fault/{w}"),
            Self::Damage(kind, "") => format!("damage/{kind}"),
            Self::Damage(kind, of) => format!("damage/{kind} of {of}"),
        }
    }

    /// In the order in which a search tries them: cheap ones first.
    pub fn all() -> Vec<Self> {
        let names = || ALL.iter().map(|w| w.name);
        let tried = std::env::var("TOPICS_DETECTOR").unwrap_or_default();
        let damage = damage::KINDS.iter().map(|k| Self::Damage(k.0, ""));
        let all = names().map(Self::Crash).chain(names().map(Self::Again)).chain(damage);
        let all = all.chain(names().map(Self::Second)).chain(names().map(Self::Fault));
        all.filter(|d| d.name().contains(&tried)).collect()
    }

    /// What this notices under a hook; `None` is nothing. An error where the mutant took no effect:
    /// then it is the detector that fails.
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
            Self::Second(w) => first(&second(&workload(w).run(seed, hook.clone()), 400, hook)),
            Self::Again(w) => {
                let rec = workload(w).run(seed, hook.clone());
                rec.problems.first().cloned().or_else(|| first(&again(&rec, 60, hook)))
            }
            Self::Fault(w) => failures(workload(w), seed, hook),
            Self::Damage(kind, of) => damages(kind, of, seed, hook),
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
    let options = CrashOptions { random: 1, torn_bytes: 0, names: 2, single: false };
    let hook = hook.clone();
    let until = Some(patience());
    let limits =
        Limits { first: true, until, threads: 1, rounds: 1, hook, options, ..Limits::default() };
    first(&enumerate(&rec, &limits))
}

fn failures(w: &Workload, seed: u64, hook: &HookSpec) -> Option<String> {
    let until = patience();
    let rec = w.run(seed, hook.clone());
    for (call, n) in faults::calls(&rec) {
        for kind in faults::kinds(call) {
            for nth in (1..=n).step_by(1 + n / 40) {
                let fault = Fault { call, nth, kind };
                if let Some(f) = faults::run(w, seed, fault, hook).first() {
                    return Some(format!("{fault:?}: {f}"));
                }
                if Instant::now() > until {
                    return None;
                }
            }
        }
    }
    None
}

fn damages(kind: &str, of: &str, seed: u64, hook: &HookSpec) -> Option<String> {
    let kind = damage::KINDS.iter().find(|k| k.0 == kind)?;
    let until = patience();
    for c in damage::corpora(seed, hook) {
        let damages = kind.1(&c, seed);
        // The paths that a damage is about are in what it says of itself.
        let wanted = |what: &str| what.contains(of);
        let step = if of.is_empty() { 1 + damages.len() / 3_000 } else { 1 };
        for make in damages.iter().step_by(step) {
            let damage = make();
            if !wanted(&damage.what) {
                continue;
            }
            for salvage in [false, true] {
                if let Err(e) = damage::judge(&c, &damage, salvage) {
                    return Some(format!("{}: {e}", damage.what));
                }
            }
            if Instant::now() > until {
                break;
            }
        }
    }
    None
}
