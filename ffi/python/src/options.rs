//! Conversion of `attach`'s Python arguments to the client's options.

use crate::error::{self, value};
use kvtide_client::{DeviceChoice, DigestOptions, Element, KeyLayout, Options, SpaceSpec};
use kvtide_wire::{
    digest::sketch,
    geometry::{self, PlaneKind},
    status::Status,
};
use pyo3::prelude::*;
use std::{collections::BTreeSet, path::PathBuf, time::Duration};

/// Convert seconds to a duration.
///
/// # Errors
/// `ValueError` if the number is negative, not a number, or too large.
pub fn seconds(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|e| value(format!("{name}: {seconds} seconds is not a valid duration: {e}")))
}

/// A plane in Python's form: page bytes, kind, window tokens.
pub type Plane = (u32, String, u32);

fn plane((index, (page_bytes, kind, window_tokens)): (usize, Plane)) -> PyResult<geometry::Plane> {
    let kind = match kind.as_str() {
        "window" => PlaneKind::Window { tokens: window_tokens },
        "full" | "state" if window_tokens != 0 => {
            return Err(value(format!(
                "plane {index}: window_tokens is {window_tokens}, but a plane of kind {kind:?} has no window"
            )));
        }
        "full" => PlaneKind::Full,
        "state" => PlaneKind::State,
        kind => return Err(value(format!("plane {index}: kind {kind:?} is not \"full\", \"window\" or \"state\""))),
    };
    Ok(geometry::Plane { page_bytes, kind })
}

/// Declares the arguments of `attach`, each with what is expected of it.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $expected:literal,)*) => {
        /// The arguments of `attach`.
        pub struct Given {
            $($(#[$doc])* $name: $type,)*
        }

        impl<'py> FromPyObject<'_, 'py> for Given {
            type Error = PyErr;

            fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Given> {
                Ok(Given { $($name: argument(&given, stringify!($name), $expected)?,)* })
            }
        }
    };
}

fn argument<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyAny>, name: &str, expected: &str) -> PyResult<T> {
    error::argument(name, &given.get_item(name)?, expected, Status::Invalid)
}

arguments! {
    socket: PathBuf = "a path",
    token_file: Option<PathBuf> = "a path or None",
    name: String = "a str",
    identity: String = "a str",
    local: bool = "a bool",
    fingerprint: Vec<u8> = "32 bytes",
    page_tokens: u32 = "an int from 1 on",
    planes: Vec<Plane> = "kvtide.Plane objects of page_bytes (int), kind (str) and window_tokens (int)",
    shards: u16 = "an int from 1 to 65535",
    shard: u16 = "an int from 0 on, below shards",
    tier0_frames: Option<Vec<u32>> = "a sequence with an int for each size class, or None",
    lanes: u16 = "an int from 1 on",
    channels: u16 = "an int from 1 on",
    depth: u16 = "an int from 1 on",
    seqs_max: u32 = "an int from 1 on",
    timeout: f64 = "seconds",
    device: String = "a str",
    device_chunk_bytes: u64 = "an int from 0 on",
    device_memory: Option<(u64, u64)> = "(address, bytes) or None",
    mapped_frames: u32 = "an int from 0 on",
    guaranteed_blocks: u32 = "an int from 0 on",
    /// KV heads, channels, and whether numbers are bfloat16; number of pages.
    digests: Option<(u16, u16, bool, u32)> = "kvtide.Digests of kv_heads, head_dim, pages (int) and bf16 (bool), or None",
    max_stall: f64 = "seconds",
    numa_node: Option<u16> = "an int or None",
}

impl Given {
    fn device(&self) -> PyResult<DeviceChoice> {
        let choice = self.device.parse().map_err(|e| value(format!("device: {e}")))?;
        match (choice, self.device_memory) {
            (DeviceChoice::Cuda { device, .. }, Some((pointer, bytes))) => {
                Ok(DeviceChoice::GivenCuda { device, pointer, bytes })
            }
            (DeviceChoice::Cuda { device, .. }, None) => {
                Ok(DeviceChoice::Cuda { device, chunk_bytes: self.device_chunk_bytes })
            }
            (_, Some(_)) => {
                Err(value(format!("device_memory: device {} has no memory of its own; use a CUDA device", self.device)))
            }
            (choice, None) => Ok(choice),
        }
    }

    /// Return the options of digests for pages of keys `[heads][tokens][channels]`, followed by values.
    fn digests(&self) -> Option<DigestOptions> {
        let (heads, channels, bf16, pages) = self.digests?;
        let (size, tokens) = (size_of::<u16>() as u32, self.page_tokens);
        let row = u32::from(channels) * size;
        let keys = KeyLayout {
            element: if bf16 { Element::Bf16 } else { Element::F16 },
            heads,
            channels,
            tile_tokens: tokens as u16,
            offset: 0,
            head_stride: tokens * row,
            tile_stride: tokens * row,
            token_stride: row,
            channel_stride: size,
        };
        // As many groups as fit into 5 % of a page of keys and values.
        let groups = sketch::groups(usize::from(channels), tokens as usize, 2 * row as usize) as u16;
        Some(DigestOptions { keys, pages, groups })
    }

    /// Convert to the client's options.
    ///
    /// # Errors
    /// `ValueError` for a fingerprint that is not 32 bytes, an unknown kind of plane, or an invalid time.
    pub fn options(self) -> PyResult<Options> {
        let (device, digests) = (self.device()?, self.digests());
        let bytes = self.fingerprint.len();
        let fingerprint =
            self.fingerprint.try_into().map_err(|_| value(format!("fingerprint: {bytes} bytes; it must have 32")))?;
        let planes = self.planes.into_iter().enumerate().map(plane).collect::<PyResult<Vec<_>>>()?;
        // Without tier 0: no frames in any class.
        let classes: BTreeSet<u32> = planes.iter().map(|plane| plane.page_bytes).collect();
        let tier0_frames = self.tier0_frames.unwrap_or_else(|| vec![0; classes.len()]);
        let space = SpaceSpec {
            name: self.name,
            fingerprint,
            page_tokens: self.page_tokens,
            planes,
            shards: self.shards,
            shard: self.shard,
        };
        Ok(Options {
            token_file: self.token_file,
            identity: self.identity,
            local: self.local,
            lanes: self.lanes,
            channels: self.channels,
            depth: self.depth,
            seqs_max: self.seqs_max,
            timeout: seconds("timeout", self.timeout)?,
            device,
            mapped_frames: self.mapped_frames,
            guaranteed_blocks: self.guaranteed_blocks,
            digests,
            max_stall: seconds("max_stall", self.max_stall)?,
            numa_node: self.numa_node,
            ..Options::new(self.socket, space, tier0_frames)
        })
    }
}
