//! Rate limit for repeated log lines: a burst of each kind, then one line per second. Suppressed lines are counted, and the count
//! is logged.
//!
//! A kind is a call site and a subject: the disk, space or user at the beginning of the line. A flood about one disk therefore
//! hides no line about another. Memory is bounded whatever peers send: the program has a fixed number of call sites, and each has a
//! bounded number of subjects. Levels `debug` and `trace` are not limited, because only a developer turns them on.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of a kind that may be logged in a row: more than a start or a reload logs from one call site.
const BURST: f64 = 100.0;
/// Lines of a kind per second after the burst.
const PER_S: f64 = 1.0;
/// Maximum subjects of a call site; further ones share one kind.
const SUBJECTS_MAX: usize = 64;
/// Words that form a subject together with the number after them.
const NOUNS: [&str; 3] = ["disk", "space", "uid"];
/// Longest subject in bytes: a noun, a space, and the longest number.
const SUBJECT_BYTES: usize = 16;
/// Maximum bytes of a suppressed line that the count quotes.
const EXAMPLE_BYTES: usize = 200;
/// Subject of lines beyond [`SUBJECTS_MAX`].
const OTHERS: &str = "others";

/// The limits of the log; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Limits(Arc<Mutex<HashMap<Identifier, BTreeMap<String, Kind>>>>);

/// Lines of one kind.
#[derive(Debug)]
struct Kind {
    /// Lines that may be logged now.
    allowed: f64,
    /// Time at which `allowed` was computed.
    at: Instant,
    left_out: u64,
    /// Time of the first suppressed line, and its text.
    since: Instant,
    example: String,
    level: Level,
}

/// Suppressed lines.
#[derive(Debug, PartialEq, Eq)]
struct LeftOut {
    level: Level,
    text: String,
}

impl Limits {
    /// Log the number of suppressed lines since the last call. Call it at intervals: after a flood stops, no further line would
    /// trigger the count.
    pub fn tell(&self) {
        for LeftOut { level, text } in self.take(Instant::now()) {
            // A call site has one level.
            match level {
                Level::ERROR => tracing::error!("{text}"),
                Level::WARN => tracing::warn!("{text}"),
                _ => tracing::info!("{text}"),
            }
        }
    }

    fn take(&self, now: Instant) -> Vec<LeftOut> {
        let mut told = Vec::new();
        self.lock().retain(|_, kinds| {
            for kind in kinds.values_mut().filter(|kind| kind.left_out > 0) {
                let seconds = now.saturating_duration_since(kind.since).as_secs_f64().ceil();
                let (count, example) = (std::mem::take(&mut kind.left_out), std::mem::take(&mut kind.example));
                let text = format!("{count} more lines like this were left out in the last {seconds} s: {example}");
                told.push(LeftOut { level: kind.level, text });
            }
            // A kind with a full burst behaves like a new one, so forget it.
            kinds.retain(|_, kind| kind.refilled(now) < BURST);
            !kinds.is_empty()
        });
        told
    }

    /// Return true if the line may be logged, else count it. `line` writes its text.
    fn allows(&self, site: Identifier, level: Level, now: Instant, line: &dyn Fn(&mut dyn Write)) -> bool {
        let mut head = Head::<SUBJECT_BYTES>::default();
        line(&mut head);
        let subject = subject(head.text());
        let mut sites = self.lock();
        let kinds = sites.entry(site).or_default();
        let subject = if kinds.len() < SUBJECTS_MAX || kinds.contains_key(subject) { subject } else { OTHERS };
        if !kinds.contains_key(subject) {
            let kind = Kind { allowed: BURST, at: now, left_out: 0, since: now, example: String::new(), level };
            kinds.insert(subject.to_owned(), kind);
        }
        let Some(kind) = kinds.get_mut(subject) else { return true };
        (kind.allowed, kind.at) = (kind.refilled(now), now);
        if kind.allowed >= 1.0 {
            kind.allowed -= 1.0;
            return true;
        }
        if kind.left_out == 0 {
            let mut example = Head::<EXAMPLE_BYTES>::default();
            line(&mut example);
            (kind.since, kind.example) = (now, example.text().to_owned());
        }
        kind.left_out += 1;
        false
    }

    /// A poisoned lock is safe to use: it guards only counts.
    fn lock(&self) -> MutexGuard<'_, HashMap<Identifier, BTreeMap<String, Kind>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kind {
    fn refilled(&self, now: Instant) -> f64 {
        (self.allowed + now.saturating_duration_since(self.at).as_secs_f64() * PER_S).min(BURST)
    }
}

impl<S: Subscriber> Layer<S> for Limits {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // The counts themselves are logged from this module.
        if *metadata.level() > Level::INFO || metadata.module_path() == Some(module_path!()) {
            return true;
        }
        self.allows(metadata.callsite(), *metadata.level(), Instant::now(), &|into| event.record(&mut Message(into)))
    }
}

/// Return the disk, space or user that a line begins with; "" if it begins with none.
fn subject(line: &str) -> &str {
    let Some((noun, rest)) = line.split_once(' ').filter(|(noun, _)| NOUNS.contains(noun)) else { return "" };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 { "" } else { &line[..noun.len() + 1 + digits] }
}

/// Writes the message of an event.
struct Message<'a>(&'a mut dyn Write);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // A writer that is full returns an error, which ends the formatting.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// The first bytes of a text.
struct Head<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
}

