//! Engines ask the relay that their daemon names: for prefixes, and to share prefixes.

use crate::blocks::{attach, hashes, load, store};
use crate::nvme::Dir;
use crate::relay::with_relays;
use crate::shared::{Engine, configuration, found, until_metric, until_served};
use crate::trace::{Collector, OK, TOKENS, context};
use crate::{BOUND, daemon, until};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Client, Options, Progress, Relay as Questions, SpaceSpec};
use kvtide_relay::config::Config;
use kvtide_relay::relay::Relay;
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::hello::{
    Answer, Ask, AskHello, Disconnect, FromRelay, MESSAGE_MAX, Note, QUESTION_HASHES_MAX, ToRelay, Token, What,
    local_hash,
};
use kvtide_wire::os::socket::Socket;
use kvtide_wire::status::Status;
use kvtide_wire::trace::TraceContext;
use serde_json::Value as Json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One machine: a daemon that names its relay, the relay's socket, and an engine.
struct Machine {
    daemon: PrivateDaemon,
    engine: Engine,
    socket: PathBuf,
}

impl Machine {
    fn new(dir: &Dir, name: &str) -> Machine {
        let socket = dir.path().join(name);
        let daemon = daemon(&format!("{}relay_socket = \"{}\"\n", with_relays("a"), socket.display()));
        let engine = attach(daemon.socket(), 1, 0, 64);
        Machine { daemon, engine, socket }
    }

    /// Start its relay, with more of its configuration.
    fn relay(&self, dir: &Dir, rest: &str) -> Relay {
        let relay = Relay::start(self.configuration(dir, rest, |text| text), Path::new("relay.toml")).unwrap();
        until_served(relay.listen(), 1);
        relay
    }

    fn configuration(&self, dir: &Dir, rest: &str, change: impl Fn(String) -> String) -> Config {
        let uid = rustix::process::geteuid().as_raw();
        let adapters = format!("[domains.adapters]\nsocket = \"{}\"\nuids = [{uid}]\n", self.socket.display());
        let text = change(configuration(dir, self.daemon.socket(), &format!("{adapters}{rest}")));
        Config::parse(Path::new("relay.toml"), &text).unwrap()
    }

    fn questions(&self) -> Questions {
        self.engine.0.relay().unwrap().expect("the daemon names a relay")
    }
}

fn recall(questions: &mut Questions, hashes: &[u128], wait: Duration) -> Progress {
    let question = questions.recall(hashes, wait).expect("the relay can be asked");
    answer(questions, question)
}

/// Wait for the end of a question. Its own time bounds this.
fn answer(questions: &mut Questions, question: u32) -> Progress {
    loop {
        match questions.wait(question, BOUND) {
            Progress::Waiting(_) => {}
            end => return end,
        }
    }
}

