//! `.attrs`: the records with attributes, by seq, due time, expiry, lane and group.
//!
//! ```text
//! side header, magic "TATR"
//!  32  8  first seq of the segment
//!  40  4  number of rows n u32   44  4  0
//!  48  .  n rows of 32 bytes by seq:
//!         (seq − first seq) u32, lane u8, 0 0 0, visible_at u64, expires_at u64, group u64
//!   .  .  4 orders of n row numbers u32: by visible_at, by expires_at (none last), by lane, by
//!         group; equal ones by seq
//!   .  8  XXH3-64 of everything before, seeded with the salt
//! ```

use topics_env::Env;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::layout::{SIDE_HEADER, check_side_header, corrupt, side_header};
use crate::Result;
use crate::dir::{le_u32, le_u64};
use crate::format::attrs::Attrs;

const MAGIC: [u8; 4] = *b"TATR";
const ROWS: usize = SIDE_HEADER + 16;
const ROW: usize = 32;
/// The lane of a record without one.
pub const DEFAULT_LANE: u8 = 5;

/// The attributes of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrRow {
    pub seq: u64,
    /// When it becomes claimable; 0: immediately.
    pub visible_at: u64,
    /// When it expires, 0: never.
    pub expires_at: u64,
    /// Its lane; 5 if it has none.
    pub lane: u8,
    /// The XXH3-64 of its group, 0: none.
    pub group: u64,
}

impl AttrRow {
    /// Reads an encoded list of attributes; a malformed list counts as empty.
    pub fn parse(seq: u64, list: &[u8]) -> Self {
        let attrs = Attrs::decode(list).unwrap_or_default();
        Self {
            seq,
            visible_at: attrs.visible_at.unwrap_or(0),
            expires_at: attrs.expires_at.unwrap_or(0),
            lane: attrs.lane.unwrap_or(DEFAULT_LANE),
            group: attrs.group.map_or(0, Self::group_hash),
        }
    }

    /// The hash of a group's name; never 0.
    pub fn group_hash(name: &[u8]) -> u64 {
        xxh3_64(name).max(1)
    }

    fn key(&self, order: AttrOrder) -> u64 {
        match order {
            AttrOrder::Due => self.visible_at,
            AttrOrder::Expiry => self.expires_at.wrapping_sub(1),
            AttrOrder::Lane => u64::from(self.lane),
            AttrOrder::Group => self.group,
        }
    }
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

impl AttrOrder {
    const ALL: [Self; 4] = [Self::Due, Self::Expiry, Self::Lane, Self::Group];
}

/// The rows of a segment, and their orders.
#[derive(Debug, Default)]
pub struct AttrsTable {
    rows: Vec<AttrRow>,
    orders: [Vec<u32>; 4],
}

impl AttrsTable {
    /// The table of rows that ascend by seq.
    pub fn new(rows: Vec<AttrRow>) -> Self {
        let orders = AttrOrder::ALL.map(|order| {
            let mut at: Vec<u32> = (0..rows.len() as u32).collect();
            at.sort_by_key(|&i| rows[i as usize].key(order));
            at
        });
        Self { rows, orders }
    }

    /// The rows by seq.
    pub fn rows(&self) -> &[AttrRow] {
        &self.rows
    }

    /// The row of a record, if it has attributes.
    pub fn get(&self, seq: u64) -> Option<&AttrRow> {
        self.rows.binary_search_by_key(&seq, |r| r.seq).ok().map(|at| &self.rows[at])
    }

    /// The rows in an order.
    pub fn ordered(&self, order: AttrOrder) -> impl Iterator<Item = &AttrRow> {
        self.orders[order as usize].iter().map(|&i| &self.rows[i as usize])
    }

    /// The rows of a group, by seq.
    pub fn group(&self, group: u64) -> impl Iterator<Item = &AttrRow> {
        self.equal(AttrOrder::Group, group)
    }

    /// The rows of a lane, by seq.
    pub fn lane(&self, lane: u8) -> impl Iterator<Item = &AttrRow> {
        self.equal(AttrOrder::Lane, u64::from(lane))
    }

    fn equal(&self, order: AttrOrder, key: u64) -> impl Iterator<Item = &AttrRow> {
        let at = &self.orders[order as usize];
        let from = at.partition_point(|&i| self.rows[i as usize].key(order) < key);
        let rows = at[from..].iter().map(|&i| &self.rows[i as usize]);
        rows.take_while(move |r| r.key(order) == key)
    }

    pub(super) fn encode(&self, first_seq: u64, salt: u64, file_no: u64) -> Vec<u8> {
        let mut out = side_header(MAGIC, salt, file_no).to_vec();
        out.extend_from_slice(&first_seq.to_le_bytes());
        out.extend_from_slice(&(self.rows.len() as u64).to_le_bytes());
        for row in &self.rows {
            out.extend_from_slice(&((row.seq - first_seq) as u32).to_le_bytes());
            out.extend_from_slice(&u32::from(row.lane).to_le_bytes());
            for word in [row.visible_at, row.expires_at, row.group] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
        for at in self.orders.iter().flatten() {
            out.extend_from_slice(&at.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&out, salt);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn decode(
        env: &Env,
        file: &str,
        bytes: &[u8],
        first_seq: u64,
        salt: u64,
        file_no: u64,
    ) -> Result<Self> {
        let found = check_side_header(env, file, bytes, MAGIC, file_no)?;
        let Some((body, sum)) = bytes.split_last_chunk::<8>().filter(|(b, _)| b.len() >= ROWS)
        else {
            return Err(corrupt(file, bytes.len() as u64, "too short"));
        };
        let good = found == salt
            && xxh3_64_with_seed(body, salt) == u64::from_le_bytes(*sum)
            && le_u64(body, SIDE_HEADER) == first_seq;
        if !env.check("segment.attrs", good) {
            return Err(corrupt(file, SIDE_HEADER as u64, "the checksum does not match"));
        }
        let n = le_u32(body, SIDE_HEADER + 8) as usize;
        if n.checked_mul(ROW + 16) != Some(body.len() - ROWS) {
            return Err(corrupt(file, SIDE_HEADER as u64 + 8, "the number of rows is wrong"));
        }
        let (rows, orders) = body[ROWS..].split_at(n * ROW);
        let rows = rows.chunks_exact(ROW).map(|b| AttrRow {
            seq: first_seq + u64::from(le_u32(b, 0)),
            lane: b[4],
            visible_at: le_u64(b, 8),
            expires_at: le_u64(b, 16),
            group: le_u64(b, 24),
        });
        let mut table = Self { rows: rows.collect(), orders: Default::default() };
        for (order, bytes) in table.orders.iter_mut().zip(orders.chunks_exact(n.max(1) * 4)) {
            *order = bytes.chunks_exact(4).map(|b| le_u32(b, 0)).collect();
            if order.iter().any(|&i| i as usize >= n) {
                return Err(corrupt(file, SIDE_HEADER as u64, "an order names a missing row"));
            }
        }
        Ok(table)
    }
}
