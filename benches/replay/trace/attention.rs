//! Attention trace: a safetensors file with the attention of each plane of a decoder at each step (format:
//! `docs/design/prefetch.md`).

use super::Broken;
use half::f16;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use std::collections::HashMap;

/// Maximum bytes of a trace.
pub const BYTES_MAX: u64 = 8 << 30;
/// Bytes of the header length at the begin of the file.
const LENGTH: usize = 8;
/// Maximum deviation of a row's sum of shares from 1: f16 rounds each share by 2^-11 of itself, or by 2^-25 if it is tiny.
const SUM_SLACK: f32 = 0.01;
/// Maximum of each dimension.
const DIM_MAX: usize = 1 << 20;

/// A fully checked trace. Step s is the forward pass of the token at position `context_start + s`, which attends to all positions
/// up to its own.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Planes.
    pub planes: usize,
    /// Query heads of a plane.
    pub q_heads: usize,
    /// KV heads of a plane.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Position of the first step's token.
    pub context_start: usize,
    /// Steps.
    pub steps: usize,
    /// Pages of a plane at the last step.
    pub pages: usize,
    /// Scale of scores.
    pub softmax_scale: f32,
    bytes: Vec<u8>,
    mass: usize,
    q: usize,
    q_ahead: usize,
    keys: usize,
    tokens: usize,
}

impl Attention {
    /// Parse and check a trace.
    pub fn parse(bytes: Vec<u8>) -> Result<Attention, Broken> {
        let (header, metadata) = header(&bytes)?;
        let words = metadata.metadata().clone().unwrap_or_default();
        let mut trace = Attention {
            page_tokens: number(&words, "page_tokens")?,
            planes: number(&words, "planes")?,
            q_heads: number(&words, "q_heads")?,
            kv_heads: number(&words, "kv_heads")?,
            head_dim: number(&words, "head_dim")?,
            context_start: number(&words, "context_start")?,
            steps: number(&words, "steps")?,
            pages: number(&words, "pages")?,
            softmax_scale: scale(&words)?,
            bytes,
            ..Attention::EMPTY
        };
        trace.check_sizes()?;
        trace.tokens = metadata.info("keys").and_then(|info| info.shape.get(2).copied()).unwrap_or(0);
        let Attention { planes, q_heads, kv_heads, head_dim, steps, pages, tokens, .. } = trace;
        if tokens < trace.context_start + steps {
            let why = format!("keys of {tokens} tokens, but the last step is at {}", trace.context_start + steps - 1);
            return Err(Broken::byte(LENGTH, why));
        }
        let place = |name: &str, shape: &[usize]| {
            let (start, end) = tensor(&metadata, name, Dtype::F16, shape)?.data_offsets;
            let data = header + LENGTH;
            // The header's offsets have been checked against the file; this keeps a wrong check from causing a panic.
            trace
                .bytes
                .get(data + start..data + end)
                .map(|_| data + start)
                .ok_or_else(|| cut_off(&trace.bytes, data + end))
        };
        let queries = [steps, planes, q_heads, head_dim];
        let mass = place("mass", &[steps, planes, kv_heads, pages])?;
        let (q, q_ahead) = (place("q", &queries)?, place("q_ahead", &queries)?);
        let keys = place("keys", &[planes, kv_heads, tokens, head_dim])?;
        (trace.mass, trace.q, trace.q_ahead, trace.keys) = (mass, q, q_ahead, keys);
        trace.check_finite("q", q, queries.iter().product())?;
        trace.check_finite("q_ahead", q_ahead, queries.iter().product())?;
        trace.check_finite("keys", keys, planes * kv_heads * tokens * head_dim)?;
        trace.check_mass()?;
        Ok(trace)
    }

    const EMPTY: Attention = Attention {
        page_tokens: 0,
        planes: 0,
        q_heads: 0,
        kv_heads: 0,
        head_dim: 0,
        context_start: 0,
        steps: 0,
        pages: 0,
        softmax_scale: 0.0,
        bytes: Vec::new(),
        mass: 0,
        q: 0,
        q_ahead: 0,
        keys: 0,
        tokens: 0,
    };

    /// Return the pages of a plane at a step, including the tail.
    #[must_use]
    pub fn pages_at(&self, step: usize) -> usize {
        (self.context_start + step) / self.page_tokens + 1
    }

    /// Return the tokens that a step attends to.
    #[must_use]
    pub fn tokens_at(&self, step: usize) -> usize {
        self.context_start + step + 1
    }

    /// Set `shares` to each page's share of a plane's attention at a step, averaged over KV heads: [`Attention::pages_at`] numbers
    /// that sum to 1.
    pub fn mass(&self, step: usize, plane: usize, shares: &mut Vec<f32>) {
        shares.clear();
        shares.resize(self.pages_at(step), 0.0);
        for head in 0..self.kv_heads {
            for (page, share) in shares.iter_mut().enumerate() {
                *share += self.head_mass(step, plane, head, page) / self.kv_heads as f32;
            }
        }
    }

