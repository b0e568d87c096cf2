//! Crash points and survivals: the disks that a power cut can leave.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::clock::mix;
use super::disk::DiskImage;
use super::journal::{DiskState, Fate, Op, Pending};

/// How many random states are tried at each crash point, besides the systematic ones.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// Samples each of random sectors, of random pages and of random names.
    pub random: usize,
    /// Cuts at random bytes of a torn write, besides all its sectors.
    pub torn_bytes: usize,
    /// Up to this number of pending names, all subsets are tried.
    pub names: u32,
    /// Also try each pending call as the only survivor, and as the only loss.
    pub single: bool,
}

impl Default for CrashOptions {
    fn default() -> Self {
        Self { random: 2, torn_bytes: 2, names: 4, single: true }
    }
}

/// What happens to all pending bytes while subsets of names are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFate {
    /// They survive.
    Kept,
    /// They are lost, with their lengths.
    Lost,
    /// Lengths survive, the bytes are zero.
    LengthOnly,
}

/// Which un-synced calls survive a crash, and how much of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    DropAll,
    /// Everything.
    KeepAll,
    /// The first n calls.
    Prefix(usize),
    /// All but one call.
    AllBut(usize),
    /// Only one call.
    Only(usize),
    /// Names and lengths, no bytes.
    SizeBeforeData,
    /// Names and bytes below the durable lengths, no lengths.
    DataBeforeSize,
    /// Everything up to a byte of the last call, which is a write.
    Torn {
        /// The number of its bytes that survive.
        cut: usize,
        /// Whether the earlier calls survive.
        rest: bool,
        /// Whether its full length survives, with zeros after the cut.
        full_length: bool,
    },
    /// The names whose bit is set, counted over pending name changes.
    Names {
        /// One bit for each pending name change.
        mask: u64,
        /// What happens to the bytes.
        data: DataFate,
    },
    RandomNames {
        /// Seed of the choice of each name.
        seed: u64,
        /// What happens to the bytes.
        data: DataFate,
    },
    /// Random 512-byte sectors of each write, random lengths, random names.
    Sectors {
        /// Seed of the choices.
        seed: u64,
    },
    /// Random 4 KiB pages of each write, random lengths, random names.
    Pages {
        /// Seed of the choices.
        seed: u64,
    },
    /// The process is killed, and the write-back of its pages fails later; see
    /// [`SimFs::failed_write_back_image`](super::SimFs::failed_write_back_image).
    FailedWriteBack {
        /// Seed of the choice of each page; 0: no page survives.
        seed: u64,
    },
}

/// One disk that a crash can leave.
#[derive(Clone, Debug)]
pub struct CrashState {
    /// The crash happened after this many mutating calls (or, if torn, during the last of them).
    pub after_ops: usize,
    /// Which calls survived.
    pub survival: Survival,
    /// Whether the survival is a random sample; other survivals are enumerated.
    pub sampled: bool,
    pub image: DiskImage,
}

/// Iterates over the crash points of a journal.
///
/// The states of one crash point are distinct by hash. States of different crash points may be
/// equal and are checked again, because a later point may have acked more.
#[derive(Clone, Debug)]
pub struct CrashCursor {
    disk: DiskState,
    journal: Vec<Op>,
    at: usize,
    /// The boot number of the process that crashes.
    boot: u64,
    mount: u64,
}

const SECTOR: u64 = 512;

impl CrashCursor {
    pub(super) fn new(disk: DiskState, journal: Vec<Op>, boot: u64, mount: u64) -> Self {
        Self { disk, journal, at: 0, boot, mount }
    }

    /// The number of mutating calls before this crash point.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Moves to the next crash point; `false` at the end of the journal.
    pub fn advance(&mut self) -> bool {
        let Some(op) = self.journal.get(self.at) else { return false };
        self.disk.step(op);
        self.at += 1;
        true
    }

    /// Moves forward to the crash point immediately after the first `after_ops` calls.
    pub fn seek(&mut self, after_ops: usize) {
        while self.at < after_ops && self.advance() {}
    }

    /// The disk that this survival leaves at this crash point.
    pub fn image(&self, survival: Survival) -> DiskImage {
        let reference = self.image_after(Survival::KeepAll).tree.hash();
        let mut image = self.image_after(survival);
        image.lost = image.hash() != reference;
        image
    }

    /// The disk of [`Survival::FailedWriteBack`]; `None` if no page is un-synced at this point.
    pub fn failed_write_back(&self, seed: u64) -> Option<DiskImage> {
        DiskImage::with_failed_write_back(&self.disk, seed, (self.boot, self.mount))
    }

    fn image_after(&self, survival: Survival) -> DiskImage {
        if let Survival::FailedWriteBack { seed } = survival
            && let Some(image) = self.failed_write_back(seed)
        {
            return image;
        }
        let mut fates = self.fates(survival);
        self.disk.complete_names(&mut fates);
        let tree = self.disk.tree_after_crash(&fates);
        let (boot, mount) = (self.boot + 1, self.mount + 1);
        let (lost, unreported, unreported_fs) = (false, Arc::default(), false);
        DiskImage { tree, cache: None, boot, mount, lost, unreported, unreported_fs }
    }

    /// Visits every distinct state of this crash point. The order depends only on journal, seed and
    /// options.
    pub fn states(&self, seed: u64, options: &CrashOptions, visit: &mut dyn FnMut(CrashState)) {
        let kept = self.image_after(Survival::KeepAll);
        let reference = kept.hash();
        let mut met = BTreeSet::new();
        for survival in self.survivals(seed, options) {
            let mut image = self.image_after(survival);
            let hash = image.hash();
            if met.insert(hash) {
                image.lost = hash != reference;
                let sampled = self.is_sampled(survival);
                visit(CrashState { after_ops: self.at, survival, sampled, image });
            }
        }
    }

