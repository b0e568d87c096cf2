//! Every site, with what notices its mutants, the quickest first.

use topics_env::Site;

use super::Detector::{self, Crash, Damage, Fault, Second};

/// Sites that no workload can reach, by the beginning of their names, and why.
pub const UNREACHED: &[(&str, &str)] = &[("tier.", "the engine has no cold tier yet")];

/// Mutants that change nothing that any crash, fault or damage could show, and why.
pub const EQUIVALENT: &[(Site, bool, &str)] = &[];

/// Every site and its detectors.
pub const SITES: &[(Site, &[Detector])] = &[
    (Site::Sync("dir.damaged"), &[]),
    (Site::Sync("recovery.wal.sync"), &[Crash("crashes"), Crash("reopens"), Second("crashes")]),
    (Site::Sync("segment.attrs"), &[Crash("seals")]),
    (Site::Sync("segment.data"), &[Crash("checkpoints"), Crash("seals")]),
    (Site::Sync("segment.del"), &[Crash("deletes")]),
    (Site::Sync("segment.idx"), &[Crash("seals"), Crash("checkpoints")]),
    (Site::Sync("segment.tags"), &[Crash("seals")]),
    (Site::Sync("segment.rebuild"), &[]),
    (Site::Sync("segment.sync-fs"), &[Crash("wide")]),
    (Site::Sync("snapshot.sync"), &[Crash("snapshots")]),
    (Site::Sync("store.file"), &[Crash("classes")]),
    (Site::Sync("wal.current.sync"), &[Crash("classes"), Crash("rotation")]),
    (Site::Sync("wal.file.sync"), &[Crash("rotation"), Crash("classes")]),
    (Site::Sync("wal.group"), &[Crash("classes")]),
    (Site::Sync("wal.start"), &[Crash("no_space")]),
    (Site::SyncDir("dir.names"), &[Crash("classes")]),
    (Site::SyncDir("dir.root"), &[Crash("classes")]),
    (Site::SyncDir("dir.shard"), &[Crash("classes"), Crash("shards")]),
    (Site::SyncDir("recovery.retire"), &[Crash("resharding")]),
    (Site::SyncDir("recovery.wal.dir"), &[Crash("classes"), Crash("crashes")]),
    (Site::SyncDir("segment.dir"), &[Crash("checkpoints")]),
    (Site::SyncDir("segment.topics"), &[Crash("checkpoints")]),
    (Site::SyncDir("segment.rebuild"), &[]),
    (Site::SyncDir("snapshot.dir"), &[Crash("snapshots"), Crash("checkpoints")]),
    (Site::SyncDir("store.file"), &[Crash("classes")]),
    (Site::SyncDir("wal.current.dir"), &[Crash("rotation"), Crash("classes")]),
    (Site::SyncDir("wal.file.dir"), &[Crash("rotation"), Crash("classes")]),
    (Site::Rename("recovery.wal.rename"), &[Crash("classes")]),
    (Site::Rename("segment.rebuild"), &[]),
    (Site::Rename("snapshot.rename"), &[Crash("snapshots")]),
    (Site::Rename("store.file"), &[Crash("classes")]),
    (Site::Rename("wal.current.rename"), &[Crash("rotation")]),
    (Site::Rename("wal.file.rename"), &[Crash("rotation")]),
    (Site::Check("checkpoint.frame"), &[]),
    (Site::Check("checkpoint.synced"), &[Crash("checkpoints")]),
    (Site::Check("read.frame"), &[]),
    (Site::Check("recovery.batch"), &[Crash("batches"), Crash("classes")]),
    (Site::Check("recovery.chain"), &[Damage("missing_files", "wal")]),
    (Site::Check("recovery.current.missing"), &[Damage("missing_files", "wal")]),
    (Site::Check("recovery.current.stale"), &[Damage("stale_files", "wal")]),
    (Site::Check("recovery.layout"), &[Crash("resharding"), Damage("missing_files", "wal")]),
    (Site::Check("recovery.layout.first"), &[Crash("resharding"), Damage("missing_files", "wal")]),
    (Site::Check("recovery.prior"), &[Damage("missing_files", "wal")]),
    (Site::Check("recovery.torn"), &[Damage("zeroed_sectors", "wal")]),
    (Site::Check("recovery.void"), &[Crash("no_space")]),
    (
        Site::Check("recovery.wal.identity"),
        &[Damage("swapped_files", "wal"), Damage("stale_files", "wal")],
    ),
    (Site::Check("segment.attrs"), &[Damage("bit_flips", ".attrs")]),
    (Site::Check("segment.del"), &[Damage("bit_flips", ".del")]),
    (Site::Check("segment.frame"), &[Damage("bit_flips", ".data")]),
    (Site::Check("segment.header"), &[Damage("bit_flips", ".data")]),
    (Site::Check("segment.identity"), &[Damage("swapped_files", ".data")]),
    (Site::Check("segment.idx"), &[Damage("bit_flips", ".idx")]),
    (Site::Check("segment.idx-chain"), &[Damage("bit_flips", ".idx")]),
    (Site::Check("segment.length"), &[Damage("truncations", ".data")]),
    (Site::Check("segment.named"), &[Damage("missing_files", ".d")]),
    (
        Site::Check("segment.side-identity"),
        &[Damage("swapped_files", "seg-"), Damage("stale_files", "seg-")],
    ),
    (Site::Check("segment.suspect"), &[Fault("checkpoints")]),
    (Site::Check("segment.tags"), &[Damage("bit_flips", ".tags")]),
    (Site::Check("segment.tags-index"), &[Damage("bit_flips", ".tags")]),
    (Site::Check("snapshot.checksum"), &[Damage("bit_flips", "snapshot")]),
    (
        Site::Check("snapshot.number"),
        &[Damage("swapped_files", "snapshot"), Damage("stale_files", "snapshot")],
    ),
    (
        Site::Check("snapshot.store"),
        &[Damage("swapped_files", "snapshot"), Damage("stale_files", "snapshot")],
    ),
    (Site::Check("store.checksum"), &[Damage("bit_flips", "STORE")]),
    (Site::Check("store.no-data"), &[Damage("missing_files", "STORE")]),
    (Site::Check("wal.current.checksum"), &[Damage("bit_flips", "CURRENT")]),
    (Site::Check("wal.frame"), &[Damage("bit_flips", "wal-")]),
    (Site::Check("wal.header"), &[Damage("bit_flips", "wal-")]),
    (Site::Check("wal.start"), &[Damage("bit_flips", "wal-")]),
];
