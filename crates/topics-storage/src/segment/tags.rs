//! `.tags`: the records of each tag, sorted by tag, read in blocks.
//!
//! ```text
//! side header, magic "TTAG"
//! blocks of about 4 KiB, each: entries, then XXH3-64 of them, seeded with salt + block offset
//!   entry: tag_len u16, tag, count u32, count × (seq − first seq) u32 ascending
//! index, one per block: offset u64, len u32 (with its checksum), tag_len u16, its first tag
//! footer, 48 bytes
//!   0  4  magic "TTGF"   4  4  version u32   8  8  offset of the index   16  8  its length
//!  24  8  first seq     32  8  XXH3-64 of the index, seeded with the salt
//!  40  8  XXH3-64 of footer bytes 0…39, seeded with the salt
//! ```
//!
//! Tags are in ascending byte order, and the records of one tag are in one block.

use std::collections::BTreeMap;
use std::path::Path;

use topics_env::{Env, File};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::TagMatch;
use super::layout::{SIDE_HEADER, VERSION, check_side_header, corrupt, side_header};
use super::open::{io_error, read_up_to};
use crate::dir::{le_u32, le_u64, show};
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TTAG";
const FOOTER_MAGIC: [u8; 4] = *b"TTGF";
const FOOTER: usize = 48;
const BLOCK: usize = 4096;

/// Tag → ascending offsets from the first seq.
pub type TagMap = BTreeMap<Vec<u8>, Vec<u32>>;

