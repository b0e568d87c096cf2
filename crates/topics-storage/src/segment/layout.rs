//! The bytes of `.data` frames.
/// Bytes of a frame beside its payload and the length prefixes of attributes and meta.
pub const FRAME_FIXED: usize = 37;
