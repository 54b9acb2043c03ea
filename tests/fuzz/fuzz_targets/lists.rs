//! Any memory as a list with a trace context, as score slots, and as a digest: read once and within bounds, or rejected.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_wire::digest::sketch;
use kvtide_wire::entry::LIST_WORDS;
use kvtide_wire::lists::{HASH_WORDS, List, ListArea, TRACE_WORDS, hash_words};
use kvtide_wire::score::{ScoreReader, ScoreSlot, TOP_MAX};
use kvtide_wire::sync::Ordering;
use libfuzzer_sys::fuzz_target;

const SCORE_SLOTS: usize = 4;

fn list(bytes: &mut Bytes<'_>) {
    let (area, mut list) = (ListArea::new(), List::default());
    let len = bytes.word();
    let len = if bytes.byte() % 2 == 0 { len % 600 } else { len };
    for word in &area.words {
        word.store(bytes.word(), Ordering::Relaxed);
    }
    let copied = area.copy_out(len, &mut list);
    assert_eq!(copied.is_ok(), len as usize <= LIST_WORDS);
    assert_eq!(list.words().len(), if copied.is_ok() { len as usize } else { 0 });
    if let Ok(hashes) = list.hashes() {
        assert!(hashes.len() <= LIST_WORDS / HASH_WORDS);
        let words: Vec<u32> = hashes.flat_map(hash_words).collect();
        assert_eq!(words, list.words());
    }
    let before = list.words().len();
    if let Some(context) = list.take_trace() {
        assert!(context.trace != 0 && context.parent != 0);
    }
    assert_eq!(list.words().len(), if before < TRACE_WORDS { before } else { before - TRACE_WORDS });
}

fn scores(bytes: &mut Bytes<'_>) {
    let slots: Vec<ScoreSlot> = (0..SCORE_SLOTS).map(|_| ScoreSlot::new()).collect();
    let mut reader = ScoreReader::new(&*slots);
    for _ in 0..4 {
        for slot in &slots {
            let version =
                if bytes.byte() % 4 == 0 { u64::from_le_bytes(bytes.array()) } else { u64::from(bytes.byte()) };
            slot.version.store(version, Ordering::Relaxed);
            for word in &slot.words[..6] {
                word.store(u64::from_le_bytes(bytes.array()), Ordering::Relaxed);
            }
        }
        while let Some(scores) = reader.read() {
            assert!(scores.top().len() <= TOP_MAX && scores.rest.to_f32() <= 0.0);
            assert!(scores.top().iter().all(|top| top.log_mass.to_f32() <= 0.0));
        }
    }
}

/// Check that a score is never NaN, for any digest and for one built from any keys.
fn digests(bytes: &mut Bytes<'_>) {
    const GROUPS: usize = 2;
    const TOKENS: usize = 3;
    let channels = 1 + usize::from(bytes.byte() % 8);
    let mut digest: Vec<u8> = (0..sketch::bytes(channels, GROUPS)).map(|_| bytes.byte()).collect();
    let mut floats = |count: usize| (0..count).map(|_| f32::from_bits(bytes.word())).collect::<Vec<_>>();
    let (query, keys) = (floats(channels), floats(TOKENS * channels));
    let score = |digest: &[u8]| {
        let mut sums = [0.0];
        sketch::score(&query, channels, digest, 1.0, &mut sums).expect("sizes fit");
        sums[0]
    };
    assert!(!score(&digest).is_nan());
    let mut scratch = vec![0.0; sketch::scratch(TOKENS, channels, GROUPS)];
    sketch::build(&keys, channels, &mut scratch, &mut digest).expect("sizes fit");
    assert!(!score(&digest).is_nan());
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    match bytes.byte() % 3 {
        0 => list(&mut bytes),
        1 => scores(&mut bytes),
        _ => digests(&mut bytes),
    }
});
