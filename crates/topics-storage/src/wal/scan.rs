//! Reads WAL files frame by frame, for recovery and `verify`.

use std::sync::Arc;

use topics_env::{Env, File};

use crate::format::frame::{self, Frame, FrameError, FrameType, MAX_FRAME_LEN};
use crate::format::record::{Group, Start};
use crate::format::wal_file::{WAL_HEADER, WalFileHeader};
use crate::{Result, StorageError};

const BLOCK: usize = 256 << 10;

/// A verified frame and its place.
#[derive(Clone, Copy, Debug)]
pub struct ScannedFrame<'a> {
    pub lsn: u64,
    /// Its offset in the file.
    pub offset: u64,
    pub frame: Frame<'a>,
    pub raw: &'a [u8],
}

/// The end of the valid frames.
#[derive(Clone, Debug)]
pub struct ScanEnd {
    /// The lsn that a frame here would have.
    pub lsn: u64,
    pub offset: u64,
    /// Why no frame is there.
    pub why: FrameError,
}

/// Iterates over the frames of one file after its Start.
#[derive(Debug)]
pub struct Scan {
    env: Env,
    file: Arc<dyn File>,
    shown: String,
    salt: u64,
    len: u64,
    buf: Vec<u8>,
    /// File offset of `buf[0]`.
    base: u64,
    /// Position in `buf` of the next frame.
    pos: usize,
    lsn: u64,
    why: FrameError,
}

impl Scan {
    /// A scan from the first frame after the Start, which has `first_lsn`.
    pub fn new(
        env: &Env,
        file: Arc<dyn File>,
        header: &WalFileHeader,
        shown: &str,
        first_lsn: u64,
    ) -> Result<Self> {
        let len = file.len().map_err(|e| StorageError::io(format!("read {shown}"), e))?;
        let base = (WAL_HEADER + Start::FRAME_LEN) as u64;
        Ok(Self {
            env: env.clone(),
            file,
            shown: shown.to_owned(),
            salt: header.salt,
            len,
            buf: Vec::new(),
            base,
            pos: 0,
            lsn: first_lsn,
            why: FrameError::Zero,
        })
    }

    /// Continues at a known frame.
    pub fn seek(&mut self, offset: u64, lsn: u64) {
        self.buf.clear();
        self.base = offset;
        self.pos = 0;
        self.lsn = lsn;
    }

    /// The lsn of the next frame.
    #[must_use]
    pub fn next_lsn(&self) -> u64 {
        self.lsn
    }

    /// Where the valid frames ended.
    #[must_use]
    pub fn stop(&self) -> ScanEnd {
        ScanEnd { lsn: self.lsn, offset: self.base + self.pos as u64, why: self.why }
    }

    /// The next frame; `None` at the end of the valid frames. An I/O error is never taken for the end.
    /// A frame of an unknown type with a valid checksum is an error.
    pub fn next_frame(&mut self) -> Result<Option<ScannedFrame<'_>>> {
        let size = match self.size()? {
            Ok(size) => size,
            Err(why) => {
                self.why = why;
                return Ok(None);
            }
        };
        let (at, lsn, offset) = (self.pos, self.lsn, self.base + self.pos as u64);
        let verified = frame::verify(&self.buf[at..at + size], self.salt, lsn).map(|_| ());
        if let Err(FrameError::Type(kind)) = verified {
            return Err(StorageError::Version {
                what: format!("the type of the frame at offset {offset} of {}", self.shown),
                found: kind.into(),
                supported: FrameType::NEWEST.into(),
            });
        }
        if let Err(why) = verified
            && !self.env.check("wal.frame", false)
        {
            self.why = why;
            return Ok(None);
        }
        let raw = &self.buf[at..at + size];
        let Ok((frame, _)) = frame::parse(raw) else {
            self.why = FrameError::Layout;
            return Ok(None);
        };
        self.pos += size;
        self.lsn += 1;
        Ok(Some(ScannedFrame { lsn, offset, frame, raw }))
    }

    /// Reads the next frame into the buffer; returns its size, or why there is none.
    fn size(&mut self) -> Result<std::result::Result<usize, FrameError>> {
        let mut want = 4;
        loop {
            if !self.fill(want)? {
                return Ok(Err(FrameError::Short(want)));
            }
            match frame::parse(&self.buf[self.pos..]) {
                Ok((_, size)) => return Ok(Ok(size)),
                Err(FrameError::Short(more)) if more > want => want = more,
                Err(FrameError::Type(_) | FrameError::Layout) => {
                    return Ok(Ok(frame::frame_size(&self.buf[self.pos..])));
                }
                Err(e) => return Ok(Err(e)),
            }
        }
    }

    /// Makes at least `want` bytes from the position on available; false at the end of the file.
    fn fill(&mut self, want: usize) -> Result<bool> {
        if self.buf.len() - self.pos >= want {
            return Ok(true);
        }
        self.base += self.pos as u64;
        self.buf.drain(..self.pos);
        self.pos = 0;
        let have = self.buf.len();
        let left = self.len.saturating_sub(self.base + have as u64);
        let take = (want.max(BLOCK) - have).min(usize::try_from(left).unwrap_or(usize::MAX));
        if have + take < want || want > MAX_FRAME_LEN as usize + 4 {
            return Ok(false);
        }
        self.buf.resize(have + take, 0);
        self.file
            .read_exact_at(&mut self.buf[have..], self.base + have as u64)
            .map_err(|e| StorageError::io(format!("read {}", self.shown), e))?;
        Ok(true)
    }
}

