//! Writing the active segment.

use std::sync::Arc;

use super::copy::{Copier, CopySource};
use super::files::{BufferedFile, UnsyncedFile, create_file, open_file, salts_agree};
use super::index::{
    ENTRY, IDX_MAGIC, decode_entries, encode_entry, encode_footer, entry_at, is_chain, whole_sum,
};
use super::layout::{DATA_HEADER, SIDE_HEADER, corrupt, encode_frame, frame_len, side_header};
use super::open::io_error;
use super::tags::encode as encode_tags;
use super::{
    AttrRow, AttrsTable, FileKind, IdxEntry, SegmentMeta, SegmentName, Segments, TopicKey,
};
use crate::dir::{create_temp, show};
use crate::format::frame::{Flags, Frame};
use crate::{Result, StorageError};

/// The buffer size at which a writer writes to its file.
const BUFFER: usize = 256 << 10;

/// Appends to a topic's active segment. Its records are valid only after the sync of the round that
/// it was added to. If it is dropped before, the file is suspect and the next writer creates it
/// again.
#[derive(Debug)]
pub struct SegmentWriter {
    segs: Arc<Segments>,
    topic: TopicKey,
    meta: SegmentMeta,
    salt: u64,
    data: BufferedFile,
    idx: BufferedFile,
    /// Finished files other than `.data` and `.idx`.
    side: Vec<UnsyncedFile>,
    created: bool,
    /// Whether it has written bytes that no round tracks yet.
    dirty: bool,
    /// Whether the last call failed for lack of space or descriptors.
    refused: bool,
}

impl SegmentWriter {
    /// Creates a segment that starts at `first_seq`.
    pub fn create(segs: &Arc<Segments>, topic: TopicKey, first_seq: u64) -> Result<Self> {
        Self::create_with(segs, topic, (first_seq, segs.next_file_no()), segs.env.rng.next_u64())
    }

    fn create_with(
        segs: &Arc<Segments>,
        topic: TopicKey,
        (first_seq, file_no): (u64, u64),
        salt: u64,
    ) -> Result<Self> {
        let name = SegmentName { topic_id: topic.topic_id, first_seq, file_no };
        let data = create_file(segs, &name, FileKind::Data)
            .inspect_err(|_| segs.remove_if_empty(topic.topic_id))?;
        let idx = create_file(segs, &name, FileKind::Idx).inspect_err(|_| {
            segs.discard_file(&name, FileKind::Data);
            segs.remove_if_empty(topic.topic_id);
        })?;
        let mut this = Self {
            segs: segs.clone(),
            topic,
            meta: SegmentMeta {
                first_seq,
                last_seq: first_seq - 1,
                file_no,
                data_no: file_no,
                data_len: DATA_HEADER as u64,
                ..SegmentMeta::default()
            },
            salt,
            data,
            idx,
            side: Vec::new(),
            created: true,
            dirty: true,
            refused: false,
        };
        let header = segs.data_header(topic, first_seq, file_no, salt).encode();
        this.data.buf.extend_from_slice(&header);
        this.idx.buf.extend_from_slice(&side_header(IDX_MAGIC, salt, file_no));
        segs.set_fresh(file_no, true);
        Ok(this)
    }

    /// Continues an active segment at its named length and truncates the rest. If the files have
    /// several hard links, are suspect, or have a damaged index, creates them again under a new
    /// number ([`Self::remake`]), which `meta().file_no` returns.
    pub fn reopen(segs: &Arc<Segments>, topic: TopicKey, meta: &SegmentMeta) -> Result<Self> {
        if meta.sealed || meta.cold {
            return Err(StorageError::Missing { what: "an active segment to append to".into() });
        }
        if segs.is_suspect(meta.file_no) {
            return Self::remake(segs, topic, meta);
        }
        let name = meta.name(topic.topic_id);
        let data = open_file(segs, &name, FileKind::Data)?;
        let idx = match open_file(segs, &name, FileKind::Idx) {
            Err(StorageError::Missing { .. }) => return Self::remake(segs, topic, meta),
            other => other?,
        };
        let io = |out: &BufferedFile| {
            let name = show(&out.path);
            move |e| StorageError::io(name, e)
        };
        if data.file.links().map_err(io(&data))? > 1 || idx.file.links().map_err(io(&idx))? > 1 {
            return Self::remake(segs, topic, meta);
        }
        let idx_len = entry_at(meta.span());
        if idx.file.len().map_err(io(&idx))? < idx_len {
            return Self::remake(segs, topic, meta);
        }
        let Some(salt) = salts_agree(segs, topic, meta, &data, &idx)? else {
            return Self::remake(segs, topic, meta);
        };
        let mut this = Self {
            segs: segs.clone(),
            topic,
            meta: *meta,
            salt,
            data,
            idx,
            side: Vec::new(),
            created: false,
            dirty: false,
            refused: false,
        };
        this.cut(meta.data_len, idx_len)?;
        Ok(this)
    }

