//! How an engine will use a range of blocks, and how much of a sequence attention must read.

use crate::{NONE, Status};
use alloc::format;
use alloc::string::String;

/// Hint from an engine about its future use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Advice {
    /// Will be read soon: load it into tier 0 if there is room without harm.
    WillNeed,
    /// Will not be read soon: demote it first.
    DontNeed,
    /// Will be read once, front to back.
    Sequential,
    /// Rarely read: keep it out of tier 0 and write it back early.
    Cold,
    /// Priority, 0 (evict first) to 255.
    Priority(u8),
    /// Tokens that the sequence will still commit before it is dropped, counted from now; [`Advice::UNKNOWN`]: unknown. The range
    /// is ignored.
    Remaining(u32),
}

impl Advice {
    /// An unknown number of remaining tokens.
    pub const UNKNOWN: u32 = NONE;
    /// Number of codes.
    pub const CODES: u16 = 6;

    /// Return its code, as in the C ABI, and its argument.
    #[must_use]
    pub const fn code(self) -> (u16, u32) {
        match self {
            Advice::WillNeed => (0, 0),
            Advice::DontNeed => (1, 0),
            Advice::Sequential => (2, 0),
            Advice::Cold => (3, 0),
            Advice::Priority(priority) => (4, priority as u32),
            Advice::Remaining(tokens) => (5, tokens),
        }
    }

    /// Return the advice with this code and argument.
    ///
    /// # Errors
    /// [`Status::Invalid`] for an unknown code, [`Status::Range`] for an argument that is too large.
    pub fn from_code(code: u16, argument: u64) -> Result<Advice, Status> {
        match code {
            0 => Ok(Advice::WillNeed),
            1 => Ok(Advice::DontNeed),
            2 => Ok(Advice::Sequential),
            3 => Ok(Advice::Cold),
            4 => u8::try_from(argument).map(Advice::Priority).map_err(|_| Status::Range),
            5 => u32::try_from(argument).map(Advice::Remaining).map_err(|_| Status::Range),
            _ => Err(Status::Invalid),
        }
    }
}

/// How much of a sequence attention must read. Every sequence starts as [`Contract::Exact`]; a fork inherits its parent's contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Contract {
    /// Every page that attention needs; a late page is awaited.
    #[default]
    Exact,
    /// The best pages; the attention on the others is estimated.
    Approx {
        /// Thousandths of a plane's pages that a step reads, 1 to 1000.
        permille: u16,
    },
}

impl Contract {
    /// Number of codes. Code 2 was a contract that was removed (decision 57). A client of that time that sends it is refused,
    /// so it must not get another meaning under protocol 8.
    pub const CODES: u16 = 2;

    /// Return its code and its argument.
    #[must_use]
    pub const fn code(self) -> (u16, u32) {
        match self {
            Contract::Exact => (0, 0),
            Contract::Approx { permille } => (1, permille as u32),
        }
    }

    /// Return the contract with this code and argument, whose range is checked by [`Contract::is_valid`].
    ///
    /// # Errors
    /// [`Status::Invalid`] for an unknown code, [`Status::Range`] for an argument that is too large.
    pub fn from_code(code: u16, argument: u64) -> Result<Contract, Status> {
        match code {
            0 => Ok(Contract::Exact),
            1 => u16::try_from(argument).map(|permille| Contract::Approx { permille }).map_err(|_| Status::Range),
            _ => Err(Status::Invalid),
        }
    }

    /// Report whether the argument is in range.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        match self {
            Contract::Exact => true,
            Contract::Approx { permille } => permille >= 1 && permille <= 1000,
        }
    }

    /// Encode the contract as one word, for a table of atomics; 0 is [`Contract::Exact`].
    #[must_use]
    pub const fn word(self) -> u64 {
        let (code, argument) = self.code();
        (code as u64) << 32 | argument as u64
    }

    /// Decode a word that [`Contract::word`] returned.
    #[must_use]
    pub fn of_word(word: u64) -> Contract {
        Contract::from_code((word >> 32) as u16, word & u64::from(u32::MAX)).unwrap_or_default()
    }
}

/// Parses `exact` or `approx:SHARE`, where the share is a fraction of 1. Programs take a contract in this form from users.
impl core::str::FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Contract, String> {
        let bad = || format!("invalid contract `{text}`: use `exact` or `approx:0.25` (share of pages, 0.001 to 1)");
        if text == "exact" {
            return Ok(Contract::Exact);
        }
        let share: f64 = text.strip_prefix("approx:").and_then(|share| share.parse().ok()).ok_or_else(bad)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(bad());
        }
        let contract = Contract::Approx { permille: (share * 1e3 + 0.5) as u16 };
        Some(contract).filter(|contract| contract.is_valid()).ok_or_else(bad)
    }
}

impl core::fmt::Display for Contract {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Contract::Exact => f.write_str("exact"),
            Contract::Approx { permille } => write!(f, "approx:{}", f64::from(*permille) / 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn contracts_have_names_and_words() {
        let good = [
            ("exact", Contract::Exact),
            ("approx:0.25", Contract::Approx { permille: 250 }),
            ("approx:1", Contract::Approx { permille: 1000 }),
        ];
        for (text, contract) in good {
            assert_eq!(text.parse(), Ok(contract));
            assert_eq!(contract.to_string(), text);
            assert_eq!(Contract::of_word(contract.word()), contract);
        }
        assert_eq!(Contract::of_word(0), Contract::Exact);
        for bad in ["", "approx", "approx:", "approx:0", "approx:1.1", "approx:-1", "approx:NaN", "best:0.5"] {
            assert!(bad.parse::<Contract>().is_err(), "{bad}");
        }
    }
}
