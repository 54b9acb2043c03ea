//! The handshake: messages arrive unchanged, and invalid ones are rejected by the name of the wrong field.
#![cfg(not(loom))]

use kvtide_wire::geometry::{PLANES_MAX, Plane, PlaneKind, classes};
use kvtide_wire::hello::{
    ASK_HASHES_MAX, Answer, Ask, AskHello, AskWelcome, Detach, Disconnect, First, FromDaemon, FromRelay, FromWatched,
    Hello, IDENTITY_BYTES_MAX, Limits, MESSAGE_MAX, Note, Protocol, RelayState, SOCKET_BYTES_MAX, Slab, SlabGone,
    SpaceClosed, SpaceOpened, TOKEN_BYTES_MAX, TOKEN_BYTES_MIN, ToRelay, Token, Watch, Watching, Welcome, What,
    ask_hashes_max, note_hashes_max,
};
use kvtide_wire::layout::{OLDEST, Shape, VERSION};
use kvtide_wire::status::Status;
use kvtide_wire::trace::TraceContext;
use kvtide_wire::{Error, hello};
use proptest::prelude::*;

fn full(page_bytes: u32) -> Plane {
    Plane::full(page_bytes)
}

fn good() -> Hello {
    Hello {
        protocol: Protocol::ours(0),
        name: "llama-8b".into(),
        fingerprint: [7; 32],
        identity: "weights: é".into(),
        page_tokens: 16,
        planes: vec![full(1000), Plane { kind: PlaneKind::Window { tokens: 512 }, ..full(65536) }],
        shards: 4,
        shard: 3,
        lanes: 2,
        channels: 2,
        depth: 64,
        seqs_max: 10,
        tier0_frames: vec![30, 40],
        mapped_frames: 12,
        numa_node: Some(3),
        relay: false,
        local: false,
        token: None,
    }
}

fn refused(change: impl FnOnce(&mut Hello)) -> String {
    let mut hello = good();
    change(&mut hello);
    hello.encode().expect_err("must not be sent").to_string()
}

