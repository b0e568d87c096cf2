//! Damaged directories: every open refuses and says where, reports the exact loss, or gives the
//! identical state.

mod corpus;
mod judge;
mod kinds;

pub use corpus::{Corpus, Place, corpora, files, is_filler};
pub use judge::{Met, judge};
pub use kinds::{Damage, KINDS, Make};
