//! Catalogs: what a prefix holds, as of one snapshot.

use topics_storage::segment::TopicKey;

use super::fields::{Fields, PutFields};
use super::keys;
use super::pack::PackDirectory;
use super::sealed::{self, HEADER, ObjectHeader, ObjectKind, ObjectRef, SealedObject};
use crate::{RemoteError, Result};

const RANGE: usize = 32;
const PACK: usize = 44;
const DELETES: usize = 72;
const CHAIN: usize = 16;
const CONDEMNED: usize = 4 + 16;
const EARLIER: usize = 8 * 4 + 16;

/// The most earlier catalogs that a catalog lists: 28 days with one every 10 minutes.
pub const MAX_EARLIER: usize = 4096;

/// Contiguous seqs of a topic in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackRange {
    pub topic: TopicKey,
    pub first_seq: u64,
    pub last_seq: u64,
}

/// A pack that the catalog names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogPack {
    /// Its file number.
    pub file_no: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    pub len: u64,
    pub hash: u128,
    /// What it holds, by topic and seq.
    pub ranges: Vec<PackRange>,
}

impl CatalogPack {
    /// The entry of a finished pack.
    #[must_use]
    pub fn of(object: &ObjectRef, directory: &PackDirectory) -> Self {
        let mut ranges: Vec<PackRange> = Vec::new();
        for e in &directory.entries {
            match ranges.last_mut() {
                Some(r) if r.topic == e.topic && r.last_seq + 1 == e.first_seq => {
                    r.last_seq = e.last_seq;
                }
                _ => ranges.push(PackRange {
                    topic: e.topic,
                    first_seq: e.first_seq,
                    last_seq: e.last_seq,
                }),
            }
        }
        let (file_no, epoch) = (directory.header.number, directory.header.epoch);
        Self { file_no, epoch, len: object.len, hash: object.hash, ranges }
    }

    #[must_use]
    pub fn object(&self) -> ObjectRef {
        let first = self.ranges.first();
        let topic = first.map(|r| r.topic.topic_id);
        let is_mixed = self.ranges.iter().any(|r| Some(r.topic.topic_id) != topic);
        let topic = topic.filter(|_| !is_mixed);
        let first_seq = first.map_or(0, |r| r.first_seq);
        let key = keys::pack(topic, first_seq, self.file_no, self.epoch);
        ObjectRef { key, len: self.len, hash: self.hash }
    }
}

/// A bitmap of deleted records that the catalog names. The object is the `.del` file, verbatim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogDeletes {
    pub topic: TopicKey,
    /// The first seq of the segment.
    pub first_seq: u64,
    /// The file number of the segment.
    pub file_no: u64,
    /// The file number of the `.del`.
    pub del_no: u64,
    /// The epoch of its writer.
    pub epoch: u64,
    pub len: u64,
    /// The XXH3-128 of its bytes.
    pub hash: u128,
}

impl CatalogDeletes {
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        let key = keys::deletes(self.topic, self.first_seq, self.del_no, self.epoch);
        ObjectRef { key, len: self.len, hash: self.hash }
    }
}

/// The last valid round of an epoch. Later rounds of the epoch are from a writer that had lost the
/// prefix, and are not part of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    pub epoch: u64,
    /// The number of its last round; 0: none.
    pub last_round: u64,
}

/// An object that no catalog after this one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condemned {
    pub key: String,
    /// The epoch of the first catalog without it.
    pub epoch: u64,
    /// When it was condemned, by the clock of the store, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

/// A catalog that `HEAD` named before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierCatalog {
    /// The epoch of its writer.
    pub epoch: u64,
    pub number: u64,
    /// The time of its state, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    pub len: u64,
    pub hash: u128,
}

impl EarlierCatalog {
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        let key = keys::catalog(self.epoch, self.number);
        ObjectRef { key, len: self.len, hash: self.hash }
    }
}

/// The content of a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    /// Who wrote it.
    pub header: ObjectHeader,
    /// From this time on its state can be restored: the wall time of the cut that its rounds complete,
    /// or of its snapshot if there are no rounds, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// The first round to replay over the snapshot, in the writer's epoch.
    pub first_round: u64,
    /// The ends of earlier epochs, ascending.
    pub chain_ends: Vec<ChainEnd>,
    /// The packs, by file number.
    pub packs: Vec<CatalogPack>,
    pub deletes: Vec<CatalogDeletes>,
    /// Objects that can be deleted after the grace.
    pub condemned: Vec<Condemned>,
    /// The catalogs that `HEAD` named before this one, ascending.
    pub earlier: Vec<EarlierCatalog>,
    /// The local snapshot, as it is in its file.
    pub snapshot: Vec<u8>,
}

impl Catalog {
    /// The catalogs that the one after this lists, without the oldest if there are too many. `object` is
    /// this one's.
    #[must_use]
    pub fn earlier_of_next(&self, object: &ObjectRef) -> Vec<EarlierCatalog> {
        let mut out = self.earlier.clone();
        out.push(EarlierCatalog {
            epoch: self.header.epoch,
            number: self.header.number,
            made_ms: self.made_ms,
            len: object.len,
            hash: object.hash,
        });
        let extra = out.len().saturating_sub(MAX_EARLIER);
        out.drain(..extra);
        out
    }

