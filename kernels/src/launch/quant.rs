//! Codecs of the device.

use super::{check, gather};
use crate::params::QuantParams;
use crate::reference::Element;
use crate::{Device, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

pub use crate::reference::quant::Codec;

static SOURCE: Source = Source { name: "quant", ptx: include_str!("../../ptx/quant.ptx") };
const THREADS: u32 = 256;
const BLOCKS_MAX: u32 = 4096;

/// The kernels `quantize_*` and `dequantize_*` on a device.
#[derive(Debug)]
pub struct Quant {
    quantize: [Function; 2],
    dequantize: [Function; 2],
}

impl Quant {
    /// Load the kernels.
    ///
    /// # Errors
    /// The driver rejects them; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&SOURCE)?;
        Ok(Self {
            quantize: [module.function("quantize_f16")?, module.function("quantize_bf16")?],
            dequantize: [module.function("dequantize_f16")?, module.function("dequantize_bf16")?],
        })
    }

    /// Quantise blocks by at most `blocks` blocks of threads. `refused`, which is required, is cleared first. A block that is
    /// marked there afterwards must be kept unquantised.
    ///
    /// # Errors
    /// An address or stride is 0 or not aligned; a shape is not supported; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: lists, bases, rows and images exist; nothing else writes the memory it reads or accesses the memory it
    /// writes.
    pub unsafe fn quantize(&self, stream: &Stream, element: Element, params: &QuantParams, blocks: u32) -> Result<()> {
        let Some(shape) = shape(params, blocks)? else { return Ok(()) };
        check::address("marks of refused blocks", params.refused, 4)?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { stream.fill(params.refused, 0, params.count as usize * 4)? };
        // SAFETY: as above.
        unsafe { self.quantize[element as usize].launch(stream, shape, params) }
    }

    /// Dequantise blocks by at most `blocks` blocks of threads: exactly the tokens of the items.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn dequantize(
        &self,
        stream: &Stream,
        element: Element,
        params: &QuantParams,
        blocks: u32,
    ) -> Result<()> {
        let Some(shape) = shape(params, blocks)? else { return Ok(()) };
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.dequantize[element as usize].launch(stream, shape, params) }
    }
}

fn shape(p: &QuantParams, blocks: u32) -> Result<Option<Shape>> {
    if [p.count, p.layers, p.heads].contains(&0) {
        return Ok(None);
    }
    gather::layout(&p.layout)?;
    check::address("list of blocks", p.items, 8)?;
    check::aligned("status word", p.status, 4)?;
    check::within("blocks", u64::from(blocks), 1, u64::from(BLOCKS_MAX))?;
    let codec = Codec::from_code(p.codec)?;
    let image = codec.image(p.parts, p.heads, p.page_tokens, p.channels)?;
    check::aligned("stride of images", p.image_stride, 16)?;
    check::within("stride of images", p.image_stride, image.bytes(), u64::MAX)?;
    // One block of threads per tile, and no more than there are tiles.
    let tiles = u64::from(p.count) * u64::from(p.layers) * u64::from(p.heads) * u64::from(image.tiles());
    Ok(Some(Shape::linear(u64::from(blocks).min(tiles) as u32, THREADS)))
}
