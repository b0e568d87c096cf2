//! `.del`: the deleted records of a segment. No other file records deletions.
//!
//! ```text
//! side header, magic "TDEL", file number of the .del itself
//!  32  8  first seq of the segment
//!  40  8  number of deleted records
//!  48  8  length of the bitmap
//!  56  .  bitmap of (seq − first seq), Roaring portable format
//!   .  8  XXH3-64 of everything before, seeded with the salt
//! ```

use roaring::RoaringBitmap;
use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::{SIDE_HEADER, check_side_header, corrupt, side_header};
use crate::dir::le_u64;
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TDEL";
const BITMAP: usize = SIDE_HEADER + 24;

pub fn encode(dead: &RoaringBitmap, first_seq: u64, salt: u64, del_no: u64) -> Result<Vec<u8>> {
    let mut out = side_header(MAGIC, salt, del_no).to_vec();
    for word in [first_seq, dead.len(), dead.serialized_size() as u64] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    dead.serialize_into(&mut out).map_err(|e| StorageError::io("encode a .del", e))?;
    let sum = xxh3_64_with_seed(&out, salt);
    out.extend_from_slice(&sum.to_le_bytes());
    Ok(out)
}

pub fn decode(
    env: &Env,
    file: &str,
    bytes: &[u8],
    first_seq: u64,
    salt: u64,
    del_no: u64,
) -> Result<RoaringBitmap> {
    let (dead, found) = parse(env, file, bytes, first_seq, del_no)?;
    match found == salt {
        true => Ok(dead),
        false => Err(corrupt(file, 8, "it belongs to another segment")),
    }
}

/// Checks the content of a `.del` whose segment is not at hand.
pub fn check_deletes(
    env: &Env,
    file: &str,
    bytes: &[u8],
    first_seq: u64,
    del_no: u64,
) -> Result<()> {
    parse(env, file, bytes, first_seq, del_no).map(drop)
}

/// The deleted records, and the salt of their segment.
fn parse(
    env: &Env,
    file: &str,
    bytes: &[u8],
    first_seq: u64,
    del_no: u64,
) -> Result<(RoaringBitmap, u64)> {
    let found = check_side_header(env, file, bytes, MAGIC, del_no)?;
    let Some((body, sum)) = bytes.split_last_chunk::<8>().filter(|(b, _)| b.len() >= BITMAP) else {
        return Err(corrupt(file, bytes.len() as u64, "too short"));
    };
    let good = xxh3_64_with_seed(body, found) == u64::from_le_bytes(*sum);
    if !env.check("segment.del", good) {
        return Err(corrupt(file, body.len() as u64, "the checksum does not match"));
    }
    if le_u64(body, SIDE_HEADER) != first_seq {
        return Err(corrupt(file, 8, "it belongs to another segment"));
    }
    if le_u64(body, SIDE_HEADER + 16) != (body.len() - BITMAP) as u64 {
        return Err(corrupt(file, SIDE_HEADER as u64 + 16, "the length of the bitmap is wrong"));
    }
    let dead = RoaringBitmap::deserialize_from(&body[BITMAP..])
        .map_err(|e| corrupt(file, BITMAP as u64, e.to_string()))?;
    if dead.len() != le_u64(body, SIDE_HEADER + 8) {
        return Err(corrupt(
            file,
            SIDE_HEADER as u64 + 8,
            "the number of deleted records is wrong",
        ));
    }
    Ok((dead, found))
}
