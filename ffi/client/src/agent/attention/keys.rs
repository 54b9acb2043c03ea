//! Where keys lie in a page.

use kvtide_wire::{digest, half::F16};

/// Number format of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Element {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// The upper half of a binary32.
    Bf16 = 2,
}

impl Element {
    /// Return the size of one number in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Element::F32, [a, b, c, d, ..]) => f32::from_le_bytes([*a, *b, *c, *d]),
            (Element::F16, [a, b, ..]) => F16(u16::from_le_bytes([*a, *b])).to_f32(),
            (Element::Bf16, [a, b, ..]) => f32::from_bits(u32::from(u16::from_le_bytes([*a, *b])) << 16),
            _ => f32::NAN,
        }
    }
}

/// Where a page's keys are, in bytes. Channel c of head h of token t is at `offset + h·head_stride + (t /
/// tile_tokens)·tile_stride + (t % tile_tokens)·token_stride + c·channel_stride`. All attention planes have the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyLayout {
    /// Number format of a channel.
    pub element: Element,
    /// KV heads.
    pub heads: u16,
    /// Channels of a head.
    pub channels: u16,
    /// Tokens stored together in a tile; equal to the tokens of a page if there is one tile.
    pub tile_tokens: u16,
    /// Offset of the first key.
    pub offset: u32,
    /// Distance from head to head.
    pub head_stride: u32,
    /// Distance from tile to tile.
    pub tile_stride: u32,
    /// Distance from token to token within a tile.
    pub token_stride: u32,
    /// Distance from channel to channel.
    pub channel_stride: u32,
}

impl KeyLayout {
    /// Check that a page of this many tokens and bytes can have such keys.
    ///
    /// # Errors
    /// Says what does not fit.
    pub fn check(&self, page_tokens: u32, page_bytes: u32) -> Result<(), String> {
        if self.heads == 0 || self.tile_tokens == 0 {
            return Err("a key layout needs at least one head and one token in a tile".into());
        }
        if !(1..=digest::CHANNELS_MAX).contains(&usize::from(self.channels)) {
            return Err(format!("{} channels; a digest supports 1 to {}", self.channels, digest::CHANNELS_MAX));
        }
        let last = page_tokens.saturating_sub(1);
        let tile = u32::from(self.tile_tokens);
        let ends = [
            (u32::from(self.heads) - 1, self.head_stride),
            (last / tile, self.tile_stride),
            (last.min(tile - 1), self.token_stride),
            (u32::from(self.channels) - 1, self.channel_stride),
        ];
        let end = u64::from(self.offset)
            + ends.iter().map(|(count, stride)| u64::from(*count) * u64::from(*stride)).sum::<u64>()
            + u64::from(self.element.bytes());
        if end > u64::from(page_bytes) {
            return Err(format!("the last key ends at byte {end}, beyond the page of {page_bytes} bytes"));
        }
        Ok(())
    }

    /// Read a head's keys of a page, token by token. The page must have the size that [`KeyLayout::check`] accepted.
    pub(super) fn read(&self, page: &[u8], head: u16, tokens: u32, keys: &mut Vec<f32>) {
        keys.clear();
        let at = self.offset as usize + usize::from(head) * self.head_stride as usize;
        for token in 0..tokens {
            let (tile, within) = (token / u32::from(self.tile_tokens), token % u32::from(self.tile_tokens));
            let at = at + tile as usize * self.tile_stride as usize + within as usize * self.token_stride as usize;
            let channels = (0..usize::from(self.channels)).map(|c| at + c * self.channel_stride as usize);
            keys.extend(channels.map(|at| self.element.read(page.get(at..).unwrap_or_default())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_tiles_and_layouts_that_reach_beyond_the_page_are_refused() {
        // Two heads; tiles of 2 tokens; channel by channel within a tile, as f32.
        let layout = KeyLayout {
            element: Element::F32,
            heads: 2,
            channels: 3,
            tile_tokens: 2,
            offset: 4,
            head_stride: 48,
            tile_stride: 24,
            token_stride: 4,
            channel_stride: 8,
        };
        let mut page = vec![0u8; 4 + 96];
        let place = |h: usize, t: usize, c: usize| 4 + h * 48 + t / 2 * 24 + t % 2 * 4 + c * 8;
        for h in 0..2 {
            for t in 0..4 {
                for c in 0..3 {
                    let value = (100 * h + 10 * t + c) as f32;
                    page[place(h, t, c)..][..4].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        let mut keys = Vec::new();
        layout.read(&page, 1, 4, &mut keys);
        assert_eq!(keys, [100., 101., 102., 110., 111., 112., 120., 121., 122., 130., 131., 132.]);
        assert!(layout.check(4, 100).is_ok());
        assert!(layout.check(4, 99).is_err_and(|why| why.contains("byte 100")));
        assert!(layout.check(5, 100).is_err(), "the fifth token starts a tile beyond the page");
        assert!(KeyLayout { heads: 0, ..layout }.check(4, 100).is_err());
        assert!(KeyLayout { channels: 0, ..layout }.check(4, 100).is_err());
        assert!(KeyLayout { head_stride: u32::MAX, tile_stride: u32::MAX, ..layout }.check(4, 100).is_err());
        let half = |element, bits: u16| Element::read(element, &bits.to_le_bytes());
        assert_eq!((half(Element::F16, 0xc000), half(Element::Bf16, 0xbf80)), (-2.0, -1.0));
    }
}
