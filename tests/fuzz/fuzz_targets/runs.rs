//! Any bytes as an object of a store under a run's name, and a valid run with changed bytes: only blocks that were written are read.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_fuzz::name::{SharedKey, SpaceKeys};
use kvtide_fuzz::run::{BlockKey, Run};
use libfuzzer_sys::fuzz_target;

/// Bytes of a block: short, so that changes hit headers, checks and blocks alike.
const BLOCK_BYTES: usize = 48;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Bytes(bytes);
    let (mode, count, first) = (input.byte(), u32::from(input.byte() % 4) + 1, input.word() % 1024);
    let keys = SpaceKeys::new(&SharedKey::new([7; 32]), "fuzz", &[9; 32], 0, mode & 1 == 1);
    let key = |index: u32| BlockKey { hash: u128::from(index) + 1, parent: u128::from(index), index };
    let blocks: Vec<BlockKey> = (first..first + count).map(key).collect();
    let run = Run::new(&keys, &blocks, BLOCK_BYTES as u64);
    let pages: Vec<[u8; BLOCK_BYTES]> = (0..count).map(|place| [place as u8; BLOCK_BYTES]).collect();
    let written: Vec<&[u8]> = pages.iter().map(|page| &page[..]).collect();
    let object = if mode & 2 == 2 {
        input.0.to_vec()
    } else {
        let mut object = run.encode(&written).to_vec();
        // Each change is a place and what to add to its byte.
        while !input.is_empty() {
            let at = input.word() as usize % object.len();
            object[at] = object[at].wrapping_add(input.byte());
        }
        object
    };
    for read in 1..=count {
        let beginning = object[..object.len().min(run.layout().first_bytes(read) as usize)].to_vec();
        match run.decode_first(read, beginning.into()) {
            Ok(found) => assert!(found.iter().eq(&written[..read as usize]), "other bytes than were written"),
            Err(bad) => assert!(!bad.to_string().is_empty()),
        }
    }
});
