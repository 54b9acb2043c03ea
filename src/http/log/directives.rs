//! Log directives of the daemon and of the relay, for the `EnvFilter` of tracing-subscriber.
//!
//! `EnvFilter` takes a word that is no level for the name of a module and then logs nothing else. So the levels are checked here.

use tracing_subscriber::EnvFilter;

/// The levels, from silent to verbose.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Words for levels in other programs.
const ALIASES: [(&str, &str); 10] = [
    ("none", "off"),
    ("silent", "off"),
    ("quiet", "error"),
    ("critical", "error"),
    ("fatal", "error"),
    ("notice", "info"),
    ("verbose", "debug"),
    ("fine", "debug"),
    ("all", "trace"),
    ("finest", "trace"),
];
/// Minimum length of the common prefix of an unknown word and the level that is offered instead.
const LIKE: usize = 3;

/// Parse log directives.
///
/// # Errors
/// As [`check`], or the directives are invalid otherwise.
pub fn filter(directives: &str) -> Result<EnvFilter, String> {
    check(directives)?;
    directives.parse().map_err(|error| {
        format!(
            "a level, or directives such as \"warn,kvtide_daemon=debug\" of tracing-subscriber's EnvFilter: {error}"
        )
    })
}

/// Check log directives: a level, or several directives `TARGET=LEVEL` and at most one level, separated by commas.
///
/// # Errors
/// A directive has no valid level. The text says which levels there are, and which is nearest.
pub fn check(directives: &str) -> Result<(), String> {
    let expected = |what: String| {
        Err(format!(
            "a level (off, error, warn, info, debug, trace), or directives such as \"warn,kvtide_daemon=debug\"; {what}"
        ))
    };
    for directive in directives.split(',') {
        // A span and its fields may contain `=`.
        let after_span = directive.rsplit_once(']').map_or(directive, |(_, rest)| rest);
        let (target, level) = match after_span.rsplit_once('=') {
            Some((target, level)) => (Some(target), level),
            None if after_span.len() < directive.len() && after_span.is_empty() => continue,
            None => (None, after_span),
        };
        if directive.trim() == directive && LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            continue;
        }
        let near = nearest(level)
            .filter(|near| target.is_none() || !near.eq_ignore_ascii_case(level))
            .map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
        return expected(match (level, target) {
            ("", Some(_)) => format!("\"{directive}\" has no level"),
            ("", None) => "a directive is empty".to_owned(),
            _ if directive.trim() != directive => format!("\"{directive}\" begins or ends with a blank{near}"),
            (level, _) => format!("\"{level}\" is no level{near}"),
        });
    }
    Ok(())
}

/// Return the level that an unknown word probably means.
fn nearest(word: &str) -> Option<&'static str> {
    let word = word.trim().to_ascii_lowercase();
    if let Some((_, level)) = ALIASES.iter().find(|(alias, _)| *alias == word) {
        return Some(level);
    }
    let common = |level: &str| level.bytes().zip(word.bytes()).take_while(|(a, b)| a == b).count();
    let sorted = |word: &str| {
        let mut letters: Vec<u8> = word.bytes().collect();
        letters.sort_unstable();
        letters
    };
    let is_like = |level: &&&str| common(level) >= LIKE || sorted(level) == sorted(&word);
    LEVELS.iter().filter(is_like).max_by_key(|level| common(level)).copied()
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn levels_and_directives_are_taken() {
        for right in [
            "off",
            "error",
            "warn",
            "INFO",
            "debug",
            "trace",
            "warn,kvtide_daemon=debug",
            "kvtide_daemon=debug,info",
            "kvtide_daemon[attach]=trace",
            "[attach{peer=7}]=trace,info",
            "[attach]",
        ] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_the_nearest_one() {
        for (wrong, why) in [
            ("warning", "\"warning\" is no level; did you mean \"warn\"?"),
            ("verbose", "did you mean \"debug\"?"),
            ("infos", "did you mean \"info\"?"),
            ("ifno", "did you mean \"info\"?"),
            ("errors", "did you mean \"error\"?"),
            ("warn ", "\"warn \" begins or ends with a blank; did you mean \"warn\"?"),
            ("info, kvtide_nvme=debug", "\" kvtide_nvme=debug\" begins or ends with a blank"),
            ("info,kvtide_nvme=debugging", "\"debugging\" is no level; did you mean \"debug\"?"),
            ("kvtide_daemon", "\"kvtide_daemon\" is no level"),
            ("info,kvtide_daemon=", "\"kvtide_daemon=\" has no level"),
            ("kvtide_daemon[attach]=loud", "\"loud\" is no level"),
            ("", "a directive is empty"),
            ("info,", "a directive is empty"),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.starts_with("a level (off, error, ") && error.ends_with(why), "{wrong}: {error}");
        }
    }
}
