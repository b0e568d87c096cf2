//! The words of requests and answers, each with its value.

use arrow_ipc::CompressionType;
use topics_engine::{
    ConsumerMode, ConsumerStart, Discard, Durability, Guarantee, JobState, TopicType,
};

/// Words, each with its value.
pub type Words<T> = [(&'static str, T)];

/// The words of these values.
macro_rules! words {
    ($type:ident: $($value:ident),+) => {
        [$(($type::$value.as_str(), $type::$value)),+]
    };
}

/// The types of a topic.
pub const TYPES: [(&str, TopicType); 2] = words!(TopicType: Log, Queue);

/// What a full topic does.
pub const DISCARDS: [(&str, Discard); 2] = words!(Discard: Old, Reject);

/// The durability classes.
pub const DURABILITIES: [(&str, Durability); 4] =
    words!(Durability: Ephemeral, Memory, Disk, Fsync);

/// Whether a request is about synced records only.
pub const CONSISTENCIES: [(&str, bool); 2] = [("eventual", false), ("strong", true)];

/// Whether `data` is binary.
pub const DATA_TYPES: [(&str, bool); 2] = [("string", false), ("binary", true)];

/// The codecs of the buffers of an Arrow stream.
pub const COMPRESSIONS: [(&str, CompressionType); 2] =
    [("lz4", CompressionType::LZ4_FRAME), ("zstd", CompressionType::ZSTD)];

/// The states of a job.
pub const JOB_STATES: [(&str, JobState); 4] = words!(JobState: Ready, Leased, Delayed, Dead);

/// The modes of a consumer.
pub const MODES: [(&str, ConsumerMode); 2] = words!(ConsumerMode: AtLeastOnce, AtMostOnce);

/// The ends of a topic.
pub const ENDS: [(&str, ConsumerStart); 2] =
    [("start", ConsumerStart::Start), ("end", ConsumerStart::End)];

/// The guarantees of a router.
pub const GUARANTEES: [(&str, Guarantee); 2] = words!(Guarantee: AtLeastOnce, ExactlyOnce);

/// The words of a table.
pub(crate) const fn of<T: Copy, const N: usize>(
    table: &[(&'static str, T); N],
) -> [&'static str; N] {
    let (mut found, mut n) = ([""; N], 0);
    while n < N {
        found[n] = table[n].0;
        n += 1;
    }
    found
}
