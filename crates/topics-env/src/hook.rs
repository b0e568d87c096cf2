//! The hook of the durability mutants: a test removes one named sync, rename or check at run time
//! and shows that the suite notices.

use std::fmt::Debug;

/// A step of the code on which a durability guarantee depends. Its name, `area.step`, is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// A file made durable.
    Sync(&'static str),
    /// A directory's names made durable.
    SyncDir(&'static str),
    /// An atomic replacement.
    Rename(&'static str),
    /// A verification whose result decides how the code continues.
    Check(&'static str),
}

/// The hook's decision on a visited [`Site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run the step.
    Run,
    /// Skip the step and report success to the caller.
    Skip,
}

/// Observes every [`Site`] that a run passes.
pub trait Hook: Send + Sync + Debug {
    /// Called before the step; decides whether it runs.
    fn visit(&self, site: Site) -> Verdict;
}
