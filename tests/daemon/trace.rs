//! Traces: a collector gets spans of the daemon that continue an engine's span.

use crate::blocks::{attach, hashes, load, store};
use crate::http::{get, metric, served};
use crate::nvme::{Dir, NVME_BYTES, nvme_options};
use crate::operate::{hex, kvtide, told};
use crate::raw::{self, Raw};
use crate::{BOUND, daemon, until, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::Channel;
use kvtide_types::Request;
use kvtide_wire::entry::{Level, Submission, TRACED};
use kvtide_wire::features;
use kvtide_wire::hello::Hello;
use kvtide_wire::hello::Protocol;
use kvtide_wire::request;
use kvtide_wire::status::Status;
use kvtide_wire::trace::TraceContext;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use prost::Message;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
pub(crate) const TOKENS: u32 = 16;

/// A collector of traces that answers each message with `answer`; "" for never.
pub(crate) struct Collector {
    endpoint: String,
    spans: Receiver<Span>,
}

impl Collector {
    pub fn new(answer: &'static str) -> Collector {
        Collector::of("kvtided", answer)
    }

    /// Collect the spans of this service alone.
    pub fn of(service: &'static str, answer: &'static str) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, spans) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let sender = sender.clone();
                std::thread::spawn(move || serve(&stream.unwrap(), service, answer, &sender));
            }
        });
        Collector { endpoint, spans }
    }

    pub fn config(&self) -> String {
        format!("[tracing]\nendpoint = \"{}\"\n", self.endpoint)
    }

    /// Return the next span with its attributes.
    pub fn next(&self) -> (Span, BTreeMap<String, Json>) {
        let span = self.spans.recv_timeout(BOUND).unwrap();
        let attributes = span.attributes.iter().map(|attribute| {
            let value = match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
                Value::StringValue(text) => Json::from(text.as_str()),
                Value::IntValue(number) => Json::from(*number),
                other => panic!("{}: {other:?}", attribute.key),
            };
            (attribute.key.strip_prefix("kvtide.").unwrap().to_owned(), value)
        });
        (span.clone(), attributes.collect())
    }
}

