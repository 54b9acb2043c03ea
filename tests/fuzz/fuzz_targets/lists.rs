//! Any memory as a list, as score slots, and as a digest: read once and within bounds, or rejected.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_wire::digest;
use kvtide_wire::entry::LIST_WORDS;
use kvtide_wire::lists::{HASHES_MAX, List, ListArea, hash_words};
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
        assert!(hashes.len() <= HASHES_MAX);
        let words: Vec<u32> = hashes.flat_map(hash_words).collect();
        assert_eq!(words, list.words());
    }
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

/// Check that a bound is never NaN, and that it holds for a digest built from the keys.
fn digests(bytes: &mut Bytes<'_>) {
    let channels = 1 + usize::from(bytes.byte() % 8);
    let mut digest: Vec<u8> = (0..digest::bytes(channels)).map(|_| bytes.byte()).collect();
    let mut floats = |count: usize| (0..count).map(|_| f32::from_bits(bytes.word())).collect::<Vec<_>>();
    let (query, keys) = (floats(channels), floats(3 * channels));
    let bound = digest::bound(&query, &digest).expect("sizes fit");
    assert!(!bound.is_nan());
    digest::build(&keys, channels, &mut digest).expect("sizes fit");
    let bound = digest::bound(&query, &digest).expect("sizes fit");
    assert!(!bound.is_nan());
    for key in keys.chunks_exact(channels) {
        let terms = || query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k));
        // The sum below is also rounded: allow for its error.
        let slack = terms().map(f64::abs).sum::<f64>() * 1e-14;
        let product: f64 = terms().sum();
        let holds = if product.is_finite() { f64::from(bound) >= product - slack } else { bound == f32::INFINITY };
        assert!(holds, "{bound} < {product}");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    match bytes.byte() % 3 {
        0 => list(&mut bytes),
        1 => scores(&mut bytes),
        _ => digests(&mut bytes),
    }
});
