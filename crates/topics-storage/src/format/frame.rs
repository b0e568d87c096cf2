//! The frame.
/// Frame types.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// A record.
    Append = 1,
}
/// Frame flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(pub u8);
impl Flags {
    /// Has a tag.
    pub const HAS_TAG: u8 = 1;
    /// Has a node.
    pub const HAS_NODE: u8 = 2;
    /// Durable.
    pub const DURABLE: u8 = 4;
    /// More of the batch follows.
    pub const BATCH_MORE: u8 = 8;
    /// Has meta.
    pub const HAS_META: u8 = 16;
    /// Binary data.
    pub const BINARY: u8 = 32;
    /// Has attributes.
    pub const HAS_ATTRS: u8 = 64;
}
/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Type.
    pub kind: FrameType,
    /// Flags.
    pub flags: Flags,
    /// Topic.
    pub topic_id: u64,
    /// Seq.
    pub seq: u64,
    /// Time.
    pub ts: u64,
    /// Node.
    pub node: &'a [u8],
    /// Tag.
    pub tag: &'a [u8],
    /// Attributes.
    pub attrs: &'a [u8],
    /// Meta.
    pub meta: &'a [u8],
    /// Data.
    pub data: &'a [u8],
}
impl Frame<'_> {
    /// data + meta + tag + node + attributes.
    pub fn payload_bytes(&self) -> u64 {
        (self.node.len() + self.tag.len() + self.attrs.len() + self.meta.len() + self.data.len())
            as u64
    }
}