#[test]
fn an_engine_shares_a_prefix_and_another_machine_recalls_it() {
    let dir = Dir::new();
    let (mut first, mut second) = (Machine::new(&dir, "a.sock"), Machine::new(&dir, "b.sock"));
    let (_there, _here) = (first.relay(&dir, ""), second.relay(&dir, ""));
    let (mut sharing, mut recalling) = (first.questions(), second.questions());
    // Used once only, so it is not copied out by itself.
    store(&mut first.engine.1, &mut first.engine.2, 1, 64, Level::Published);
    assert_eq!(recall(&mut recalling, &hashes(1, 64), BOUND), Progress::Done(0));
    // An awaited prefix is asked for again; that it was absent just now does not count.
    let awaited = recalling.await_shared(&hashes(1, 64), BOUND).unwrap();
    assert!(matches!(recalling.wait(awaited, Duration::from_millis(120)), Progress::Waiting(_)));
    let shared = sharing.share(&hashes(1, 64), BOUND).unwrap();
    assert_eq!(
        (answer(&mut sharing, shared), answer(&mut recalling, awaited)),
        (Progress::Done(64), Progress::Done(64))
    );
    // A prefix that is stored only after the question.
    let shared = sharing.share(&hashes(2, 40), BOUND).unwrap();
    store(&mut first.engine.1, &mut first.engine.2, 2, 40, Level::Published);
    assert_eq!(answer(&mut sharing, shared), Progress::Done(40));
    assert_eq!(sharing.poll(shared), Progress::Failed, "an answer is given once");
    // Several questions at once, each with its own answer; one of them is not waited for.
    let asked =
        [(2, 40), (7, 8), (2, 32)].map(|(prefix, blocks)| recalling.recall(&hashes(prefix, blocks), BOUND).unwrap());
    recalling.forget(asked[1]);
    assert_eq!(answer(&mut recalling, asked[2]), Progress::Done(32));
    assert_eq!(answer(&mut recalling, asked[0]), Progress::Done(40));
    assert_eq!(recalling.poll(asked[1]), Progress::Failed);
    assert_eq!((found(&mut second.engine, 2, 40), recalling.trouble()), (40, None));
    load(&mut second.engine.1, &mut second.engine.2, 2, 40);
    load(&mut second.engine.1, &mut second.engine.2, 1, 64);
    // A prefix that is longer than one message, of which the store has a part.
    let long = [hashes(2, 40), (1..=2000).map(|hash| hash << 64).collect()].concat();
    assert_eq!(recall(&mut recalling, &long, BOUND), Progress::Done(40));
}

/// The spans of a request's questions: what came from the store, and why the rest did not.
#[test]
fn questions_of_a_traced_request_have_spans() {
    let (collector, dir) = (Collector::of("kvtide-relay", OK), Dir::new());
    let (mut first, second) = (Machine::new(&dir, "a.sock"), Machine::new(&dir, "b.sock"));
    let relays = [first.relay(&dir, &collector.config()), second.relay(&dir, &collector.config())];
    let (mut sharing, mut recalling) = (first.questions(), second.questions());
    store(&mut first.engine.1, &mut first.engine.2, 1, 64, Level::Published);
    // The relay's first message says that it traces.
    let is_known = |questions: &mut Questions| {
        let deadline = Instant::now() + BOUND;
        while !questions.traces() {
            assert!(Instant::now() < deadline, "{:?}", questions.trouble());
            std::thread::yield_now();
        }
    };
    is_known(&mut sharing);
    is_known(&mut recalling);
    let span = |number: u64| {
        let (span, attributes) = collector.next();
        let TraceContext { trace, parent } = context(number);
        assert_eq!(
            (&*span.name, span.trace_id, span.parent_span_id),
            ("remote", trace.to_be_bytes().to_vec(), parent.to_be_bytes().to_vec())
        );
        let domain = attributes["domain"].as_str();
        assert_eq!((attributes["space"].as_str(), domain), (Some("blocks"), Some("a")), "{attributes:?}");
        ["question", "status", "asked_tokens", "hit_tokens", "hit_tokens_remote", "miss_reason"]
            .map(|key| attributes.get(key).map_or_else(String::new, ToString::to_string).replace('"', ""))
    };
    let tokens = |blocks: u32| (blocks * TOKENS).to_string();
    sharing.trace(Some(context(1)));
    let shared = sharing.share(&hashes(1, 64), BOUND).unwrap();
    assert_eq!(answer(&mut sharing, shared), Progress::Done(64));
    assert_eq!(span(1), ["share", "Ok", &tokens(64), &tokens(64), "0", ""]);
    recalling.trace(Some(context(2)));
    let long = [hashes(1, 64), hashes(2, 8)].concat();
    assert_eq!(recall(&mut recalling, &long, BOUND), Progress::Done(64));
    assert_eq!(span(2), ["recall", "Ok", &tokens(72), &tokens(64), &tokens(64), "not_in_store"]);
    recalling.trace(None);
    assert_eq!(recall(&mut recalling, &long, BOUND), Progress::Done(64));
    // One that nobody waits for any more.
    recalling.trace(Some(context(3)));
    let forgotten = recalling.await_shared(&hashes(7, 8), BOUND).unwrap();
    recalling.forget(forgotten);
    let (forgotten, attributes) = collector.next();
    assert_eq!(forgotten.trace_id, context(3).trace.to_be_bytes());
    assert_eq!((&attributes["status"], attributes.get("hit_tokens")), (&Json::from("Forgotten"), None));
    // Of both relays, and only those.
    relays
        .iter()
        .zip([1, 2])
        .for_each(|(relay, spans)| until_metric(relay.listen(), "trace_spans_exported_total", spans));
    drop(relays);
    while recalling.recall(&long, BOUND).is_some() {}
    assert!(
        !recalling.traces() && !recalling.wants_notes(),
        "what it wants is known, whether the next one traces is not"
    );
}

