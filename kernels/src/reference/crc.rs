//! CRC-32C (Castagnoli, reflected, inverted at both ends), by its definition.

/// Return the sum of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum: u32, _| sum >> 1 ^ if sum & 1 != 0 { 0x82f6_3b78 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_catalogue_s_check_value() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283, "CRC-32/ISCSI");
    }
}