/// Read messages from a connection until its end.
fn serve(stream: &TcpStream, service: &str, answer: &str, spans: &Sender<Span>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.to_ascii_lowercase());
        }
        assert!(head[0].starts_with("post /v1/traces http/1.1"), "{head:?}");
        assert!(head.contains(&"content-type: application/x-protobuf\r\n".to_owned()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        for resource in ExportTraceServiceRequest::decode(&*body).unwrap().resource_spans {
            let name =
                resource.resource.unwrap().attributes.into_iter().find(|attribute| attribute.key == "service.name");
            let name = name.unwrap().value.unwrap().value.unwrap();
            assert_eq!(name, Value::StringValue(service.into()));
            // The test may be over.
            resource.scope_spans.into_iter().flat_map(|scope| scope.spans).for_each(|span| drop(spans.send(span)));
        }
        if answer.is_empty() {
            // The daemon closes the connection when its time limit has passed.
            let _ = reader.read(&mut [0]);
            return;
        }
        let mut stream = stream;
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

/// The context of an engine's request.
pub(crate) fn context(number: u64) -> TraceContext {
    TraceContext { trace: 0x4bf9_2f35 << 96 | u128::from(number), parent: 0xf067 << 48 | number }
}

fn trace(channel: &mut Channel, number: u64) {
    channel.trace(Some(context(number))).unwrap();
}

#[test]
fn an_engines_span_is_continued_with_what_was_found_where() {
    let (collector, dir) = (Collector::new(OK), Dir::new());
    let daemon = PrivateDaemon::start(&nvme_options(&dir, NVME_BYTES, "", &collector.config())).unwrap();
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 64);
    assert!(client.traces());
    let span = |number: u64, name: &str| {
        let (span, attributes) = collector.next();
        let TraceContext { trace, parent } = context(number);
        assert_eq!(span.name, name, "{attributes:?}");
        assert_eq!((span.trace_id, span.parent_span_id), (trace.to_be_bytes().to_vec(), parent.to_be_bytes().to_vec()));
        assert!(
            span.span_id.len() == 8 && span.span_id != [0; 8] && span.start_time_unix_nano <= span.end_time_unix_nano
        );
        assert_eq!((&attributes["space"], &attributes["domain"]), (&Json::from("blocks"), &Json::from("default")));
        assert!(attributes["session"].as_u64() > Some(0));
        (span.status.unwrap_or_default().code(), attributes)
    };
    let tokens = |blocks: u32| Json::from(blocks * TOKENS);
    let tiers = |attributes: &BTreeMap<String, Json>| {
        ["", "_host", "_nvme", "_elsewhere"]
            .map(|tier| attributes.get(&format!("hit_tokens{tier}")).cloned().unwrap_or_else(|| tokens(0)))
    };

    trace(&mut channel, 1);
    store(&mut channel, &mut memory, 1, 8, Level::Stored);
    let (code, stored) = span(1, "store");
    assert_eq!((code, &stored["status"], &stored["asked_tokens"]), (StatusCode::Unset, &Json::from("Ok"), &tokens(8)));
    let block_bytes = u64::from(crate::blocks::PAGE_BYTES.iter().sum::<u32>());
    assert_eq!((&stored["copied_blocks"], &stored["copied_bytes"]), (&Json::from(8), &Json::from(8 * block_bytes)));

    // A hit in host memory; the block after it was never stored.
    trace(&mut channel, 2);
    let chain: Vec<u128> = hashes(1, 8).into_iter().chain(hashes(2, 3)).collect();
    assert_eq!(channel.lookup(&chain, BOUND).unwrap().blocks, 8);
    let (_, found) = span(2, "lookup");
    assert_eq!((&found["asked_blocks"], &found["miss_reason"]), (&Json::from(11), &Json::from("never_stored")));
    assert_eq!(tiers(&found), [tokens(8), tokens(8), tokens(0), tokens(0)]);
    trace(&mut channel, 3);
    load(&mut channel, &mut memory, 1, 8);
    let (_, leased) = span(3, "lease");
    assert_eq!(tiers(&leased), [tokens(8), tokens(8), tokens(0), tokens(0)]);
    assert!(!leased.contains_key("miss_reason"));
    assert_eq!(span(3, "load").1["copied_blocks"], 8);

    // The request by its trace id.
    let traced = format!("{:032x}", context(2).trace);
    let known = told(daemon.socket(), &["why", &traced], 0);
    let request = &known["spaces"][0]["request"];
    assert_eq!((&request["found"], &request["missing"]), (&Json::from(hex(1, 8)), &Json::from(hex(2, 1))));
    let text = String::from_utf8(kvtide(daemon.socket(), &["why", &traced]).stdout).unwrap();
    for part in
        ["its last lookup was", "found      ", "now host", "not found  ", "now not cached: no engine has stored it"]
    {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    told(daemon.socket(), &["why", &format!("{:032x}", context(99).trace)], 1);

    // Requests without a context have no span. These take the host memory of the first prefix.
    channel.trace(None).unwrap();
    store(&mut channel, &mut memory, 4, 64, Level::Stored);
    trace(&mut channel, 5);
    assert_eq!(channel.lookup(&hashes(1, 8), BOUND).unwrap().blocks, 8);
    let (_, found) = span(5, "lookup");
    let on_nvme = |found: &BTreeMap<String, Json>| {
        let [all, host, nvme, elsewhere] = tiers(found);
        assert_eq!((&all, &elsewhere), (&tokens(8), &tokens(0)));
        assert_eq!(Json::from(host.as_u64().unwrap() + nvme.as_u64().unwrap()), all);
        nvme.as_u64().unwrap()
    };
    assert!(on_nvme(&found) > 0 && !found.contains_key("miss_reason"), "{found:?}");
    let lease = channel.lease(hashes(1, 8)[7], 8, Duration::from_secs(60), BOUND).unwrap();
    assert_eq!(on_nvme(&span(5, "lease").1), u64::from(lease.on_nvme * TOKENS));

    // Misses and errors.
    trace(&mut channel, 6);
    assert_eq!(channel.lease(99, 1, Duration::from_secs(60), BOUND).unwrap_err().status(), Status::NotFound);
    let (code, missed) = span(6, "lease");
    assert_eq!((code, &missed["miss_reason"]), (StatusCode::Unset, &Json::from("never_stored")));
    assert_eq!((&missed["status"], tiers(&missed)), (&Json::from("NotFound"), [0, 0, 0, 0].map(tokens)));
    trace(&mut channel, 7);
    assert_eq!(channel.lease(99, 1, Duration::MAX, BOUND).unwrap_err().status(), Status::Limit);
    assert_eq!(span(7, "lease").0, StatusCode::Error);
    // A list that fills its area leaves room for the context: two rounds of probes, whose hits add up.
    trace(&mut channel, 8);
    let chain: Vec<u128> = hashes(4, 64).into_iter().chain(hashes(9, 20_000)).collect();
    assert_eq!(channel.lookup(&chain, BOUND).unwrap().blocks, 64);
    let hits = [span(8, "lookup"), span(8, "lookup")].map(|(_, found)| found["hit_tokens"].as_u64().unwrap());
    assert_eq!(hits.iter().sum::<u64>(), u64::from(64 * TOKENS), "{hits:?}");
    let traced = format!("{:032x}", context(8).trace);
    let ends = |daemon: &PrivateDaemon| {
        let request = told(daemon.socket(), &["why", &traced], 0)["spaces"][0]["request"].clone();
        [&request["found"], &request["missing"]].map(|hash| hash.as_str().map(str::to_owned))
    };
    assert_eq!(ends(&daemon), [Some(hex(4, 64)), Some(hex(9, 1))]);
    // Another prompt in the same trace.
    assert_eq!(channel.lookup(&hashes(77, 3), BOUND).unwrap().blocks, 0);
    span(8, "lookup");
    assert_eq!(ends(&daemon), [None, Some(hex(77, 1))]);
    drop(client);
}

#[test]
fn a_session_that_ends_ends_its_spans() {
    let collector = Collector::new(OK);
    let daemon = daemon(&collector.config());
    let hello = Hello { protocol: Protocol::ours(features::TRACE), tier0_frames: vec![0], ..raw::hello() };
    let mut raw = Raw::attach_as(daemon.socket(), &hello).unwrap();
    let level = Level::Published;
    let store = Request::StoreBlocks { first: 0, parent: 0, hashes: &[7], engine: &[0], level };
    let (submission, list) = request::encode(store);
    let requests = &raw.side.channels[0].requests;
    requests.write_hashes(0, list.hashes, list.words).unwrap();
    requests.write_trace(0, submission.list_len, &context(1)).unwrap();
    raw.submit(0, &Submission { trace: TRACED, ..submission });
    // The daemon has taken the request when it asks for the copy, which never ends.
    let asks = || {
        raw.read_socket();
        raw.side.job_rings.jobs.available().unwrap() != 0
    };
    until(|| format!("no job came: {}", daemon.log()), asks);
    drop(raw);
    let (span, attributes) = collector.next();
    assert_eq!((span.name.as_str(), &attributes["copied_blocks"]), ("store", &Json::from(0)));
    assert_eq!(attributes["status"], "SessionEnded");
    assert_eq!(span.status.unwrap().code(), StatusCode::Error);
}

#[test]
fn without_a_collector_the_daemon_wants_no_contexts() {
    let daemon = daemon("");
    let (client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    assert!(!client.traces() && !channel.traces());
    trace(&mut channel, 1);
    store(&mut channel, &mut memory, 1, 8, Level::Published);
    load(&mut channel, &mut memory, 1, 8);
}

/// Trace requests with this collector until spans are lost, twice, and return the log. The daemon serves on.
fn loses(config: &str, requests: u64, name: &str) -> String {
    let (mut daemon, address) = served(config);
    let (_client, mut channel, mut memory) = attach(daemon.socket(), 1, 0, 8);
    let of = |status: &Json| status["trace_totals"][name].as_u64().unwrap();
    let mut before = 0;
    for prefix in 1..=2u8 {
        trace(&mut channel, 1);
        store(&mut channel, &mut memory, prefix.into(), 8, Level::Published);
        for _ in 0..requests {
            channel.nop(BOUND).unwrap();
        }
        let status = until_status(&mut daemon, "spans are lost", |status| of(status) > before);
        assert_eq!(status["trace_totals"]["exported"], 0);
        before = of(&status);
        load(&mut channel, &mut memory, prefix.into(), 8);
    }
    let page = get(address, "/metrics").2;
    assert!(metric(&page, &format!("kvtide_trace_spans_{name}_total"), &[]).unwrap() > 0.0);
    daemon.log()
}

#[test]
fn a_collector_that_fails_costs_spans_alone() {
    let refusing = {
        // Bound and closed again: no server listens there.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        format!("[tracing]\nendpoint = \"http://{address}\"\n")
    };
    let log = loses(&refusing, 0, "failed");
    assert!(log.contains("cannot export") && log.contains("refused"), "{log}");
    let failing = Collector::new("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n");
    let log = loses(&failing.config(), 0, "failed");
    assert!(log.contains("status code: 500"), "{log}");
    assert_eq!(log.matches("cannot export").count(), 1, "{log}");
    // More requests than wait in the queue, while a message is on its way.
    let hanging = Collector::new("");
    loses(&hanging.config(), 6000, "dropped");
}
