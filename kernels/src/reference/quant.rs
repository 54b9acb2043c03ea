//! Codecs: the layout of a quantised block in memory, its scales, and the meaning of its codes.
//!
//! For one layer an image holds
//!
//! ```text
//! K codes [heads][tokens][channels] | V codes the same | K scales u32 [heads][channels] | V scales u32 [heads][tokens]
//! ```
//!
//! Keys have a scale per channel, values one per token (KIVI, arXiv 2402.02750). A scale of int8 and int4 is two binary16, x ≈ zero
//! + code × step, step in the low half; of fp8 it is the step as f32, x ≈ e4m3 × step. In int4 the even channel is the low nibble.

use crate::{Error, Result};
use kvtide_wire::half::F16;

/// A codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// 8-bit floating point, 4 bits of exponent, 3 of fraction (OCP e4m3, largest 448).
    Fp8,
    /// 8 bits between minimum and maximum.
    Int8,
    /// 4 bits between minimum and maximum.
    Int4,
}

/// The shape of one layer's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    codec: Codec,
    parts: u32,
    heads: u32,
    page_tokens: u32,
    channels: u32,
}

impl Codec {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fp8, Self::Int8, Self::Int4];

    /// Return the number used in kernel parameters.
    #[must_use]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// Return the codec of a number.
    ///
    /// # Errors
    /// There is no such codec.
    pub fn from_code(code: u32) -> Result<Self> {
        Self::ALL.get(code as usize).copied().ok_or_else(|| Error::Unsupported {
            what: format!("codec {code}"),
            needs: "0 (fp8 e4m3), 1 (int8) or 2 (int4)".into(),
        })
    }

    /// Return the bits of a code.
    #[must_use]
    pub const fn bits(self) -> u32 {
        if matches!(self, Self::Int4) { 4 } else { 8 }
    }

    /// Return the shape of an image.
    ///
    /// # Errors
    /// The kernels do not support it.
    pub fn image(self, parts: u32, heads: u32, page_tokens: u32, channels: u32) -> Result<Image> {
        let unsupported = |what: String, needs: &str| Err(Error::Unsupported { what, needs: needs.into() });
        if !(1..=2).contains(&parts) || heads == 0 || heads > 1024 {
            return unsupported(format!("{parts} parts of {heads} heads"), "1 or 2 parts, 1 to 1024 heads");
        }
        if page_tokens == 0 || page_tokens > 128 {
            return unsupported(format!("a page of {page_tokens} tokens"), "1 to 128");
        }
        let keys = channels == 32 || (channels.is_multiple_of(64) && (64..=1024).contains(&channels));
        if !keys || (parts == 2 && !channels.is_power_of_two()) || (parts == 2 && channels > 256) {
            return unsupported(
                format!("{channels} channels in {parts} parts"),
                "32, 64, 128 or 256; keys alone: 32 or a multiple of 64, at most 1024",
            );
        }
        Ok(Image { codec: self, parts, heads, page_tokens, channels })
    }

    /// Return the scale of numbers between `low` and `high`, as a word; `None` if there is none.
    #[must_use]
    pub fn scale(self, low: f32, high: f32) -> Option<u32> {
        if !low.is_finite() || !high.is_finite() {
            return None;
        }
        let up = |x: f32| f32::from_bits(x.to_bits() + 1);
        // The constants are the smallest f32 not below 1/448, 1/255, 1/15; raised, the step reaches from end to end.
        let levels = match self {
            Self::Fp8 => {
                let reach = low.abs().max(high.abs());
                let step = up(reach * 0.002_232_143).max(f32::MIN_POSITIVE);
                return Some(if reach == 0.0 { 0 } else { step.to_bits() });
            }
            Self::Int8 => 0.003_921_569,
            Self::Int4 => 0.066_666_67,
        };
        let zero = F16(F16::up(-low).0 ^ 0x8000);
        let step = F16::up(up(up(high - zero.to_f32()) * levels));
        let finite = zero.to_f32().is_finite() && step.to_f32().is_finite();
        finite.then(|| u32::from(zero.0) << 16 | u32::from(step.0))
    }

    /// Return zero and step of a scale.
    #[must_use]
    pub fn zero_and_step(self, word: u32) -> (f64, f64) {
        match self {
            Self::Fp8 => (0.0, f64::from(f32::from_bits(word))),
            _ => (f64::from(F16((word >> 16) as u16).to_f32()), f64::from(F16(word as u16).to_f32())),
        }
    }

    /// Return the nearest code.
    #[must_use]
    pub fn code_of(self, word: u32, value: f64) -> u8 {
        let (zero, step) = self.zero_and_step(word);
        let steps = if step > 0.0 { (value - zero) / step } else { 0.0 };
        match self {
            Self::Fp8 => e4m3_nearest(steps),
            Self::Int8 => (steps + 0.5).floor().clamp(0.0, 255.0) as u8,
            Self::Int4 => (steps + 0.5).floor().clamp(0.0, 15.0) as u8,
        }
    }

    /// Return the value of a code.
    #[must_use]
    pub fn value_of(self, word: u32, code: u8) -> f64 {
        let (zero, step) = self.zero_and_step(word);
        match self {
            Self::Fp8 => e4m3(code) * step,
            _ => zero + f64::from(code) * step,
        }
    }
}

