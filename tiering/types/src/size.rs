//! Sizes in text form: `2GiB`, `512 MiB`, `4096`.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Binary units and their shifts.
const UNITS: [(&str, u32); 6] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("PiB", 50)];

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Error of a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid size \"{0}\": expected a whole number of bytes, or one followed by KiB, MiB, GiB, TiB or PiB")]
pub struct SizeError(String);

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<ByteSize, SizeError> {
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim();
        let shift = UNITS.iter().find(|(name, _)| *name == unit || (unit.is_empty() && *name == "B"));
        let bytes = shift.and_then(|(_, shift)| number.replace('_', "").parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.map(ByteSize).ok_or_else(|| SizeError(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |shift: &u32| self.0 != 0 && self.0.trailing_zeros() >= *shift;
        let (name, shift) = UNITS.iter().rev().find(|(_, shift)| exact(shift)).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", self.0 >> shift)
    }
}

impl fmt::Debug for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        deserializer
            .deserialize_any(TextOrBytes { expected: "a size such as \"64MiB\" or a number of bytes", of: |size| size })
    }
}

/// Reads a text, or a number of bytes.
struct TextOrBytes<T> {
    expected: &'static str,
    of: fn(ByteSize) -> T,
}

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for TextOrBytes<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<T, E> {
        Ok((self.of)(ByteSize(bytes)))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<T, E> {
        let of = self.of;
        u64::try_from(bytes)
            .map(|bytes| of(ByteSize(bytes)))
            .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }
}

/// Formats a number of bytes with about three digits.
#[derive(Clone, Copy, Debug)]
pub struct Human(pub u64);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, shift) = UNITS.iter().rev().find(|(_, shift)| self.0 >> shift > 0).unwrap_or(&UNITS[0]);
        let number = self.0 as f64 / (1u64 << shift) as f64;
        match number {
            whole if whole % 1.0 == 0.0 => write!(f, "{whole} {name}"),
            large if large >= 100.0 => write!(f, "{large:.0} {name}"),
            small => write!(f, "{small:.2} {name}"),
        }
    }
}

/// Reserve of a file system that stays free: a percentage such as `"5%"`, or a size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Percent of the file system, below 100.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

impl Reserve {
    /// Return the reserve in bytes for a file system of this size.
    #[must_use]
    pub fn bytes_of(self, file_system_bytes: u64) -> u64 {
        match self {
            Reserve::Percent(percent) => (u128::from(file_system_bytes) * u128::from(percent)).div_ceil(100) as u64,
            Reserve::Bytes(bytes) => bytes,
        }
    }
}

/// Error of a text that is not a reserve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid reserve \"{0}\": expected \"0%\" to \"99%\", or a size such as \"20GiB\"")]
pub struct ReserveError(String);

impl FromStr for Reserve {
    type Err = ReserveError;

    fn from_str(text: &str) -> Result<Reserve, ReserveError> {
        let reserve = match text.trim().strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| *percent < 100).map(Reserve::Percent),
            None => text.parse().ok().map(|ByteSize(bytes)| Reserve::Bytes(bytes)),
        };
        reserve.ok_or_else(|| ReserveError(text.to_owned()))
    }
}

impl fmt::Display for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reserve::Percent(percent) => write!(f, "{percent}%"),
            Reserve::Bytes(bytes) => ByteSize(*bytes).fmt(f),
        }
    }
}

impl fmt::Debug for Reserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Reserve {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Reserve, D::Error> {
        let expected = "a percentage such as \"5%\" or a size such as \"20GiB\"";
        deserializer.deserialize_any(TextOrBytes { expected, of: |ByteSize(bytes)| Reserve::Bytes(bytes) })
    }
}

/// Size of a tier: bytes, a percentage of what there is, or all of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// Bytes.
    Bytes(u64),
    /// Percent of the file system, the device or the memory; 1 to 100.
    Percent(u8),
    /// As much as fits.
    Max,
}

/// Error of a text that is not a capacity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid size \"{0}\": expected a size such as \"200GiB\" (KiB, MiB, GiB, TiB or PiB), \"1%\" to \"100%\", or \"max\""
)]
pub struct CapacityError(String);

impl FromStr for Capacity {
    type Err = CapacityError;

    fn from_str(text: &str) -> Result<Capacity, CapacityError> {
        let capacity = match (text.trim(), text.trim().strip_suffix('%')) {
            ("max", _) => Some(Capacity::Max),
            (_, Some(percent)) => {
                percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Capacity::Percent)
            }
            (size, None) => size.parse().ok().map(|ByteSize(bytes)| Capacity::Bytes(bytes)),
        };
        capacity.ok_or_else(|| CapacityError(text.to_owned()))
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capacity::Bytes(bytes) => ByteSize(*bytes).fmt(f),
            Capacity::Percent(percent) => write!(f, "{percent}%"),
            Capacity::Max => f.write_str("max"),
        }
    }
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Capacity, D::Error> {
        let expected = "a size such as \"200GiB\", a percentage such as \"80%\", or \"max\"";
        deserializer.deserialize_any(TextOrBytes { expected, of: |ByteSize(bytes)| Capacity::Bytes(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn units_are_binary_and_nothing_else_is_taken() {
        let bytes = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
        assert_eq!(bytes("2GiB"), Some(2 << 30));
        assert_eq!(bytes(" 512 MiB "), Some(512 << 20));
        assert_eq!(bytes("4_096"), Some(4096));
        assert_eq!(bytes("7B"), Some(7));
        for wrong in ["", "GiB", "2GB", "2gib", "1.5GiB", "-1", "99999999999TiB", "0x10"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        let human = |bytes| Human(bytes).to_string();
        assert_eq!((human(0), human(4096), human(8 << 30)), ("0 B".into(), "4 KiB".into(), "8 GiB".into()));
        assert_eq!((human(8160437862), human(1023 << 20)), ("7.60 GiB".into(), "1023 MiB".into()));
    }

    #[test]
    fn a_reserve_is_a_share_of_the_file_system_or_a_size() {
        assert_eq!("5%".parse::<Reserve>().unwrap().bytes_of(1001), 51);
        assert_eq!("20GiB".parse::<Reserve>().unwrap().bytes_of(1001), 20 << 30);
        for wrong in ["100%", "-1%", "%", "5 percent", "5.5%"] {
            assert!(wrong.parse::<Reserve>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_capacity_is_a_size_a_percentage_or_all() {
        for (text, capacity) in
            [("200GiB", Capacity::Bytes(200 << 30)), ("80%", Capacity::Percent(80)), (" max", Capacity::Max)]
        {
            assert_eq!(text.parse(), Ok(capacity));
            assert_eq!(capacity.to_string().parse(), Ok(capacity));
        }
        for wrong in ["0%", "101%", "-1%", "%", "all", "5.5%", "200GB", ""] {
            assert!(wrong.parse::<Capacity>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn display_parses_back() {
        for bytes in [0, 1, 4095, 4096, 3 << 20, 1 << 40, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!(ByteSize(64 << 20).to_string(), "64MiB");
    }
}
