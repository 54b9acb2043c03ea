//! KV events in the format of vLLM 0.28 and later: MessagePack as msgspec writes the classes of `vllm/distributed/kv_events.py`.
//!
//! A batch is an array: time, events, data-parallel rank. An event is a map with its class as `type`; fields at their defaults
//! are left out. Field order is the order of declaration, so that the bytes are the same.

use serde::Serialize;
use std::time::Duration;

/// vLLM's name of host memory.
pub const CPU: &str = "CPU";
/// vLLM's name of files and objects; 0.26 had `FS` and `OBJ`.
pub const STORAGE: &str = "STORAGE";
/// Where the storage is, relative to the engine. vLLM has this field since 0.26.
const LOCAL: &str = "LOCAL";

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub enum Event {
    /// Blocks of a prefix, each the child of the one before it, are in a medium.
    BlockStored {
        /// Their hashes.
        block_hashes: Vec<u64>,
        /// Parent of the first one.
        parent_block_hash: Option<u64>,
        /// Tokens of all blocks.
        token_ids: Vec<u32>,
        /// Tokens of a block.
        block_size: u32,
        /// Deprecated in vLLM, and always nil here.
        lora_id: Option<u64>,
        /// The medium.
        medium: &'static str,
        /// Adapter with which the blocks were computed.
        lora_name: Option<String>,
        /// Set for storage only.
        #[serde(skip_serializing_if = "Option::is_none")]
        locality: Option<&'static str>,
    },
    /// Blocks are not in a medium any more.
    BlockRemoved {
        /// Their hashes.
        block_hashes: Vec<u64>,
        /// The medium.
        medium: &'static str,
        /// Set for storage only.
        #[serde(skip_serializing_if = "Option::is_none")]
        locality: Option<&'static str>,
    },
    /// All earlier events are void.
    AllBlocksCleared,
}

/// Return the hash of a block as events carry it: the low 64 bits, as vLLM does with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`.
/// Dynamo's decoder takes integers of 64 bits, and no bytes.
#[must_use]
pub fn event_hash(hash: u128) -> u64 {
    hash as u64
}

/// Return the locality of a medium.
#[must_use]
pub fn locality(medium: &'static str) -> Option<&'static str> {
    (medium == STORAGE).then_some(LOCAL)
}

/// Encode a batch. The rank is nil: the router knows for which rank of which engine it has subscribed.
///
/// # Errors
/// None that a `Vec` as the output can have; the encoder's signature has one.
pub fn encode(since_epoch: Duration, events: &[Event]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec_named(&(since_epoch.as_secs_f64(), events, None::<u32>))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the bytes of a fixture that testdata/make.py has made with msgspec.
    fn fixture(name: &str) -> Vec<u8> {
        let line = include_str!("testdata/vllm.txt").lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let digits = line.strip_prefix(": ").unwrap().as_bytes();
        digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    fn stored(medium: &'static str, block_hashes: Vec<u64>, parent: Option<u64>, lora: Option<&str>) -> Event {
        let token_ids = (0..block_hashes.len() as u32 * 4).map(|i| i * 40_000).collect();
        let (lora_name, locality) = (lora.map(Into::into), locality(medium));
        Event::BlockStored {
            block_hashes,
            parent_block_hash: parent,
            token_ids,
            block_size: 4,
            lora_id: None,
            medium,
            lora_name,
            locality,
        }
    }

    #[test]
    fn bytes_are_those_of_vllm() {
        let removed = |medium, block_hashes| Event::BlockRemoved { block_hashes, medium, locality: locality(medium) };
        let at = Duration::from_millis(1_700_000_000_250);
        for (name, events) in [
            ("empty", vec![]),
            ("cleared", vec![Event::AllBlocksCleared]),
            ("root", vec![stored(CPU, vec![1, u64::MAX], None, None)]),
            ("child", vec![stored(CPU, vec![300], Some(1 << 40), Some("a"))]),
            ("storage", vec![stored(STORAGE, vec![70_000], Some(127), None), removed(STORAGE, vec![128, 65_536])]),
            ("long", vec![stored(CPU, (1..=20).collect(), None, None), removed(CPU, (1..=20).collect())]),
        ] {
            assert_eq!(encode(at, &events).unwrap(), fixture(name), "{name}");
        }
    }

    #[test]
    fn hashes_keep_the_bits_that_vllm_keeps() {
        assert_eq!(event_hash(0x0123_4567_89ab_cdef << 64 | 0xfedc_ba98_7654_3210), 0xfedc_ba98_7654_3210);
    }
}
