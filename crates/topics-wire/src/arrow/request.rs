//! What a scan is asked for over HTTP.

use topics_engine::{NodeFilter, ReadFrom};

use super::{Columns, ScanRequest};
use crate::error::Failure;
use crate::json::{Place, Reader, Scanner};
use crate::read;
use crate::small::body;

/// Payload bytes of a batch: with its neighbours what one scan holds in memory.
const BATCH_BYTES: usize = 2 << 20;

/// `{from_seq?, to_seq?, columns?, node?, nodes?, match?, ts_from?, ts_to?, consistency?,
/// topic_id?, data_type?}`.
pub fn parse(bytes: &[u8]) -> Result<ScanRequest, Failure> {
    let mut r = ScanRequest { after: Some(0), batch_bytes: BATCH_BYTES, ..ScanRequest::default() };
    if bytes.is_empty() {
        return Ok(r);
    }
    body(bytes, |s, key| {
        match key {
            "from_seq" => {
                r.after = match read::from_seq(s)? {
                    ReadFrom::After(after) => Some(after),
                    _ => None,
                };
            }
            "to_seq" => r.upto = Some(s.u64(Place::field("to_seq"))?),
            "columns" => r.columns = columns(s)?,
            "node" => r.skip_nodes = read::nodes(s, "node")?,
            "nodes" => r.only_nodes = only(s)?,
            "match" => r.matching = Some(read::matching(s)?),
            "ts_from" => r.ts_from = Some(s.u64(Place::field("ts_from"))?),
            "ts_to" => r.ts_to = Some(s.u64(Place::field("ts_to"))?),
            "consistency" => r.strong = read::strong(&s.text(Place::field("consistency"))?)?,
            "topic_id" => r.topic_id = Some(s.u64(Place::field("topic_id"))?),
            "data_type" => r.binary = Some(binary(s)?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok(r)
}

fn columns(s: &mut Scanner<'_>) -> Result<Columns, Failure> {
    let mut all: Option<Columns> = None;
    s.must_be(Place::field("columns"), "an array of strings", |b| b == b'[')?;
    s.array(|s, index| {
        let place = Place { within: "columns", index: Some(index), field: "" };
        let name = s.text(place)?;
        let column = Columns::named(&name).ok_or_else(|| {
            place.refuse(format_args!("is {name:?}: there are {}", Columns::names()))
        })?;
        all = Some(all.map_or(column, |known| known.and(column)));
        Ok::<_, Failure>(())
    })?;
    all.ok_or_else(|| Place::field("columns").refuse("must not be empty"))
}

/// Nodes of which at least one is named: none would mean any.
fn only(s: &mut Scanner<'_>) -> Result<NodeFilter, Failure> {
    let nodes = read::nodes(s, "nodes")?;
    match nodes.0.is_empty() {
        true => Err(Place::field("nodes").refuse("must not be empty")),
        false => Ok(nodes),
    }
}

fn binary(s: &mut Scanner<'_>) -> Result<bool, Failure> {
    let place = Place::field("data_type");
    match s.text(place)?.as_ref() {
        "string" => Ok(false),
        "binary" => Ok(true),
        _ => Err(place.refuse("must be one of string, binary")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field() {
        let r = parse(
            br#"{"from_seq":7,"to_seq":9,"columns":["data","seq"],"node":"a","nodes":["b","c"],
            "match":["tag","Glob","x*"],"ts_from":1,"ts_to":2,"consistency":"strong","topic_id":3,
            "data_type":"binary","unknown":[]}"#,
        )
        .unwrap();
        assert_eq!((r.after, r.upto, r.topic_id), (Some(7), Some(9), Some(3)));
        assert_eq!((r.ts_from, r.ts_to, r.strong, r.binary), (Some(1), Some(2), true, Some(true)));
        assert_eq!(r.columns.positions().collect::<Vec<_>>(), [1, 6]);
        assert_eq!((r.skip_nodes.0.len(), r.only_nodes.0.len()), (1, 2));
        let r = parse(br#"{"from_seq":"earliest"}"#).unwrap();
        assert_eq!((r.after, r.columns), (None, Columns::ALL));
        assert_eq!(parse(b"").unwrap().after, Some(0));
    }

    #[test]
    fn refusals_name_the_field() {
        for (text, word) in [
            (r#"{"columns":["seq","date"]}"#, "columns[1]"),
            (r#"{"columns":[]}"#, "columns"),
            (r#"{"nodes":[]}"#, "nodes"),
            (r#"{"data_type":"json"}"#, "data_type"),
            (r#"{"ts_from":"now"}"#, "ts_from"),
            (r#"{"to_seq":-1}"#, "to_seq"),
        ] {
            let failure = parse(text.as_bytes()).unwrap_err();
            assert!(failure.message.contains(word), "{failure:?}");
        }
    }
}
