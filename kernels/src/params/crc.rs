//! Sums of pages.

/// A range of bytes to check.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrcItem {
    /// Start address, 16-byte aligned.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// `crc32c`: CRC-32C of pages, segment by segment.
///
/// The constants are powers of x modulo the polynomial; `launch::crc` computes them at compile time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CrcParams {
    /// `CrcItem[count]`, 16-byte aligned, on the device or in host memory.
    pub items: u64,
    /// Out, `u32[count][segments]`, on the device or in host memory: a page's sum is the XOR of its words.
    pub sums: u64,
    /// Pages.
    pub count: u32,
    /// Segments of 64 KiB of the longest page.
    pub segments: u32,
    /// Contribution of each bit of a vector of 16 bytes when the rest of its row follows as 4080 zero bytes: bit i of byte b at `[8
    /// × b + i]`.
    pub bits: [u32; 128],
    /// x to the power of 128 × 2^i.
    pub lanes: [u32; 8],
    /// x to the power of 8 × 2^i.
    pub bytes: [u32; 32],
    /// x to the power of −8 × 4080.
    pub back: u32,
    /// 0.
    pub reserved: u32,
}
