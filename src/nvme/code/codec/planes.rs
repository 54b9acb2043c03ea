//! Byte planes: every stride-th byte of a page is grouped, so that exponents are stored together.

use super::{Garbled, LENGTH, garbled, length};
use std::io;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

/// Widths of numbers in bytes: 1 (bytes, fp8), 2 (bf16, f16), 4 (f32).
const STRIDES: [usize; 3] = [1, 2, 4];
/// Bytes before the planes' lengths.
const HEAD: usize = 4;
/// zstd level: the next level takes twice the time for 1 % fewer bytes.
const LEVEL: i32 = 1;
/// Minimum match length. Exponents repeat one by one, not in strings, so compression comes from entropy coding. Shorter matches are
/// accidental and cost more than they save: with zstd's defaults (5 or 6, tables of 2^13), planes of normally distributed bf16 took
/// 7 % more bytes.
const MATCH_LEAST: u32 = 7;
/// A small match table stays in the L1 cache.
const TABLE_LOG: u32 = 10;
/// Bytes of a page sampled to find its stride: a histogram of this size distinguishes planes that differ by 0.1 bit.
const SAMPLE: usize = 4096;
/// Number of places that the sample is taken from.
const PLACES: usize = 4;
/// Planes with more bits per byte are stored unchanged: compression would save less than the frame header and the time cost.
const NOISE_BITS: f32 = 7.9;

/// Tables and buffers of one thread.
pub(super) struct Planes {
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
    /// A page in plane order.
    split: Vec<u8>,
    sample: Vec<u8>,
    /// n × log2(n), for every possible count in a sample.
    logs: Vec<f32>,
}

impl Planes {
    pub fn new() -> io::Result<Planes> {
        let mut compressor = Compressor::new(LEVEL)?;
        compressor.set_parameter(CParameter::MinMatch(MATCH_LEAST))?;
        compressor.set_parameter(CParameter::HashLog(TABLE_LOG))?;
        compressor.include_checksum(false)?;
        compressor.include_contentsize(false)?;
        compressor.include_dictid(false)?;
        let logs = (0..=SAMPLE).map(|n| if n == 0 { 0.0 } else { n as f32 * (n as f32).log2() }).collect();
        Ok(Planes { compressor, decompressor: Decompressor::new()?, split: Vec::new(), sample: Vec::new(), logs })
    }

