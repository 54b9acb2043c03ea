//! Tables of keys: one row declares a key, and everything else about the key follows from the row.
//!
//! [`section!`] makes of a table: the struct of validated values, the struct that the file is parsed into, the conversion of one
//! into the other with defaults and ranges, the list of all values, the merge at a reload, and the reference.

use super::origin::Origins;
use crate::config::ConfigError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// When a value that changed in the file takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// At the reload.
    Now,
    /// For sessions that attach after the reload.
    NewSessions,
    /// For spaces that are created after the reload.
    NewSpaces,
    /// After a restart.
    Restart,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Effect::Now => "in effect now",
            Effect::NewSessions => "applies to new sessions",
            Effect::NewSpaces => "applies to new spaces",
            Effect::Restart => "needs a restart",
        })
    }
}

/// One key with its effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key as in error messages, except that a domain is identified by its name instead of its index.
    pub key: String,
    /// The value in the syntax of the file.
    pub value: String,
    /// When a changed value takes effect.
    pub effect: Effect,
}

/// How the reference shows a key.
pub enum Shown {
    /// By its default.
    Default,
    /// By an example: the default depends on other keys or on the machine, or says nothing.
    Example(&'static str),
    /// By a value that does not go with the other keys.
    Alternative(&'static str),
}

/// Documentation of one key.
pub struct Row {
    /// Name in its table.
    pub key: &'static str,
    /// Lines of documentation.
    pub docs: &'static [&'static str],
    /// The default in the syntax of the file.
    pub default: Option<String>,
    /// The allowed values, if a range limits them.
    pub allowed: Option<String>,
    /// How the reference shows it.
    pub shown: Shown,
    /// When a changed value takes effect.
    pub effect: Effect,
}

/// Documentation of one table.
pub struct Table {
    /// Name, such as `tiers.nvme`.
    pub path: String,
    /// True for an array of tables.
    pub is_list: bool,
    /// Lines of documentation.
    pub docs: &'static [&'static str],
    /// Its keys.
    pub rows: Vec<Row>,
}

/// A table of the configuration.
pub trait Section: Sized {
    /// What the file is parsed into.
    type Raw: DeserializeOwned + Default;

    /// Apply the defaults and check the ranges.
    fn resolve(raw: Self::Raw, path: &str, origins: &mut Origins<'_>) -> Result<Self, ConfigError>;

    /// List all values, in the order of the reference.
    fn settings(&self, path: &str, all: &mut Vec<Setting>);

    /// Take the values of `new` whose effect is one of `takes`.
    fn take(&mut self, new: &Self, takes: &[Effect]);

    /// Document the table and the tables in it.
    fn document(path: &str, is_list: bool, docs: &'static [&'static str], all: &mut Vec<Table>);
}

/// An element of an array of tables.
pub trait Element: Section {
    /// Return its name in settings.
    fn label(&self, index: usize) -> String;

    /// Return true if `other` is this element, perhaps with other values.
    fn is_same(&self, other: &Self) -> bool;

    /// Return true if its settings are listed.
    fn is_listed(&self) -> bool {
        true
    }
}

impl<S: Element> Section for Vec<S> {
    type Raw = Vec<S::Raw>;

    fn resolve(raw: Vec<S::Raw>, path: &str, origins: &mut Origins<'_>) -> Result<Vec<S>, ConfigError> {
        let element = |(index, raw)| S::resolve(raw, &format!("{path}[{index}]"), origins);
        raw.into_iter().enumerate().map(element).collect()
    }

    fn settings(&self, path: &str, all: &mut Vec<Setting>) {
        for (index, element) in self.iter().enumerate().filter(|(_, element)| element.is_listed()) {
            element.settings(&format!("{path}[{}]", element.label(index)), all);
        }
    }

    fn take(&mut self, new: &Vec<S>, takes: &[Effect]) {
        for element in self {
            if let Some(new) = new.iter().find(|new| element.is_same(new)) {
                element.take(new, takes);
            }
        }
    }

    fn document(path: &str, _: bool, docs: &'static [&'static str], all: &mut Vec<Table>) {
        S::document(path, true, docs, all);
    }
}

