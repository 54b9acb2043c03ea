//! Any datagram as a first message, as a Detach, as the state of a relay, as a message of the daemon or between an engine and a relay: decoded,
//! or an error text. A decoded message encodes to the same bytes, so no byte is ignored and no message has two forms; but for the versions of
//! a Hello and a Welcome, where 0 stands for that of the header.
#![no_main]

use kvtide_wire::hello::{self, Detach, First, FromDaemon, FromRelay, FromWatched, RelayState, ToRelay};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match First::decode(bytes) {
        Ok(First::Watch(watch)) => assert_eq!(*watch.encode(), bytes),
        Ok(First::Hello(hello)) => {
            same_but_versions(&hello.encode().expect("it was checked"), bytes, 22);
            let classes = kvtide_wire::geometry::classes(&hello.planes);
            assert_eq!(classes.len(), hello.tier0_frames.len());
            for tokens in [0, 1, u64::from(hello.page_tokens), u64::MAX] {
                let last = tokens.saturating_sub(1) / u64::from(hello.page_tokens);
                for plane in &hello.planes {
                    assert!(plane.kind.first_needed(tokens, hello.page_tokens.into()) <= last, "{plane:?} at {tokens}");
                }
            }
        }
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    if let Ok(detach) = Detach::decode(bytes) {
        assert_eq!(detach.encode(), bytes);
    }
    if let Ok(state) = RelayState::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
    match FromDaemon::decode(bytes) {
        Ok(FromDaemon::Welcome(m)) => same_but_versions(&m.encode(), bytes, 30),
        Ok(FromDaemon::Slab(m)) => assert_eq!(m.encode().expect("it was checked"), bytes),
        Ok(FromDaemon::SlabGone(m)) => assert_eq!(m.encode(), bytes),
        Ok(FromDaemon::Disconnect(m)) => assert_eq!(m.encode(), bytes),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match FromWatched::decode(bytes) {
        Ok(FromWatched::Refused(status, text)) => {
            assert_eq!(hello::Welcome::refusal(status, &text).encode().len(), bytes.len())
        }
        Ok(FromWatched::Opened(m)) => assert_eq!(m.encode().expect("it was checked"), bytes),
        Ok(FromWatched::Watching) => assert_eq!(hello::Watching.encode(), bytes),
        Ok(FromWatched::Closed(m)) => assert_eq!(m.encode(), bytes),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match ToRelay::decode(bytes) {
        Ok(ToRelay::Hello(m)) => assert_eq!(*m.encode(), bytes),
        Ok(ToRelay::Ask(m)) => assert_eq!(m.encode().expect("it was checked"), bytes),
        Ok(ToRelay::Note(m)) => assert_eq!(m.encode().expect("it was checked"), bytes),
        Ok(ToRelay::Forget(m)) => assert_eq!(m.encode(), bytes),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    match FromRelay::decode(bytes) {
        Ok(FromRelay::Welcome(m)) => assert_eq!(m.encode(), bytes),
        Ok(FromRelay::Answer(m)) => assert_eq!(m.encode(), bytes),
        Ok(FromRelay::Disconnect(m)) => assert_eq!(m.encode(), bytes),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
});

/// Compare a message with what its decoded form encodes to, except the version in its header and the one at this place.
fn same_but_versions(encoded: &[u8], bytes: &[u8], place: usize) {
    assert_eq!(encoded.len(), bytes.len());
    let mut differ = (0..bytes.len()).filter(|&i| encoded[i] != bytes[i]);
    assert!(differ.all(|i| (4..8).contains(&i) || (place..place + 2).contains(&i)));
}