    /// Whether this survival is a random sample at this crash point.
    fn is_sampled(&self, survival: Survival) -> bool {
        match survival {
            Survival::RandomNames { .. } | Survival::Sectors { .. } | Survival::Pages { .. } => {
                true
            }
            Survival::Torn { cut, .. } => {
                let last = self.at.checked_sub(1).and_then(|i| self.journal.get(i));
                let Some(Op::Write { offset, .. }) = last else { return false };
                cut > 0 && !(offset + cut as u64).is_multiple_of(SECTOR)
            }
            _ => false,
        }
    }

    /// Every survival that is tried at this crash point.
    pub fn survivals(&self, seed: u64, options: &CrashOptions) -> Vec<Survival> {
        let n = self.disk.pending.len();
        let mut out = vec![Survival::DropAll, Survival::KeepAll];
        if n == 0 {
            return out;
        }
        out.extend([Survival::SizeBeforeData, Survival::DataBeforeSize]);
        out.extend((1..n).map(Survival::Prefix));
        if options.single {
            out.extend((0..n).flat_map(|i| [Survival::AllBut(i), Survival::Only(i)]));
        }
        let seed = mix(seed ^ mix(self.at as u64));
        self.torn(seed, options, &mut out);
        self.names(seed, options, &mut out);
        for i in 0..options.random as u64 {
            let seed = mix(seed ^ i);
            out.extend([Survival::Sectors { seed }, Survival::Pages { seed }]);
        }
        out
    }

    fn torn(&self, seed: u64, options: &CrashOptions, out: &mut Vec<Survival>) {
        let last = self.at.checked_sub(1).and_then(|i| self.journal.get(i));
        let Some(Op::Write { offset, data, .. }) = last else { return };
        let end = offset + data.len() as u64;
        let sectors = (offset / SECTOR + 1..end.div_ceil(SECTOR)).map(|s| s * SECTOR - offset);
        let bytes = (0..options.torn_bytes as u64).map(|i| mix(seed ^ mix(i)) % data.len() as u64);
        let cuts: BTreeSet<usize> =
            [0].into_iter().chain(sectors).chain(bytes).map(|c| c as usize).collect();
        for cut in cuts {
            for rest in [true, false] {
                out.push(Survival::Torn { cut, rest, full_length: false });
                out.push(Survival::Torn { cut, rest, full_length: true });
            }
        }
    }

    fn names(&self, seed: u64, options: &CrashOptions, out: &mut Vec<Survival>) {
        let names = self.disk.pending.iter().filter(|p| p.op.name_of().is_some()).count() as u32;
        let all_data = [DataFate::Kept, DataFate::Lost, DataFate::LengthOnly];
        if names <= options.names.min(16) {
            for mask in 0..1 << names {
                out.extend(all_data.map(|data| Survival::Names { mask, data }));
            }
        } else {
            // Each name alone lost or kept, with every fate of the bytes.
            let all = u64::MAX;
            for bit in (0..names.min(64)).map(|i| 1 << i) {
                for mask in [bit, all ^ bit] {
                    out.extend(all_data.map(|data| Survival::Names { mask, data }));
                }
            }
            for i in 0..options.random as u64 {
                let seed = mix(seed ^ mix(i));
                out.extend(all_data.map(|data| Survival::RandomNames { seed, data }));
            }
        }
    }

    fn fates(&self, survival: Survival) -> Vec<Fate> {
        let n = self.disk.pending.len();
        let mut name = 0;
        let fate = |(i, pending): (usize, &Pending)| {
            let is_name = pending.op.name_of().is_some();
            let nth_name = name;
            name += u64::from(is_name);
            let kept = |yes: bool| if yes { Fate::Keep } else { Fate::Drop };
            let coin = |seed: u64| kept(mix(seed ^ mix(nth_name ^ 0x6e61_6d65)) & 1 == 1);
            match survival {
                Survival::DropAll => Fate::Drop,
                Survival::FailedWriteBack { .. } => Fate::Length,
                Survival::KeepAll => Fate::Keep,
                Survival::Prefix(k) => kept(i < k),
                Survival::AllBut(k) => kept(i != k),
                Survival::Only(k) => kept(i == k),
                Survival::SizeBeforeData => Fate::Length,
                Survival::DataBeforeSize => Fate::Bytes,
                Survival::Torn { cut, full_length, .. } if i + 1 == n => {
                    Fate::Cut { bytes: cut, full_length }
                }
                Survival::Torn { rest, .. } => kept(rest),
                Survival::Names { mask, .. } if is_name => kept(mask >> nth_name.min(63) & 1 == 1),
                Survival::RandomNames { seed, .. } if is_name => coin(seed),
                Survival::Names { data, .. } | Survival::RandomNames { data, .. } => match data {
                    DataFate::Kept => Fate::Keep,
                    DataFate::Lost => Fate::Drop,
                    DataFate::LengthOnly => Fate::Length,
                },
                // Every other sample keeps all names, so that lost bytes are visible through a
                // name.
                Survival::Sectors { seed } | Survival::Pages { seed } if is_name => {
                    if mix(seed) & 1 == 0 { Fate::Keep } else { coin(seed) }
                }
                // Each call has its own block pattern; with a common one, several calls would
                // always lose the same blocks.
                Survival::Sectors { seed } => {
                    Fate::Blocks { size: SECTOR, seed: mix(seed ^ i as u64) }
                }
                Survival::Pages { seed } => Fate::Blocks { size: 4096, seed: mix(seed ^ i as u64) },
            }
        };
        self.disk.pending.iter().enumerate().map(fate).collect()
    }
}
