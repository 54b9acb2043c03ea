//! Sizes as people write them: `2GiB`, `512 MiB`, `4096`.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;
use std::str::FromStr;

/// Binary units and their shifts.
const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no size: expected a whole number of bytes, or one followed by KiB, MiB, GiB or TiB")]
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
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"64MiB\" or a number of bytes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        u64::try_from(bytes).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn display_parses_back() {
        for bytes in [0, 1, 4095, 4096, 3 << 20, 1 << 40, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        assert_eq!(ByteSize(64 << 20).to_string(), "64MiB");
    }
}
