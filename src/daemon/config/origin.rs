//! Where values come from (a line of the file, a flag, the default), for error messages.

use super::kinds::Kind;
use crate::config::ConfigError;
use serde::{Deserialize, Deserializer};
use std::collections::HashMap;
use std::fmt;
use std::ops::RangeInclusive;
use toml::Spanned;

/// What is given for a key.
#[derive(Clone, Debug, Default)]
pub enum Given<T> {
    /// Nothing.
    #[default]
    Nothing,
    /// A default that depends on other keys or on the machine.
    Default(T),
    /// A value of the command line, by this flag.
    Flag(&'static str, T),
    /// A value of the file.
    File(Spanned<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given<T>, D::Error> {
        Spanned::deserialize(deserializer).map(Given::File)
    }
}

impl<T> Given<T> {
    /// Return the value, if there is one.
    pub fn get(&self) -> Option<&T> {
        match self {
            Given::Nothing => None,
            Given::Default(value) | Given::Flag(_, value) => Some(value),
            Given::File(spanned) => Some(spanned.get_ref()),
        }
    }

    /// Replace the value by that of a flag, if given.
    pub fn flag(&mut self, flag: &'static str, value: Option<T>) {
        if let Some(value) = value {
            *self = Given::Flag(flag, value);
        }
    }

    /// Change the value, if there is one, and keep where it comes from.
    pub fn change<E>(&mut self, to: impl FnOnce(&T) -> Result<T, E>) -> Result<(), E> {
        match self {
            Given::Nothing => {}
            Given::Default(value) | Given::Flag(_, value) => *value = to(value)?,
            Given::File(spanned) => *spanned.get_mut() = to(spanned.get_ref())?,
        }
        Ok(())
    }

    /// Set the default.
    pub fn default_to(&mut self, value: T) {
        if matches!(self, Given::Nothing) {
            *self = Given::Default(value);
        }
    }
}

/// A value in messages, and whether file or command line set it.
#[derive(Clone)]
struct Known {
    shown: String,
    is_given: bool,
}

/// The file under validation, and the values of the keys so far.
pub(super) struct Origins<'a> {
    file: &'a str,
    text: &'a str,
    known: HashMap<String, Known>,
}

/// Return line and column of a byte offset, both from 1.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

impl<'a> Origins<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Origins<'a> {
        Origins { file, text, known: HashMap::new() }
    }

    /// Return the value of a key and remember where it comes from.
    pub fn resolve<K: Kind>(
        &mut self,
        key: String,
        given: Given<K::Raw>,
        default: K::Raw,
        range: Option<&RangeInclusive<u64>>,
    ) -> Result<K::Value, ConfigError> {
        let is_given = matches!(given, Given::Flag(..) | Given::File(_));
        let (raw, origin) = match given {
            Given::Nothing => (default, "the default".to_owned()),
            Given::Default(value) => (value, "the default".to_owned()),
            Given::Flag(flag, value) => (value, flag.to_owned()),
            Given::File(spanned) => {
                let line = position(self.text, spanned.span().start).0;
                (spanned.into_inner(), format!("line {line}"))
            }
        };
        let shown = format!("{key} = {raw:?} ({origin})");
        let outside = range.zip(K::number(&raw)).filter(|(range, number)| !range.contains(number));
        let value = match outside {
            Some((range, _)) => Err(allowed::<K>(range)),
            None => K::value(raw),
        };
        let value = value.map_err(|expected| self.refusal(shown.clone(), expected));
        self.known.insert(key, Known { shown, is_given });
        value
    }

    /// Remember a value that follows from several keys.
    pub fn derived(&mut self, key: &str, value: impl fmt::Debug) {
        self.known.insert(key.to_owned(), Known { shown: format!("{key} = {value:?}"), is_given: false });
    }

    /// Return true if file or command line set the key.
    pub fn is_given(&self, key: &str) -> bool {
        self.known.get(key).is_some_and(|known| known.is_given)
    }

    /// Create an error about a value that is not allowed.
    pub fn wrong(&self, key: &str, expected: impl fmt::Display) -> ConfigError {
        self.refusal(self.shown(key), expected)
    }

    /// Create an error about two values that violate `rule` together.
    pub fn contradiction(&self, a: &str, b: &str, rule: impl fmt::Display) -> ConfigError {
        ConfigError::Contradiction {
            file: self.file.into(),
            a: self.shown(a),
            b: self.shown(b),
            rule: rule.to_string(),
        }
    }

    fn refusal(&self, value: String, expected: impl fmt::Display) -> ConfigError {
        ConfigError::Value { file: self.file.into(), value: without_user(value), expected: expected.to_string() }
    }

    fn shown(&self, key: &str) -> String {
        self.known.get(key).map_or_else(|| key.to_owned(), |known| known.shown.clone())
    }
}

/// Hide user and password of a URL: errors are logged.
fn without_user(mut value: String) -> String {
    let begin = value.find("://").map(|at| at + 3);
    if let Some((begin, at)) = begin.and_then(|begin| Some((begin, begin + value[begin..].rfind('@')?))) {
        value.replace_range(begin..at, "…");
    }
    value
}

/// Describe the values of a range.
pub(super) fn allowed<K: Kind>(range: &RangeInclusive<u64>) -> String {
    format!("{} to {}", K::bound(*range.start()), K::bound(*range.end()))
}
