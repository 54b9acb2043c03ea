//! Frozen files: recorded behaviour, which a refactoring must not change. Tests of several packages include this file.
#![allow(dead_code)] // each test uses a part of it

/// Return the recorded text. With KVTIDE_FREEZE=1, after an intended change of behaviour, record `now` first.
pub fn recorded(path: &str, now: &str) -> String {
    if std::env::var_os("KVTIDE_FREEZE").is_some_and(|value| value == "1") {
        std::fs::write(path, now).expect(path);
    }
    std::fs::read_to_string(path).expect(path)
}

/// Compare `now` with the recorded text.
pub fn compare(path: &str, now: &str) {
    let before = recorded(path, now);
    let differs = before.lines().zip(now.lines()).find(|(before, now)| before != now);
    assert!(before == now, "other behaviour than in {path} (before, now): {differs:?}");
}