/// The beginning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileStart {
    /// With a Start that names the first lsn.
    At(u64),
    /// Without a Start: the file holds nothing, unless this first valid Group proves otherwise.
    Empty(Option<FoundGroup>),
}

/// Reads how a file begins.
pub fn read_start(
    env: &Env,
    file: &Arc<dyn File>,
    header: &WalFileHeader,
    shown: &str,
) -> Result<FileStart> {
    if let Some(lsn) = start_of(env, file, header, shown)? {
        return Ok(FileStart::At(lsn));
    }
    let found = find_group(file, header, shown, WAL_HEADER as u64, 0)?;
    // A running log may have written the Start meanwhile.
    match found.is_some().then(|| start_of(env, file, header, shown)).transpose()?.flatten() {
        Some(lsn) => Ok(FileStart::At(lsn)),
        None => Ok(FileStart::Empty(found)),
    }
}

fn start_of(
    env: &Env,
    file: &Arc<dyn File>,
    header: &WalFileHeader,
    shown: &str,
) -> Result<Option<u64>> {
    let mut b = [0u8; Start::FRAME_LEN];
    let io = |e| StorageError::io(format!("read {shown}"), e);
    if file.len().map_err(io)? < (WAL_HEADER + Start::FRAME_LEN) as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut b, WAL_HEADER as u64).map_err(io)?;
    let start = frame::parse(&b).ok().and_then(|(f, _)| Start::of(&f));
    let valid = |s: &Start| frame::verify(&b, header.salt, s.first_lsn).is_ok();
    Ok(start.filter(|s| env.check("wal.start", valid(s))).map(|s| s.first_lsn))
}

/// A valid Group found by search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundGroup {
    pub lsn: u64,
    pub offset: u64,
    /// The highest `synced_lsn` that it or any valid Group behind it names.
    pub synced_lsn_max: u64,
}

/// Searches every byte position from `offset` on for valid Groups with an lsn above `above`;
/// returns the first.
pub fn find_group(
    file: &Arc<dyn File>,
    header: &WalFileHeader,
    shown: &str,
    offset: u64,
    above: u64,
) -> Result<Option<FoundGroup>> {
    let mut found: Option<FoundGroup> = None;
    each_group(file, header, shown, offset, |group, at| {
        if group.lsn > above {
            let here = FoundGroup { lsn: group.lsn, offset: at, synced_lsn_max: 0 };
            let first = found.get_or_insert(here);
            first.synced_lsn_max = first.synced_lsn_max.max(group.synced_lsn);
        }
    })?;
    Ok(found)
}

/// Whether a file holds a group that a running log wrote. A group that recovery wrote before the
/// file was in use names itself as durable; one of a running log does not.
pub fn holds_live_group(file: &Arc<dyn File>, header: &WalFileHeader, shown: &str) -> Result<bool> {
    let mut live = false;
    each_group(file, header, shown, WAL_HEADER as u64, |g, _| live |= g.lsn > g.synced_lsn)?;
    Ok(live)
}

/// Calls `f` with every valid Group from `offset` on and where it lies.
fn each_group(
    file: &Arc<dyn File>,
    header: &WalFileHeader,
    shown: &str,
    offset: u64,
    mut f: impl FnMut(&Group, u64),
) -> Result<()> {
    let io = |e| StorageError::io(format!("read {shown}"), e);
    let len = file.len().map_err(io)?;
    let mut buf = vec![0u8; BLOCK + Group::FRAME_LEN];
    let mut at = offset;
    while at + Group::FRAME_LEN as u64 <= len {
        let n = usize::try_from(len - at).unwrap_or(usize::MAX).min(buf.len());
        file.read_exact_at(&mut buf[..n], at).map_err(io)?;
        let block = &buf[..n];
        for i in candidates(block) {
            let Some(bytes) = block.get(i..i + Group::FRAME_LEN) else { continue };
            let Some(group) = frame::parse(bytes).ok().and_then(|(f, _)| Group::of(&f)) else {
                continue;
            };
            if frame::verify(bytes, header.salt, group.lsn).is_ok() {
                f(&group, at + i as u64);
            }
        }
        at += (n - Group::FRAME_LEN + 1) as u64;
    }
    Ok(())
}

/// Positions at which a Group frame may begin.
fn candidates(block: &[u8]) -> impl Iterator<Item = usize> {
    let last = block.len().saturating_sub(Group::FRAME_LEN - 1);
    let mut i = 0;
    std::iter::from_fn(move || {
        while i < last {
            // A Group never begins with a zero, and most of a preallocated file is zeros.
            if block[i..].first_chunk::<64>() == Some(&[0; 64]) {
                i += 64;
                continue;
            }
            if block[i] != Group::PATTERN[0] {
                i += 1;
                continue;
            }
            let here = i;
            i += 1;
            if block[here..].starts_with(&Group::PATTERN) {
                return Some(here);
            }
        }
        None
    })
}