impl Image {
    /// Return the bytes, a multiple of 16.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let codes = self.code_at(self.parts, 0, 0, 0).0 as u64;
        let words = u64::from(self.heads) * u64::from(self.channels + (self.parts - 1) * self.page_tokens);
        (codes + 4 * words).next_multiple_of(16)
    }

    /// Return the tiles of a head's work: 64 channels of keys, or as many tokens of values as a block of threads holds.
    #[must_use]
    pub fn tiles(&self) -> u32 {
        let values = if self.parts == 2 { self.page_tokens.div_ceil(1024 / (self.channels / 8)) } else { 0 };
        self.channels.div_ceil(64) + values
    }

    fn code_at(&self, part: u32, head: u32, token: u32, channel: u32) -> (usize, u32) {
        let row = u64::from(part * self.heads + head) * u64::from(self.page_tokens) + u64::from(token);
        let bit = (row * u64::from(self.channels) + u64::from(channel)) * u64::from(self.codec.bits());
        ((bit / 8) as usize, (bit % 8) as u32)
    }

    /// Return the offset of the scale of a channel (of keys) or a token (of values).
    fn scale_at(&self, part: u32, head: u32, index: u32) -> u64 {
        let codes = self.code_at(self.parts, 0, 0, 0).0 as u64;
        let word = if part == 0 {
            head * self.channels + index
        } else {
            self.heads * self.channels + head * self.page_tokens + index
        };
        codes + 4 * u64::from(word)
    }

    /// Return the scale of a number.
    #[must_use]
    pub fn scale(&self, image: &[u8], part: u32, head: u32, token: u32, channel: u32) -> u32 {
        let at = self.scale_at(part, head, if part == 0 { channel } else { token }) as usize;
        u32::from_le_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]])
    }

    /// Return the code of a number.
    #[must_use]
    pub fn code(&self, image: &[u8], part: u32, head: u32, token: u32, channel: u32) -> u8 {
        let (byte, shift) = self.code_at(part, head, token, channel);
        image[byte] >> shift & ((1u16 << self.codec.bits()) - 1) as u8
    }

    /// Return the decoded number.
    #[must_use]
    pub fn value(&self, image: &[u8], part: u32, head: u32, token: u32, channel: u32) -> f64 {
        let code = self.code(image, part, head, token, channel);
        self.codec.value_of(self.scale(image, part, head, token, channel), code)
    }

    /// Return the image of the first `tokens` tokens of `number(part, head, token, channel)`. `None`: a number is not finite, or a
    /// range has no scale.
    #[must_use]
    pub fn quantize(&self, tokens: u32, number: impl Fn(u32, u32, u32, u32) -> f32) -> Option<Vec<u8>> {
        let mut image = vec![0; self.bytes() as usize];
        for part in 0..self.parts {
            for head in 0..self.heads {
                let (outer, inner) = if part == 0 { (self.channels, tokens) } else { (tokens, self.channels) };
                for o in 0..outer {
                    // Keys share a scale per channel, values per token.
                    let place = |i| if part == 0 { (i, o) } else { (o, i) };
                    let value = |i| {
                        let (token, channel) = place(i);
                        number(part, head, token, channel)
                    };
                    if inner == 0 {
                        continue;
                    }
                    if !(0..inner).all(|i| value(i).is_finite()) {
                        return None;
                    }
                    let low = (0..inner).map(value).fold(f32::INFINITY, f32::min);
                    let high = (0..inner).map(value).fold(f32::NEG_INFINITY, f32::max);
                    let word = self.codec.scale(low, high)?;
                    let at = self.scale_at(part, head, o) as usize;
                    image[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    for i in 0..inner {
                        let (token, channel) = place(i);
                        let (byte, shift) = self.code_at(part, head, token, channel);
                        image[byte] |= self.codec.code_of(word, f64::from(value(i))) << shift;
                    }
                }
            }
        }
        Some(image)
    }
}

