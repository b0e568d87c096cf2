//! Every site, with what notices its mutants, the quickest first.

use topics_env::Site;

use super::Detector::{self, Crash, Damage, Refuses, Rot, Second};

/// Sites that no workload can reach, by the beginning of their names, and why.
pub const UNREACHED: &[(&str, &str)] = &[
    ("segment.rebuild", "the engine never calls it: it makes a damaged index again in memory"),
    ("tier.", "the engine has no cold tier yet"),
];

/// Mutants that change nothing that any crash, fault or damage could show, and why.
pub const EQUIVALENT: &[(Site, bool, &str)] = &[
    (Site::SyncDir("dir.names"), true, FIRST),
    (Site::SyncDir("dir.root"), true, FIRST),
    (Site::SyncDir("dir.shard"), true, FIRST),
    (Site::SyncDir("store.file"), true, FIRST),
    (
        Site::Sync("wal.start"),
        true,
        "one call later is the group behind it, which is not acked yet; the sync covers that too",
    ),
];

/// Mutants that nothing here catches. May only shrink.
pub const OPEN: &[(Site, bool)] = &[
    (Site::SyncDir("recovery.retire"), false),
    (Site::SyncDir("recovery.retire"), true),
    (Site::Check("segment.idx-chain"), false),
    (Site::Check("segment.suspect"), false),
];

/// The directory is being made: whatever one call later is still before the first ack.
const FIRST: &str = "one call later nothing is acked yet, and a directory without acks may be lost";

/// Every site and its detectors.
pub const SITES: &[(Site, &[Detector])] = &[
    (Site::Sync("damaged.sync"), &[Rot("salvaged")]),
    (Site::Sync("dir.damaged"), &[Rot("copied")]),
    (Site::Sync("recovery.wal.sync"), &[Crash("crashes"), Crash("reopens"), Second("crashes")]),
    (Site::Sync("segment.attrs"), &[Crash("seals")]),
    (Site::Sync("segment.data"), &[Crash("checkpoints"), Crash("seals")]),
    (Site::Sync("segment.del"), &[Crash("deletes")]),
    (Site::Sync("segment.idx"), &[Crash("seals"), Crash("checkpoints")]),
    (Site::Sync("segment.tags"), &[Crash("seals")]),
    (Site::Sync("segment.sync-fs"), &[Crash("wide")]),
    (Site::Sync("snapshot.sync"), &[Crash("snapshots")]),
    (Site::Sync("store.file"), &[Crash("classes")]),
    (Site::Sync("wal.current.sync"), &[Crash("classes"), Crash("rotation")]),
    (Site::Sync("wal.file.sync"), &[Crash("rotation"), Crash("classes")]),
    (Site::Sync("wal.group"), &[Crash("classes")]),
    (Site::Sync("wal.start"), &[Crash("broken")]),
    (Site::SyncDir("damaged.dir"), &[Rot("salvaged")]),
    (Site::SyncDir("damaged.names"), &[Rot("salvaged")]),
    (Site::SyncDir("dir.names"), &[Crash("classes")]),
    (Site::SyncDir("dir.root"), &[Crash("classes")]),
    (Site::SyncDir("dir.shard"), &[Crash("classes"), Crash("shards")]),
    (Site::SyncDir("recovery.retire"), &[Crash("retired")]),
    (Site::SyncDir("recovery.wal.dir"), &[Crash("classes"), Crash("crashes")]),
    (Site::SyncDir("segment.dir"), &[Crash("checkpoints")]),
    (Site::SyncDir("segment.topics"), &[Crash("checkpoints")]),
    (Site::SyncDir("snapshot.dir"), &[Crash("snapshots"), Crash("checkpoints")]),
    (Site::SyncDir("store.file"), &[Crash("classes")]),
    (Site::SyncDir("wal.current.dir"), &[Crash("rotation"), Crash("classes")]),
    (Site::SyncDir("wal.file.dir"), &[Crash("rotation"), Crash("classes")]),
    (Site::Rename("recovery.wal.rename"), &[Crash("classes")]),
    (Site::Rename("snapshot.rename"), &[Crash("expiry")]),
    (Site::Rename("store.file"), &[Crash("classes")]),
    (Site::Rename("wal.current.rename"), &[Crash("rotation")]),
    (Site::Rename("wal.file.rename"), &[Crash("rotation")]),
    (Site::Check("checkpoint.frame"), &[Rot("copied")]),
    (Site::Check("checkpoint.synced"), &[Crash("checkpoints")]),
    (Site::Check("read.frame"), &[Rot("read")]),
    (Site::Check("recovery.batch"), &[Rot("half_batch")]),
    (Site::Check("recovery.chain"), &[Damage("missing_files", "wal")]),
    (Site::Check("recovery.current.missing"), &[Damage("missing_files", "wal")]),
    (Site::Check("recovery.current.stale"), &[Rot("stale")]),
    (Site::Check("recovery.layout"), &[Rot("missing_shard")]),
    (Site::Check("recovery.layout.first"), &[Rot("missing_first_shard")]),
    (Site::Check("recovery.prior"), &[Rot("prior")]),
    (Site::Check("recovery.torn"), &[Rot("proven")]),
    (Site::Check("recovery.void"), &[Crash("broken")]),
    (
        Site::Check("recovery.wal.identity"),
        &[Damage("swapped_files", "wal"), Damage("stale_files", "wal")],
    ),
    (Site::Check("segment.attrs"), &[Rot("verified")]),
    (Site::Check("segment.del"), &[Damage("bit_flips", ".del")]),
    (Site::Check("segment.frame"), &[Damage("bit_flips", ".data")]),
    (Site::Check("segment.header"), &[Damage("bit_flips", ".data")]),
    (Site::Check("segment.identity"), &[Damage("swapped_files", ".data")]),
    (Site::Check("segment.idx"), &[Damage("bit_flips", ".idx")]),
    (Site::Check("segment.idx-chain"), &[Damage("bit_flips", ".idx")]),
    (Site::Check("segment.length"), &[Refuses("truncations", ".data")]),
    (Site::Check("segment.named"), &[Refuses("missing_files", ".d")]),
    (
        Site::Check("segment.side-identity"),
        &[Damage("swapped_files", "seg-"), Damage("stale_files", "seg-")],
    ),
    (Site::Check("segment.suspect"), &[Crash("suspects")]),
    (Site::Check("segment.tags"), &[Damage("bit_flips", ".tags")]),
    (Site::Check("segment.tags-index"), &[Damage("bit_flips", ".tags")]),
    (Site::Check("snapshot.checksum"), &[Damage("bit_flips", "snapshot")]),
    (Site::Check("snapshot.number"), &[Rot("renumbered")]),
    (Site::Check("snapshot.store"), &[Rot("foreign")]),
    (Site::Check("store.checksum"), &[Refuses("bit_flips", "STORE")]),
    (Site::Check("store.no-data"), &[Refuses("missing_files", "STORE")]),
    (Site::Check("wal.current.checksum"), &[Refuses("bit_flips", "CURRENT")]),
    (Site::Check("wal.frame"), &[Damage("bit_flips", "wal-")]),
    (Site::Check("wal.header"), &[Rot("header")]),
    (Site::Check("wal.start"), &[Rot("start")]),
];
