//! Bodies of the requests that act: `/v1/recall` and `/v1/note`. Every value is checked here.

use kvtide_types::hash_from_hex;
use serde::Deserialize;
use std::fmt;
use std::time::Duration;

/// A request to bring a prefix in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// Fingerprint of the space: 64 hexadecimal digits.
    pub fingerprint: Fingerprint,
    /// Hashes of the blocks of a prefix, from the first on.
    pub hashes: Hashes,
    /// Domain of the space; needed if spaces of several domains have the fingerprint.
    #[serde(default)]
    pub domain: Option<String>,
    /// Milliseconds to wait for them.
    #[serde(default)]
    wait_ms: u64,
}

/// Tokens of blocks, for KV events.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Note {
    /// Fingerprint of the space: 64 hexadecimal digits.
    pub fingerprint: Fingerprint,
    /// Hashes of blocks.
    pub hashes: Hashes,
    /// Tokens of all of them: one page each.
    pub tokens: Vec<u32>,
    /// Parent of the first block; only checked to be a hash, because the feed has the parents.
    #[serde(default, rename = "parent")]
    _parent: Option<Hash>,
    /// Domain of the space; needed if spaces of several domains have the fingerprint.
    #[serde(default)]
    pub domain: Option<String>,
    /// Name of the adapter with which they were computed.
    #[serde(default)]
    adapter: Option<String>,
}

/// A fingerprint in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Fingerprint(pub [u8; 32]);

/// A hash in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct Hash(u128);

/// Hashes, at least one, none of them 0.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Hash>")]
pub struct Hashes(pub Vec<u128>);

impl TryFrom<String> for Fingerprint {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Fingerprint, &'static str> {
        let digits: Option<Vec<u8>> = text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let pairs: Option<Vec<u8>> = digits
            .filter(|digits| digits.len() == 64)
            .map(|digits| digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect());
        let bytes = pairs.and_then(|pairs| pairs.try_into().ok());
        bytes.map(Fingerprint).ok_or("fingerprint: expected 64 hexadecimal digits")
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Hash, &'static str> {
        hash_from_hex(&text).map(Hash).ok_or("a hash: expected 32 hexadecimal digits")
    }
}

impl TryFrom<Vec<Hash>> for Hashes {
    type Error = &'static str;

    fn try_from(hashes: Vec<Hash>) -> Result<Hashes, &'static str> {
        let hashes: Vec<u128> = hashes.into_iter().map(|hash| hash.0).collect();
        if hashes.is_empty() || hashes.contains(&0) {
            return Err("hashes: expected at least one, none of them 0");
        }
        Ok(Hashes(hashes))
    }
}

impl Ask {
    /// Parse a body.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(body: &[u8]) -> Result<Ask, String> {
        serde_json::from_slice(body).map_err(described)
    }

    /// Return the time to wait for the blocks.
    pub fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }
}

impl Note {
    /// Parse a body.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(body: &[u8]) -> Result<Note, String> {
        serde_json::from_slice(body).map_err(described)
    }

    /// Return the name of the adapter, if there is one.
    pub fn adapter(&self) -> Option<&str> {
        self.adapter.as_deref().filter(|name| !name.is_empty())
    }
}

fn described(error: serde_json::Error) -> String {
    format!("the body is not the expected JSON: {error}")
}

/// For the log: neither hashes nor tokens, which reveal prompts.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {}", self.hashes.0.len(), self.fingerprint)
    }
}

/// For the log: neither hashes nor tokens, which reveal prompts.
impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {}", self.hashes.0.len(), self.fingerprint)
    }
}

/// The first digits, as `kvtide` tools show a fingerprint.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("space ")?;
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_fingerprints_and_hashes_are_taken() {
        let (fingerprint, hash) = ("0f".repeat(32), "a0".repeat(16));
        let parse = |fingerprint: &str, hash: &str| {
            Ask::parse(format!("{{\"fingerprint\":\"{fingerprint}\",\"hashes\":[\"{hash}\"]}}").as_bytes())
        };
        let ask = parse(&fingerprint, &hash).unwrap();
        assert_eq!(
            (ask.fingerprint.0, &ask.hashes.0[..]),
            ([15; 32], &[0xa0a0_a0a0_a0a0_a0a0_a0a0_a0a0_a0a0_a0a0][..])
        );
        assert_eq!(ask.to_string(), "1 blocks of space 0f0f0f0f");
        for wrong in
            ["", &fingerprint[1..], &fingerprint[2..], &format!("{fingerprint}0"), &fingerprint.replace('f', "g")]
        {
            assert!(parse(wrong, &hash).unwrap_err().contains("64 hexadecimal digits"), "{wrong}");
        }
        for wrong in ["", &hash[1..], &format!("{hash}0"), &format!("+{}", &hash[1..])] {
            assert!(parse(&fingerprint, wrong).unwrap_err().contains("32 hexadecimal digits"), "{wrong}");
        }
        assert!(parse(&fingerprint, &"0".repeat(32)).unwrap_err().contains("none of them 0"));
    }
}