/// Return the full name of a key.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Return the name of a key: that of its field, unless it has another one.
macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}

/// Return how the reference shows a key.
macro_rules! key_shown {
    () => {
        Shown::Default
    };
    (example $example:literal) => {
        Shown::Example($example)
    };
    (alternative $example:literal) => {
        Shown::Alternative($example)
    };
}

/// Declares a table: `field ("key"): Kind = default, range a..=b, example "text", effect Now;`. Without `("key")` the key has the
/// name of the field. `range` and `example` (or `alternative`) can be left out. `tables` are the tables in this one, `derived`
/// values that follow from others and from the machine.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),*)])?
        $name:ident, $raw:ident {
            $(
                $(#[doc = $key_doc:literal])*
                $field:ident $(($key:literal))?: $kind:ty = $default:expr
                $(, range $range:expr)? $(, example $example:literal)? $(, alternative $alternative:literal)?,
                effect $effect:ident;
            )*
        }
        $(tables {
            $($(#[doc = $table_doc:literal])* $table:ident $(($table_key:literal))?: $section:ty;)*
        })?
        $(derived {
            $($(#[doc = $derived_doc:literal])* $derived:ident: $derived_type:ty;)*
        })?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $(#[derive($($derive),*)])?
        pub struct $name {
            $($(#[doc = $key_doc])* pub $field: <$kind as Kind>::Value,)*
            $($(
                #[doc = concat!("The table `", key_name!($table $($table_key)?), "`.")]
                $(#[doc = $table_doc])*
                pub $table: $section,
            )*)?
            $($($(#[doc = $derived_doc])* pub $derived: $derived_type,)*)?
        }

        #[derive(Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $raw {
            $($(#[serde(rename = $key)])? pub $field: Given<<$kind as Kind>::Raw>,)*
            $($($(#[serde(rename = $table_key)])? pub $table: <$section as Section>::Raw,)*)?
        }

        impl Section for $name {
            type Raw = $raw;

            fn resolve(raw: $raw, path: &str, origins: &mut Origins<'_>) -> Result<$name, ConfigError> {
                Ok($name {
                    $($field: {
                        let range = key_range!($($range)?);
                        let key = join(path, key_name!($field $($key)?));
                        origins.resolve::<$kind>(key, raw.$field, $default, range.as_ref())?
                    },)*
                    $($($table: Section::resolve(raw.$table, &join(path, key_name!($table $($table_key)?)), origins)?,)*)?
                    $($($derived: Default::default(),)*)?
                })
            }

            fn settings(&self, path: &str, all: &mut Vec<Setting>) {
                $(if let Some(value) = <$kind as Kind>::show(&self.$field) {
                    let key = join(path, key_name!($field $($key)?));
                    all.push(Setting { key, value, effect: Effect::$effect });
                })*
                $($(self.$table.settings(&join(path, key_name!($table $($table_key)?)), all);)*)?
            }

            fn take(&mut self, new: &$name, takes: &[Effect]) {
                $(if takes.contains(&Effect::$effect) {
                    self.$field.clone_from(&new.$field);
                })*
                $($(self.$table.take(&new.$table, takes);)*)?
            }

            fn document(path: &str, is_list: bool, docs: &'static [&'static str], all: &mut Vec<Table>) {
                let rows = vec![$(Row {
                    key: key_name!($field $($key)?),
                    docs: &[$($key_doc),*],
                    default: <$kind as Kind>::value($default).ok().as_ref().and_then(<$kind as Kind>::show),
                    allowed: key_range!($($range)?).as_ref().map(allowed::<$kind>),
                    shown: key_shown!($(example $example)? $(alternative $alternative)?),
                    effect: Effect::$effect,
                }),*];
                all.push(Table { path: path.to_owned(), is_list, docs, rows });
                $($({
                    let path = join(path, key_name!($table $($table_key)?));
                    <$section as Section>::document(&path, false, &[$($table_doc),*], all);
                })*)?
            }
        }
    };
}

/// Return the range of a key as a range of numbers.
macro_rules! key_range {
    () => {
        None::<std::ops::RangeInclusive<u64>>
    };
    ($range:expr) => {
        Some($range)
    };
}
pub(super) use {key_name, key_range, key_shown, section};