    /// Encode a page; return its bytes in `into`, or None if it does not fit.
    pub fn encode(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize> {
        let (stride, bits) = self.look(page);
        let mut at = HEAD + stride * LENGTH;
        into.get_mut(..HEAD)?.copy_from_slice(&[stride as u8, 0, 0, 0]);
        split(page, stride, &mut self.split);
        let mut rest = &self.split[..];
        for (plane, bits) in bits.into_iter().enumerate().take(stride) {
            let (this, next) = rest.split_at(plane_bytes(page.len(), stride, plane));
            rest = next;
            let place = into.get_mut(at..)?;
            let frame = if bits > NOISE_BITS { None } else { self.compressor.compress_to_buffer(this, place).ok() };
            let bytes = match frame.filter(|bytes| *bytes < this.len()) {
                Some(bytes) => bytes,
                None => {
                    place.get_mut(..this.len())?.copy_from_slice(this);
                    this.len()
                }
            };
            let place = HEAD + plane * LENGTH;
            into[place..place + LENGTH].copy_from_slice(&u32::try_from(bytes).ok()?.to_le_bytes());
            at += bytes;
        }
        Some(at)
    }

    /// Return the stride with the fewest bits for a page, and the bits per byte of each of its planes.
    fn look(&mut self, page: &[u8]) -> (usize, [f32; 4]) {
        self.sample.clear();
        let piece = SAMPLE / PLACES;
        if page.len() <= SAMPLE {
            self.sample.extend_from_slice(page);
        } else {
            for place in 0..PLACES {
                // Aligned to every stride.
                let at = (page.len() - piece) / (PLACES - 1) * place / 4 * 4;
                self.sample.extend_from_slice(&page[at..at + piece]);
            }
        }
        let mut best = (1, [8.0; 4]);
        let mut least = f32::INFINITY;
        for stride in STRIDES {
            let mut bits = [0.0; 4];
            for (plane, bits) in bits.iter_mut().enumerate().take(stride) {
                *bits = entropy(self.sample.iter().copied().skip(plane).step_by(stride), &self.logs);
            }
            let mean = bits.iter().sum::<f32>() / stride as f32;
            // A wider stride must save more than its length fields.
            if mean < least * 0.99 {
                (best, least) = ((stride, bits), mean);
            }
        }
        best
    }

    pub fn decode(&mut self, stored: &[u8], page: &mut [u8]) -> Result<(), Garbled> {
        let (&[stride, zero @ ..], mut lengths) =
            stored.split_first_chunk::<HEAD>().ok_or(garbled("the stride is missing"))?;
        let stride = usize::from(stride);
        if !STRIDES.contains(&stride) || zero != [0; 3] {
            return Err(garbled("unknown stride"));
        }
        let mut planes = lengths.get(stride * LENGTH..).ok_or(garbled("the header is truncated"))?;
        self.split.resize(page.len(), 0);
        let mut at = 0;
        for plane in 0..stride {
            let bytes;
            (bytes, lengths) = length(lengths)?;
            let (frame, next) = planes.split_at_checked(bytes).ok_or(garbled("a plane is longer than its sectors"))?;
            planes = next;
            let expected = plane_bytes(page.len(), stride, plane);
            let into = &mut self.split[at..at + expected];
            if bytes == expected {
                into.copy_from_slice(frame);
            } else {
                let got = self.decompressor.decompress_to_buffer(frame, into);
                if got.map_err(|_| garbled("a plane's frame is damaged"))? != expected {
                    return Err(garbled("a plane's frame is of a shorter page"));
                }
            }
            at += expected;
        }
        join(&self.split, stride, page);
        Ok(())
    }
}

/// Return the bytes of a plane of a page.
fn plane_bytes(page_bytes: usize, stride: usize, plane: usize) -> usize {
    (page_bytes + stride - 1 - plane) / stride
}

/// Return the bits per byte by the frequencies of bytes, corrected for the sample size (Miller and Madow, 1955).
fn entropy(bytes: impl Iterator<Item = u8>, logs: &[f32]) -> f32 {
    let mut counts = [0u16; 256];
    let mut all = 0usize;
    for byte in bytes {
        counts[usize::from(byte)] += 1;
        all += 1;
    }
    if all == 0 {
        return 0.0;
    }
    let seen = counts.iter().filter(|count| **count > 0).count();
    let sum: f32 = counts.iter().map(|count| logs[usize::from(*count)]).sum();
    let all = all as f32;
    all.log2() - sum / all + (seen - 1) as f32 / (2.0 * std::f32::consts::LN_2 * all)
}

/// Copy a page's bytes into plane order.
fn split(page: &[u8], stride: usize, planes: &mut Vec<u8>) {
    planes.resize(page.len(), 0);
    match stride {
        2 => {
            let (low, high) = planes.split_at_mut(page.len().div_ceil(2));
            let (numbers, rest) = page.as_chunks::<2>();
            for ((number, low), high) in numbers.iter().zip(&mut *low).zip(high) {
                (*low, *high) = (number[0], number[1]);
            }
            if let (Some(last), Some(byte)) = (low.last_mut(), rest.first()) {
                *last = *byte;
            }
        }
        1 => planes.copy_from_slice(page),
        _ => {
            let mut at = 0;
            for plane in 0..stride {
                let bytes = plane_bytes(page.len(), stride, plane);
                let from = page.iter().skip(plane).step_by(stride);
                for (to, from) in planes[at..at + bytes].iter_mut().zip(from) {
                    *to = *from;
                }
                at += bytes;
            }
        }
    }
}

/// Restore a page from its planes.
fn join(planes: &[u8], stride: usize, page: &mut [u8]) {
    match stride {
        2 => {
            let (low, high) = planes.split_at(page.len().div_ceil(2));
            let (numbers, rest) = page.as_chunks_mut::<2>();
            for ((number, low), high) in numbers.iter_mut().zip(low).zip(high) {
                *number = [*low, *high];
            }
            if let (Some(last), Some(byte)) = (low.last(), rest.first_mut()) {
                *byte = *last;
            }
        }
        1 => page.copy_from_slice(planes),
        _ => {
            let mut at = 0;
            for plane in 0..stride {
                let bytes = plane_bytes(page.len(), stride, plane);
                let to = page.iter_mut().skip(plane).step_by(stride);
                for (to, from) in to.zip(&planes[at..at + bytes]) {
                    *to = *from;
                }
                at += bytes;
            }
        }
    }
}
