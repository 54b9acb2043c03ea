//! Tests of the protocol without sockets.

use super::*;

const NULL: Mechanism = Mechanism::Null;
const PLAIN: Mechanism = Mechanism::Plain;

/// Requests of a session, as text.
fn asked(asked: Asked<'_>) -> String {
    match asked {
        Asked::Password(password) => format!("password {}", String::from_utf8_lossy(password)),
        Asked::Subscribe(topic) => format!("subscribe {}", String::from_utf8_lossy(topic)),
        Asked::Cancel(topic) => format!("cancel {}", String::from_utf8_lossy(topic)),
        Asked::Ready => "ready".into(),
        Asked::Replay(first) => format!("replay {first}"),
        Asked::Ping { ttl, context } => format!("ping {ttl} {}", context.len()),
    }
}

/// Feed bytes in pieces; return all questions, or the error.
fn feed(session: &mut Session, bytes: &[u8], piece: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    let mut left = bytes;
    loop {
        while let Some(one) = session.next().map_err(|error| error.to_string())? {
            let is_ready = one == Asked::Ready;
            all.push(asked(one));
            if is_ready {
                session.open();
            }
        }
        if left.is_empty() {
            return Ok(all);
        }
        let room = session.room();
        assert!(!room.is_empty(), "what cannot become a frame is refused before the buffer is full");
        let count = piece.min(left.len()).min(room.len());
        room[..count].copy_from_slice(&left[..count]);
        session.filled(count);
        left = &left[count..];
    }
}

fn metadata(socket: &str) -> Vec<u8> {
    let length = (socket.len() as u32).to_be_bytes();
    [b"\x08Identity\0\0\0\0".as_slice(), b"\x0bSocket-Type", &length, socket.as_bytes()].concat()
}

fn client(mechanism: Mechanism, socket: &str) -> Vec<u8> {
    let greeting = greeting(mechanism).to_vec();
    let rest = match mechanism {
        NULL => command_frame("READY", &[&metadata(socket)]),
        PLAIN => {
            [command_frame("HELLO", &[&[2], b"me", &[6], b"secret"]), command_frame("INITIATE", &[&metadata(socket)])]
                .concat()
        }
    };
    [greeting, rest].concat()
}

fn refused(role: Role, mechanism: Mechanism, bytes: &[u8]) -> String {
    feed(&mut Session::new(role, mechanism), bytes, 7).unwrap_err()
}

#[test]
fn subscribers_of_both_versions_are_understood_in_any_pieces() {
    let talk = [
        client(NULL, "SUB"),
        command_frame("SUBSCRIBE", &[b"kv"]),
        message(&[b"\x01kv@"]).to_vec(),
        message(&[b"hello", b"\x01no"]).to_vec(),
        message(&[b""]).to_vec(),
        command_frame("PING", &[&[0, 30], b"abc"]),
        command_frame("PONG", &[]),
        command_frame("LATER", &[b"x"]),
        message(&[b"\0kv@"]).to_vec(),
        command_frame("CANCEL", &[b"kv"]),
        message(&[&[&[1][..], &[b'x'; 1000]].concat()]).to_vec(),
    ]
    .concat();
    let long = format!("subscribe {}", "x".repeat(1000));
    let expected = ["ready", "subscribe kv", "subscribe kv@", "ping 30 3", "cancel kv@", "cancel kv", long.as_str()]
        .map(String::from);
    for piece in [1, 2, 63, 64, 65, 5000] {
        assert_eq!(feed(&mut Session::new(Role::Publish, NULL), &talk, piece).unwrap(), expected, "{piece}");
    }
    let open = feed(&mut Session::new(Role::Publish, PLAIN), &client(PLAIN, "XSUB"), 1).unwrap();
    assert_eq!(open, ["password secret", "ready"]);
}

#[test]
fn requests_for_replays_have_an_empty_frame_and_a_number() {
    let number = 7u64.to_be_bytes();
    for socket in ["DEALER", "REQ"] {
        let talk = [
            client(NULL, socket),
            message(&[b"", &number]).to_vec(),
            message(&[&number]).to_vec(),
            message(&[b"", &number, b""]).to_vec(),
            message(&[b"", b"1234567"]).to_vec(),
            message(&[b"", &8u64.to_be_bytes()]).to_vec(),
        ]
        .concat();
        let all = feed(&mut Session::new(Role::Replay, NULL), &talk, 3).unwrap();
        assert_eq!(all, ["ready", "replay 7", "replay 8"]);
    }
}

