//! Crashes at every call: enumerates the disks that a crash can leave, recovers each, and asks the
//! oracle.

mod enumerate;
mod folders;
mod points;
mod probe;
mod report;
mod second;

pub use enumerate::{Limits, Sampling, batches, enumerate, spread, verdict};
pub use points::{Point, PointCursor, points};
pub use probe::{Mounted, Plan, Probe, Retry, panic_text, probe, reopened, shape};
pub use report::{Failure, Report};
pub use second::{again, second};