/// Blocks with marked hashes are neither copied out nor shared.
#[test]
fn blocks_that_no_other_machine_can_use_stay() {
    let dir = Dir::new();
    let mut first = Machine::new(&dir, "first");
    let relay = first.relay(&dir, "[copy_out]\nwhen = \"stored\"");
    let mut questions = first.questions();
    let local: Vec<u128> = hashes(1, 8).into_iter().map(local_hash).collect();
    let own: Vec<u32> = (0..8).collect();
    let stored = first.engine.1.store((0, 0), &local, &own, Level::Published, BOUND).unwrap();
    assert_eq!(stored.status, Status::Ok);
    until_metric(relay.listen(), "cached_blocks", 8);
    let shared = questions.share(&local, BOUND).unwrap();
    assert_eq!(answer(&mut questions, shared), Progress::Done(0));
    assert_eq!(recall(&mut questions, &local, BOUND), Progress::Done(8), "they are here");
    // Stored later, it would be copied later.
    store(&mut first.engine.1, &mut first.engine.2, 2, 8, Level::Published);
    until_metric(relay.listen(), "blocks_out_total", 8);
    drop(relay); // it ends the copies that have begun
    let (mut dirs, mut objects) = (vec![dir.path().join("store")], 0);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { dirs.push(entry) } else { objects += 1 }
        }
    }
    assert_eq!(objects, 1, "the run of the other prefix");
}

/// Questions beyond what a socket has room for wait; forgotten ones make room; more than the relay takes are refused here.
#[test]
fn many_long_questions_are_all_answered() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let _relay = machine.relay(&dir, "");
    let mut questions = machine.questions();
    let long: Vec<u128> = (1..=8000).map(|hash| hash << 64).collect();
    for _ in 0..3 {
        let asked: Vec<u32> = std::iter::from_fn(|| questions.recall(&long, BOUND)).collect();
        assert!(asked.len() >= 16, "{} questions", asked.len());
        let (forgotten, answered) = asked.split_at(asked.len() / 2);
        forgotten.iter().for_each(|question| questions.forget(*question));
        for question in answered {
            assert_eq!(answer(&mut questions, *question), Progress::Done(0));
        }
    }
    assert_eq!(questions.trouble(), None);
}

/// The relay remembers for five seconds which runs are absent. Another machine may have shared them meanwhile.
#[test]
fn an_awaited_prefix_is_asked_for_anew() {
    let dir = Dir::new();
    let (mut first, second) = (Machine::new(&dir, "a.sock"), Machine::new(&dir, "b.sock"));
    let (_there, _here) = (first.relay(&dir, ""), second.relay(&dir, ""));
    let (mut sharing, mut recalling) = (first.questions(), second.questions());
    store(&mut first.engine.1, &mut first.engine.2, 1, 64, Level::Published);
    assert_eq!(recall(&mut recalling, &hashes(1, 64), BOUND), Progress::Done(0));
    let shared = sharing.share(&hashes(1, 64), BOUND).unwrap();
    assert_eq!(answer(&mut sharing, shared), Progress::Done(64));
    let awaited = recalling.await_shared(&hashes(1, 64), Duration::from_secs(4)).unwrap();
    assert_eq!(answer(&mut recalling, awaited), Progress::Done(64));
}

