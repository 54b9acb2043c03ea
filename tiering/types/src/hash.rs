//! The one written form of a block's hash: 32 hexadecimal digits, its bytes in the order in which engines have them (`bytes.hex()` of
//! Python's hashes; in C the bytes of `kvt_hash.words` in memory).

use alloc::format;
use alloc::string::String;

/// Return the written form of a hash.
#[must_use]
pub fn hash_hex(hash: u128) -> String {
    format!("{:032x}", u128::from_be_bytes(hash.to_le_bytes()))
}

/// Parse the written form of a hash.
#[must_use]
pub fn hash_from_hex(text: &str) -> Option<u128> {
    // `from_str_radix` alone accepts a sign.
    let is_hash = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let written = is_hash.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(u128::from_le_bytes(written.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_the_bytes_in_their_order() {
        let bytes: [u8; 16] = core::array::from_fn(|at| at as u8 * 16 + 1);
        let hash = u128::from_le_bytes(bytes);
        assert_eq!(hash_hex(hash), "0111213141516171 8191a1b1c1d1e1f1".replace(' ', ""));
        assert_eq!(hash_from_hex(&hash_hex(hash)), Some(hash));
        assert_eq!(hash_from_hex("0111213141516171 8191A1B1C1D1E1F1".replace(' ', "").as_str()), Some(hash));
        for wrong in ["", "01", "+111213141516171 8191a1b1c1d1e1f", "0111213141516171 8191a1b1c1d1e1fg"] {
            assert_eq!(hash_from_hex(&wrong.replace(' ', "")), None, "{wrong}");
        }
    }
}