/// 73 bytes: a greeting, and a frame that claims 2^62 bytes.
#[test]
fn a_claim_is_refused_before_its_bytes_come() {
    for (role, flags) in [(Role::Publish, LONG | COMMAND), (Role::Replay, LONG), (Role::Publish, LONG | MORE)] {
        for mechanism in [NULL, PLAIN] {
            for length in [1 << 62, u64::MAX, 1 << 32, FRAME_MAX as u64 + 1] {
                let attack = [greeting(mechanism).to_vec(), vec![flags], length.to_be_bytes().to_vec()].concat();
                assert_eq!(attack.len(), 73);
                let error = refused(role, mechanism, &attack);
                assert!(error.contains(&format!("{length} bytes")), "{error}");
                let open = [client(mechanism, role.peers()[0]), attack[64..].to_vec()].concat();
                assert!(refused(role, mechanism, &open).contains("the maximum is 4096"));
            }
        }
    }
    // The longest frame is taken.
    let longest = [client(NULL, "SUB"), message(&[&vec![9; FRAME_MAX]]).to_vec()].concat();
    assert_eq!(feed(&mut Session::new(Role::Publish, NULL), &longest, 5000).unwrap(), ["ready"]);
}

#[test]
fn what_the_protocol_does_not_allow_is_refused() {
    let sub = client(NULL, "SUB");
    let greeted = greeting(NULL).to_vec();
    let after = |frame: &[u8]| [&sub[..], frame].concat();
    let first = |frame: &[u8]| [&greeted[..], frame].concat();
    let changed = |at: usize, byte: u8| {
        let mut greeting = greeted.clone();
        greeting[at] = byte;
        greeting
    };
    for (bytes, part) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "no greeting"),
        (b"G".to_vec(), "no greeting"),
        (changed(9, 0), "no greeting"),
        (changed(10, 1), "libzmq 4.0"),
        (client(PLAIN, "SUB"), "mechanism PLAIN; this socket needs NULL"),
        (first(&message(&[b"x"])), "a message before the end"),
        (first(&command_frame("SUBSCRIBE", &[b""])), "command SUBSCRIBE in the handshake"),
        (first(&command_frame("INITIATE", &[&metadata("SUB")])), "command INITIATE in the handshake"),
        (first(&command_frame("HELLO", &[&[0, 0]])), "command HELLO in the handshake"),
        (first(&command_frame("READY", &[])), "without a socket type"),
        (first(&command_frame("READY", &[&metadata("PULL")])), "a PULL socket; PUB serves SUB and XSUB"),
        (first(&command_frame("READY", &[&metadata("SUB")[..20]])), "metadata of a wrong length"),
        (first(&command_frame("READY", &[b"\x01a\xff\xff\xff\xff"])), "metadata of a wrong length"),
        (first(&[COMMAND, 0]), "a command without a name"),
        (first(&[COMMAND, 3, 200, b'a', b'b']), "a command without a name"),
        (first(&[COMMAND, 2, 1, 0x80]), "a command without a name"),
        (first(&[8, 0]), "flags 0x08"),
        (after(&[COMMAND | MORE, 0]), "flags 0x05"),
        (after(&command_frame("PING", &[&[0]])), "a PING of a wrong length"),
        (after(&command_frame("PING", &[&[0; 19]])), "a PING of a wrong length"),
        (after(&command_frame("ERROR", &[&[0]])), "reports an error"),
    ] {
        let error = refused(Role::Publish, NULL, &bytes);
        assert!(error.contains(part), "{part}: {error}");
    }
    let router = [client(NULL, "DEALER"), command_frame("SUBSCRIBE", &[b""])].concat();
    assert!(refused(Role::Replay, NULL, &router).contains("command SUBSCRIBE to a ROUTER socket"));
    assert!(refused(Role::Replay, NULL, &sub).contains("a SUB socket; ROUTER serves DEALER and REQ"));
    assert!(refused(Role::Publish, PLAIN, &sub).contains("with the token as the password"));
    let plain = greeting(PLAIN).to_vec();
    let no_hello = [plain.clone(), command_frame("INITIATE", &[&metadata("SUB")])].concat();
    assert!(refused(Role::Publish, PLAIN, &no_hello).contains("command INITIATE"), "a password is needed");
    let no_hello = [plain.clone(), command_frame("READY", &[&metadata("SUB")])].concat();
    assert!(refused(Role::Publish, PLAIN, &no_hello).contains("command READY"));
    for hello in [&b""[..], b"\x02me", b"\x02me\x07secret", b"\x02me\x05secret", b"\xffme\x06secret"] {
        let bytes = [plain.clone(), command_frame("HELLO", &[hello])].concat();
        assert!(refused(Role::Publish, PLAIN, &bytes).contains("HELLO of a wrong length"));
    }
}