    /// Return a page's share of one KV head's attention.
    #[must_use]
    pub fn head_mass(&self, step: usize, plane: usize, head: usize, page: usize) -> f32 {
        self.value(self.mass, ((step * self.planes + plane) * self.kv_heads + head) * self.pages + page)
    }

    /// Set `queries` to a plane's queries at a step, head by head. `ahead`: those computed from the input of the plane before;
    /// zeros for plane 0.
    pub fn queries(&self, step: usize, plane: usize, ahead: bool, queries: &mut Vec<f32>) {
        let count = self.q_heads * self.head_dim;
        let at = (step * self.planes + plane) * count;
        let tensor = if ahead { self.q_ahead } else { self.q };
        queries.clear();
        queries.extend((at..at + count).map(|i| self.value(tensor, i)));
    }

    /// Set `keys` to the keys of one KV head of a page, token by token.
    pub fn keys(&self, plane: usize, head: usize, page: usize, keys: &mut Vec<f32>) {
        let first = page * self.page_tokens;
        let last = (first + self.page_tokens).min(self.tokens);
        let row = (plane * self.kv_heads + head) * self.tokens;
        keys.clear();
        keys.extend(((row + first) * self.head_dim..(row + last) * self.head_dim).map(|i| self.value(self.keys, i)));
    }

    fn value(&self, tensor: usize, index: usize) -> f32 {
        let at = tensor + 2 * index;
        f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).to_f32()
    }

    fn check_sizes(&self) -> Result<(), Broken> {
        let sizes = [
            ("page_tokens", self.page_tokens),
            ("planes", self.planes),
            ("q_heads", self.q_heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("steps", self.steps),
            ("pages", self.pages),
        ];
        for (name, size) in sizes {
            if size == 0 || size > DIM_MAX {
                return Err(Broken::byte(LENGTH, format!("metadata {name} is {size}: expected 1 to {DIM_MAX}")));
            }
        }
        if self.context_start > DIM_MAX * self.page_tokens {
            return Err(Broken::byte(LENGTH, format!("metadata context_start is {}", self.context_start)));
        }
        if !self.q_heads.is_multiple_of(self.kv_heads) {
            let why = format!("{} query heads are not a multiple of {} KV heads", self.q_heads, self.kv_heads);
            return Err(Broken::byte(LENGTH, why));
        }
        if self.pages_at(self.steps - 1) > self.pages {
            let why =
                format!("the last step has {} pages, metadata says {}", self.pages_at(self.steps - 1), self.pages);
            return Err(Broken::byte(LENGTH, why));
        }
        Ok(())
    }

    fn check_finite(&self, name: &str, tensor: usize, count: usize) -> Result<(), Broken> {
        match (0..count).find(|&i| !self.value(tensor, i).is_finite()) {
            None => Ok(()),
            Some(i) => Err(Broken::byte(tensor + 2 * i, format!("{name} is {} here", self.value(tensor, i)))),
        }
    }

    fn check_mass(&self) -> Result<(), Broken> {
        for row in 0..self.steps * self.planes * self.kv_heads {
            let (step, first) = (row / (self.planes * self.kv_heads), row * self.pages);
            let mut sum = 0.0;
            for page in 0..self.pages {
                let (at, share) = (self.mass + 2 * (first + page), self.value(self.mass, first + page));
                if !(0.0..=1.0 + SUM_SLACK).contains(&share) {
                    return Err(Broken::byte(at, format!("invalid share of attention {share}")));
                }
                if share > 0.0 && page >= self.pages_at(step) {
                    return Err(Broken::byte(
                        at,
                        format!("page {page} has attention at step {step}, before it exists"),
                    ));
                }
                sum += share;
            }
            if (sum - 1.0).abs() > SUM_SLACK {
                let why = format!("the shares of a head's attention at step {step} sum to {sum}, not to 1");
                return Err(Broken::byte(self.mass + 2 * first, why));
            }
        }
        Ok(())
    }
}

/// Parse the header. Return its length and content.
fn header(bytes: &[u8]) -> Result<(usize, Metadata), Broken> {
    let end = bytes.get(..LENGTH).and_then(|length| length.try_into().ok()).map(u64::from_le_bytes);
    let end = end.and_then(|length| usize::try_from(length).ok()).and_then(|length| length.checked_add(LENGTH));
    SafeTensors::read_metadata(bytes).map_err(|error| match (error, end) {
        (SafeTensorError::HeaderTooSmall | SafeTensorError::InvalidHeaderLength, _) => {
            cut_off(bytes, end.unwrap_or(LENGTH))
        }
        (SafeTensorError::InvalidHeader(error), _) => Broken::byte(LENGTH + error.valid_up_to(), "invalid UTF-8"),
        (SafeTensorError::InvalidHeaderDeserialization(error), _) => {
            // The header is normally one line.
            Broken::byte(LENGTH + error.column().saturating_sub(1), format!("invalid header: {error}"))
        }
        (SafeTensorError::MetadataIncompleteBuffer, Some(end)) => {
            let header = bytes.get(LENGTH..end).and_then(|header| serde_json::from_slice::<Metadata>(header).ok());
            let whole = header.map_or(end, |header| end.saturating_add(header.data_len()));
            if whole < bytes.len() {
                return Broken::byte(whole, "unexpected data after the last tensor");
            }
            cut_off(bytes, whole)
        }
        (error, _) => Broken::byte(LENGTH, error.to_string()),
    })
}