/// Forgotten questions end at the relay too: more of them than it takes at a time leave room for others.
#[test]
fn forgotten_questions_leave_room() {
    let dir = Dir::new();
    let mut machine = Machine::new(&dir, "a.sock");
    let _relay = machine.relay(&dir, "");
    let mut questions = machine.questions();
    store(&mut machine.engine.1, &mut machine.engine.2, 1, 8, Level::Published);
    let shared = questions.share(&hashes(1, 8), BOUND).unwrap();
    assert_eq!(answer(&mut questions, shared), Progress::Done(8));
    for round in 0..3 {
        let absent = |n: u128| questions.await_shared(&hashes(100 + n, 8), BOUND).unwrap();
        let asked: Vec<u32> = (0..40).map(|n| round * 40 + n).map(absent).collect();
        asked.into_iter().for_each(|question| questions.forget(question));
    }
    assert_eq!(recall(&mut questions, &hashes(1, 8), BOUND), Progress::Done(8));
}

/// The time that a recall takes is expected once one was measured.
#[test]
fn a_recall_says_what_it_expects() {
    let dir = Dir::new();
    let (mut first, second) = (Machine::new(&dir, "a.sock"), Machine::new(&dir, "b.sock"));
    let (_there, _here) = (first.relay(&dir, ""), second.relay(&dir, ""));
    let mut sharing = first.questions();
    for prefix in 1..=2 {
        store(&mut first.engine.1, &mut first.engine.2, prefix, 32, Level::Published);
        let shared = sharing.share(&hashes(prefix, 32), BOUND).unwrap();
        assert_eq!(answer(&mut sharing, shared), Progress::Done(32));
    }
    let socket = Socket::connect(&second.socket).unwrap();
    let send = |message: &[u8]| socket.send(message, &[]).unwrap();
    send(&AskHello { fingerprint: [9; 32], token: None }.encode());
    let mut expected = Vec::new();
    for prefix in 1..=2u32 {
        let (what, hashes) = (What::Recall, hashes(prefix.into(), 32));
        send(&Ask { id: prefix, what, wait_ms: 60_000, more: false, hashes, trace: None }.encode().unwrap());
        loop {
            match heard(&socket) {
                FromRelay::Answer(Answer { id, done: true, blocks, .. }) => {
                    assert_eq!((id, blocks), (prefix, 32));
                    break;
                }
                FromRelay::Answer(answer) => expected.push((answer.id, answer.blocks, answer.in_us > 0)),
                FromRelay::Welcome(welcome) => assert!(!welcome.wants_notes),
                FromRelay::Disconnect(end) => panic!("{end:?}"),
            }
        }
    }
    assert_eq!(expected, [(1, 32, false), (2, 32, true)]);
}

fn heard(socket: &Socket) -> FromRelay {
    let mut buffer = vec![0; MESSAGE_MAX];
    let (len, _) = socket.receive_within(&mut buffer, 0, BOUND).unwrap();
    FromRelay::decode(&buffer[..len]).unwrap()
}

