//! Kinds of keys: how a value is written in the file, and which type it has in [`Config`](super::Config).

use super::{Admission, Codec, FeatureUse, IoEngine, KeyKind};
use kvtide_http::log;
use kvtide_types::Eviction;
use kvtide_types::{ByteSize, Capacity, Reserve};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A kind of key.
pub trait Kind {
    /// The value as it is written.
    type Raw: DeserializeOwned + Clone + Debug;
    /// The value as the daemon uses it.
    type Value;

    /// Convert a value from the file. An error says what is expected.
    fn value(raw: Self::Raw) -> Result<Self::Value, String>;

    /// Return the value in the syntax of the file; `None` if the key has no value.
    fn show(value: &Self::Value) -> Option<String>;

    /// Return the number that a range limits.
    fn number(_: &Self::Raw) -> Option<u64> {
        None
    }

    /// Format a bound of a range.
    fn bound(number: u64) -> String {
        number.to_string()
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Kind for $number {
            type Raw = $number;
            type Value = $number;

            fn value(raw: $number) -> Result<$number, String> {
                Ok(raw)
            }

            fn show(value: &$number) -> Option<String> {
                Some(value.to_string())
            }

            fn number(raw: &$number) -> Option<u64> {
                Some(u64::from(*raw))
            }
        }
    )*};
}

numbers! { bool u8 u16 u32 }

macro_rules! choices {
    ($($choice:ty)*) => {$(
        impl Kind for $choice {
            type Raw = $choice;
            type Value = $choice;

            fn value(raw: $choice) -> Result<$choice, String> {
                Ok(raw)
            }

            fn show(value: &$choice) -> Option<String> {
                Some(quoted(value))
            }
        }
    )*};
}

choices! { Admission Codec FeatureUse Eviction IoEngine KeyKind Reserve }

