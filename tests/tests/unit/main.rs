//! Tests of the suites themselves: what their judges must report, and what they must accept.

mod delivery;
mod event;
mod invariants;
mod judge;
mod oracle;
mod payload;