/// A relay that is not there, ends, or does not answer in time costs a question at most its own time.
#[test]
fn an_engine_never_waits_longer_than_it_said() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let mut questions = machine.questions();
    assert_eq!(questions.recall(&hashes(1, 8), BOUND), None);
    let trouble = questions.trouble().unwrap().to_owned();
    assert!(trouble.contains("a.sock") && trouble.contains("connect"), "{trouble}");
    assert!(questions.wants_notes(), "unknown so far");
    assert!(!questions.note(&hashes(1, 1), &[0; 16], ""));
    // A store that never answers.
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", hangs.local_addr().unwrap());
    let file = format!("file://{}", dir.path().join("store").display());
    let config = machine
        .configuration(&dir, "", |text| text.replace(&file, &url).replace("[store]", "[store]\ndeadline_ms = 500"));
    let relay = Relay::start(config, Path::new("relay.toml")).unwrap();
    until_served(relay.listen(), 1);
    let deadline = Instant::now() + BOUND;
    let first = loop {
        // After the pause that followed the failure.
        match questions.recall(&hashes(1, 8), Duration::from_millis(20)) {
            Some(question) => break question,
            None => assert!(Instant::now() < deadline, "{:?}", questions.trouble()),
        }
    };
    assert_eq!(answer(&mut questions, first), Progress::Failed);
    for _ in 0..2 {
        assert_eq!(recall(&mut questions, &hashes(1, 8), Duration::from_millis(20)), Progress::Failed);
    }
    assert_eq!(questions.recall(&hashes(1, 8), BOUND), None, "it is left alone for a while");
    assert!(questions.trouble().unwrap().contains("no answer in time"), "{:?}", questions.trouble());
    let mut questions = machine.questions();
    let waits = questions.recall(&hashes(1, 8), Duration::from_secs(3000)).unwrap();
    drop(relay);
    let end = answer(&mut questions, waits);
    assert!(matches!(end, Progress::Failed | Progress::Done(0)), "the relay has ended: {end:?}");
}

#[test]
fn only_engines_of_the_domain_may_ask() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let access = format!("uids = [1]\ntokens = [\"{}\"]", token.display());
    let uids = format!("uids = [{}]", rustix::process::geteuid().as_raw());
    let config = machine.configuration(&dir, "", |text| {
        // Only in the table of adapters.
        let (head, adapters) = text.split_once("[domains.adapters]").unwrap();
        format!("{head}[domains.adapters]{}", adapters.replace(&uids, &access))
    });
    let relay = Relay::start(config, Path::new("relay.toml")).unwrap();
    until_served(relay.listen(), 1);
    let mut questions = machine.questions();
    // The refusal may come before the question is sent.
    let refused = questions.recall(&hashes(1, 8), BOUND);
    assert!(refused.is_none_or(|question| answer(&mut questions, question) == Progress::Failed));
    assert!(
        questions.trouble().unwrap().contains("uids of the relay's [domains.adapters]"),
        "{:?}",
        questions.trouble()
    );
    let enter = |token: &[u8]| {
        let socket = Socket::connect(&machine.socket).unwrap();
        let token = Some(kvtide_wire::hello::Token::new(token).unwrap());
        socket.send(&AskHello { fingerprint: [9; 32], token }.encode(), &[]).unwrap();
        heard(&socket)
    };
    assert!(matches!(enter(b"0123456789abcdef0123456789abcdef"), FromRelay::Welcome(_)));
    let FromRelay::Disconnect(Disconnect { text, .. }) = enter(b"1123456789abcdef0123456789abcdef") else {
        panic!("an unknown token")
    };
    assert!(text.contains("unknown token"), "{text}");
    // A space that stays on its machine has nothing to ask, and neither has one of a daemon that names no relay.
    assert!(attach_local(machine.daemon.socket()).relay().unwrap().is_none());
    let silent = daemon(&with_relays("a"));
    assert!(attach(silent.socket(), 1, 0, 8).0.relay().unwrap().is_none());
}

fn attach_local(socket: &Path) -> Client {
    let spec = SpaceSpec::new("local", [7; 32], 16, vec![Plane::full(4096)]);
    Client::attach(Options { local: true, ..Options::new(socket.into(), spec, vec![0]) }).unwrap()
}

