//! The format of the batches of a stream: schema, columns, filter of nodes.

use std::sync::Arc;

use arrow_schema::{DataType, SchemaRef};
use topics_engine::{NodeFilter, RecordView};

use super::columns::{BufferPool, ConstantColumns};
use super::typed::TypedFields;
use crate::error::Failure;

/// Positions of columns in the schema.
const TOPIC: usize = 0;
const SEQ: usize = 1;
pub(super) const NODE: usize = 3;
pub(super) const TAG: usize = 4;
pub(super) const META: usize = 5;
pub(super) const DATA: usize = 6;
pub(super) const GAP_TO: usize = 7;
pub(super) const GAP_REASON: usize = 8;
/// The names of the columns, by position.
const NAMES: [&str; 9] =
    ["topic", "seq", "ts", "node", "tag", "meta", "data", "gap_to", "gap_reason"];

/// A subset of the columns of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns(u16);

impl Columns {
    /// Every column.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);

    /// The column with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().position(|known| *known == name).map(|at| Self(1 << at))
    }

    /// The union of two subsets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Every column but `data`.
    pub(super) const WITHOUT_DATA: Self = Self(Self::ALL.0 & !(1 << DATA));

    /// Whether `data` is one of them.
    pub(super) fn has_data(self) -> bool {
        self.0 >> DATA & 1 == 1
    }

    /// All names, for a message.
    #[must_use]
    pub fn names() -> String {
        NAMES.join(", ")
    }

    /// Whether the index has the values of all of them, so that no record must be read.
    #[must_use]
    pub fn are_in_index(self) -> bool {
        let ours = [TOPIC, SEQ, GAP_TO, GAP_REASON];
        self.positions().all(|at| ours.contains(&at))
    }

    pub(super) fn has(self, column: usize) -> bool {
        self.0 & (1 << column) != 0
    }

    /// Their positions, in the order of the schema.
    pub(super) fn positions(self) -> impl Iterator<Item = usize> {
        (0..NAMES.len()).filter(move |at| self.has(*at))
    }
}

impl Default for Columns {
    fn default() -> Self {
        Self::ALL
    }
}

/// What the batches of one stream share.
#[derive(Debug)]
pub struct BatchFormat {
    /// The schema with every column.
    pub(super) full: SchemaRef,
    /// The schema of the batches.
    pub shown: SchemaRef,
    pub(super) columns: Columns,
    pub(super) constant: ConstantColumns,
    pub(super) pool: Arc<BufferPool>,
    /// Typed columns, behind the others.
    pub(super) typed: Option<Arc<TypedFields>>,
    /// Only records of these nodes; empty: of all.
    pub(super) only: NodeFilter,
}

impl BatchFormat {
    /// A format; `rows` is the expected maximum of rows in a batch.
    pub fn new(
        topic: &str,
        full: SchemaRef,
        columns: Columns,
        typed: Option<Arc<TypedFields>>,
        only: NodeFilter,
        rows: usize,
    ) -> Result<Self, Failure> {
        let positions: Vec<usize> = columns.positions().collect();
        let shown = full.project(&positions);
        let mut shown = shown.map_err(|e| Failure::new("internal", format!("Arrow: {e}")))?;
        if let Some(typed) = &typed {
            shown = typed.extend(&shown);
        }
        let constant = ConstantColumns::new(&full, topic, rows);
        let pool = Arc::default();
        Ok(Self { full, shown: shown.into(), columns, constant, pool, typed, only })
    }

    pub(super) fn kind(&self, column: usize) -> &DataType {
        self.full.field(column).data_type()
    }

    /// Whether a record passes the filter of nodes.
    #[inline]
    pub(super) fn keeps(&self, r: &RecordView<'_>) -> bool {
        keeps(&self.only, r)
    }
}

/// Whether a record is of one of these nodes; an empty filter passes all.
#[inline]
pub(super) fn keeps(only: &NodeFilter, r: &RecordView<'_>) -> bool {
    only.0.is_empty() || only.0.iter().any(|node| node == r.node)
}
