//! Adds the trace context of a request to the records that it writes.

use std::borrow::Cow;

use super::{Record, Write};
use crate::json::{DATA_DEPTH, Scanner, Text};
use crate::limits::{Limits, META_KEYS};
use crate::trace::{TRACE_KEYS, TraceContext};

impl<'a> Write<'a> {
    /// Adds the trace context of the request to the records that have none.
    pub fn add_trace_context(&mut self, trace: &'a TraceContext, limits: &Limits) {
        for record in &mut self.records {
            record.add_trace_context(trace, limits);
        }
    }
}

impl<'a> Record<'a> {
    /// Adds the trace context of the request to `meta`. A record with a context of its own keeps it, and
    /// one that would exceed a limit with it is stored without it.
    fn add_trace_context(&mut self, trace: &'a TraceContext, limits: &Limits) {
        let meta: Cow<'a, str> = if self.meta.is_empty() {
            trace.as_meta().into()
        } else {
            let Some(open) = self.meta.strip_suffix('}') else { return };
            if own_keys(&self.meta).is_none_or(|keys| keys + trace.keys() > META_KEYS) {
                return;
            }
            format!("{open},{}}}", trace.members()).into()
        };
        let fits = |size: usize, max: usize| max == 0 || size <= max;
        if fits(meta.len(), limits.meta_bytes)
            && fits(self.data.len() + meta.len(), limits.record_bytes)
        {
            self.meta = meta;
        }
    }
}

/// The number of keys of a checked, non-empty `meta`; `None` if it has a trace context.
fn own_keys(meta: &str) -> Option<usize> {
    let (mut keys, mut has_context) = (0, false);
    let mut s = Scanner::at_depth(meta, DATA_DEPTH);
    s.object(|s, key: Text<'_>| {
        keys += 1;
        has_context |= key.decode().is_none_or(|name| TRACE_KEYS.contains(&&*name));
        s.skip()
    })
    .ok()?;
    (keys > 0 && !has_context).then_some(keys)
}
