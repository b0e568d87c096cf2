//! An open segment: its files, the state of its index, its deleted records.

use std::path::Path;
use std::sync::{Arc, Weak};

use roaring::RoaringBitmap;
use topics_env::sync::{Mutex, OnceLock};
use topics_env::{File, OpenMode};

use super::cold::{ColdFile, no_store};
use super::index::{
    ENTRY, FOOTER, IDX_MAGIC, check_footer, decode_entries, entry_at, is_chain, whole_sum,
};
use super::layout::{DATA_HEADER, DataHeader, SIDE_HEADER, check_side_header, corrupt};
use super::scan::{ScanItem, rebuild_entries, scan, start};
use super::side::check_side;
use super::{AttrsTable, ColdFiles, FileKind, IdxEntry, SegmentMeta, Segments, TopicKey};
use crate::dir::show;
use crate::{Result, StorageError};

/// Reads until `buf` is full or the file ends; returns the number of bytes read.
pub fn read_up_to(file: &dyn File, buf: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// An I/O error; a missing file becomes [`StorageError::Missing`].
pub fn io_error(path: &Path, e: std::io::Error) -> StorageError {
    match e.kind() {
        std::io::ErrorKind::NotFound => StorageError::Missing { what: show(path) },
        _ => StorageError::io(show(path), e),
    }
}

/// The source of the bytes of a `.data`.
#[derive(Debug)]
enum Source {
    File(Arc<dyn File>),
    /// The file of the segment with this file number.
    Cold(Arc<dyn ColdFiles>, u64),
}

/// An opened `.data`.
#[derive(Debug)]
pub struct Data {
    source: Source,
    /// Its name in error messages.
    pub file: String,
    /// The salt in its header, or the error of a header that belongs to another segment or is
    /// damaged.
    pub salt: Result<u64>,
}

impl Data {
    fn open(segs: &Segments, topic: TopicKey, meta: &SegmentMeta) -> Result<Self> {
        if segs.is_closed() {
            return Err(StorageError::Closed);
        }
        let name = meta.data_name(topic.topic_id);
        let path = segs.paths.segment(&name, FileKind::Data);
        let file = show(&path);
        let source = match segs.env.fs.open(&path, OpenMode::Read) {
            Ok(source) => Source::File(source),
            Err(e) if meta.cold && e.kind() == std::io::ErrorKind::NotFound => {
                return Self::cold(segs, meta, file);
            }
            Err(e) => return Err(io_error(&path, e)),
        };
        let mut data = Self { source, file, salt: Ok(0) };
        data.salt = match data.header_salt(segs, topic, meta)? {
            Err(e @ StorageError::Version { .. }) => return Err(e),
            salt => salt,
        };
        Ok(data)
    }

    /// The salt in the header, if that is this segment's.
    fn header_salt(
        &self,
        segs: &Segments,
        topic: TopicKey,
        meta: &SegmentMeta,
    ) -> Result<Result<u64>> {
        let mut header = [0; DATA_HEADER];
        self.read(&mut header, 0)?;
        let want = segs.data_header(topic, meta.first_seq, meta.file_no, 0);
        Ok(DataHeader::check(&segs.env, &self.file, &header, &want))
    }

    /// The `.data` of a cold segment. Its header is not read: `.idx` has the salt, and a frame of
    /// another segment fails its checksum.
    fn cold(segs: &Segments, meta: &SegmentMeta, file: String) -> Result<Self> {
        let Some(cold) = segs.cold() else { return Err(no_store(&file)) };
        let salt = Err(corrupt(&file, 0, "its header is in the object store"));
        Ok(Self { source: Source::Cold(cold.clone(), meta.file_no), file, salt })
    }

    /// Reads into `buf`; fills zeros beyond the end of the file.
    pub fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        match &self.source {
            Source::File(source) => {
                let done = read_up_to(&**source, buf, at)
                    .map_err(|e| StorageError::io(self.file.clone(), e))?;
                buf[done..].fill(0);
                Ok(())
            }
            Source::Cold(cold, file_no) => cold.read(*file_no, FileKind::Data, at, buf),
        }
    }

    /// Whether bytes that fail their checksum are read again from the store.
    pub fn reads_again(&self, at: u64, len: u64) -> bool {
        match &self.source {
            Source::File(_) => false,
            Source::Cold(cold, file_no) => cold.distrust(*file_no, FileKind::Data, at, len),
        }
    }

    /// Whether a side file from the store that fails its checksum is fetched again.
    fn distrusts_file(&self, kind: FileKind, len: u64) -> bool {
        match &self.source {
            Source::File(_) => false,
            Source::Cold(cold, file_no) => cold.distrust(*file_no, kind, 0, len),
        }
    }

    /// A whole file of the segment from the store; `None` for a segment that is in the directory.
    pub fn cold_file(&self, kind: FileKind) -> Result<Option<ColdFile>> {
        match &self.source {
            Source::File(_) => Ok(None),
            Source::Cold(cold, file_no) => ColdFile::read(&**cold, *file_no, kind).map(Some),
        }
    }
}

