//! How much of a sequence attention must read.

use kvtide_wire::entry::Contract as Code;

/// A reading contract. Every sequence starts as [`Contract::Exact`]; a fork inherits its parent's contract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Read every page that attention needs, and wait for late pages.
    #[default]
    Exact,
    /// Read the best pages, omit the others, and estimate the attention on the omitted ones.
    Approx {
        /// Thousandths of a plane's pages that a step reads, 1 to 1000.
        permille: u16,
    },
    /// Read every page, except pages that, as their digests prove, together hold at most this share of each query head's
    /// attention.
    Bounded {
        /// Millionths of a query head's attention, 0 to 1,000,000.
        ppm: u32,
    },
}

impl Contract {
    /// Return the contract's code and value on the wire.
    #[must_use]
    pub fn code(self) -> (Code, u32) {
        match self {
            Contract::Exact => (Code::Exact, 0),
            Contract::Approx { permille } => (Code::Approx, u32::from(permille)),
            Contract::Bounded { ppm } => (Code::Bounded, ppm),
        }
    }

    /// Report whether the value is in range.
    #[must_use]
    pub fn is_valid(self) -> bool {
        match self {
            Contract::Exact => true,
            Contract::Approx { permille } => (1..=1000).contains(&permille),
            Contract::Bounded { ppm } => ppm <= 1_000_000,
        }
    }

    /// Encode the contract as one word, for a table of atomics; 0 is [`Contract::Exact`].
    #[must_use]
    pub fn word(self) -> u64 {
        let (code, value) = self.code();
        (code as u64) << 32 | u64::from(value)
    }

    /// Decode a word that [`Contract::word`] returned.
    #[must_use]
    pub fn of_word(word: u64) -> Contract {
        let value = word as u32;
        match word >> 32 {
            code if code == Code::Approx as u64 => Contract::Approx { permille: value as u16 },
            code if code == Code::Bounded as u64 => Contract::Bounded { ppm: value },
            _ => Contract::Exact,
        }
    }
}

/// Parses `exact`, `approx:SHARE` or `bounded:SHARE`, where shares are fractions of 1. Programs take a contract in this form
/// from users.
impl std::str::FromStr for Contract {
    type Err = String;

    fn from_str(text: &str) -> Result<Contract, String> {
        let bad = || {
            format!(
                "invalid contract `{text}`: use `exact`, `approx:0.25` (share of pages, 0.001 to 1) or `bounded:0.01` (share of \
                 attention, 0 to 1)"
            )
        };
        if text == "exact" {
            return Ok(Contract::Exact);
        }
        let (name, share) = text.split_once(':').ok_or_else(bad)?;
        let share: f64 = share.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(bad)?;
        let contract = match name {
            "approx" => Contract::Approx { permille: (share * 1e3).round() as u16 },
            "bounded" => Contract::Bounded { ppm: (share * 1e6).floor() as u32 },
            _ => return Err(bad()),
        };
        Some(contract).filter(|contract| contract.is_valid()).ok_or_else(bad)
    }
}

impl std::fmt::Display for Contract {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Contract::Exact => f.write_str("exact"),
            Contract::Approx { permille } => write!(f, "approx:{}", f64::from(*permille) / 1e3),
            Contract::Bounded { ppm } => write!(f, "bounded:{}", f64::from(*ppm) / 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contracts_have_names_and_words() {
        let good = [
            ("exact", Contract::Exact),
            ("approx:0.25", Contract::Approx { permille: 250 }),
            ("approx:1", Contract::Approx { permille: 1000 }),
            ("bounded:0.01", Contract::Bounded { ppm: 10_000 }),
            ("bounded:0", Contract::Bounded { ppm: 0 }),
        ];
        for (text, contract) in good {
            assert_eq!(text.parse(), Ok(contract));
            assert_eq!(contract.to_string(), text);
            assert_eq!(Contract::of_word(contract.word()), contract);
        }
        assert_eq!(Contract::of_word(0), Contract::Exact);
        for bad in
            ["", "approx", "approx:", "approx:0", "approx:1.1", "approx:-1", "approx:NaN", "bounded:2", "best:0.5"]
        {
            assert!(bad.parse::<Contract>().is_err(), "{bad}");
        }
    }
}