    /// The finished object.
    #[must_use]
    pub fn seal(&self) -> SealedObject {
        let mut bytes = self.header.encode().to_vec();
        bytes.extend_from_slice(&self.snapshot);
        let mut out = self.header.encode().to_vec();
        out.put_u64(self.made_ms);
        out.put_u64(self.first_round);
        out.put_u32(self.chain_ends.len() as u32);
        for c in &self.chain_ends {
            out.put_u64(c.epoch);
            out.put_u64(c.last_round);
        }
        out.put_u32(self.packs.len() as u32);
        for p in &self.packs {
            [p.file_no, p.epoch, p.len].into_iter().for_each(|w| out.put_u64(w));
            out.put_u128(p.hash);
            out.put_u32(p.ranges.len() as u32);
            for r in &p.ranges {
                let words = [r.topic.topic_id, r.topic.epoch, r.first_seq, r.last_seq];
                words.into_iter().for_each(|w| out.put_u64(w));
            }
        }
        out.put_u32(self.deletes.len() as u32);
        for d in &self.deletes {
            let topic = d.topic;
            let words =
                [topic.topic_id, topic.epoch, d.first_seq, d.file_no, d.del_no, d.epoch, d.len];
            words.into_iter().for_each(|w| out.put_u64(w));
            out.put_u128(d.hash);
        }
        out.put_u32(self.condemned.len() as u32);
        for c in &self.condemned {
            out.put_u32(c.key.len() as u32);
            out.extend_from_slice(c.key.as_bytes());
            out.put_u64(c.epoch);
            out.put_u64(c.since_ms);
        }
        out.put_u32(self.earlier.len() as u32);
        for e in &self.earlier {
            [e.epoch, e.number, e.made_ms, e.len].into_iter().for_each(|w| out.put_u64(w));
            out.put_u128(e.hash);
        }
        sealed::seal(keys::catalog(self.header.epoch, self.header.number), bytes, &out)
    }

    /// Checks a whole catalog, and its identity if `hash` names one.
    pub fn verify(key: &str, hash: Option<u128>, bytes: &[u8]) -> Result<Self> {
        let (header, footer, directory) = sealed::open(key, ObjectKind::Catalog, hash, bytes)?;
        let mut f = Fields::new(key, directory);
        let repeated = ObjectHeader::decode(key, ObjectKind::Catalog, f.bytes(HEADER)?)?;
        if repeated != header || keys::catalog(header.epoch, header.number) != key {
            return Err(RemoteError::damaged(key, "it is the catalog of another key"));
        }
        let (made_ms, first_round) = (f.u64()?, f.u64()?);
        let chain_ends =
            rows(&mut f, CHAIN, |f| Ok(ChainEnd { epoch: f.u64()?, last_round: f.u64()? }))?;
        let packs = rows(&mut f, PACK, decode_pack)?;
        let deletes = rows(&mut f, DELETES, |f| {
            Ok(CatalogDeletes {
                topic: TopicKey { topic_id: f.u64()?, epoch: f.u64()? },
                first_seq: f.u64()?,
                file_no: f.u64()?,
                del_no: f.u64()?,
                epoch: f.u64()?,
                len: f.u64()?,
                hash: f.u128()?,
            })
        })?;
        let condemned = rows(&mut f, CONDEMNED, |f| {
            let len = f.count(1)?;
            let key = std::str::from_utf8(f.bytes(len)?);
            let key = key.map_err(|_| f.damaged("a key is not text"))?.to_owned();
            Ok(Condemned { key, epoch: f.u64()?, since_ms: f.u64()? })
        })?;
        let earlier = rows(&mut f, EARLIER, |f| {
            Ok(EarlierCatalog {
                epoch: f.u64()?,
                number: f.u64()?,
                made_ms: f.u64()?,
                len: f.u64()?,
                hash: f.u128()?,
            })
        })?;
        f.finish()?;
        let snapshot = bytes[HEADER..footer.dir_at as usize].to_vec();
        Ok(Self {
            header,
            made_ms,
            first_round,
            chain_ends,
            packs,
            deletes,
            condemned,
            earlier,
            snapshot,
        })
    }
}

fn decode_pack(f: &mut Fields<'_>) -> Result<CatalogPack> {
    let (file_no, epoch, len, hash) = (f.u64()?, f.u64()?, f.u64()?, f.u128()?);
    let ranges = rows(f, RANGE, |f| {
        let topic = TopicKey { topic_id: f.u64()?, epoch: f.u64()? };
        Ok(PackRange { topic, first_seq: f.u64()?, last_seq: f.u64()? })
    })?;
    Ok(CatalogPack { file_no, epoch, len, hash, ranges })
}

/// A table: its number of rows, each of at least `size` bytes, then the rows.
fn rows<T>(
    f: &mut Fields<'_>,
    size: usize,
    mut row: impl FnMut(&mut Fields<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let n = f.count(size)?;
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        out.push(row(f)?);
    }
    Ok(out)
}