/// The source of index entries.
#[derive(Clone, Debug)]
pub enum IndexView {
    File(Arc<dyn File>),
    Memory(Arc<Vec<IdxEntry>>),
}

/// An index, and the seq up to which its entries were checked.
#[derive(Clone, Debug)]
pub struct Index {
    pub view: IndexView,
    pub trusted_to: u64,
}

impl Index {
    /// Reads the entries `from..=to` by offset from the first; `false` if the file is shorter.
    pub fn load(
        &self,
        from: u64,
        to: u64,
        scratch: &mut Vec<u8>,
        out: &mut Vec<IdxEntry>,
    ) -> std::io::Result<bool> {
        out.clear();
        match &self.view {
            IndexView::Memory(entries) => {
                let part = entries.get(from as usize..=to as usize);
                out.extend_from_slice(part.unwrap_or_default());
                Ok(part.is_some())
            }
            IndexView::File(file) => {
                let len = (to + 1 - from) as usize * ENTRY;
                if scratch.len() < len {
                    scratch.resize(len, 0);
                }
                let bytes = &mut scratch[..len];
                let n = read_up_to(&**file, bytes, entry_at(from))?;
                out.extend(bytes.chunks_exact(ENTRY).map(super::index::decode_entry));
                Ok(n == len)
            }
        }
    }
}

#[derive(Debug)]
enum IndexState {
    No,
    Sealed,
    Active { to: u64 },
    Memory { entries: Arc<Vec<IdxEntry>>, to: u64 },
}

/// The `.idx` file with its salt; `None` if it is missing or its header is invalid.
#[derive(Debug)]
struct IndexFile {
    file: Option<(Arc<dyn File>, u64)>,
}

/// An open segment. One per file number, shared by all readers.
#[derive(Debug)]
pub struct OpenSegment {
    topic: TopicKey,
    side: OnceLock<IndexFile>,
    data: Mutex<Option<(u64, Arc<Data>)>>,
    checked: Mutex<IndexState>,
    pub deleted: Mutex<Option<(u64, Arc<RoaringBitmap>)>>,
    pub attrs: Mutex<Weak<AttrsTable>>,
}

impl OpenSegment {
    pub fn new(topic: TopicKey) -> Self {
        Self {
            topic,
            side: OnceLock::new(),
            data: Mutex::new(None),
            checked: Mutex::new(IndexState::No),
            deleted: Mutex::new(None),
            attrs: Mutex::new(Weak::new()),
        }
    }

    pub fn data(&self, segs: &Segments, meta: &SegmentMeta) -> Result<Arc<Data>> {
        let mut slot = self.data.lock();
        if let Some((no, data)) = &*slot
            && *no == meta.data_no
        {
            return Ok(data.clone());
        }
        let data = Arc::new(Data::open(segs, self.topic, meta)?);
        *slot = Some((meta.data_no, data.clone()));
        Ok(data)
    }

    pub fn idx_path(&self, segs: &Segments, meta: &SegmentMeta) -> std::path::PathBuf {
        segs.paths.segment(&meta.name(self.topic.topic_id), FileKind::Idx)
    }

