//! Crash everywhere: enumerates what a disk may hold after each call, recovers, and asks the
//! oracle.

mod enumerate;
mod points;
mod probe;
mod report;
mod second;

pub use enumerate::{Limits, enumerate};
pub use points::{Point, points};
pub use probe::{Plan, Probe, Retry, probe};
pub use report::{Failure, Report};
pub use second::{again, second};
