//! The two encodings of structures: variable-width for control bodies, fixed-width for snapshots.
//!
//! `FORMAT.md` states both byte by byte. Only this module names the library behind them; other code
//! derives [`Encode`] and [`Decode`] and calls these functions. The fields of a struct are encoded
//! in the order of their declaration.

use bincode::config::{Configuration, Fixint, LittleEndian, standard};
pub use bincode::{BorrowDecode, Decode, Encode};

const FIXED: Configuration<LittleEndian, Fixint> = standard().with_fixed_int_encoding();

/// The memory limit of a decoded control body: the longest frame.
const BODY_LIMIT: usize = 1 << 25;
/// The memory limit of one topic of a snapshot that is decoded in place.
const ENTRY_LIMIT: usize = 1 << 32;

/// A decoded value and its encoded length, or the reason of the failure.
pub(crate) type Decoded<T> = Result<(T, usize), String>;

/// Appends a value with integers of variable width.
///
/// Encoding into memory fails only for types that refuse to be encoded, and no control body
/// contains one. On a failure nothing is appended.
pub(crate) fn encode_varint(value: &impl Encode, out: &mut Vec<u8>) {
    if let Ok(bytes) = bincode::encode_to_vec(value, standard()) {
        out.extend_from_slice(&bytes);
    }
}

/// Decodes a value with integers of variable width. Lengths inside are limited by the longest
/// frame, so that a forged length allocates no more than that.
pub(crate) fn decode_varint<T: Decode<()>>(bytes: &[u8]) -> Decoded<T> {
    let limited = standard().with_limit::<BODY_LIMIT>();
    bincode::decode_from_slice(bytes, limited).map_err(|e| e.to_string())
}

/// Appends a value with integers of fixed width.
pub(crate) fn encode_fixed(value: &impl Encode, out: &mut Vec<u8>) -> Result<(), String> {
    bincode::encode_into_std_write(value, out, FIXED).map(drop).map_err(|e| e.to_string())
}

/// Decodes a value with integers of fixed width.
///
/// The allocation limit is near the length of `bytes`: in this encoding a value takes at most about
/// twice its encoded bytes in memory, so a forged length fails instead of exhausting the memory.
pub(crate) fn decode_fixed<T: Decode<()>>(bytes: &[u8]) -> Decoded<T> {
    fn limited<const LIMIT: usize, T: Decode<()>>(
        bytes: &[u8],
    ) -> Result<(T, usize), bincode::error::DecodeError> {
        bincode::decode_from_slice(bytes, FIXED.with_limit::<LIMIT>())
    }
    const LIMITS: [usize; 4] = [1 << 20, 1 << 24, 1 << 28, 1 << 32];
    let most = bytes.len().saturating_mul(4);
    let decoded = match LIMITS.iter().position(|limit| most <= *limit) {
        Some(0) => limited::<{ LIMITS[0] }, T>(bytes),
        Some(1) => limited::<{ LIMITS[1] }, T>(bytes),
        Some(2) => limited::<{ LIMITS[2] }, T>(bytes),
        Some(_) => limited::<{ LIMITS[3] }, T>(bytes),
        None => limited::<{ LIMITS[3] << 8 }, T>(bytes),
    };
    decoded.map_err(|e| e.to_string())
}

/// Decodes a value with integers of fixed width that borrows its text and bytes.
pub(crate) fn borrow_fixed<'a, T: BorrowDecode<'a, ()>>(bytes: &'a [u8]) -> Decoded<T> {
    bincode::borrow_decode_from_slice(bytes, FIXED.with_limit::<ENTRY_LIMIT>())
        .map_err(|e| e.to_string())
}
