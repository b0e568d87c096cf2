//! The hook of the durability mutants: a test removes one named sync, rename or check at run
//! time and shows that the suite notices.

use std::fmt::Debug;

/// A place in the code that a promise rests on. The names are stable, `area.step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// A file made durable.
    Sync(&'static str),
    /// A directory's names made durable.
    SyncDir(&'static str),
    /// An atomic replacement.
    Rename(&'static str),
    /// A verification whose failure changes what happens next.
    Check(&'static str),
}

/// What becomes of a visited [`Site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As the code says.
    Run,
    /// Left out; the caller is told that it succeeded.
    Skip,
}

/// Sees every [`Site`] that a run passes.
pub trait Hook: Send + Sync + Debug {
    /// Called before the step; decides whether it happens.
    fn visit(&self, site: Site) -> Verdict;
}
