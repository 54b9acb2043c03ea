//! Any bytes as a router that connects to the relay's sockets for KV events: questions within bounds, or a refusal, in whatever pieces they come.
#![no_main]

use kvtide_fuzz::zmtp::{Asked, FRAME_MAX, GREETING_BYTES, Mechanism, Role, SUBSCRIPTIONS_MAX, Session, Subscriptions};
use libfuzzer_sys::fuzz_target;

/// Feed these bytes in pieces of this size. Return the requests, and whether the connection was refused.
fn talk(role: Role, mechanism: Mechanism, piece: usize, mut bytes: &[u8]) -> (Vec<String>, bool) {
    let (mut session, mut topics, mut all) = (Session::new(role, mechanism), Subscriptions::default(), Vec::new());
    loop {
        loop {
            let was_open = session.is_open();
            let asked = match session.next() {
                Ok(Some(asked)) => asked,
                Ok(None) => break,
                Err(why) => {
                    assert!(!why.to_string().is_empty());
                    return (all, true);
                }
            };
            all.push(format!("{asked:?}"));
            match asked {
                Asked::Password(password) => {
                    assert!(mechanism == Mechanism::Plain && !was_open && password.len() < 256);
                    session.forget();
                }
                Asked::Ready => {
                    assert!(!was_open);
                    session.open();
                }
                Asked::Subscribe(topic) => {
                    assert!(was_open && role == Role::Publish && topic.len() <= FRAME_MAX);
                    if topics.add(topic).is_err() {
                        return (all, true);
                    }
                    assert!(topics.matches(topic));
                }
                Asked::Cancel(topic) => topics.cancel(topic),
                Asked::Replay(_) => assert!(was_open && role == Role::Replay),
                Asked::Ping { context, .. } => assert!(was_open && context.len() <= 16),
            }
        }
        if bytes.is_empty() {
            return (all, false);
        }
        let room = session.room();
        // Access takes at least a greeting, and the buffer never fills up.
        assert!(room.len() > FRAME_MAX - GREETING_BYTES || !room.is_empty());
        let count = piece.min(bytes.len()).min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        session.filled(count);
        bytes = &bytes[count..];
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    let role = if mode & 1 == 0 { Role::Publish } else { Role::Replay };
    let mechanism = if mode & 2 == 0 { Mechanism::Null } else { Mechanism::Plain };
    let pieces = talk(role, mechanism, usize::from(mode >> 2) + 1, bytes);
    assert_eq!(pieces, talk(role, mechanism, usize::MAX, bytes), "pieces change nothing");
    assert!(pieces.0.len() <= bytes.len() && SUBSCRIPTIONS_MAX > 0);
});