#[test]
fn every_field_out_of_bounds_is_named() {
    type Case = (&'static str, fn(&mut Hello));
    let cases: [Case; 18] = [
        ("space name", |h| h.name.clear()),
        ("space name", |h| h.name = "a\nb".into()),
        ("space name", |h| h.name = "x".repeat(65)),
        ("identity", |h| h.identity = "x".repeat(4097)),
        ("NUMA node", |h| h.numa_node = Some(1024)),
        ("page_tokens", |h| h.page_tokens = 0),
        ("page_tokens", |h| h.page_tokens = 65537),
        ("planes", |h| h.planes.clear()),
        ("planes", |h| h.planes = vec![full(64); PLANES_MAX + 1]),
        ("page_bytes", |h| h.planes[0].page_bytes = 0),
        ("page_bytes", |h| h.planes[0].page_bytes = (1 << 30) + 1),
        ("window_tokens", |h| h.planes[1].kind = PlaneKind::Window { tokens: 0 }),
        ("shards", |h| h.shards = 0),
        ("shard", |h| h.shard = 4),
        ("seqs_max", |h| h.seqs_max = 0),
        ("tier-0 frames", |h| h.tier0_frames = vec![30]),
        ("tier-0 frames of a class", |h| h.tier0_frames[1] = 0),
        ("tier-0 and mapped frames of all classes", |h| h.tier0_frames = vec![u32::MAX - 1, 1]),
    ];
    for (field, change) in cases {
        let text = refused(change);
        assert!(text.contains(field) && text.contains("expected"), "{field}: {text}");
    }
    assert!(refused(|h| h.depth = 3).contains("not a power of two"));
    assert!(refused(|h| h.channels = 17).contains("allowed are 1 to 16"));
    assert!(refused(|h| h.lanes = 0).contains("lanes is 0"));
    let nine = |h: &mut Hello| {
        h.planes = (1..10).map(full).collect();
        h.tier0_frames = vec![1; 9];
    };
    assert!(refused(nine).contains("size classes of the planes is 9"));
}

#[test]
fn the_longest_hello_fits_and_arrives() {
    let planes: Vec<_> = (0..PLANES_MAX as u32).map(|i| full(4096 + i % 8)).collect();
    let token = Some(Token::new(&[b'x'; TOKEN_BYTES_MAX]).expect("within bounds"));
    let identity = "i".repeat(IDENTITY_BYTES_MAX);
    let hello = Hello { name: "x".repeat(64), identity, planes, tier0_frames: vec![9; 8], token, ..good() };
    let bytes = hello.encode().expect("within bounds");
    assert!(bytes.len() <= MESSAGE_MAX, "{}", bytes.len());
    assert_eq!(Hello::decode(&bytes).expect("arrives"), hello);
}

#[test]
fn a_token_arrives_without_the_white_space_around_it_and_is_printed_nowhere() {
    let secret = "0123456789abcdef0123456789abcdef";
    let token = Token::new(format!(" \n{secret}\r\n").as_bytes()).expect("long enough");
    assert_eq!(token.secret(), secret.as_bytes());
    let hello = Hello { token: Some(token.clone()), ..good() };
    let bytes = hello.encode().expect("within bounds");
    let arrived = Hello::decode(&bytes).expect("arrives");
    assert_eq!(arrived, hello);
    assert!(arrived != good() && Token::new(&[b'x'; 32]).expect("long enough") != token);
    for shown in [format!("{arrived:?}"), format!("{arrived:#?}"), format!("{token:?}")] {
        assert!(!shown.contains(secret) && !shown.contains("48, 49, 50"), "{shown}");
    }
    // The last byte becomes white space, then the length becomes one that no token has.
    let at = bytes.len() - secret.len() - 2;
    let mut padded = bytes.clone();
    padded[at + 2 + 31] = b' ';
    let error = Hello::decode(&padded).expect_err("two forms of one token").to_string();
    assert!(error.contains("token is surrounded by white space") && !error.contains("0123"), "{error}");
    for length in [1, TOKEN_BYTES_MIN - 1, TOKEN_BYTES_MAX + 1] {
        let mut other = bytes[..at].to_vec();
        other.extend((length as u16).to_le_bytes());
        other.extend(vec![b'x'; length]);
        let all = other.len() as u32;
        other[12..16].copy_from_slice(&all.to_le_bytes());
        let error = Hello::decode(&other).expect_err("no length of a token").to_string();
        assert_eq!(error, format!("hello: length of the token is {length}, expected 32 to 512"));
    }
    for content in [&b""[..], b"short", &[b' '; 40], &[b'x'; 513]] {
        assert!(Token::new(content).is_err(), "{} bytes", content.len());
    }
}

#[test]
fn the_fuzz_targets_seeds_are_of_this_version() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/handshake");
    let (mut hellos, mut tokens) = (0, 0);
    for entry in std::fs::read_dir(&corpus).expect("the corpus is there") {
        let entry = entry.expect("a readable directory");
        let (name, bytes) = (entry.file_name(), std::fs::read(entry.path()).expect("a readable seed"));
        match name.to_string_lossy().as_ref() {
            "hello_other_version" => assert!(matches!(Hello::decode(&bytes), Err(Error::Version { .. }))),
            hello if hello.starts_with("hello_") => {
                let decoded = Hello::decode(&bytes).unwrap_or_else(|error| panic!("{hello}: {error}"));
                // These are of releases that agreed on no version.
                let again = decoded.encode().expect("within bounds");
                assert_eq!(again[22..24], [VERSION as u8, 0], "{hello}");
                assert_eq!([&again[..22], &[0; 2], &again[24..]].concat(), bytes, "{hello}");
                hellos += 1;
                tokens += usize::from(decoded.token.is_some());
            }
            "detach" => assert_eq!(Detach::decode(&bytes), Ok(Detach)),
            "watch" => assert!(matches!(First::decode(&bytes), Ok(First::Watch(_)))),
            message @ ("space_opened" | "space_closed" | "watching") => {
                assert!(FromWatched::decode(&bytes).is_ok(), "{message}");
            }
            message @ ("ask_hello" | "ask_recall" | "ask_share" | "note" | "forget") => {
                assert!(ToRelay::decode(&bytes).is_ok(), "{message}");
            }
            message @ ("ask_welcome" | "answer") => assert!(FromRelay::decode(&bytes).is_ok(), "{message}"),
            "relay_state" => assert!(RelayState::decode(&bytes).is_ok()),
            other => assert!(FromDaemon::decode(&bytes).is_ok(), "{other}"),
        }
    }
    assert!(hellos >= 3 && tokens >= 1, "{hellos} hellos, {tokens} tokens");
}

