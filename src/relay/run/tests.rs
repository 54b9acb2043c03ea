//! Tests of the run format.

use super::*;
use crate::name::SharedKey;
use proptest::prelude::*;

fn keys(encrypted: bool) -> SpaceKeys {
    SpaceKeys::new(&SharedKey::new([7; 32]), "domain", &[9; 32], 0, encrypted)
}

/// The blocks `first .. first + count` of the prefix `prefix`.
fn blocks(prefix: u64, first: u32, count: u32) -> Vec<BlockKey> {
    let hash = |index: u32| (u128::from(prefix) << 64) + u128::from(index) + 1;
    let parent = |index: u32| if index == 0 { 0 } else { hash(index - 1) };
    (first..first + count).map(|index| BlockKey { hash: hash(index), parent: parent(index), index }).collect()
}

fn contents(blocks: &[BlockKey], block_bytes: usize) -> Vec<Vec<u8>> {
    blocks.iter().map(|block| (0..block_bytes).map(|i| (block.hash as usize * 31 + i * 7) as u8).collect()).collect()
}

fn encode(run: &Run<'_>) -> Bytes {
    let contents = contents(run.blocks, run.layout.block_bytes as usize);
    run.encode(&contents.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

#[test]
fn blocks_come_back() {
    for encrypted in [false, true] {
        let (keys, blocks) = (keys(encrypted), blocks(1, 8, 4));
        let run = Run::new(&keys, &blocks, 1000);
        let object = encode(&run);
        assert_eq!(object.len() as u64, run.layout().total_bytes());
        let contents = contents(&blocks, 1000);
        assert_eq!(run.decode(object.clone()).unwrap(), contents);
        let first = object.slice(..run.layout().first_bytes(2) as usize);
        assert_eq!(run.decode_first(2, first.clone()).unwrap(), contents[..2]);
        assert!(run.decode_first(3, first).is_err());
        let header = run.open_header(&object[..run.layout().header_bytes() as usize]).unwrap();
        for place in [3, 0, 2] {
            let range = run.layout().block_range(place);
            let stored = object.slice(range.start as usize..range.end as usize);
            assert_eq!(header.open_block(place, stored).unwrap(), contents[place as usize]);
        }
    }
}

#[test]
fn an_encrypted_run_shows_no_bytes_and_no_hash() {
    let contains = |object: &[u8], what: &[u8]| object.windows(what.len()).any(|window| window == what);
    for encrypted in [false, true] {
        let (keys, blocks) = (keys(encrypted), blocks(0x1234_5678_9abc_def0, 0, 2));
        let object = encode(&Run::new(&keys, &blocks, 256));
        assert_eq!(contains(&object, &contents(&blocks, 256)[0][..16]), !encrypted);
        assert!(!contains(&object, &blocks[0].hash.to_le_bytes()[8..]), "the prefix of all hashes");
        assert!(!contains(&object, &blocks[0].hash.to_be_bytes()[..8]), "the prefix of all hashes");
    }
}

#[test]
fn equal_blocks_are_encrypted_to_different_bytes() {
    let (keys, blocks) = (keys(true), blocks(1, 0, 2));
    let run = Run::new(&keys, &blocks, 64);
    let (one, two) = (run.encode(&[&[5; 64], &[5; 64]]), run.encode(&[&[5; 64], &[5; 64]]));
    let stored = |object: &Bytes, place| {
        let range = run.layout().block_range(place);
        object.slice(range.start as usize..range.end as usize)
    };
    assert_ne!(stored(&one, 0), stored(&one, 1), "two blocks of a run");
    assert_ne!(stored(&one, 0), stored(&two, 0), "two writes of a block");
}

#[test]
fn every_flipped_bit_is_found() {
    for encrypted in [false, true] {
        let (keys, blocks) = (keys(encrypted), blocks(1, 0, 2));
        let run = Run::new(&keys, &blocks, 40);
        let object = encode(&run);
        for bit in 0..object.len() * 8 {
            let mut damaged = object.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(run.decode(damaged.into()).is_err(), "bit {bit}, encrypted {encrypted}");
        }
        for len in 0..object.len() {
            let short = run.decode(object.slice(..len));
            assert!(matches!(short, Err(BadRun::Length { .. })), "{len} bytes: {short:?}");
        }
        let longer = [&object[..], &[0]].concat();
        assert!(matches!(run.decode(longer.into()), Err(BadRun::Length { .. })));
    }
}

#[test]
fn a_run_is_bound_to_its_blocks() {
    for encrypted in [false, true] {
        let (keys, original) = (keys(encrypted), blocks(1, 4, 4));
        let object = encode(&Run::new(&keys, &original, 64));
        let decode = |keys: &SpaceKeys, blocks: &[BlockKey]| Run::new(keys, blocks, 64).decode(object.clone());
        let expect_bad = |keys: &SpaceKeys, change: &dyn Fn(&mut Vec<BlockKey>), expected: BadRun| {
            let mut blocks = original.clone();
            change(&mut blocks);
            assert_eq!(decode(keys, &blocks).unwrap_err(), expected);
        };
        assert!(decode(&keys, &original).is_ok());
        expect_bad(&keys, &|b| b[3].hash += 1, BadRun::Mac);
        expect_bad(&keys, &|b| b[0].parent += 1, BadRun::Mac);
        expect_bad(&keys, &|b| b.iter_mut().for_each(|b| b.index += 4), BadRun::Header { field: "first index" });
        // The hash of an inner block: the name stays the same.
        let inner = |b: &mut Vec<BlockKey>| {
            b[1].hash += 1;
            b[2].parent += 1;
        };
        expect_bad(&keys, &inner, BadRun::Mac);
        let other = SpaceKeys::new(&SharedKey::new([8; 32]), "domain", &[9; 32], 0, encrypted);
        expect_bad(&other, &|_| (), BadRun::Mac);
        let domain = SpaceKeys::new(&SharedKey::new([7; 32]), "other", &[9; 32], 0, encrypted);
        expect_bad(&domain, &|_| (), BadRun::Mac);
        let mode = SpaceKeys::new(&SharedKey::new([7; 32]), "domain", &[9; 32], 0, !encrypted);
        assert!(decode(&mode, &original).is_err());
    }
}

#[test]
fn blocks_that_change_places_are_found() {
    for encrypted in [false, true] {
        let (keys, blocks) = (keys(encrypted), blocks(1, 0, 2));
        let run = Run::new(&keys, &blocks, 64);
        let object = encode(&run);
        let range =
            |place| run.layout().block_range(place).start as usize..run.layout().block_range(place).end as usize;
        let swapped = [&object[..range(0).start], &object[range(1)], &object[range(0)]].concat();
        assert_eq!(run.decode(swapped.into()), Err(BadRun::Block { place: 0 }));
    }
}

#[test]
fn runs_of_known_prefixes() {
    assert_eq!(runs_of(0, 0, 8), []);
    assert_eq!(runs_of(0, 8, 8), [(0, 8)]);
    assert_eq!(runs_of(0, 23, 8), [(0, 8), (8, 8), (16, 4), (20, 2), (22, 1)]);
    assert_eq!(runs_of(5, 11, 8), [(5, 1), (6, 2), (8, 8)]);
    assert_eq!(runs_of(3, 2, 1), [(3, 1), (4, 1)]);
    assert_eq!(runs_of(u32::MAX, 1, 8), [(u32::MAX, 1)]);
}

#[test]
fn full_runs_have_at_most_the_target_bytes() {
    assert_eq!(run_blocks(128 << 10, 4 << 20), 32, "the header comes on top");
    assert_eq!(run_blocks((128 << 10) + 1, 4 << 20), 16);
    assert_eq!(run_blocks(8 << 20, 4 << 20), 1, "a block larger than the target is a run of its own");
    assert_eq!(run_blocks(1, u64::MAX), 1 << 30);
}

proptest! {
    #[test]
    fn runs_cover_a_prefix_aligned(first in 0u32..10_000, count in 0u32..5_000, shift in 0u32..12) {
        let max = 1 << shift;
        let mut at = first;
        for (start, len) in runs_of(first, count, max) {
            prop_assert_eq!(start, at);
            prop_assert!(len.is_power_of_two() && len <= max && start % len == 0);
            at += len;
        }
        prop_assert_eq!(at, first + count);
    }

    /// All full runs of the shorter prefix are runs of the longer one.
    #[test]
    fn equal_prefixes_have_equal_runs(short in 0u32..3_000, more in 0u32..3_000, shift in 0u32..10) {
        let max = 1 << shift;
        let (short, long) = (runs_of(0, short, max), runs_of(0, short + more, max));
        let full = short.iter().take_while(|(_, len)| *len == max).count();
        prop_assert_eq!(&short[..full], &long[..full]);
        prop_assert!(short.len() - full <= shift as usize, "a tail has at most one run of each length");
    }

    #[test]
    fn a_larger_run_would_not_fit(block_bytes in 1u64..1 << 24, object_bytes_max in 1u64..1 << 24) {
        let count = run_blocks(block_bytes, object_bytes_max);
        prop_assert!(count.is_power_of_two());
        prop_assert!(count == 1 || u64::from(count) * block_bytes <= object_bytes_max);
        prop_assert!(u64::from(count * 2) * block_bytes > object_bytes_max);
    }

    /// Bytes from outside never panic, and are never taken for blocks.
    #[test]
    fn any_bytes_are_bad(bytes in proptest::collection::vec(any::<u8>(), 0..400), encrypted: bool) {
        let (keys, blocks) = (keys(encrypted), blocks(1, 0, 2));
        prop_assert!(Run::new(&keys, &blocks, 64).decode(bytes.into()).is_err());
    }
}
