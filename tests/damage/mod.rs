//! Damaged directories: every open refuses with a position, reports the exact loss, or serves the
//! identical state.

mod active;
mod copies;
mod corpus;
mod forged;
mod judge;
mod kinds;
mod lock;
mod rot;
mod staged;

pub use corpus::{Corpus, RecordLocation, corpora, files, is_filler};
pub use judge::{OpenOutcome, judge, must_refuse};
pub use kinds::{Damage, KINDS, Make};
pub use rot::{ROTS, Rot};
