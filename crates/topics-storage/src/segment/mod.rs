//! Segments: a topic's records in files of their own, each a contiguous range of seqs.
//!
//! * [`SegmentMeta`]: what the snapshot says about one; an untouched segment costs only this.
//! * [`Segments`]: what all segments of an engine share; gives out readers.
//! * [`Segment`]: reads one segment, active or sealed.
//! * [`SegmentWriter`] and [`Round`]: what a checkpoint writes, and how it becomes durable.
//! * [`Round::rewrite`], [`Round::merge`]: new files for old records.
//!
//! The layouts are in `layout`, `index`, `tags`, `attrs` and `deleted`; `FORMAT.md`
//! describes them byte by byte.

mod attrs;
mod block;
mod copy;
mod deleted;
mod files;
mod index;
mod layout;
mod lookup;
mod lru;
mod meta;
mod open;
mod reader;
mod round;
mod salvage;
mod scan;
mod shared;
mod tags;
#[cfg(test)]
mod tests;
mod writer;

pub use attrs::{AttrOrder, AttrRow, AttrsTable};
pub use block::{Block, Frozen, Item};
pub use lookup::TagMatch;
pub use meta::{FileKind, IdxEntry, SegmentMeta, SegmentName, TopicKey, parse_file_name};
pub use reader::Segment;
pub use round::Round;
pub use salvage::DamagedSegment;
pub use shared::{SegmentOptions, Segments};
pub use tags::TagMap;
pub use writer::SegmentWriter;
