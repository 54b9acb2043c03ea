//! The sequence lock of the score slots under loom: an entry is read completely, or not at all and counted.
#![cfg(loom)]

use kvtide_wire::half::F16;
use kvtide_wire::score::{ScoreKind, ScoreReader, ScoreSlot, ScoreWriter, Scores};
use loom::thread;
use std::sync::Arc;

#[derive(Clone)]
struct Slots(Arc<Vec<ScoreSlot>>);

impl std::ops::Deref for Slots {
    type Target = [ScoreSlot];
    fn deref(&self) -> &[ScoreSlot] {
        &self.0
    }
}

/// Sequence and step must agree, or the entry is torn.
fn entry(n: u32) -> Scores {
    Scores::new(ScoreKind::Mass, n, 0, u64::from(n), &[], F16::NEG_INFINITY).expect("short")
}

#[test]
fn entries_are_read_whole_or_not_at_all() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let slots = Slots(Arc::new(vec![ScoreSlot::new()]));
        let mut writer = ScoreWriter::new(slots.clone());
        let sender = thread::spawn(move || {
            writer.write(&entry(1));
            writer.write(&entry(2));
        });
        let mut reader = ScoreReader::new(slots);
        let mut seen = 0;
        for _ in 0..2 {
            if let Some(scores) = reader.read() {
                assert_eq!(scores, entry(scores.seq), "torn");
                assert!(scores.seq > seen, "twice or backwards");
                seen = scores.seq;
            }
        }
        sender.join().expect("the writer ends");
        while let Some(scores) = reader.read() {
            assert_eq!(scores, entry(scores.seq));
            seen = scores.seq;
        }
        let missed = reader.missed();
        assert_eq!(missed.malformed, 0);
        assert!(seen == 2 || missed.torn > 0, "the last one is read unless it was torn: {missed:?}");
    });
}