macro_rules! durations {
    ($($(#[$doc:meta])* $unit:ident: $from:ident, $as:ident;)*) => {$(
        $(#[$doc])*
        pub struct $unit;

        impl Kind for $unit {
            type Raw = u64;
            type Value = Duration;

            fn value(raw: u64) -> Result<Duration, String> {
                Ok(Duration::$from(raw))
            }

            fn show(value: &Duration) -> Option<String> {
                Some(value.$as().to_string())
            }

            fn number(raw: &u64) -> Option<u64> {
                Some(*raw)
            }
        }
    )*};
}

durations! {
    /// Microseconds.
    Micros: from_micros, as_micros;
    /// Milliseconds.
    Millis: from_millis, as_millis;
    /// Seconds.
    Seconds: from_secs, as_secs;
}

/// A capacity: a size, a percentage or "max". [`super::resolve`] turns all but the size into bytes.
pub struct Extent;

impl Kind for Extent {
    type Raw = Capacity;
    type Value = u64;

    fn value(raw: Capacity) -> Result<u64, String> {
        match raw {
            Capacity::Bytes(bytes) => Ok(bytes),
            Capacity::Percent(_) | Capacity::Max => Err("a size, or a percentage such as \"50%\"".to_owned()),
        }
    }

    fn show(value: &u64) -> Option<String> {
        Some(quoted(ByteSize(*value)))
    }

    fn number(raw: &Capacity) -> Option<u64> {
        match raw {
            Capacity::Bytes(bytes) => Some(*bytes),
            Capacity::Percent(_) | Capacity::Max => None,
        }
    }

    fn bound(number: u64) -> String {
        ByteSize(number).to_string()
    }
}

/// A size in bytes.
pub struct Bytes;

impl Kind for Bytes {
    type Raw = ByteSize;
    type Value = u64;

    fn value(raw: ByteSize) -> Result<u64, String> {
        Ok(raw.0)
    }

    fn show(value: &u64) -> Option<String> {
        Some(quoted(ByteSize(*value)))
    }

    fn number(raw: &ByteSize) -> Option<u64> {
        Some(raw.0)
    }

    fn bound(number: u64) -> String {
        ByteSize(number).to_string()
    }
}

/// A number or a size of which 0 means that there is none.
pub struct OrNone<K>(K);

impl<K: Kind<Value: Copy + Default + PartialEq>> Kind for OrNone<K> {
    type Raw = K::Raw;
    type Value = Option<K::Value>;

    fn value(raw: K::Raw) -> Result<Option<K::Value>, String> {
        K::value(raw).map(|value| Some(value).filter(|value| *value != K::Value::default()))
    }

    fn show(value: &Option<K::Value>) -> Option<String> {
        K::show(&value.unwrap_or_default())
    }

    fn number(raw: &K::Raw) -> Option<u64> {
        K::number(raw)
    }

    fn bound(number: u64) -> String {
        K::bound(number)
    }
}

impl Kind for String {
    type Raw = String;
    type Value = String;

    fn value(raw: String) -> Result<String, String> {
        Ok(raw)
    }

    fn show(value: &String) -> Option<String> {
        Some(quoted(value))
    }
}

impl Kind for PathBuf {
    type Raw = PathBuf;
    type Value = PathBuf;

    fn value(raw: PathBuf) -> Result<PathBuf, String> {
        Ok(raw)
    }

    fn show(value: &PathBuf) -> Option<String> {
        Some(quoted(value.display()))
    }
}

/// A path that need not be given.
pub struct OptionalPath;

impl Kind for OptionalPath {
    type Raw = PathBuf;
    type Value = Option<PathBuf>;

    fn value(raw: PathBuf) -> Result<Option<PathBuf>, String> {
        match raw {
            none if none.as_os_str().is_empty() => Ok(None),
            path if path.is_absolute() => Ok(Some(path)),
            _ => Err("an absolute path".to_owned()),
        }
    }

    fn show(value: &Option<PathBuf>) -> Option<String> {
        value.as_ref().map(|path| quoted(path.display()))
    }
}

macro_rules! lists {
    ($($item:ty)*) => {$(
        impl Kind for Vec<$item> {
            type Raw = Vec<$item>;
            type Value = Vec<$item>;

            fn value(raw: Vec<$item>) -> Result<Vec<$item>, String> {
                Ok(raw)
            }

            fn show(value: &Vec<$item>) -> Option<String> {
                Some(format!("{value:?}"))
            }
        }
    )*};
}

lists! { u32 PathBuf }

/// Permission bits, in octal.
pub struct Mode;

impl Kind for Mode {
    type Raw = String;
    type Value = u32;

    fn value(raw: String) -> Result<u32, String> {
        let mode = u32::from_str_radix(&raw, 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or_else(|| "an octal string from \"0000\" to \"0777\"".to_owned())
    }

    fn show(value: &u32) -> Option<String> {
        Some(quoted(format_args!("{value:04o}")))
    }
}

/// A log filter.
pub struct LogFilter;

impl Kind for LogFilter {
    type Raw = String;
    type Value = String;

    fn value(raw: String) -> Result<String, String> {
        log::filter(&raw).map(|_| raw)
    }

    fn show(value: &String) -> Option<String> {
        Some(quoted(value))
    }
}

/// An address and a port; "" for none.
pub struct Address;

impl Kind for Address {
    type Raw = String;
    type Value = Option<SocketAddr>;

    fn value(raw: String) -> Result<Option<SocketAddr>, String> {
        match raw.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) if raw.is_empty() => Ok(None),
            Err(_) => {
                Err("an address and a port such as \"127.0.0.1:9417\" or \"[::1]:9417\", or \"\" to disable HTTP"
                    .to_owned())
            }
        }
    }

    fn show(value: &Option<SocketAddr>) -> Option<String> {
        Some(quoted(value.map(|address| address.to_string()).unwrap_or_default()))
    }
}

/// Base URL of an OpenTelemetry collector; "" for none.
pub struct Collector;

impl Kind for Collector {
    type Raw = String;
    type Value = Option<String>;

    fn value(raw: String) -> Result<Option<String>, String> {
        if raw.is_empty() {
            return Ok(None);
        }
        kvtide_trace::check_url(&raw).map(|()| Some(raw)).map_err(str::to_owned)
    }

    fn show(value: &Option<String>) -> Option<String> {
        Some(quoted(value.clone().unwrap_or_default()))
    }
}

/// Quote a value as a TOML string.
fn quoted(value: impl std::fmt::Display) -> String {
    format!("{:?}", value.to_string())
}
