//! Codecs: convert blocks of rows to quantised images and back.

use super::{
    element,
    rows::{Rows, Shape},
    tensor, tensor_mut,
};
use crate::error::value;
use kvtide_client::cuda::reference::quant::{Codec, Image};
use pyo3::prelude::*;

/// A block: index and number of tokens.
type Item = [usize; 2];

fn image(shape: Shape, codec: u32) -> PyResult<Image> {
    let codec = Codec::from_code(codec);
    let [parts, heads, tokens, channels] = [shape.parts, shape.heads, shape.tokens, shape.channels]
        .map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    codec.and_then(|codec| codec.image(parts, heads, tokens, channels)).map_err(|e| value(e.to_string()))
}

/// Return the bytes of one layer's image of such blocks.
#[pyfunction]
pub fn image_bytes(shape: Shape, codec: u32) -> PyResult<u64> {
    Ok(image(shape, codec)?.bytes())
}

fn check(rows: &Rows, shape: Shape, items: &[Item]) -> PyResult<()> {
    for [block, tokens] in items {
        rows.check(*block)?;
        if *tokens > shape.tokens {
            return Err(value(format!("{tokens} tokens of a block that has only {}", shape.tokens)));
        }
    }
    Ok(())
}

/// Quantise blocks into `images`, u8 `[items][layers][image bytes]`. `refused` is i32 `[items]`.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // tensors by address, as in the operator
pub fn quantize(
    py: Python<'_>,
    rows: Rows,
    shape: Shape,
    codec: u32,
    bf16: bool,
    items: Vec<Item>,
    images: usize,
    refused: usize,
) -> PyResult<()> {
    let (image, element) = (image(shape, codec)?, element(bf16));
    check(&rows, shape, &items)?;
    let bytes = image.bytes() as usize;
    // SAFETY: the operator has just allocated both with these sizes.
    let (images, refused) = unsafe {
        (tensor_mut::<u8>(images, items.len() * shape.layers * bytes), tensor_mut::<i32>(refused, items.len()))
    };
    py.detach(|| {
        let mut layer = vec![0; shape.numbers()];
        for (at, [block, tokens]) in items.iter().enumerate() {
            refused[at] = 0;
            for index in 0..shape.layers {
                rows.read(shape, index, *block, *tokens, &mut layer);
                let number = |part: u32, head: u32, token: u32, channel: u32| {
                    let row = shape.row(part as usize, head as usize, token as usize);
                    element.to_f32(layer[row + channel as usize])
                };
                let to = &mut images[(at * shape.layers + index) * bytes..][..bytes];
                match image.quantize(*tokens as u32, number) {
                    Some(made) => to.copy_from_slice(&made),
                    None => {
                        to.fill(0);
                        refused[at] = 1;
                    }
                }
            }
        }
    });
    Ok(())
}

/// Dequantise the items' tokens, and no others.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // as above
pub fn dequantize(
    py: Python<'_>,
    images: usize,
    rows: Rows,
    shape: Shape,
    codec: u32,
    bf16: bool,
    items: Vec<Item>,
) -> PyResult<()> {
    let (image, element) = (image(shape, codec)?, element(bf16));
    check(&rows, shape, &items)?;
    let bytes = image.bytes() as usize;
    // SAFETY: the operator checked the tensor's shape; it is a dense torch tensor.
    let images = unsafe { tensor::<u8>(images, items.len() * shape.layers * bytes) };
    py.detach(|| {
        let mut layer = vec![0; shape.numbers()];
        for (at, [block, tokens]) in items.iter().enumerate() {
            for index in 0..shape.layers {
                let from = &images[(at * shape.layers + index) * bytes..][..bytes];
                for part in 0..shape.parts {
                    for (head, token) in (0..shape.heads).flat_map(|head| (0..*tokens).map(move |token| (head, token)))
                    {
                        let row = shape.row(part, head, token);
                        for channel in 0..shape.channels {
                            let number = image.value(from, part as u32, head as u32, token as u32, channel as u32);
                            layer[row + channel] = element.from_f32(number as f32);
                        }
                    }
                }
                rows.write(shape, index, *block, *tokens, &layer);
            }
        }
    });
    Ok(())
}