#[test]
fn a_password_does_not_stay_in_the_buffer() {
    let mut session = Session::new(Role::Publish, PLAIN);
    let bytes = client(PLAIN, "SUB");
    session.room()[..bytes.len()].copy_from_slice(&bytes);
    session.filled(bytes.len());
    assert_eq!(session.next().unwrap(), Some(Asked::Password(b"secret")));
    session.forget();
    assert!(!session.buffer.windows(6).any(|part| part == b"secret"));
    assert_eq!(session.next().unwrap(), Some(Asked::Ready), "the next command is intact");
    assert!(!session.is_open() && session.next().unwrap().is_none(), "the server ends the handshake");
    // A command in two parts: receiving the second moves the first.
    let mut session = Session::new(Role::Publish, PLAIN);
    let (first, second) = bytes.split_at(bytes.windows(6).position(|part| part == b"secret").unwrap() + 6);
    for part in [first, &second[..1]] {
        session.room()[..part.len()].copy_from_slice(part);
        session.filled(part.len());
        while let Some(asked) = session.next().unwrap() {
            assert_eq!(asked, Asked::Password(b"secret"));
        }
    }
    session.forget();
    assert!(!session.buffer.windows(6).any(|part| part == b"secret"));
}

#[test]
fn subscriptions_are_counted_and_bounded() {
    let mut topics = Subscriptions::default();
    assert!(!topics.matches(b"") && !topics.matches(b"kv"), "without one nothing comes");
    for topic in [&b"kv@a"[..], b"kv@a", b""] {
        topics.add(topic).unwrap();
    }
    topics.cancel(b"");
    topics.cancel(b"none");
    assert!(topics.matches(b"kv@abc") && !topics.matches(b"kv@") && !topics.matches(b"kv@b"));
    topics.cancel(b"kv@a");
    assert!(topics.matches(b"kv@a"), "asked for twice");
    topics.cancel(b"kv@a");
    assert!(!topics.matches(b"kv@a"));
    for topic in 0..SUBSCRIPTIONS_MAX {
        topics.add(&topic.to_be_bytes()).unwrap();
    }
    assert!(topics.add(b"one more").unwrap_err().to_string().contains("more than 64"));
    topics.add(&0usize.to_be_bytes()).unwrap();
}

#[test]
fn what_the_server_says_has_the_bytes_of_the_specification() {
    let greeting = greeting(PLAIN);
    assert_eq!(greeting[..12], [0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1]);
    assert_eq!((&greeting[12..18], greeting[32], super::greeting(NULL)[32]), (&b"PLAIN\0"[..], 1, 0));
    assert_eq!(ready(Role::Publish), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    assert_eq!((welcome(), pong(b"ab")), (b"\x04\x08\x07WELCOME".to_vec(), b"\x04\x07\x04PONGab".to_vec()));
    assert_eq!(error("no"), b"\x04\x09\x05ERROR\x02no");
    assert_eq!(error(&"x".repeat(999))[..12], *b"\x06\0\0\0\0\0\0\x01\x06\x05ER");
    assert_eq!(message(&[b"a", b"", &[7; 256]])[..14], *b"\x01\x01a\x01\0\x02\0\0\0\0\0\0\x01\0");
}
