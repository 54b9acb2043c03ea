//! Comparison with the recorded actions of the seeds.

/// Compare the actions of each seed with the recorded ones: a refactoring must not change them. After an intended change of
/// behaviour, write the file anew with KVTIDE_FREEZE=1.
pub fn compare(hashes: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/frozen.txt");
    if std::env::var_os("KVTIDE_FREEZE").is_some() {
        std::fs::write(path, hashes).unwrap();
    }
    let before = std::fs::read_to_string(path).unwrap();
    let differs = before.lines().zip(hashes.lines()).find(|(before, now)| before != now);
    assert!(before == hashes, "other actions than those of {path} (before, now): {differs:?}");
}
