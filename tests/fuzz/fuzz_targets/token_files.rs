//! Any bytes as a token file: a token of a bounded length without white space around it, or an error text without its bytes.
#![no_main]

use kvtide_wire::hello::{TOKEN_BYTES_MAX, TOKEN_BYTES_MIN};
use kvtide_wire::os::token;
use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let memory = rustix::fs::memfd_create("token", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let mut file = File::from(memory);
    file.write_all(bytes).expect("room");
    file.rewind().expect("a file");
    match token::read(&mut file, Path::new("token")) {
        Ok(token) => {
            let secret = token.secret();
            assert!((TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&secret.len()));
            assert!(secret.trim_ascii() == secret && bytes.trim_ascii() == secret);
            assert!(!format!("{token:?}").as_bytes().windows(secret.len()).any(|part| part == secret));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