    /// An `.idx`, a `.tags` or an `.attrs`, to read; `None`: there is none that can be used. A file that only
    /// the object store has is fetched, checked, and kept in the directory.
    pub fn side_file(
        &self,
        segs: &Segments,
        meta: &SegmentMeta,
        kind: FileKind,
    ) -> Result<Option<Arc<dyn File>>> {
        let path = segs.paths.segment(&meta.name(self.topic.topic_id), kind);
        match segs.env.fs.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            found => return found.map(Some).map_err(|e| StorageError::io(show(&path), e)),
        }
        if !meta.cold {
            return Ok(None);
        }
        let data = self.data(segs, meta)?;
        let check = |file: &ColdFile| {
            let salt = match kind {
                FileKind::Idx => self.cold_salt(segs, meta, file)?,
                _ => self.salt(segs, meta)?,
            };
            check_side(segs, self.topic, meta, kind, (file, salt))
        };
        loop {
            let Some(file) = data.cold_file(kind)? else { return Ok(None) };
            match check(&file) {
                Err(StorageError::Corrupt { .. }) => {
                    if !data.distrusts_file(kind, file.bytes().len() as u64) {
                        return Ok(None);
                    }
                }
                checked => return checked.map(|()| Some(segs.keep_side(&path, file))),
            }
        }
    }

    fn side(&self, segs: &Segments, meta: &SegmentMeta) -> Result<&IndexFile> {
        if let Some(side) = self.side.get() {
            return Ok(side);
        }
        let path = self.idx_path(segs, meta);
        let Some(file) = self.side_file(segs, meta, FileKind::Idx)? else {
            return Ok(self.side.get_or_init(|| IndexFile { file: None }));
        };
        let mut header = [0; SIDE_HEADER];
        let n = read_up_to(&*file, &mut header, 0).map_err(|e| io_error(&path, e))?;
        let salt =
            check_side_header(&segs.env, &show(&path), &header[..n], IDX_MAGIC, meta.file_no);
        let file = match salt {
            Ok(salt) => Some((file, salt)),
            Err(e @ StorageError::Version { .. }) => return Err(e),
            Err(e) => {
                log::warn!("{e}");
                None
            }
        };
        Ok(self.side.get_or_init(|| IndexFile { file }))
    }

    /// The salt of the segment, from `.idx` if that is valid, else from `.data`.
    pub fn salt(&self, segs: &Segments, meta: &SegmentMeta) -> Result<u64> {
        match &self.side(segs, meta)?.file {
            Some((_, salt)) => Ok(*salt),
            None => self.data_and_salt(segs, meta).map(|(_, salt)| salt),
        }
    }

    /// `.data` and the salt that checks its frames. A `.data` of another segment is an error; if only its
    /// header is damaged, the salt comes from `.idx`.
    pub fn data_and_salt(&self, segs: &Segments, meta: &SegmentMeta) -> Result<(Arc<Data>, u64)> {
        let data = self.data(segs, meta)?;
        let side = self.side(segs, meta)?.file.as_ref().map(|(_, salt)| *salt);
        match (&data.salt, side) {
            (Ok(salt), _) => Ok((data.clone(), *salt)),
            (Err(_), Some(salt)) => Ok((data, salt)),
            (Err(e), None) => match data.cold_file(FileKind::Idx)? {
                Some(idx) => {
                    let salt = match self.cold_salt(segs, meta, &idx) {
                        Err(StorageError::Corrupt { .. }) => {
                            data.header_salt(segs, self.topic, meta)??
                        }
                        found => found?,
                    };
                    Ok((data, salt))
                }
                None => Err(e.clone()),
            },
        }
    }

    /// The index, checked at least up to `trust`; rebuilt from `.data` if it is damaged.
    pub fn index(&self, segs: &Segments, meta: &SegmentMeta, trust: u64) -> Result<Index> {
        let mut checked = self.checked.lock();
        let side = self.side(segs, meta)?;
        match (&*checked, &side.file) {
            (IndexState::Memory { entries, to }, _) if *to >= meta.last_seq => {
                let view = IndexView::Memory(entries.clone());
                return Ok(Index { view, trusted_to: u64::MAX });
            }
            (IndexState::Sealed, Some((file, _))) => {
                let view = IndexView::File(file.clone());
                return Ok(Index { view, trusted_to: u64::MAX });
            }
            (IndexState::No | IndexState::Active { .. }, Some((file, salt)))
                if self.is_of_data(segs, meta, *salt)? =>
            {
                let from = if let IndexState::Active { to } = *checked { Some(to) } else { None };
                if let Some(now) = self.check_file(segs, meta, &**file, *salt, from, trust)? {
                    let trusted_to = match now {
                        IndexState::Active { to } => to,
                        _ => u64::MAX,
                    };
                    *checked = now;
                    return Ok(Index { view: IndexView::File(file.clone()), trusted_to });
                }
            }
            _ => {}
        }
        let (data, salt) = self.data_and_salt(segs, meta)?;
        let entries = match data.cold_file(FileKind::Idx)? {
            Some(idx) => match self.cold_entries(segs, meta, &data, &idx, salt) {
                // The object was written with it.
                Err(StorageError::Corrupt { .. }) => rebuild_entries(&data, salt, meta)?,
                found => found?,
            },
            None => rebuild_entries(&data, salt, meta)?,
        };
        let entries = Arc::new(entries);
        segs.count_rebuilt(&corrupt(&show(&self.idx_path(segs, meta)), 0, "it cannot be used"));
        *checked = IndexState::Memory { entries: entries.clone(), to: meta.last_seq };
        Ok(Index { view: IndexView::Memory(entries), trusted_to: u64::MAX })
    }

    /// The salt in the `.idx` of a cold segment, from the store.
    fn cold_salt(&self, segs: &Segments, meta: &SegmentMeta, idx: &ColdFile) -> Result<u64> {
        let name = show(&self.idx_path(segs, meta));
        let header = idx.bytes().get(..SIDE_HEADER).unwrap_or(idx.bytes());
        check_side_header(&segs.env, &name, header, IDX_MAGIC, meta.file_no)
    }

    /// The index of a cold segment, from the store.
    fn cold_entries(
        &self,
        segs: &Segments,
        meta: &SegmentMeta,
        data: &Data,
        idx: &ColdFile,
        salt: u64,
    ) -> Result<Vec<IdxEntry>> {
        if let Err(e) = check_sealed(segs, &self.idx_path(segs, meta), meta, idx, salt) {
            if data.distrusts_file(FileKind::Idx, idx.bytes().len() as u64) {
                return data.cold_file(FileKind::Idx).and(Err(e));
            }
            return Err(e);
        }
        let end = entry_at(meta.span()) as usize;
        Ok(decode_entries(idx.bytes().get(SIDE_HEADER..end).unwrap_or_default()))
    }

    /// Whether an `.idx` with this salt belongs to the `.data`. True if the header of `.data` is
    /// damaged: then the frames decide.
    fn is_of_data(&self, segs: &Segments, meta: &SegmentMeta, salt: u64) -> Result<bool> {
        Ok(meta.cold
            || self.data(segs, meta)?.salt.as_ref().is_ok_and(|s| *s == salt)
            || self.data(segs, meta)?.salt.is_err())
    }

    /// Checks the file as the index of `meta`; `None` if it is damaged.
    fn check_file(
        &self,
        segs: &Segments,
        meta: &SegmentMeta,
        file: &dyn File,
        salt: u64,
        checked_to: Option<u64>,
        trust: u64,
    ) -> Result<Option<IndexState>> {
        if meta.sealed {
            return match check_sealed(segs, &self.idx_path(segs, meta), meta, file, salt) {
                Ok(()) => Ok(Some(IndexState::Sealed)),
                Err(e @ StorageError::Corrupt { .. }) => {
                    log::warn!("{e}");
                    Ok(None)
                }
                Err(e) => Err(e),
            };
        }
        if segs.is_fresh(meta.file_no) {
            return Ok(Some(IndexState::Active { to: meta.last_seq }));
        }
        let to = checked_to.unwrap_or(meta.first_seq.saturating_sub(1));
        if trust <= to {
            return Ok(Some(IndexState::Active { to }));
        }
        let good = self.check_active(segs, meta, file, to)?;
        Ok(good.then_some(IndexState::Active { to: meta.last_seq }))
    }

    /// Compares the entries of an active `.idx` above `to` with the frames.
    fn check_active(
        &self,
        segs: &Segments,
        meta: &SegmentMeta,
        file: &dyn File,
        to: u64,
    ) -> Result<bool> {
        let path = self.idx_path(segs, meta);
        let first = to + 1 - meta.first_seq;
        let skip = first.saturating_sub(1);
        let mut bytes = vec![0; (meta.span() - skip) as usize * ENTRY];
        let n = read_up_to(file, &mut bytes, entry_at(skip)).map_err(|e| io_error(&path, e))?;
        let entries = decode_entries(&bytes[..n]);
        let begin = (skip == 0).then_some(DATA_HEADER as u64);
        if n != bytes.len() || !is_chain(&entries, begin, Some(meta.data_len)) {
            return Ok(false);
        }
        let place = match entries.first() {
            Some(e) if first > 0 => (u64::from(e.offset) + u64::from(e.len), to + 1),
            _ => start(meta),
        };
        let (data, salt) = self.data_and_salt(segs, meta)?;
        let mut good = true;
        scan(&data, salt, meta, place, |found| {
            if let ScanItem::Record(seq, offset, frame) = found {
                let e = entries[(seq - meta.first_seq - skip) as usize];
                good &= e.offset == offset
                    && e.len as usize == frame.len()
                    && e.ts == super::layout::frame_ts(frame)
                    && e.flags == frame[4];
            }
            Ok(())
        })?;
        Ok(good)
    }
}

/// Checks header, footer and checksum of a sealed `.idx`.
pub(super) fn check_sealed(
    segs: &Segments,
    path: &Path,
    meta: &SegmentMeta,
    file: &dyn File,
    salt: u64,
) -> Result<()> {
    let name = show(path);
    let body = entry_at(meta.span()) as usize;
    let io = |e| StorageError::io(name.clone(), e);
    if file.len().map_err(io)? < (body + FOOTER) as u64 {
        return Err(corrupt(&name, body as u64, "shorter than named"));
    }
    let mut bytes = vec![0; body + FOOTER];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    let (body, footer) = bytes.split_at(body);
    let whole = check_footer(&name, footer, salt, meta)?;
    if !segs.env.check("segment.idx", whole_sum(salt, &[body]) == whole) {
        return Err(corrupt(&name, SIDE_HEADER as u64, "the checksum of the index does not match"));
    }
    Ok(())
}
