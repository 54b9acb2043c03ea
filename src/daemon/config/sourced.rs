//! A value with its origin (file line, flag or default), for error messages.

use super::raw::Field;
use crate::config::ConfigError;
use std::fmt;
use std::ops::RangeInclusive;
use toml::Spanned;

/// The file under validation.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    Default,
    Line(usize),
    Flag(&'static str),
}

/// A value, its key and its origin.
#[derive(Clone, Debug)]
pub(super) struct Sourced<T> {
    pub value: T,
    key: String,
    origin: Origin,
}

impl File<'_> {
    /// Return line and column of a byte offset, both from 1.
    pub fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Return the value of a key, or its default.
    pub fn field<T>(&self, key: impl Into<String>, field: Field<T>, default: T) -> Sourced<T> {
        match field {
            Some(spanned) => self.given(key, spanned),
            None => Sourced { value: default, key: key.into(), origin: Origin::Default },
        }
    }

    /// Return a value that the file sets.
    pub fn given<T>(&self, key: impl Into<String>, spanned: Spanned<T>) -> Sourced<T> {
        let line = self.place(spanned.span().start).0;
        Sourced { value: spanned.into_inner(), key: key.into(), origin: Origin::Line(line) }
    }

    /// Create an error about two values that violate `rule` together.
    pub fn contradiction<A: fmt::Debug, B: fmt::Debug>(
        &self,
        a: &Sourced<A>,
        b: &Sourced<B>,
        rule: &str,
    ) -> ConfigError {
        ConfigError::Contradiction { file: self.name.into(), a: a.to_string(), b: b.to_string(), rule: rule.into() }
    }

    /// Create an error about a value that is not allowed.
    pub fn value<T: fmt::Debug>(&self, value: &Sourced<T>, expected: impl fmt::Display) -> ConfigError {
        ConfigError::Value { file: self.name.into(), value: value.to_string(), expected: expected.to_string() }
    }

    /// Return the value if it is in the range.
    pub fn in_range<T>(&self, value: &Sourced<T>, range: &RangeInclusive<T>) -> Result<T, ConfigError>
    where
        T: PartialOrd + Copy + fmt::Debug + fmt::Display,
    {
        if range.contains(&value.value) {
            return Ok(value.value);
        }
        Err(self.value(value, format_args!("{} to {}", range.start(), range.end())))
    }
}

impl<T> Sourced<T> {
    /// Replace the value by that of a flag, if given.
    pub fn or_flag(self, flag: &'static str, value: Option<T>) -> Sourced<T> {
        match value {
            Some(value) => Sourced { value, key: self.key, origin: Origin::Flag(flag) },
            None => self,
        }
    }

    /// Convert the value and keep its origin.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Sourced<U> {
        Sourced { value: f(self.value), key: self.key, origin: self.origin }
    }

    /// Replace the key and keep the origin.
    pub fn renamed(self, key: &str) -> Sourced<T> {
        Sourced { key: key.to_owned(), ..self }
    }

    /// Return true if neither the file nor the command line set this value.
    pub fn is_default(&self) -> bool {
        matches!(self.origin, Origin::Default)
    }
}

impl<T: fmt::Debug> fmt::Display for Sourced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.key, self.value)?;
        match self.origin {
            Origin::Default => write!(f, " (the default)"),
            Origin::Line(line) => write!(f, " (line {line})"),
            Origin::Flag(flag) => write!(f, " ({flag})"),
        }
    }
}
