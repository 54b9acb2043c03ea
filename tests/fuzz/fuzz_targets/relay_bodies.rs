//! Any bytes as the bodies of `/v1/recall` and `/v1/note`: a request whose values are checked, or an error text without its values.
#![no_main]

use kvtide_fuzz::requests::{Ask, Hashes, Note};
use libfuzzer_sys::fuzz_target;

fn check(hashes: &Hashes, shown: &str) {
    assert!(!hashes.0.is_empty() && !hashes.0.contains(&0));
    assert!(shown.len() < 64, "{shown}");
}

fuzz_target!(|bytes: &[u8]| {
    match Ask::parse(bytes) {
        Ok(ask) => {
            check(&ask.hashes, &ask.to_string());
            let _ = ask.wait();
        }
        Err(why) => assert!(why.starts_with("the body is not the expected JSON: "), "{why}"),
    }
    match Note::parse(bytes) {
        Ok(note) => {
            check(&note.hashes, &note.to_string());
            assert!(note.adapter().is_none_or(|name| !name.is_empty()));
        }
        Err(why) => assert!(why.starts_with("the body is not the expected JSON: "), "{why}"),
    }
});