    /// Creates an active segment's files again, under a new number, from its named length. They
    /// keep the salt, so that the existing `.del` stays valid.
    pub fn remake(segs: &Arc<Segments>, topic: TopicKey, meta: &SegmentMeta) -> Result<Self> {
        let source = segs.segment(topic, *meta);
        let numbers = (meta.first_seq, segs.next_file_no());
        let mut this = Self::create_with(segs, topic, numbers, source.salt()?)?;
        Copier::new(&mut this).copy(&CopySource { segment: &source, dead: None })?;
        this.meta = SegmentMeta {
            file_no: this.meta.file_no,
            data_no: this.meta.file_no,
            data_len: this.meta.data_len,
            ..*meta
        };
        Ok(this)
    }

    /// Creates a sealed segment under the number of one whose records are all deleted, and whose files are not
    /// here. It covers the same seqs, and has no record.
    pub fn without_records(
        segs: &Arc<Segments>,
        topic: TopicKey,
        meta: &SegmentMeta,
    ) -> Result<Self> {
        let numbers = (meta.first_seq, meta.file_no);
        let mut this = Self::create_with(segs, topic, numbers, segs.env.rng.next_u64())?;
        for _ in 0..meta.span() {
            this.hole_at(meta.first_ts)?;
        }
        this.seal()?;
        Ok(this)
    }

    fn cut(&mut self, data_len: u64, idx_len: u64) -> Result<()> {
        for (out, len, kind) in
            [(&mut self.data, data_len, FileKind::Data), (&mut self.idx, idx_len, FileKind::Idx)]
        {
            let io = |e| StorageError::io(show(&out.path), e);
            let have = out.file.len().map_err(io)?;
            if have < len {
                return Err(corrupt(
                    &show(&out.path),
                    have,
                    format!("the snapshot names {len} bytes of .{}", kind.extension()),
                ));
            }
            if have > len {
                self.dirty = true;
                out.file.set_len(len).map_err(io)?;
            }
            out.at = len;
        }
        Ok(())
    }

    /// The topic that it writes for.
    pub fn topic(&self) -> TopicKey {
        self.topic
    }

    /// The seq that the next [`Self::append`] or [`Self::hole`] writes.
    pub fn next_seq(&self) -> u64 {
        self.meta.last_seq + 1
    }

    /// Its entry for the snapshot.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// Appends a record whose frame was verified; `inner` is the inner hash of that frame. The
    /// record must be [`Self::next_seq`].
    pub fn append(&mut self, frame: &Frame<'_>, inner: u64) -> Result<()> {
        let len = frame_len(frame);
        self.check_next(frame.seq, len)?;
        let frame = &Frame { flags: Flags(frame.flags.0 & Flags::RECORD), ..*frame };
        encode_frame(&mut self.data.buf, frame, self.salt, inner);
        if frame.flags.has(Flags::HAS_TAG) {
            self.meta.has_tags = true;
        }
        if frame.flags.has(Flags::HAS_ATTRS) {
            self.meta.has_attrs = true;
            let expires = AttrRow::parse(frame.seq, frame.attrs).expires_at;
            if expires != 0
                && (self.meta.earliest_expires == 0 || expires < self.meta.earliest_expires)
            {
                self.meta.earliest_expires = expires;
            }
        }
        self.meta.live_count += 1;
        self.meta.live_bytes += frame.payload_bytes();
        if self.meta.first_ts == 0 {
            self.meta.first_ts = frame.ts;
        }
        self.meta.last_ts = frame.ts;
        self.enter(len as u32, frame.ts, frame.flags.0)
    }

    /// Copies the frame of a damaged record unchanged, so that its check still fails.
    pub(super) fn append_damaged(&mut self, seq: u64, bytes: &[u8], ts: u64) -> Result<()> {
        self.check_next(seq, bytes.len())?;
        self.data.buf.extend_from_slice(bytes);
        self.enter(bytes.len() as u32, ts, 0)
    }

    /// Writes the next seq as a hole.
    pub fn hole(&mut self) -> Result<()> {
        self.hole_at(self.meta.last_ts)
    }

    /// Writes the next seq as a hole with the time of the record that it replaces, so that seeks by
    /// time still work in a segment that starts with holes.
    pub fn hole_at(&mut self, ts: u64) -> Result<()> {
        self.dirty = true;
        let ts = ts.max(self.meta.last_ts);
        self.meta.last_ts = ts;
        self.enter(0, ts, 0)
    }

    fn check_next(&mut self, seq: u64, len: usize) -> Result<()> {
        self.dirty = true;
        let end = self.meta.data_len + len as u64;
        if seq != self.next_seq() || self.meta.sealed || end > u64::from(u32::MAX) {
            return Err(StorageError::Io {
                what: show(&self.data.path),
                kind: std::io::ErrorKind::InvalidInput,
                raw: None,
                detail: format!(
                    "record {seq} cannot follow {} at {}",
                    self.meta.last_seq, self.meta.data_len
                ),
            });
        }
        Ok(())
    }