pub fn encode(tags: &TagMap, first_seq: u64, salt: u64, file_no: u64) -> Vec<u8> {
    let mut out = side_header(MAGIC, salt, file_no).to_vec();
    let mut index = Vec::new();
    let mut begin = out.len();
    let mut first: Option<&[u8]> = None;
    for (tag, seqs) in tags {
        first.get_or_insert(tag);
        out.extend_from_slice(&(tag.len() as u16).to_le_bytes());
        out.extend_from_slice(tag);
        out.extend_from_slice(&(seqs.len() as u32).to_le_bytes());
        seqs.iter().for_each(|s| out.extend_from_slice(&s.to_le_bytes()));
        if out.len() - begin >= BLOCK {
            end_block(&mut out, &mut index, begin, first.take(), salt);
            begin = out.len();
        }
    }
    end_block(&mut out, &mut index, begin, first, salt);
    let at = out.len() as u64;
    out.extend_from_slice(&index);
    let begin = out.len();
    out.extend_from_slice(&FOOTER_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    for word in [at, index.len() as u64, first_seq, xxh3_64_with_seed(&index, salt)] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let sum = xxh3_64_with_seed(&out[begin..], salt);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

fn end_block(out: &mut Vec<u8>, index: &mut Vec<u8>, begin: usize, tag: Option<&[u8]>, salt: u64) {
    let Some(tag) = tag else { return };
    let sum = xxh3_64_with_seed(&out[begin..], salt.wrapping_add(begin as u64));
    out.extend_from_slice(&sum.to_le_bytes());
    index.extend_from_slice(&(begin as u64).to_le_bytes());
    index.extend_from_slice(&((out.len() - begin) as u32).to_le_bytes());
    index.extend_from_slice(&(tag.len() as u16).to_le_bytes());
    index.extend_from_slice(tag);
}

/// A range of blocks that can contain matches: offset, length.
type Blocks = Vec<(u64, usize)>;

/// An opened `.tags`.
pub struct TagsFile<'a> {
    env: &'a Env,
    file: &'a dyn File,
    name: String,
    len: u64,
    salt: u64,
}

impl<'a> TagsFile<'a> {
    /// Checks header and identity.
    pub fn open(
        env: &'a Env,
        file: &'a dyn File,
        path: &Path,
        salt: u64,
        file_no: u64,
    ) -> Result<Self> {
        let name = show(path);
        let len = file.len().map_err(|e| io_error(path, e))?;
        let this = Self { env, file, name, len, salt };
        let header = this.read(0, SIDE_HEADER)?;
        let found = check_side_header(env, &this.name, &header, MAGIC, file_no)?;
        if found != salt {
            return Err(corrupt(&this.name, 8, "it belongs to another segment"));
        }
        Ok(this)
    }

    /// The ascending offsets of records whose tag matches.
    pub fn lookup(&self, want: TagMatch<'_>, first_seq: u64) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        for (at, len) in self.blocks(want, first_seq)? {
            let block = self.read(at, len)?;
            let Some((entries, sum)) = block.split_last_chunk::<8>().filter(|_| block.len() == len)
            else {
                return Err(corrupt(&self.name, at, "a block is not there"));
            };
            let sum_of = xxh3_64_with_seed(entries, self.salt.wrapping_add(at));
            if !self.env.check("segment.tags", sum_of == u64::from_le_bytes(*sum)) {
                return Err(corrupt(&self.name, at, "the checksum of a block does not match"));
            }
            collect(entries, want, &mut out)
                .ok_or_else(|| corrupt(&self.name, at, "a block has wrong lengths"))?;
        }
        out.sort_unstable();
        Ok(out)
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let have = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut out = vec![0; len.min(have)];
        let n = read_up_to(self.file, &mut out, at)
            .map_err(|e| StorageError::io(self.name.clone(), e))?;
        out.truncate(n);
        Ok(out)
    }

    fn blocks(&self, want: TagMatch<'_>, first_seq: u64) -> Result<Blocks> {
        let at = self.len.saturating_sub(FOOTER as u64);
        let footer = self.read(at, FOOTER)?;
        let good = footer.len() == FOOTER
            && footer[..4] == FOOTER_MAGIC
            && xxh3_64_with_seed(&footer[..40], self.salt) == le_u64(&footer, 40);
        if !good {
            return Err(corrupt(&self.name, at, "the footer's checksum does not match"));
        }
        let (index_at, index_len) = (le_u64(&footer, 8), le_u64(&footer, 16));
        let index = self.read(index_at, usize::try_from(index_len).unwrap_or(usize::MAX))?;
        let good = index.len() as u64 == index_len
            && le_u64(&footer, 24) == first_seq
            && xxh3_64_with_seed(&index, self.salt) == le_u64(&footer, 32);
        if !self.env.check("segment.tags-index", good) {
            return Err(corrupt(&self.name, index_at, "the index's checksum does not match"));
        }
        select(&index, want)
            .ok_or_else(|| corrupt(&self.name, index_at, "the index has wrong lengths"))
    }
}

/// The blocks that can contain a match.
fn select(mut index: &[u8], want: TagMatch<'_>) -> Option<Blocks> {
    let mut out = Blocks::new();
    while !index.is_empty() {
        let (head, rest) = index.split_at_checked(14)?;
        let (tag, rest) =
            rest.split_at_checked(usize::from(u16::from_le_bytes([head[12], head[13]])))?;
        index = rest;
        let place = (le_u64(head, 0), le_u32(head, 8) as usize);
        match want {
            TagMatch::Eq(t) | TagMatch::Prefix(t) if tag <= t => out = vec![place],
            TagMatch::Prefix(t) if tag.starts_with(t) => out.push(place),
            _ => break,
        }
    }
    Some(out)
}

fn collect(mut entries: &[u8], want: TagMatch<'_>, out: &mut Vec<u32>) -> Option<()> {
    while !entries.is_empty() {
        let (len, rest) = entries.split_first_chunk::<2>()?;
        let (tag, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (seqs, rest) = rest.split_at_checked(u32::from_le_bytes(*count) as usize * 4)?;
        entries = rest;
        if want.matches(tag) {
            out.extend(seqs.chunks_exact(4).map(|c| le_u32(c, 0)));
        }
    }
    Some(())
}
