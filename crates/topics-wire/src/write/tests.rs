use super::*;
use crate::TraceContext;

fn parse_json(body: &str) -> Result<Write<'_>, Failure> {
    parse(Body::Json, body.as_bytes(), &Query::new(b""), b"", &Limits::default())
}

fn refused(body: &str) -> Failure {
    parse_json(body).unwrap_err()
}

#[test]
fn every_field() {
    let w = parse_json(
        r#" {"records":[{"data": {"a": [1, 2.50]} ,"tag":"t","node":"n","meta":{"k":"v"},"ttl_ms":5},
            {"data_b64":"/wA="}],"node":"N","idempotency_key":"k","expect_head":7,
            "sync":true,"create":false,"config":{"cap_records":9},
            "disable_backpressure":true} "#,
    )
    .unwrap();
    w.with_append(|a| {
        let first = a.records[0];
        // Byte for byte, with inner whitespace, without surrounding whitespace.
        assert_eq!(first.data, br#"{"a": [1, 2.50]}"#);
        assert_eq!((first.tag, first.node, first.binary), (&b"t"[..], &b"n"[..], false));
        assert_eq!((first.meta, first.ttl_ms), (&br#"{"k":"v"}"#[..], 5));
        let second = a.records[1];
        assert_eq!((second.data, second.binary), (&b"\xff\x00"[..], true));
        assert_eq!((a.node, a.key, a.expect_head), (&b"N"[..], &b"k"[..], Some(7)));
        assert_eq!((a.sync, a.create, a.disable_backpressure), (true, Some(false), true));
        assert_eq!(a.config.unwrap().cap_records, Some(9));
    });
}

#[test]
fn defaults() {
    let w = parse_json(r#"{"records":[{"data":null}]}"#).unwrap();
    w.with_append(|a| {
        assert_eq!(a.records[0].data, b"null");
        assert!(a.key.is_empty() && a.node.is_empty() && a.expect_head.is_none());
        assert!(!a.sync && a.create.is_none() && a.config.is_none() && !a.disable_backpressure);
    });
}

#[test]
fn seqs_are_listed_unless_the_client_declines() {
    let body = br#"{"records":[{"data":1}]}"#;
    let listed = |query: &'static [u8]| {
        parse(Body::Json, body, &Query::new(query), b"", &Limits::default()).unwrap().return_seqs
    };
    assert!(listed(b"") && listed(b"return_seqs") && listed(b"return_seqs=true"));
    assert!(!listed(b"return_seqs=false") && !listed(b"return_seqs=0"));
    let lines = parse(Body::Ndjson, b"1", &Query::new(b""), b"", &Limits::default()).unwrap();
    assert!(lines.return_seqs);
    let publish = |more: &str| {
        let text = format!(r#"{{"op":"publish","topic":"t","records":[{{"data":1}}]{more}}}"#);
        parse_publish(text.as_bytes(), &Limits::default()).unwrap().return_seqs
    };
    assert!(publish("") && publish(r#","return_seqs":null"#));
    assert!(!publish(r#","return_seqs":false"#));
}

#[test]
fn an_empty_tag_or_node_is_absent() {
    let w = parse_json(r#"{"records":[{"data":1,"tag":"","node":"","meta":{}}],"node":""}"#);
    w.unwrap().with_append(|a| {
        let r = a.records[0];
        assert!(r.tag.is_empty() && r.node.is_empty() && r.meta.is_empty() && a.node.is_empty());
    });
}

#[test]
fn null_is_as_if_the_field_were_absent() {
    let w = parse_json(
        r#"{"records":[{"data":1,"data_b64":null,"tag":null,"node":null,"meta":null,"ttl_ms":null,
            "lane":null,"group":null,"delay_ms":null,"deliver_at":null}],"node":null,
            "idempotency_key":null,"expect_head":null,"sync":null,"create":null,"config":null,
            "disable_backpressure":null}"#,
    )
    .unwrap();
    w.with_append(|a| {
        let r = a.records[0];
        assert!(r.tag.is_empty() && r.node.is_empty() && r.meta.is_empty() && r.group.is_empty());
        assert_eq!((r.ttl_ms, r.lane, r.delay_ms, r.deliver_at), (0, None, 0, 0));
        assert!(a.key.is_empty() && a.node.is_empty() && a.expect_head.is_none());
        assert!(!a.sync && a.create.is_none() && a.config.is_none() && !a.disable_backpressure);
    });
    assert_eq!(refused(r#"{"records":null}"#).message, "records is missing");
}

#[test]
fn unknown_fields_are_refused_with_the_nearest() {
    for (body, says) in [
        (r#"{"idempotency_kye":"k"}"#, "`idempotency_kye`; did you mean `idempotency_key`?"),
        (r#"{"return_seqs":true}"#, "`return_seqs`; expected one of config,"),
        (r#"{"records":[{},{"tga":1}]}"#, "`records[1].tga`; did you mean `tag`?"),
        (r#"{"records":[],"config":{"ttlms":1}}"#, "`config.ttlms`; did you mean `ttl_ms`?"),
    ] {
        // The refusal names the first unknown field.
        let body = body.replace("[{},", r#"[{"data":1},"#);
        let message = refused(&body).message;
        assert!(message.starts_with("unknown ") && message.contains(says), "{message}");
    }
    let publish = br#"{"op":"publish","request_id":"r","topic":"t","records":[{"data":1}],
        "return_seqs":true}"#;
    assert!(parse_publish(publish, &Limits::default()).unwrap().return_seqs);
}

#[test]
fn what_json_says_itself_is_not_in_the_query() {
    let body = br#"{"records":[{"data":1}]}"#;
    for query in [&b"key=k"[..], b"tag=t", b"node=n", b"key"] {
        let failure = parse(Body::Json, body, &Query::new(query), b"", &Limits::default());
        assert!(failure.unwrap_err().message.contains("use the field"));
        assert!(parse(Body::Binary, body, &Query::new(query), b"", &Limits::default()).is_ok());
    }
}

#[test]
fn escapes_in_names_and_values() {
    let w = parse_json(r#"{"r\u0065cords":[{"d\u0061ta":"\u0041","tag":"\u0041\n"}]}"#).unwrap();
    w.with_append(|a| {
        assert_eq!(a.records[0].data, br#""\u0041""#);
        assert_eq!(a.records[0].tag, b"A\n");
    });
}

#[test]
fn of_a_repeated_field_the_last_counts() {
    let w = parse_json(r#"{"records":[{"data":1},{"data":2}],"records":[{"data":3,"data":4}]}"#);
    w.unwrap().with_append(|a| {
        assert_eq!(a.records.len(), 1);
        assert_eq!(a.records[0].data, b"4");
    });
}

#[test]
fn the_key_of_the_body_wins() {
    let key = |body: &str| {
        let q = Query::new(b"");
        let w = parse(Body::Json, body.as_bytes(), &q, b"header", &Limits::default());
        w.unwrap().with_append(|a| a.key.to_vec())
    };
    assert_eq!(key(r#"{"records":[{"data":1}]}"#), b"header");
    assert_eq!(key(r#"{"records":[{"data":1}],"idempotency_key":"body"}"#), b"body");
}

#[test]
fn a_wrong_type_names_the_field_and_the_record() {
    let rows = [
        ("tag", "1", "a string"),
        ("node", "{}", "a string"),
        ("meta", "[]", "an object of strings"),
        ("meta", r#"{"a":1}"#, "an object of strings"),
        ("ttl_ms", "\"1\"", "an integer of at least 0"),
        ("ttl_ms", "-1", "an integer of at least 0"),
        ("ttl_ms", "1.5", "an integer of at least 0"),
        ("ttl_ms", "18446744073709551616", "an integer of at least 0"),
        ("data_b64", "1", "a string"),
        ("delay_ms", "\"1\"", "an integer of at least 0"),
        ("deliver_at", "true", "an integer of at least 0"),
        ("group", "1", "a string"),
        ("lane", "[]", "an integer of at least 0"),
    ];
    for (field, value, wanted) in rows {
        let failure = refused(&format!(r#"{{"records":[{{"data":1}},{{"{field}":{value}}}]}}"#));
        assert_eq!(failure.code, "invalid_request");
        let start = format!("records[1].{field} must be {wanted}, not ");
        assert!(failure.message.starts_with(&start), "{}", failure.message);
        let detail: serde_json::Value = serde_json::from_str(&failure.detail.unwrap()).unwrap();
        assert_eq!(detail, serde_json::json!({"field": field, "index": 1}));
    }
    for (field, value) in [
        ("node", "1"),
        ("idempotency_key", "1"),
        ("expect_head", "\"1\""),
        ("sync", "1"),
        ("create", "0"),
        ("config", "[]"),
        ("disable_backpressure", "\"true\""),
        ("records", "{}"),
    ] {
        let failure = refused(&format!(r#"{{"records":[{{"data":1}}],"{field}":{value}}}"#));
        assert!(failure.message.starts_with(&format!("{field} must be ")), "{}", failure.message);
    }
    assert!(refused(r#"{"records":[1]}"#).message.starts_with("records[0] must be an object"));
    let nested = refused(r#"{"records":[{"data":1}],"config":{"ttl_ms":"x"}}"#);
    assert!(nested.message.starts_with("config.ttl_ms must be"), "{}", nested.message);
}

#[test]
fn what_is_no_write() {
    for body in [
        "",
        "[]",
        "1",
        "{}",
        r#"{"records":[]}"#,
        r#"{"records":[{}]}"#,
        r#"{"records":[{"data":1}]"#,
        r#"{"records":[{"data":1}]} x"#,
        r#"{"records":[{"data":1,}]}"#,
        r#"{"records":[{"data":NaN}]}"#,
        r#"{"records":[{"data":1,"data_b64":""}]}"#,
        r#"{"records":[{"data_b64":"!"}]}"#,
        r#"{"records":[{"data":1}],"idempotency_key":""}"#,
        r#"{"records":[{"data":1,"tag":"\ud800"}]}"#,
    ] {
        assert_eq!(refused(body).code, "invalid_request", "{body}");
    }
    assert_eq!(refused("\u{feff}{}").code, "invalid_request");
    let bad = parse(Body::Json, b"\xff", &Query::new(b""), b"", &Limits::default());
    assert_eq!(bad.unwrap_err().code, "invalid_request");
}

#[test]
fn options_of_jobs() {
    let body =
        r#"{"records":[{"data":1,"lane":0,"group":"g","delay_ms":5,"deliver_at":9},{"data":2}]}"#;
    let w = parse(Body::Json, body.as_bytes(), &Query::new(b""), b"", &Limits::default()).unwrap();
    w.with_append(|a| {
        let job = &a.records[0];
        assert_eq!((job.lane, job.group, job.delay_ms, job.deliver_at), (Some(0), &b"g"[..], 5, 9));
        let plain = &a.records[1];
        assert_eq!((plain.lane, plain.group, plain.delay_ms), (None, &b""[..], 0));
    });
    let failure = refused(r#"{"records":[{"data":1,"lane":10}]}"#);
    assert_eq!(failure.message, "records[0].lane must be 0 to 9, not 10");
}

#[test]
fn metadata_rules() {
    let with = |meta: &str| {
        parse_json(&format!(r#"{{"records":[{{"data":1,"meta":{meta}}}]}}"#))
            .map(|w| w.with_append(|a| a.records[0].meta.to_vec()))
    };
    assert_eq!(with(r#"{ "a" : "b" }"#).unwrap(), br#"{ "a" : "b" }"#);
    assert_eq!(with("{}").unwrap(), b"");
    for meta in [r#"{"$a":"b"}"#, r#"{"_topics_x":"b"}"#, r#"{"\u0024a":"b"}"#, r#"{"a":"\ud800"}"#]
    {
        assert_eq!(with(meta).unwrap_err().code, "invalid_request", "{meta}");
    }
    let keys = |n: usize| {
        let fields: Vec<_> = (0..n).map(|i| format!(r#""k{i}":"v""#)).collect();
        format!("{{{}}}", fields.join(","))
    };
    assert!(with(&keys(64)).is_ok());
    assert_eq!(with(&keys(65)).unwrap_err().code, "invalid_request");
    let sized = |n: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(n - 8));
    assert_eq!(with(&sized(16 << 10)).unwrap().len(), 16 << 10);
    let failure = with(&sized((16 << 10) + 1)).unwrap_err();
    assert_eq!(failure.code, "record_too_large");
}

#[test]
fn limits_name_the_record() {
    let limits = Limits { batch_records: 2, record_bytes: 10, ..Limits::default() };
    let with =
        |body: &str| parse(Body::Json, body.as_bytes(), &Query::new(b""), b"", &limits).map(drop);
    assert!(with(r#"{"records":[{"data":1},{"data":"12345678"}]}"#).is_ok());
    let failure = with(r#"{"records":[{"data":1},{"data":"123456789"}]}"#).unwrap_err();
    assert_eq!((failure.code, failure.status()), ("record_too_large", 400));
    let detail: serde_json::Value = serde_json::from_str(&failure.detail.unwrap()).unwrap();
    assert_eq!(
        (&detail["index"], &detail["got"], &detail["max"]),
        (&1.into(), &11.into(), &10.into())
    );
    let failure = with(r#"{"records":[{"data":1},{"data":1},{"data":1}]}"#).unwrap_err();
    assert_eq!((failure.code, failure.status()), ("batch_too_large", 400));
    for (field, most) in [("tag", 256), ("node", 128)] {
        let body = |n| format!(r#"{{"records":[{{"data":1,"{field}":"{}"}}]}}"#, "x".repeat(n));
        assert!(parse_json(&body(most)).is_ok());
        assert_eq!(refused(&body(most + 1)).code, "record_too_large");
    }
    let body = |n| format!(r#"{{"records":[{{"data":1}}],"idempotency_key":"{}"}}"#, "x".repeat(n));
    assert!(parse_json(&body(256)).is_ok());
    assert_eq!(refused(&body(257)).code, "invalid_request");
}

#[test]
fn records_without_a_trace_context_get_that_of_the_request() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let trace = TraceContext::parse(parent.as_bytes(), b"a=1").unwrap();
    let context = format!(r#""traceparent":"{parent}","tracestate":"a=1""#);
    let metas = |body: &str, limits: &Limits| -> Vec<String> {
        let mut w = parse_json(body).unwrap();
        w.add_trace_context(&trace, limits);
        let text = |meta: &[u8]| String::from_utf8(meta.to_vec()).unwrap();
        w.with_append(|a| a.records.iter().map(|r| text(r.meta)).collect())
    };
    let own = [r#"{"traceparent":"own"}"#, r#"{"a":"b","tracestate":""}"#];
    let escaped = r#"{"\u0074raceparent":"own"}"#;
    let body = format!(
        r#"{{"records":[{{"data":1}},{{"data":1,"meta":{{}}}},{{"data":1,"meta":{{ "a":"}}" }}}},
            {{"data":1,"meta":{}}},{{"data":1,"meta":{}}},{{"data":1,"meta":{escaped}}}]}}"#,
        own[0], own[1]
    );
    let whole = format!("{{{context}}}");
    let added = format!(r#"{{ "a":"}}" ,{context}}}"#);
    let expected = [&*whole, &*whole, &*added, own[0], own[1], escaped];
    assert_eq!(metas(&body, &Limits::default()), expected);
    // A record at a limit is stored without it.
    let one = r#"{"records":[{"data":1,"meta":{"a":"b"}}]}"#;
    let full = format!(r#"{{"a":"b",{context}}}"#);
    let of_meta = |meta_bytes| Limits { meta_bytes, ..Limits::default() };
    let of_record = |record_bytes| Limits { record_bytes, ..Limits::default() };
    for limits in [of_meta(full.len()), of_record(full.len() + 1), of_meta(0), of_record(0)] {
        assert_eq!(metas(one, &limits).concat(), full);
    }
    for limits in [of_meta(full.len() - 1), of_record(full.len())] {
        assert_eq!(metas(one, &limits), [r#"{"a":"b"}"#]);
    }
    let keys = |n: usize| (0..n).map(|k| format!(r#""k{k}":"""#)).collect::<Vec<_>>().join(",");
    let with = |n| format!(r#"{{"records":[{{"data":1,"meta":{{{}}}}}]}}"#, keys(n));
    assert!(metas(&with(META_KEYS - 2), &Limits::default())[0].contains(&context));
    assert!(!metas(&with(META_KEYS - 1), &Limits::default())[0].contains("traceparent"));
}

#[test]
fn lines_and_octets() {
    let query = Query::new(b"tag=a%20b&node=n&key=k&return_seqs=true");
    let parse = |kind, body| parse(kind, body, &query, b"header", &Limits::default());
    let w = parse(Body::Ndjson, b"{\"a\":1}\r\n\n 2 \n\"x\"").unwrap();
    assert!(w.return_seqs);
    w.with_append(|a| {
        let data: Vec<_> = a.records.iter().map(|r| r.data).collect();
        assert_eq!(data, [&b"{\"a\":1}"[..], b"2", b"\"x\""]);
        assert!(a.records.iter().all(|r| r.tag == b"a b" && !r.binary));
        assert_eq!((a.node, a.key), (&b"n"[..], &b"k"[..]));
    });
    let w = parse(Body::Binary, b"\x00\xff").unwrap();
    w.with_append(|a| {
        assert_eq!((a.records.len(), a.records[0].data), (1, &b"\x00\xff"[..]));
        assert!(a.records[0].binary && a.records[0].tag == b"a b");
    });
    let failure = parse(Body::Ndjson, b"1\n2\n{\n").unwrap_err();
    assert!(
        failure.message.starts_with("records[2].data is not valid JSON: "),
        "{}",
        failure.message
    );
    let message = |body: &'static [u8]| parse(Body::Ndjson, body).unwrap_err().message;
    assert!(
        message(b"1\n\"\xff\"\n{").contains("records[1].data is not valid JSON: invalid UTF-8")
    );
    assert!(message(b"1\n{\n\"\xff\"").contains("records[1].data is not valid JSON: expected"));
    assert_eq!(parse(Body::Ndjson, b"1 2").unwrap_err().code, "invalid_request");
    for blank in [&b""[..], b"\n\n"] {
        assert_eq!(parse(Body::Ndjson, blank).unwrap_err().code, "invalid_request");
        assert!(message(blank).contains("expected NDJSON, one JSON value a line"));
    }
    let arrow = Table::read(b"", 0, 0).unwrap_err();
    assert_eq!(arrow.code, "invalid_request");
    assert!(arrow.message.contains("expected an Arrow IPC stream"), "{}", arrow.message);
}

#[test]
fn the_answer() {
    let a = Appended {
        topic_id: 3,
        first_seq: 5,
        last_seq: 7,
        head_seq: 9,
        count: 3,
        created: true,
        deduped: false,
        durability: topics_engine::Durability::Disk,
        wal_append_ns: 1_234_567,
        fsync_ns: 0,
        throttle_ns: 5_000_000,
    };
    let (status, body) = answer("a.b", &a, true, 2_000_000);
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let expected = serde_json::json!({
        "topic": "a.b", "topic_id": 3, "first_seq": 5, "last_seq": 7, "seqs": [5, 6, 7],
        "head_seq": 9, "count": 3, "created": true, "deduped": false, "durability": "disk",
        "performance": {"server_total_ms": 2, "wal_append_ms": 1.234, "fsync_ms": 0,
            "throttle_wait_ms": 5}
    });
    assert_eq!((status, body), (201, expected));
    let (status, body) = answer("a", &Appended { created: false, ..a }, false, 0);
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(status == 200 && body.get("seqs").is_none());
}