impl<const BYTES: usize> Default for Head<BYTES> {
    fn default() -> Head<BYTES> {
        Head { bytes: [0; BYTES], len: 0 }
    }
}

impl<const BYTES: usize> Head<BYTES> {
    fn text(&self) -> &str {
        // Only whole characters were taken.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl<const BYTES: usize> Write for Head<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut taken = text.len().min(BYTES - self.len);
        while !text.is_char_boundary(taken) {
            taken -= 1;
        }
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured::Captured;
    use std::time::Duration;
    use tracing_subscriber::layer::SubscriberExt;

    /// Return the log of `run` under the limits.
    fn logged(run: impl FnOnce(&Limits)) -> String {
        let (limits, lines) = (Limits::default(), Captured::default());
        let writer = tracing_subscriber::fmt::layer().with_writer(lines.clone()).with_ansi(false).with_target(false);
        let subscriber = tracing_subscriber::registry().with(limits.clone()).with(writer);
        tracing::subscriber::with_default(subscriber, || run(&limits));
        lines.text()
    }

    #[test]
    fn a_flood_about_one_disk_hides_nothing_about_another() {
        let broken = |disk: u32, slot: u32| tracing::error!("disk {disk}: the slot at {slot} is corrupt");
        let log = logged(|limits| {
            (0..5000).for_each(|slot| broken(1, slot));
            broken(2, 7);
            limits.tell();
            // The second call finds no suppressed lines.
            limits.tell();
        });
        let of = |what: &str| log.lines().filter(|line| line.contains(what) && !line.contains("left out")).count();
        assert_eq!(of("ERROR disk 2: the slot at 7 "), 1, "{log}");
        let counts: Vec<&str> = log.lines().filter(|line| line.contains("left out")).collect();
        let [count] = counts[..] else { panic!("{counts:?}") };
        let (before, _) = count.split_once(" more lines like this were left out in the last ").unwrap();
        let left_out: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
        assert_eq!(of("disk 1") + left_out, 5000, "{log}");
        assert!(of("disk 1") >= 100 && of("disk 1") < 200, "{} lines", of("disk 1"));
        assert!(count.contains("ERROR") && count.contains("s: disk 1: the slot at 1"), "{count}");
    }

    #[test]
    fn other_call_sites_and_debug_lines_are_not_touched() {
        let log = logged(|limits| {
            (0..300).for_each(|number| tracing::warn!("a flood: {number}"));
            (0..300).for_each(|number| tracing::debug!("detail: {number}"));
            tracing::warn!("another");
            limits.tell();
        });
        let of = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert_eq!((of("DEBUG detail: "), of("WARN another")), (300, 1), "{log}");
        assert!(of(" a flood: ") < 200 && of(" WARN ") == of(" a flood: ") + 1, "{log}");
    }

    #[test]
    fn a_kind_is_allowed_a_burst_then_one_a_second_and_is_forgotten_when_it_is_whole_again() {
        let (limits, begin) = (Limits::default(), Instant::now());
        let site = tracing::callsite::Identifier(&SITE);
        let allows = |at_s: u64| {
            let now = begin + Duration::from_secs(at_s);
            let line = |into: &mut dyn Write| {
                let _ = write!(into, "space 3: again");
            };
            limits.allows(site.clone(), Level::WARN, now, &line)
        };
        assert_eq!((0..500).filter(|_| allows(0)).count(), 100);
        assert_eq!((0..500).filter(|_| allows(7)).count(), 7);
        let text = "893 more lines like this were left out in the last 10 s: space 3: again".to_owned();
        let told = limits.take(begin + Duration::from_secs(10));
        assert_eq!(told, [LeftOut { level: Level::WARN, text }]);
        assert_eq!(limits.take(begin + Duration::from_secs(20)), []);
        assert!(!limits.lock().is_empty());
        limits.take(begin + Duration::from_secs(200));
        assert!(limits.lock().is_empty());
    }

    /// A call site without lines.
    struct Site;
    static SITE: Site = Site;

    impl tracing::callsite::Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &tracing::Metadata<'_> {
            unreachable!("no line is logged from here")
        }
    }

    #[test]
    fn subjects_are_few_whatever_comes_from_outside() {
        let (limits, now) = (Limits::default(), Instant::now());
        let site = tracing::callsite::Identifier(&SITE);
        for uid in 0..100_000 {
            let line = |into: &mut dyn Write| {
                let _ = write!(into, "uid {uid} (pid 1): attach refused");
            };
            limits.allows(site.clone(), Level::WARN, now, &line);
        }
        assert_eq!(limits.lock()[&site].len(), SUBJECTS_MAX + 1);
        let left_out: u64 = limits.lock()[&site].values().map(|kind| kind.left_out).sum();
        assert_eq!(left_out, 100_000 - SUBJECTS_MAX as u64 - 100);
    }

    #[test]
    fn a_subject_is_a_noun_and_its_number() {
        for (line, wanted) in [
            ("disk 2 (/data): out of service", "disk 2"),
            ("uid 4294967295 (", "uid 4294967295"),
            ("space 4294967295", "space 4294967295"),
            ("session 4 (pid 1) ends", ""),
            ("disk: none", ""),
            ("disk x", ""),
            ("", ""),
        ] {
            assert_eq!(subject(line), wanted);
        }
        let mut head = Head::<4>::default();
        assert!(write!(head, "aé\u{20ac}").is_err());
        assert_eq!(head.text(), "aé");
    }
}