/// A user with as many connections as one user may have is refused another one, with the reason; a place that is free again is used.
#[test]
fn one_user_cannot_take_all_places() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let _relay = machine.relay(&dir, "");
    let hello = AskHello { fingerprint: [9; 32], token: None }.encode();
    let enter = || {
        let socket = Socket::connect(&machine.socket).unwrap();
        // A relay that refuses may have closed the socket already.
        let _ = socket.send(&hello, &[]);
        let heard = heard(&socket);
        (socket, heard)
    };
    let mut all: Vec<Socket> = Vec::new();
    let refused = loop {
        match enter() {
            (socket, FromRelay::Welcome(_)) => all.push(socket),
            (_, FromRelay::Disconnect(end)) => break end,
            (_, FromRelay::Answer(answer)) => panic!("{answer:?} without a question"),
        }
        assert!(all.len() < 200, "a user has {} places", all.len());
    };
    assert!(refused.status == Status::Limit && refused.text.contains("64 of this user"), "{refused:?}");
    all.pop();
    until(|| "a place is not free again", || matches!(enter().1, FromRelay::Welcome(_)));
}

/// Connections that send nothing take no engine's place, not even of their own user; engines with a token are not counted by user.
#[test]
fn silent_connections_keep_no_engine_out() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let secret = "t".repeat(40);
    let path = dir.path().join("token");
    std::fs::write(&path, &secret).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let uids = format!("uids = [{}]", rustix::process::geteuid().as_raw());
    let tokens = format!("tokens = [\"{}\"]", path.display());
    let config = machine.configuration(&dir, "", |text| text.replace(&uids, &tokens));
    let _relay = Relay::start(config, Path::new("relay.toml")).unwrap();
    let _silent: Vec<Socket> = (0..100).map(|_| Socket::connect(&machine.socket).unwrap()).collect();
    let hello = AskHello { fingerprint: [9; 32], token: Some(Token::new(secret.as_bytes()).unwrap()) }.encode();
    let enter = |_| {
        let engine = Socket::connect(&machine.socket).unwrap();
        engine.send(&hello, &[]).unwrap();
        assert!(matches!(heard(&engine), FromRelay::Welcome(_)));
        engine
    };
    let _engines: Vec<Socket> = (0..70).map(enter).collect();
}

/// A message that breaks the protocol ends its own connection, with the reason.
#[test]
fn messages_that_make_no_sense_end_their_connection() {
    let dir = Dir::new();
    let machine = Machine::new(&dir, "a.sock");
    let _relay = machine.relay(&dir, "");
    let hello = AskHello { fingerprint: [9; 32], token: None }.encode().to_vec();
    let ask = |id, more| {
        Ask { id, what: What::Recall, wait_ms: 1, more, hashes: vec![1; 1000], trace: None }.encode().unwrap()
    };
    let note = Note { hashes: vec![1], tokens: vec![2; 16], adapter: String::new() }.encode().unwrap();
    let too_long = vec![ask(1, true); 1 + QUESTION_HASHES_MAX / 1000];
    let cases: [(Vec<Vec<u8>>, &str); 6] = [
        (vec![b"nonsense".to_vec()], "magic"),
        (vec![vec![0; 2 * MESSAGE_MAX]], "magic"),
        (vec![ask(1, false)], "expected a hello first"),
        (vec![hello.clone(), note.clone(), hello.clone()], "a second hello"),
        (vec![hello.clone(), ask(1, true), ask(2, false)], "question 2 begins before question 1"),
        ([vec![hello.clone()], too_long].concat(), "more than 8176 hashes"),
    ];
    for (messages, part) in cases {
        let socket = Socket::connect(&machine.socket).unwrap();
        // A socket that the relay has not emptied yet is full, and one that it has closed takes no more.
        let deadline = Instant::now() + BOUND;
        for message in messages {
            while socket.send(&message, &[]).is_err_and(|error| error.is_full()) {
                assert!(Instant::now() < deadline, "{part}: the relay does not read");
            }
        }
        loop {
            match heard(&socket) {
                FromRelay::Disconnect(end) => {
                    assert!(end.text.contains(part), "{part}: {}", end.text);
                    break;
                }
                FromRelay::Welcome(_) | FromRelay::Answer(_) => {}
            }
        }
    }
    assert!(ToRelay::decode(&note).is_ok(), "a note to a relay without KV events is ignored");
    assert_eq!(recall(&mut machine.questions(), &hashes(1, 8), BOUND), Progress::Done(0));
}
