//! CRC-32C of pages.

use super::check;
use crate::params::CrcParams;
use crate::{Device, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

static SOURCE: Source = Source { name: "crc", ptx: include_str!("../../ptx/crc.ptx") };
const THREADS: u32 = 256;
/// Bytes of a segment.
pub const SEGMENT: u64 = 64 * 1024;
/// Limit of lengths, which are counted in u32.
const BYTES_MAX: u64 = u32::MAX as u64;
/// Castagnoli's polynomial, reflected; bit 31 is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;
const ONE: u32 = 1 << 31;

/// Lists and bounds of a launch.
#[derive(Clone, Copy, Debug)]
pub struct CrcList {
    /// `CrcItem[count]`, 16-byte aligned, on the device or in host memory.
    pub items: u64,
    /// Out, `u32[count][segments(bytes_max)]`, on the device or in host memory: a page's sum is the XOR of its words.
    pub sums: u64,
    /// Number of pages.
    pub count: u32,
    /// Bytes of the longest page, less than 4 GiB.
    pub bytes_max: u64,
}

/// Return the words of a page's sum.
#[must_use]
pub const fn segments(bytes_max: u64) -> u64 {
    let segments = bytes_max.div_ceil(SEGMENT);
    if segments == 0 { 1 } else { segments }
}

/// The kernel `crc32c` on a device.
#[derive(Debug)]
pub struct Crc {
    crc32c: Function,
}

impl Crc {
    /// Load the kernel.
    ///
    /// # Errors
    /// The driver rejects it; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self { crc32c: device.module(&SOURCE)?.function("crc32c")? })
    }

    /// Compute the sums of pages. Their addresses are 16-byte aligned; their lengths are arbitrary.
    ///
    /// # Errors
    /// An address is 0 or not aligned; a number is out of its bounds; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: the list, the pages and the sums exist; no page is longer than `bytes_max`; nothing else writes the
    /// memory it reads or accesses the sums.
    pub unsafe fn crc32c(&self, stream: &Stream, list: &CrcList) -> Result<()> {
        if list.count == 0 {
            return Ok(());
        }
        check::address("list of pages", list.items, 16)?;
        check::address("sums", list.sums, 4)?;
        check::within("bytes of a page", list.bytes_max, 0, BYTES_MAX)?;
        let segments = segments(list.bytes_max);
        let blocks = check::grid("segments", segments * u64::from(list.count))?;
        let params =
            CrcParams { items: list.items, sums: list.sums, count: list.count, segments: segments as u32, ..CONSTANTS };
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.crc32c.launch(stream, Shape::linear(blocks, THREADS), &params) }
    }
}

/// Return a × b modulo the polynomial.
const fn times(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 != 0 {
            product ^= b;
        }
        b = b >> 1 ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

/// Return `base` to the power of `exponent`.
const fn power(mut base: u32, mut exponent: u64) -> u32 {
    let mut result = ONE;
    while exponent != 0 {
        if exponent & 1 != 0 {
            result = times(result, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    result
}

/// Return x to the power of `exponent`, which may be negative: the polynomial has a constant term, so x has an inverse, (P − 1) /
/// x.
const fn x_to(exponent: i64) -> u32 {
    const X: u32 = ONE >> 1;
    // x · inverse = P − 1 = 1: shifted back, with the bit that the shift removed.
    const INVERSE: u32 = (POLYNOMIAL << 1) | 1;
    const { assert!(times(X, INVERSE) == ONE) };
    power(if exponent < 0 { INVERSE } else { X }, exponent.unsigned_abs())
}

/// Bytes of the other threads in a row.
const OTHERS: i64 = 16 * (THREADS as i64 - 1);

const CONSTANTS: CrcParams = {
    let mut p = CrcParams {
        items: 0,
        sums: 0,
        count: 0,
        segments: 0,
        bits: [0; 128],
        lanes: [0; 8],
        bytes: [0; 32],
        back: x_to(-8 * OTHERS),
        reserved: 0,
    };
    let mut bit = 0;
    while bit < 128 {
        // Bit i of a byte is x^(7 − i), counted 32 higher as in every message, times the bytes behind it.
        let behind = 8 * (15 - bit as i64 / 8 + OTHERS);
        p.bits[bit] = x_to(32 + 7 - bit as i64 % 8 + behind);
        bit += 1;
    }
    let mut i = 0;
    while i < 32 {
        if i < 8 {
            p.lanes[i] = x_to(128 << i);
        }
        p.bytes[i] = x_to(8 << i);
        i += 1;
    }
    p
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the remainder by definition, bit by bit, without the standard start and end.
    fn remainder(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum, _| sum >> 1 ^ if sum & 1 != 0 { POLYNOMIAL } else { 0 })
        })
    }

    #[test]
    fn a_bit_counts_what_follows_it() {
        for bit in [0usize, 1, 7, 8, 63, 100, 127] {
            let mut message = vec![0; 16 + OTHERS as usize];
            message[bit / 8] = 1 << (bit % 8);
            assert_eq!(CONSTANTS.bits[bit], remainder(&message), "bit {bit}");
        }
    }

    #[test]
    fn powers_move_remainders() {
        let sum = remainder(b"kvtide");
        let mut longer = b"kvtide".to_vec();
        longer.resize(6 + 16, 0);
        assert_eq!(times(sum, CONSTANTS.lanes[0]), remainder(&longer));
        longer.resize(6 + 8, 0);
        assert_eq!(times(sum, CONSTANTS.bytes[3]), remainder(&longer));
        longer.resize(6 + OTHERS as usize, 0);
        assert_eq!(times(remainder(&longer), CONSTANTS.back), sum);
    }

    #[test]
    fn an_empty_page_has_a_sum_too() {
        assert_eq!([0, 1, SEGMENT, SEGMENT + 1].map(segments), [1, 1, 1, 2]);
    }
}