/// Return the value of an e4m3 code.
fn e4m3(code: u8) -> f64 {
    let magnitude = match code & 0x7f {
        0x7f => f64::NAN,
        tiny @ 0..8 => f64::from(tiny) / 512.0,
        normal => f64::from(8 + (normal & 7)) / 8.0 * f64::from(i32::from(normal >> 3) - 7).exp2(),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Return the nearest e4m3 code, ties to even, saturating at the largest.
fn e4m3_nearest(value: f64) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs();
    // Codes are ordered by their values, so the nearest is one of two neighbours.
    let above = (0..0x7f).find(|&code| e4m3(code) >= magnitude).unwrap_or(0x7e);
    let below = above.saturating_sub(1);
    let (down, up) = (magnitude - e4m3(below), e4m3(above) - magnitude);
    sign | if down < up || (down == up && below & 1 == 0) { below } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_scales_do_not_overlap() {
        for codec in Codec::ALL {
            for (parts, channels) in [(1, 576), (1, 32), (2, 32), (2, 256)] {
                let image = codec.image(parts, 3, 16, channels).expect("supported");
                let per_layer = u64::from(3 * parts * 16 * channels * codec.bits() / 8);
                let scales = u64::from(4 * 3 * (channels + if parts == 2 { 16 } else { 0 }));
                assert_eq!(image.bytes(), (per_layer + scales).next_multiple_of(16), "{image:?}");
            }
        }
    }

    #[test]
    fn a_block_comes_back_within_half_a_step() {
        for codec in Codec::ALL {
            let image = codec.image(2, 2, 16, 32).expect("supported");
            let number = |part: u32, head: u32, token: u32, channel: u32| {
                ((part * 7 + head * 5 + token * 31 + channel * 17) % 61) as f32 / 8.0 - 3.0
            };
            let bytes = image.quantize(16, number).expect("finite");
            for part in 0..2 {
                for (token, channel) in (0..16).flat_map(|t| (0..32).map(move |c| (t, c))) {
                    let exact = f64::from(number(part, 1, token, channel));
                    let (_, step) = codec.zero_and_step(image.scale(&bytes, part, 1, token, channel));
                    // In fp8 the step belongs to code 1; half a unit of the last of 4 bits is a sixteenth of the number.
                    let bound = if codec == Codec::Fp8 { exact.abs() / 16.0 + step / 1024.0 } else { step * 0.5 };
                    let error = (image.value(&bytes, part, 1, token, channel) - exact).abs();
                    assert!(error <= bound * 1.000_001, "{codec:?} {part} {token} {channel}: {error} over {bound}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_scale_is_refused() {
        let image = Codec::Int8.image(1, 1, 1, 32).expect("supported");
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            assert!(image.quantize(1, |_, _, _, c| if c == 3 { bad } else { 0.0 }).is_none());
        }
        assert!(Codec::Int4.image(2, 8, 64, 96).is_err() && Codec::from_code(3).is_err());
    }

    #[test]
    fn e4m3_rounds_to_the_nearest() {
        for code in (0..0x7f).chain(0x80..0xff) {
            assert_eq!(e4m3(e4m3_nearest(e4m3(code))), e4m3(code), "{code:#x}");
        }
        assert_eq!(
            [448.0, 1e9, 1.0 + 1.0 / 16.0, 1.0 + 3.0 / 16.0].map(|x| e4m3(e4m3_nearest(x))),
            [448.0, 448.0, 1.0, 1.25]
        );
    }
}