fn cut_off(bytes: &[u8], expected: usize) -> Broken {
    Broken::byte(bytes.len(), format!("the file ends here, where {expected} bytes are expected"))
}

fn number(words: &HashMap<String, String>, name: &str) -> Result<usize, Broken> {
    let word = words.get(name).ok_or_else(|| Broken::byte(LENGTH, format!("metadata has no {name}")))?;
    word.parse().map_err(|_| Broken::byte(LENGTH, format!("metadata {name} is not a number: {word:?}")))
}

fn scale(words: &HashMap<String, String>) -> Result<f32, Broken> {
    let word = words.get("softmax_scale").ok_or_else(|| Broken::byte(LENGTH, "metadata has no softmax_scale"))?;
    match word.parse::<f32>() {
        Ok(scale) if scale.is_finite() && scale > 0.0 => Ok(scale),
        _ => Err(Broken::byte(LENGTH, format!("metadata softmax_scale is not a positive number: {word:?}"))),
    }
}

fn tensor<'a>(metadata: &'a Metadata, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'a TensorInfo, Broken> {
    let info = metadata.info(name).ok_or_else(|| Broken::byte(LENGTH, format!("missing tensor {name}")))?;
    if info.dtype != dtype || info.shape != shape {
        let (found, is) = (&info.shape, info.dtype);
        return Err(Broken::byte(LENGTH, format!("tensor {name} is {is} {found:?}, metadata says {dtype} {shape:?}")));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::file;
    use super::super::{At, fixture};
    use super::*;

    fn broken(bytes: Vec<u8>) -> (u64, String) {
        match Attention::parse(bytes) {
            Err(Broken { at: At::Byte(byte), why }) => (byte, why),
            other => panic!("expected a byte, got {other:?}"),
        }
    }

    /// Return the position of a tensor's first number.
    fn place(bytes: &[u8], name: &str) -> usize {
        let (header, metadata) = header(bytes).expect("well-formed");
        header + LENGTH + metadata.info(name).expect("it is there").data_offsets.0
    }

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let trace = Attention::parse(file(&[])).expect("well-formed");
        let [page_tokens, planes, .., context_start, steps] = fixture::SIZES;
        assert_eq!((trace.page_tokens, trace.planes, trace.steps), (page_tokens, planes, steps));
        assert_eq!((trace.pages_at(0), trace.tokens_at(0)), (context_start / page_tokens + 1, context_start + 1));
        let mut shares = Vec::new();
        for (step, plane) in [(0, 0), (7, 2), (steps - 1, 1)] {
            trace.mass(step, plane, &mut shares);
            assert_eq!(shares.len(), trace.pages_at(step));
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-2);
        }
        let (mut keys, mut queries) = (Vec::new(), Vec::new());
        trace.keys(0, 0, 3, &mut keys);
        trace.queries(0, 0, true, &mut queries);
        assert!(keys.len() == page_tokens * trace.head_dim && queries.iter().all(|q| *q == 0.0));
    }

    #[test]
    fn what_is_cut_off_breaks_where_it_ends() {
        let whole = file(&[]);
        for length in [0, 5, 8, 9, 100, whole.len() / 2, whole.len() - 1] {
            let (byte, why) = broken(whole[..length].to_vec());
            assert!(byte == length as u64 && why.contains("ends here"), "{length}: {byte}: {why}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(broken(longer).0, whole.len() as u64);
        let mut nonsense = whole;
        nonsense[8] = b'}';
        assert_eq!(broken(nonsense).0, 8);
    }

    #[test]
    fn what_contradicts_itself_breaks_where_it_does() {
        for (name, word) in [
            ("planes", "4"),
            ("steps", "61"),
            ("steps", "0"),
            ("pages", "3"),
            ("kv_heads", "2"),
            ("q_heads", "3"),
            ("page_tokens", "x"),
            ("context_start", "99999999999"),
            ("softmax_scale", "-1"),
        ] {
            assert_eq!(broken(file(&[(name, word)])).0, LENGTH as u64, "{name} = {word}");
        }
        let whole = file(&[]);
        let (mass, keys) = (place(&whole, "mass"), place(&whole, "keys"));
        let with = |at: usize, number: f32| {
            let mut bytes = whole.clone();
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
            broken(bytes)
        };
        assert_eq!(with(keys + 10, f32::NAN).0, keys as u64 + 10);
        assert_eq!(with(mass + 4, -0.5).0, mass as u64 + 4);
        // A row that does not sum to 1 is reported at its begin, attention to a future page at its own position.
        assert_eq!(with(mass + 6, 0.9).0, mass as u64);
        let pages = Attention::parse(whole.clone()).expect("well-formed").pages;
        assert_eq!(with(mass + 2 * (pages - 1), 0.1).0, (mass + 2 * (pages - 1)) as u64);
    }
}
