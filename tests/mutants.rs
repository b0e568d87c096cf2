//! Durability mutants: the engine without one of its syncs, renames or checks. Each must be
//! noticed by a crash, a fault or a damage.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use topics_env::Site;
use topics_env::sim::{CrashOptions, SiteLog};

use crate::crash::{Limits, again, enumerate, panic_text, second};
use crate::damage;
use crate::faults::{self, Fault};
use crate::run::HookSpec;
use crate::workloads::{ALL, Workload};

/// A site left out, or taking effect one call late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    pub site: Site,
    pub reordered: bool,
}

impl Mutant {
    pub fn hook(self) -> HookSpec {
        if self.reordered { HookSpec::Reorder(self.site) } else { HookSpec::Remove(self.site) }
    }
}

/// Mutants that change nothing that any crash, fault or damage could show, and why.
pub const EQUIVALENT: &[(Site, bool, &str)] = &[];

/// What may notice a mutant.
#[derive(Clone, Copy)]
pub enum Detector {
    Crash(&'static Workload),
    Second(&'static Workload),
    Again(&'static Workload),
    Fault(&'static Workload),
    Damage(usize),
}

impl Detector {
    pub fn name(self) -> String {
        match self {
            Self::Crash(w) => format!("crash/{}", w.name),
            Self::Second(w) => format!("second crash/{}", w.name),
            Self::Again(w) => format!("recovering again/{}", w.name),
            Self::Fault(w) => format!("fault/{}", w.name),
            Self::Damage(i) => format!("damage/{}", damage::KINDS[i].0),
        }
    }

    /// In the order in which they are tried: cheap ones first.
    pub fn all() -> Vec<Self> {
        let crash = ALL.iter().map(Self::Crash);
        let damage = (0..damage::KINDS.len()).map(Self::Damage);
        let faults = ALL.iter().map(Self::Fault);
        let again = ALL.iter().map(Self::Again);
        let second = ALL.iter().map(Self::Second);
        crash.chain(again).chain(damage).chain(second).chain(faults).collect()
    }

    /// What this notices under a hook; `None` is nothing.
    pub fn notices(self, seed: u64, hook: &HookSpec) -> Option<String> {
        let run = AssertUnwindSafe(|| self.look(seed, hook));
        catch_unwind(run).unwrap_or_else(|p| Some(format!("panic: {}", panic_text(&*p))))
    }

    fn look(self, seed: u64, hook: &HookSpec) -> Option<String> {
        match self {
            Self::Crash(w) => {
                let rec = w.run(seed, hook.clone());
                if let Some(p) = rec.problems.first() {
                    return Some(p.clone());
                }
                let options = CrashOptions { random: 1, torn_bytes: 1, names: 3, single: true };
                let hook = hook.clone();
                let limits = Limits {
                    first: true,
                    threads: 1,
                    rounds: 1,
                    hook,
                    options,
                    ..Limits::default()
                };
                first(&enumerate(&rec, &limits))
            }
            Self::Second(w) => first(&second(&w.run(seed, hook.clone()), 400, hook)),
            Self::Again(w) => first(&again(&w.run(seed, hook.clone()), 100, hook)),
            Self::Fault(w) => {
                let rec = w.run(seed, hook.clone());
                for (call, n) in faults::calls(&rec) {
                    for kind in faults::kinds(call) {
                        for nth in (1..=n).step_by(1 + n / 40) {
                            let fault = Fault { call, nth, kind };
                            let found = faults::run(w, seed, fault, hook);
                            if let Some(f) = found.first() {
                                return Some(format!("{fault:?}: {f}"));
                            }
                        }
                    }
                }
                None
            }
            Self::Damage(i) => {
                for c in damage::corpora(seed, hook) {
                    let damages = damage::KINDS[i].1(&c, seed);
                    let step = 1 + damages.len() / 3_000;
                    for make in damages.iter().step_by(step) {
                        for salvage in [false, true] {
                            let damage = make();
                            if let Err(e) = damage::judge(&c, &damage, salvage) {
                                return Some(format!("{}: {e}", damage.what));
                            }
                        }
                    }
                }
                None
            }
        }
    }
}

fn first(report: &crate::crash::Report) -> Option<String> {
    let failure = report.failures.first()?;
    Some(failure.messages.first().cloned().unwrap_or_default())
}

/// The sites that each detector passes, the failures aside.
pub fn sites(seed: u64) -> Vec<(Detector, BTreeSet<Site>)> {
    let visited = |d: Detector| {
        let log = Arc::new(SiteLog::default());
        let hook = HookSpec::Log(log.clone());
        match d {
            Detector::Crash(w) | Detector::Again(w) | Detector::Second(w) => {
                let rec = w.run(seed, hook.clone());
                again(&rec, 12, &hook);
            }
            Detector::Fault(w) => {
                w.run(seed, hook.clone());
                for call in topics_env::sim::CallKind::ALL {
                    let kind = faults::kinds(call)[0];
                    faults::run(w, seed, Fault { call, nth: 7, kind }, &hook);
                }
            }
            Detector::Damage(i) => {
                for c in damage::corpora(seed, &hook) {
                    let damages = damage::KINDS[i].1(&c, seed);
                    for make in damages.iter().step_by(1 + damages.len() / 60) {
                        let _ = damage::judge(&c, &make(), false);
                        let _ = damage::judge(&c, &make(), true);
                    }
                }
            }
        }
        (d, log.sites().into_keys().collect())
    };
    Detector::all().into_iter().map(visited).collect()
}

/// Every mutant of the sites met.
pub fn mutants(sites: &[(Detector, BTreeSet<Site>)]) -> Vec<Mutant> {
    let all: BTreeSet<Site> = sites.iter().flat_map(|(_, s)| s.iter().copied()).collect();
    let mut out = Vec::new();
    for site in all {
        out.push(Mutant { site, reordered: false });
        if !matches!(site, Site::Check(_)) {
            out.push(Mutant { site, reordered: true });
        }
    }
    out
}