#[test]
fn versions_and_features_in_common_are_used() {
    let offer = |oldest: u32, newest: u16, features: u64| {
        let mut bytes = good().encode().expect("within bounds");
        bytes[4..8].copy_from_slice(&oldest.to_le_bytes());
        bytes[16..24].copy_from_slice(&(u64::from(newest) << 48 | features).to_le_bytes());
        Hello::decode(&bytes)
    };
    let ours = Protocol::ours(0b0110);
    let next = VERSION as u16 + 1;
    // A newer release that still speaks our version; one that spoke older ones too; one from before this agreement.
    for (oldest, newest, features) in [(OLDEST, next, 0b1100), (OLDEST - 1, VERSION as u16, 0b1100), (OLDEST, 0, 0)] {
        let theirs = offer(oldest, newest, features).expect("a version in common").protocol;
        let common = ours.common(theirs);
        assert_eq!((common.version, common.features), (VERSION.min(theirs.version), 0b0110 & features));
    }
    // Nothing in common: newer, and older.
    let error = offer(VERSION + 1, next + 1, 0).expect_err("too new");
    assert_eq!(error.status(), Status::Version);
    let text =
        format!("protocol version {next} to {}, this side {VERSION}; install a newer kvtide on this side", next + 1);
    assert!(error.to_string().ends_with(&text), "{error}");
    let error = offer(OLDEST - 2, OLDEST as u16 - 1, 0).expect_err("too old").to_string();
    assert!(error.ends_with("install a newer kvtide on the peer's side"), "{error}");
}

#[test]
fn messages_of_no_common_version_are_refused() {
    let mut watch = Watch::default().encode().to_vec();
    let mut detach = Detach.encode();
    for bytes in [&mut watch, &mut detach] {
        bytes[4..8].copy_from_slice(&(VERSION + 1).to_le_bytes());
    }
    assert_eq!(First::decode(&watch).expect_err("too new").status(), Status::Version);
    assert_eq!(Detach::decode(&detach).expect_err("too new").status(), Status::Version);
    watch[0] ^= 1;
    assert!(First::decode(&watch).expect_err("no magic").to_string().starts_with("hello: magic is 0x"));
}

#[test]
fn a_hello_cut_anywhere_or_followed_by_anything_is_refused() {
    let bytes = good().encode().expect("within bounds");
    for end in 0..bytes.len() {
        let error = Hello::decode(&bytes[..end]).expect_err("cut");
        assert!(matches!(error, Error::Message { .. }), "{error}");
        // The same with a matching length: the fields themselves are missing.
        if end >= 16 {
            let mut cut = bytes[..end].to_vec();
            cut[12..16].copy_from_slice(&(end as u32).to_le_bytes());
            assert!(Hello::decode(&cut).expect_err("cut").to_string().contains("cut off after"));
        }
    }
    let mut longer = bytes;
    longer.push(0);
    assert!(Hello::decode(&longer).is_err());
    let length = longer.len() as u32;
    longer[12..16].copy_from_slice(&length.to_le_bytes());
    assert_eq!(Hello::decode(&longer).expect_err("more").to_string(), "hello: end is 1 more bytes, expected nothing");
}

