//! Buffers of random content, and random orders.

use super::timing::drain;
use crate::reference::Element;
use crate::{Buffer, Device, Error, Pinned, Result, Stream};
use std::sync::Arc;

/// Bytes of random content made on the host; larger buffers repeat it. Larger than any row of a kernel, and quick to generate.
const PATTERN: usize = 4 << 20;

/// A generator of random numbers (xorshift64*): quick, and the same in every run.
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Return a roughly normal number: mean 0, deviation 1.
    pub fn normal(&mut self) -> f32 {
        // The sum of twelve uniform numbers has deviation 1.
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    /// Return the numbers below `count`, in a random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, (self.next() % (at as u64 + 1)) as usize);
        }
        order
    }
}

/// Return device memory filled with normally distributed numbers in a 16-bit format.
pub(super) fn normal(
    device: &Arc<Device>,
    stream: &Stream,
    bytes: usize,
    element: Element,
    seed: u64,
) -> Result<Buffer> {
    let mut random = Random::new(seed);
    let buffer = Buffer::new(device, bytes)?;
    let staging = Pinned::new(device, bytes.min(PATTERN))?;
    let words: Vec<u8> =
        (0..staging.bytes() / 2).flat_map(|_| element.from_f32(random.normal()).to_le_bytes()).collect();
    write(&staging, 0, &words)?;
    for at in (0..bytes).step_by(staging.bytes()) {
        let count = staging.bytes().min(bytes - at);
        // SAFETY: both ranges are in buffers that live until the stream has been drained below; nothing else uses them.
        unsafe { stream.copy(buffer.address() + at as u64, staging.address(), count)? };
    }
    drain(stream)?;
    Ok(buffer)
}

/// Return device memory with this content.
pub(super) fn with(device: &Arc<Device>, stream: &Stream, words: &[i32]) -> Result<Buffer> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let buffer = Buffer::new(device, bytes.len())?;
    let staging = Pinned::new(device, bytes.len())?;
    write(&staging, 0, &bytes)?;
    // SAFETY: as in `normal`.
    unsafe { stream.copy(buffer.address(), staging.address(), bytes.len())? };
    drain(stream)?;
    Ok(buffer)
}

/// Return the first `words` 16-bit words of a buffer.
pub(super) fn read(stream: &Stream, buffer: &Buffer, words: usize) -> Result<Vec<u16>> {
    let bytes = 2 * words;
    if bytes > buffer.bytes() {
        return Err(Error::invalid("buffer", format!("{bytes} bytes of {} cannot be read", buffer.bytes())));
    }
    let staging = Pinned::new(buffer.device(), bytes)?;
    // SAFETY: checked above; both live until the stream has been drained, and nothing else uses them.
    unsafe { stream.copy(staging.address(), buffer.address(), bytes)? };
    drain(stream)?;
    // SAFETY: the device has written these bytes, nothing writes them now, and a mapping is aligned to pages.
    let content = unsafe { std::slice::from_raw_parts(staging.as_ptr().cast::<u16>(), words) };
    Ok(content.to_vec())
}

/// Write to pinned memory that no device uses at present.
pub(super) fn write(pinned: &Pinned, at: usize, bytes: &[u8]) -> Result<()> {
    if at + bytes.len() > pinned.bytes() {
        return Err(Error::invalid("pinned memory", format!("{} bytes at {at} do not fit", bytes.len())));
    }
    // SAFETY: checked above; allocated here, and no copy that touches it is in flight.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pinned.as_ptr().add(at), bytes.len()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn orders_hold_everything_once_and_normals_are_about_normal() {
        let mut random = Random::new(7);
        let mut order = random.order(1000);
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
        let values: Vec<f32> = (0..10_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f32>() / 1e4;
        let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 1e4).sqrt();
        assert!(mean.abs() < 0.1 && (deviation - 1.0).abs() < 0.1, "mean {mean}, deviation {deviation}");
    }
}