    fn enter(&mut self, len: u32, ts: u64, flags: u8) -> Result<()> {
        let offset = self.meta.data_len as u32;
        encode_entry(&mut self.idx.buf, &IdxEntry { offset, len, ts, flags });
        self.meta.last_seq += 1;
        self.meta.data_len += u64::from(len);
        if self.data.buf.len() >= BUFFER {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether the segment has reached its full size.
    pub fn should_seal(&self) -> bool {
        self.meta.span() >= self.segs.options.max_events
            || self.meta.data_len >= self.segs.options.max_bytes
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = self.data.flush().and_then(|()| self.idx.flush());
        self.refused = flushed.as_ref().is_err_and(StorageError::is_shortage);
        flushed
    }

    /// Seals the segment: writes the footer of `.idx`, `.tags` and `.attrs`. No record may follow.
    /// Checks the index first, because the footer certifies it.
    pub fn seal(&mut self) -> Result<()> {
        let sealed = self.write_seal();
        self.refused = sealed.as_ref().is_err_and(StorageError::is_shortage);
        sealed
    }

    fn write_seal(&mut self) -> Result<()> {
        self.dirty = true;
        self.flush()?;
        let mut body = vec![0; entry_at(self.meta.span()) as usize];
        let io = |e| StorageError::io(show(&self.idx.path), e);
        self.idx.file.read_exact_at(&mut body, 0).map_err(io)?;
        let fresh = self.segs.is_fresh(self.meta.file_no);
        let this = self.segs.segment(self.topic, self.meta);
        if !fresh || !self.is_whole(&body) {
            let entries = this.entries(self.meta.first_seq, self.meta.last_seq)?;
            body.truncate(SIDE_HEADER);
            entries.iter().for_each(|e| encode_entry(&mut body, e));
            self.idx.file.write_all_at(&body, 0).map_err(io)?;
        }
        if self.meta.has_tags || self.meta.has_attrs {
            let (tags, attrs) = this.scan_side()?;
            let (first, no) = (self.meta.first_seq, self.meta.file_no);
            if self.meta.has_tags {
                self.write_side(FileKind::Tags, &encode_tags(&tags, first, self.salt, no))?;
            }
            if self.meta.has_attrs {
                let table = AttrsTable::new(attrs).encode(first, self.salt, no);
                self.write_side(FileKind::Attrs, &table)?;
            }
        }
        self.meta.sealed = true;
        let footer = encode_footer(&self.meta, self.salt, whole_sum(self.salt, &[&body]));
        self.idx.buf.extend_from_slice(&footer);
        self.flush()
    }

    /// Whether the index, read back, is a chain over the whole `.data`.
    fn is_whole(&self, body: &[u8]) -> bool {
        let entries = decode_entries(&body[SIDE_HEADER..]);
        debug_assert_eq!(body.len(), SIDE_HEADER + entries.len() * ENTRY);
        is_chain(&entries, Some(DATA_HEADER as u64), Some(self.meta.data_len))
    }

    fn write_side(&mut self, kind: FileKind, bytes: &[u8]) -> Result<()> {
        let name = self.meta.name(self.topic.topic_id);
        let path = self.segs.paths.segment(&name, kind);
        let io = |e| io_error(&path, e);
        let file = create_temp(&self.segs.env, &path).map_err(io)?;
        let written = file.write_all_at(bytes, 0).map_err(io);
        self.side.push(UnsyncedFile { file, name, kind, created: true });
        written
    }

    /// Flushes the buffers and hands the files to a round, which must sync them.
    pub(super) fn finish(&mut self) -> Result<(SegmentMeta, Vec<UnsyncedFile>)> {
        self.flush()?;
        self.dirty = false;
        if self.meta.sealed {
            self.segs.set_fresh(self.meta.file_no, false);
        }
        let mut files = std::mem::take(&mut self.side);
        let name = self.meta.name(self.topic.topic_id);
        for (out, kind) in [(&self.data, FileKind::Data), (&self.idx, FileKind::Idx)] {
            files.push(UnsyncedFile { file: out.file.clone(), name, kind, created: self.created });
        }
        Ok((self.meta, files))
    }

    pub(super) fn belongs_to(&self, segs: &Arc<Segments>) -> bool {
        Arc::ptr_eq(&self.segs, segs)
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.dirty {
            return;
        }
        // A lack of space or descriptors does not make earlier writes suspect.
        if !self.refused {
            self.segs.suspect(&[self.meta.file_no]);
        }
        if self.created {
            let name = self.meta.name(self.topic.topic_id);
            for kind in [FileKind::Data, FileKind::Idx] {
                self.segs.discard_file(&name, kind);
            }
            // A seal may have opened it for reading.
            self.segs.forget(self.meta.file_no);
        }
        for written in &self.side {
            self.segs.discard_file(&written.name, written.kind);
        }
        if self.created {
            // No round knows of the directory, which may be new: if the topic is deleted before it has
            // files, no trim looks for it.
            self.segs.remove_if_empty(self.topic.topic_id);
        }
    }
}