#[test]
fn an_engines_last_words_are_nothing_else() {
    let bytes = Detach.encode();
    assert_eq!((bytes.len(), Detach::decode(&bytes)), (hello::HEAD_BYTES, Ok(Detach)));
    assert!(Hello::decode(&bytes).is_err() && FromDaemon::decode(&bytes).is_err());
    for end in 0..bytes.len() {
        assert!(Detach::decode(&bytes[..end]).is_err(), "cut after {end} bytes");
        let mut other = bytes.clone();
        other[end] ^= 1;
        assert!(Detach::decode(&other).is_err(), "byte {end} changed");
    }
    assert!(Detach::decode(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn the_daemons_messages_arrive() {
    let shape = Shape { channels: 2, depth: 64, jobs: 256, lanes: 3 };
    let limits = Limits { shape, blocks_max: 5, seqs_max: 6, seq_blocks_max: 7, request_timeout_us: 8 };
    let welcome = Welcome::accept(9, Protocol { version: VERSION, features: 5 }, limits).expect("a valid shape");
    let slab = Slab { slab: 3, class: 1, frames: 16, stride: 1024, bytes: 16384 };
    let welcome = Welcome { other_identity: "i".repeat(IDENTITY_BYTES_MAX), ..welcome };
    let welcome = Welcome { relay_socket: "s".repeat(SOCKET_BYTES_MAX), ..welcome };
    let refusal = Welcome::refusal(Status::Limit, "64 sessions are attached already");
    let disconnect = Disconnect { status: Status::Protocol, text: "ring".into() };
    let decode = |bytes: &[u8]| FromDaemon::decode(bytes).expect("arrives");
    assert_eq!(decode(&welcome.encode()), FromDaemon::Welcome(welcome.clone()));
    assert_eq!(decode(&refusal.encode()), FromDaemon::Welcome(refusal));
    assert_eq!(decode(&slab.encode().expect("valid")), FromDaemon::Slab(slab));
    assert_eq!(decode(&SlabGone { slab: 3 }.encode()), FromDaemon::SlabGone(SlabGone { slab: 3 }));
    assert_eq!(decode(&disconnect.encode()), FromDaemon::Disconnect(disconnect));
    assert!(Hello::decode(&welcome.encode()).is_err() && FromDaemon::decode(&good().encode().expect("valid")).is_err());
    let odd = Welcome { region_bytes: [1, 2], ..welcome };
    assert!(FromDaemon::decode(&odd.encode()).expect_err("sizes").to_string().contains("bytes of the regions"));
    for slab in [Slab { bytes: 16383, ..slab }, Slab { stride: 1000, ..slab }, Slab { frames: 0, ..slab }] {
        assert!(slab.encode().is_err());
    }
    let long = Welcome::refusal(Status::Invalid, &"é".repeat(1000));
    let FromDaemon::Welcome(arrived) = decode(&long.encode()) else { panic!("a welcome") };
    assert_eq!(arrived.text, "é".repeat(512), "cut at a character's end");
}

#[test]
fn what_a_relay_is_told_arrives_and_its_bounds_are_checked() {
    let opened = SpaceOpened::of(7, &good());
    let decode = |bytes: &[u8]| FromWatched::decode(bytes).expect("arrives");
    assert_eq!(decode(&opened.encode().expect("valid")), FromWatched::Opened(opened.clone()));
    assert_eq!((opened.space, opened.shards, opened.planes.len()), (7, 4, 2));
    assert_eq!(decode(&Watching.encode()), FromWatched::Watching);
    assert_eq!(decode(&SpaceClosed { space: 7 }.encode()), FromWatched::Closed(SpaceClosed { space: 7 }));
    let refusal = Welcome::refusal(Status::Permission, "no relay");
    assert_eq!(decode(&refusal.encode()), FromWatched::Refused(Status::Permission, "no relay".into()));
    assert!(FromWatched::decode(&good().encode().expect("valid")).is_err());
    for wrong in [
        SpaceOpened { shards: 0, ..opened.clone() },
        SpaceOpened { planes: vec![], ..opened.clone() },
        SpaceOpened { page_tokens: 0, ..opened.clone() },
        SpaceOpened { name: String::new(), ..opened.clone() },
    ] {
        assert!(wrong.encode().is_err(), "{wrong:?}");
    }
    let state = RelayState { since_s: u64::MAX, text: "é".repeat(256) };
    assert_eq!(RelayState::decode(&state.encode()), Ok(state.clone()));
    let arrived = |text: &str| RelayState::decode(&RelayState { since_s: 1, text: text.into() }.encode());
    assert_eq!(arrived(&"é".repeat(257)).expect("it is cut").text, "é".repeat(256));
    assert_eq!(arrived("a\nb\u{1b}[2J").expect("it is cleaned").text, "a\u{fffd}b\u{fffd}[2J");
    assert!(arrived("").is_err() && RelayState::decode(&Watching.encode()).is_err());
    for control in [b'\n', 0x1b, 0x7f, 0] {
        let mut bytes = arrived("abc").expect("valid").encode();
        *bytes.last_mut().expect("it has a text") = control;
        assert!(RelayState::decode(&bytes).expect_err("a control character").to_string().contains("control"));
    }
    let token = Token::new(b"0123456789abcdef0123456789abcdef").expect("long enough");
    for token in [None, Some(token)] {
        let watch = Watch { token };
        assert_eq!(First::decode(&watch.encode()), Ok(First::Watch(watch)));
    }
    let relay = Hello { relay: true, tier0_frames: vec![0, 0], mapped_frames: 0, ..good() };
    assert_eq!(First::decode(&relay.encode().expect("valid")), Ok(First::Hello(relay.clone())));
    let local = Hello { local: true, ..good() };
    assert_eq!(First::decode(&local.encode().expect("valid")), Ok(First::Hello(local)));
    let nowhere = Hello { numa_node: None, ..good() };
    assert_eq!(First::decode(&nowhere.encode().expect("valid")), Ok(First::Hello(nowhere)));
    assert!(refused(|h| h.relay = true).contains("frames of a relay is 94, expected 0"));
    assert!(Hello { local: true, ..relay }.encode().is_err(), "a relay attaches to no local space");
}

#[test]
fn a_plane_that_no_client_encodes_is_refused() {
    let bytes = good().encode().expect("valid");
    let plane = bytes.windows(4).position(|window| window == 1000u32.to_le_bytes()).expect("the first plane");
    for (at, field) in [(4, "kind"), (6, "reserved"), (8, "window_tokens of a plane without a window")] {
        let mut bytes = bytes.clone();
        bytes[plane + at] = 3;
        let text = Hello::decode(&bytes).expect_err("must be refused").to_string();
        assert!(text.contains(field), "{field}: {text}");
    }
}

proptest! {
    #[test]
    fn what_is_sent_arrives(
        name in "[a-zA-Z0-9 é/.-]{1,32}", fingerprint in any::<[u8; 32]>(), page_tokens in 1u32..65536,
        planes in proptest::collection::vec((1u32..5, 0u16..3, 1u32..100), 1..40), features in any::<u64>(),
        depth in 1u32..10, lanes in 1u16..=64, channels in 1u16..=16, frames in 1u32..1000
    ) {
        let planes: Vec<Plane> = planes.into_iter().map(|(size, kind, window)| Plane {
            page_bytes: size * 1000, kind: PlaneKind::from_code(kind, window).expect("0 to 2"),
        }).collect();
        let tier0_frames = vec![frames; classes(&planes).len()];
        let hello = Hello { protocol: Protocol { version: VERSION, features: features >> 16 }, name, fingerprint, page_tokens, planes, lanes, channels, depth: 1 << depth, tier0_frames, ..good() };
        let bytes = hello.encode().expect("within bounds");
        prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
    }

    #[test]
    fn any_bytes_are_refused_or_mean_themselves(at in 0usize..200, to in any::<u8>()) {
        let mut bytes = good().encode().expect("within bounds");
        let at = at % bytes.len();
        bytes[at] = to;
        // Several versions in the header and in the word mean the same one.
        let is_version = (4..8).contains(&at) || (22..24).contains(&at);
        if let Ok(hello) = Hello::decode(&bytes) && !is_version {
            prop_assert_eq!(hello.encode(), Ok(bytes));
        }
    }
}

#[test]
fn questions_to_a_relay_arrive_and_their_bounds_are_checked() {
    let token = Token::new(&[b'x'; 40]).expect("a token");
    let hello = AskHello { fingerprint: [7; 32], token: Some(token) };
    let decode = |bytes: &[u8]| ToRelay::decode(bytes).expect("arrives");
    assert_eq!(decode(&hello.encode()), ToRelay::Hello(hello.clone()));
    let trace = Some(TraceContext { trace: 1 << 127 | 5, parent: 1 << 63 | 6 });
    let hashes = (1..=ask_hashes_max(true) as u128).collect();
    let ask = Ask { id: 3, what: What::Share, wait_ms: 9, more: true, hashes, trace };
    let bytes = ask.encode().expect("valid");
    assert!(bytes.len() <= hello::MESSAGE_MAX && bytes.len() + 16 > hello::MESSAGE_MAX, "as many as fit");
    assert_eq!(decode(&bytes), ToRelay::Ask(ask.clone()));
    for (id, bytes_of_id) in
        [(Some(TraceContext { trace: 0, parent: 1 }), 24), (Some(TraceContext { trace: 1, parent: 0 }), 24), (None, 0)]
    {
        let traced = Ask { trace: id, ..ask.clone() }.encode().expect("valid");
        assert_eq!(traced.len(), bytes.len() - 24 + bytes_of_id);
        assert_eq!(ToRelay::decode(&traced).is_ok(), id.is_none(), "ids of 0 are none");
    }
    let most = Ask { hashes: vec![1; ASK_HASHES_MAX], trace: None, ..ask.clone() }.encode().expect("as many as fit");
    assert!(most.len() + 16 > hello::MESSAGE_MAX);
    assert!(Ask { wait_ms: hello::WAIT_MS_MAX + 1, ..ask.clone() }.encode().is_err());
    for wrong in [vec![], vec![1, 0], (1..=ask_hashes_max(true) as u128 + 1).collect()] {
        assert!(Ask { hashes: wrong, ..ask.clone() }.encode().is_err());
    }
    for (page_tokens, adapter) in [(1, "a".repeat(1024)), (16, "lora".into()), (256, String::new())] {
        let most = note_hashes_max(page_tokens);
        let note = Note { hashes: vec![5; most], tokens: vec![6; most * page_tokens], adapter };
        let bytes = note.encode().expect("as many as fit");
        assert_eq!(decode(&bytes), ToRelay::Note(note.clone()));
        assert!(Note { tokens: vec![6; most * page_tokens + 1], ..note.clone() }.encode().is_err() || most == 1);
        assert!(Note { tokens: vec![], ..note }.encode().is_err());
    }
    assert_eq!(note_hashes_max(4096), 0, "a block whose tokens fill a message");
    for (wants_notes, wants_traces) in [(false, false), (true, false), (false, true), (true, true)] {
        let welcome = AskWelcome { wants_notes, wants_traces };
        assert_eq!(FromRelay::decode(&welcome.encode()), Ok(FromRelay::Welcome(welcome)));
    }
    let answer = Answer { id: 3, done: true, blocks: 8, in_us: 7 };
    assert_eq!(FromRelay::decode(&answer.encode()), Ok(FromRelay::Answer(answer)));
    let end = Disconnect { status: Status::Permission, text: "no".into() };
    assert_eq!(FromRelay::decode(&end.encode()), Ok(FromRelay::Disconnect(end)));
    for cut in 0..bytes.len().min(64) {
        assert!(ToRelay::decode(&bytes[..cut]).is_err(), "cut after {cut} bytes");
    }
    let mut what = bytes;
    what[24] = 3;
    assert!(ToRelay::decode(&what).expect_err("unknown").to_string().contains("1 (share) or 2 (await)"));
    let forget = hello::Forget { id: 7 };
    assert_eq!(decode(&forget.encode()), ToRelay::Forget(forget));
    assert!(FromDaemon::decode(&answer.encode()).is_err() && ToRelay::decode(&answer.encode()).is_err());
}
