//! The files of a segment writer.

use std::path::PathBuf;
use std::sync::Arc;

use topics_env::{File, OpenMode};

use super::index::IDX_MAGIC;
use super::layout::{DATA_HEADER, SIDE_HEADER, check_side_header, corrupt};
use super::open::io_error;
use super::{FileKind, SegmentMeta, SegmentName, Segments, TopicKey};
use crate::dir::{le_u64, show};
use crate::{Result, StorageError};

/// A file with a write buffer.
#[derive(Debug)]
pub struct BufferedFile {
    pub file: Arc<dyn File>,
    pub path: PathBuf,
    /// Offset of the buffer in the file.
    pub at: u64,
    pub buf: Vec<u8>,
}

impl BufferedFile {
    pub fn flush(&mut self) -> Result<()> {
        if !self.buf.is_empty() {
            self.file
                .write_all_at(&self.buf, self.at)
                .map_err(|e| StorageError::io(show(&self.path), e))?;
            self.at += self.buf.len() as u64;
            self.buf.clear();
        }
        Ok(())
    }
}

/// A file that a round must make durable.
#[derive(Debug)]
pub struct UnsyncedFile {
    pub file: Arc<dyn File>,
    pub name: SegmentName,
    pub kind: FileKind,
    /// Whether the directory entry is new.
    pub created: bool,
}

/// Creates a file of a segment, and the topic's directory if needed. The round makes the names
/// durable.
pub fn create_file(segs: &Segments, name: &SegmentName, kind: FileKind) -> Result<BufferedFile> {
    let path = segs.paths.segment(name, kind);
    let file = match segs.env.fs.open(&path, OpenMode::CreateNew) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let dir = segs.paths.topic(name.topic_id);
            match segs.env.fs.create_dir(&dir) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(StorageError::io(show(&dir), e));
                }
                _ => {}
            }
            segs.env.fs.open(&path, OpenMode::CreateNew)
        }
        other => other,
    };
    let file = file.map_err(|e| io_error(&path, e))?;
    Ok(BufferedFile { file, path, at: 0, buf: Vec::new() })
}

pub fn open_file(segs: &Segments, name: &SegmentName, kind: FileKind) -> Result<BufferedFile> {
    let path = segs.paths.segment(name, kind);
    let file = segs.env.fs.open(&path, OpenMode::Write).map_err(|e| io_error(&path, e))?;
    Ok(BufferedFile { file, path, at: 0, buf: Vec::new() })
}

/// The common salt of the files of a segment to append to; `None` if a header is damaged.
pub fn salts_agree(
    segs: &Segments,
    topic: TopicKey,
    meta: &SegmentMeta,
    data: &BufferedFile,
    idx: &BufferedFile,
) -> Result<Option<u64>> {
    let (mut head, mut side) = ([0; DATA_HEADER], [0; SIDE_HEADER]);
    for (out, buf) in [(data, &mut head[..]), (idx, &mut side[..])] {
        out.file.read_exact_at(buf, 0).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => corrupt(&show(&out.path), 0, "it has no header"),
            _ => io_error(&out.path, e),
        })?;
    }
    let want = segs.data_header(topic, meta.first_seq, meta.file_no, le_u64(&head, 48));
    let name = show(&idx.path);
    let side = check_side_header(&segs.env, &name, &side, IDX_MAGIC, meta.file_no);
    match side {
        Err(e @ StorageError::Version { .. }) => Err(e),
        Ok(salt) if want.encode() == head && salt == want.salt => Ok(Some(salt)),
        _ => Ok(None),
    }
}
