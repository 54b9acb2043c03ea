//! Estimates of decode attention's speed, from its machine code and without a GPU: `cargo xtask kernels --estimate`.
//!
//! Decode attention reads each key and value once, so memory bandwidth limits it. Two things can keep a kernel below that limit:
//! too few bytes in flight to cover the memory's latency, or too many instructions for each byte. Both follow from the machine code
//! and from the data sheet of a GPU. Not covered: the first and last pages of a chunk, the folding of chunks, barriers, bank
//! conflicts. What a kernel reaches may therefore be less. Figures of a GPU come from `kvtide bench gpu`.

use super::sources::Source;
use super::usage::Usage;
use crate::run::Error;
use std::collections::HashMap;
use std::fmt::Write;

/// A GPU of an architecture. From its data sheet, and the CUDA programming guide's table of compute capabilities.
struct Gpu {
    arch: u32,
    name: &'static str,
    multiprocessors: f64,
    gigabytes_per_s: f64,
    /// Boost clock.
    gigahertz: f64,
    /// Shared memory of a multiprocessor.
    shared_kib: u32,
}

const GPUS: [Gpu; 6] = [
    gpu(80, "A100 80 GB", (108.0, 2039.0, 1.41), 164),
    gpu(86, "RTX 3090", (82.0, 936.0, 1.70), 100),
    gpu(89, "L40S", (142.0, 864.0, 2.52), 100),
    gpu(90, "H200", (132.0, 4800.0, 1.98), 228),
    gpu(100, "B200", (148.0, 8000.0, 1.97), 228),
    gpu(120, "RTX 5090", (170.0, 1792.0, 2.41), 100),
];

const fn gpu(
    arch: u32,
    name: &'static str,
    (multiprocessors, gigabytes_per_s, gigahertz): (f64, f64, f64),
    shared_kib: u32,
) -> Gpu {
    Gpu { arch, name, multiprocessors, gigabytes_per_s, gigahertz, shared_kib }
}

/// Latency of memory near its bandwidth limit, in nanoseconds: an assumption.
const LATENCY_NS: f64 = 800.0;
/// Instructions that a multiprocessor issues in a clock: one for each of its four schedulers.
const ISSUED: f64 = 4.0;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 65536;
/// Shared memory that the system takes for each block.
const SHARED_RESERVED: u32 = 1024;
/// Tokens of a tile, and elements of a latent vector.
const TILE: u32 = 16;
const LATENT: u32 = 576;
/// Dims of the value that a warp of `latent.cuh` adds.
const LATENT_PART: u32 = 64;
/// Floats of padding after the scores of a token in `latent.cuh`.
const LATENT_PADDING: u32 = 8;

/// A decode kernel, as its name says.
struct Kernel {
    warps: u32,
    /// Bytes that a warp, or a whole block (`latent`), loads at once.
    piece: u32,
    /// Such pieces of a tile.
    pieces: u32,
    latent: bool,
    rows: u32,
}

/// Parse a name: `attention_decode_bf16_d128_r8`, `attention_mla_bf16_r32`. `None` for other kernels, and for the second element
/// type, whose code is the same.
fn kernel(name: &str) -> Option<Kernel> {
    let rows = |text: &str| text.strip_prefix('r')?.parse().ok();
    if let Some(rest) = name.strip_prefix("attention_decode_bf16_d") {
        let (dim, of_rows) = rest.split_once('_')?;
        let piece = TILE * dim.parse::<u32>().ok()? * 2;
        return Some(Kernel { warps: 4, piece, pieces: 2, latent: false, rows: rows(of_rows)? });
    }
    let rows = rows(name.strip_prefix("attention_mla_bf16_")?)?;
    Some(Kernel { warps: 8, piece: TILE * LATENT * 2, pieces: 1, latent: true, rows })
}

impl Kernel {
    /// Return the minimum number of matrix products of a warp for a tile: those of the values, and of decode's keys.
    fn products(&self) -> u32 {
        let eights = self.rows / 8;
        if self.latent { eights * (LATENT_PART / TILE) } else { eights * 2 * (self.piece / (TILE * 2) / TILE) }
    }

    /// Return the dynamic shared memory of a block, whose ring has one piece more than are in flight.
    fn shared(&self, in_flight: u32) -> u32 {
        if self.latent {
            let scores = 8 / (self.rows / 8) * TILE * (self.rows + LATENT_PADDING) * 4;
            return (in_flight + 1) * self.piece + self.rows * LATENT * 2 + scores;
        }
        self.warps * (in_flight + 1) * self.piece
    }
}

/// Return the pieces that are in flight while one is computed, from the kernel's PTX: it waits until all but that many less one
/// have arrived.
fn in_flight(ptx: &str, name: &str) -> Option<u32> {
    let body = ptx.split_once(&format!(".entry {name}("))?.1;
    let body = body.split_once(".entry ").map_or(body, |(body, _)| body);
    let waits =
        body.split("cp.async.wait_group ").skip(1).filter_map(|rest| rest.split_once(';')?.0.parse::<u32>().ok());
    waits.max().map(|most| most + 1)
}

/// The loop over tiles in a kernel's machine code.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TileLoop {
    instructions: u32,
    /// Those that are matrix products.
    products: u32,
}

/// Return the loop over tiles of each function in a disassembly: the shortest one with matrix products. Some instructions run only at
/// the end of a page, so their number is an upper bound.
fn loops(disassembly: &str) -> HashMap<String, TileLoop> {
    let mut all = HashMap::new();
    for function in disassembly.split("\n.text.").skip(1) {
        let Some((name, body)) = function.split_once(":\n") else { continue };
        let (mut labels, mut products) = (HashMap::new(), vec![0]);
        let mut shortest: Option<TileLoop> = None;
        for line in body.lines() {
            let line = line.trim();
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label, products.len() as u32 - 1);
            }
            let Some((_, instruction)) = line.split_once("*/").filter(|_| line.starts_with("/*")) else { continue };
            let at = products.len() as u32 - 1;
            products.push(products[at as usize] + u32::from(instruction.contains("HMMA")));
            let target = instruction.split_once("BRA").and_then(|(_, rest)| rest.split_once("`("));
            let Some(label) = target.and_then(|(_, rest)| rest.split_once(')')).map(|(label, _)| label) else {
                continue;
            };
            if let Some(&from) = labels.get(label).filter(|&&from| products[at as usize] > products[from as usize]) {
                let (instructions, products) = (at + 1 - from, products[at as usize] - products[from as usize]);
                if shortest.is_none_or(|least| instructions < least.instructions) {
                    shortest = Some(TileLoop { instructions, products });
                }
            }
        }
        all.extend(shortest.map(|found| (name.to_string(), found)));
    }
    all
}

/// Return the table for the kernels of one architecture. `disassemblies` are those of each source's machine code.
pub fn render(
    arch: u32,
    texts: &[(&Source, String)],
    disassemblies: &[String],
    shipped: &[Usage],
) -> Result<String, Error> {
    let Some(gpu) = GPUS.iter().find(|gpu| gpu.arch == arch) else { return Ok(String::new()) };
    // Of one multiprocessor: bytes per clock, and bytes in flight, at the limit of the memory.
    let per_clock = gpu.gigabytes_per_s / gpu.gigahertz / gpu.multiprocessors;
    let needed = gpu.gigabytes_per_s / gpu.multiprocessors * LATENCY_NS;
    let mut out = format!(
        "estimates for {} (sm_{arch}): {:.1} bytes per clock and {:.0} KiB in flight reach the memory's limit\n\
         {:32} {:>9} {:>6} {:>6} {:>9} {:>6} {:>12} {:>9} {:>6}\n",
        gpu.name,
        per_clock,
        needed / 1024.0,
        "kernel",
        "registers",
        "shared",
        "blocks",
        "in flight",
        "share",
        "instructions",
        "per clock",
        "share"
    );
    for ((_, ptx), disassembly) in texts.iter().zip(disassemblies) {
        let tile_loops = loops(disassembly);
        for usage in shipped.iter().filter(|usage| usage.arch == arch) {
            let (Some(kernel), Some(found)) = (kernel(&usage.kernel), tile_loops.get(&usage.kernel)) else { continue };
            if found.products < kernel.products() {
                return Err(Error::Check(format!(
                    "{}: its shortest loop with products is not that over tiles",
                    usage.kernel
                )));
            }
            let length = found.instructions;
            let Some(pieces) = in_flight(ptx, &usage.kernel) else {
                return Err(Error::Check(format!("{} waits for no asynchronous copies", usage.kernel)));
            };
            let shared = kernel.shared(pieces) + usage.shared;
            let threads = kernel.warps * 32;
            // Registers are given to a warp in units of 256.
            let registers = (usage.registers * 32).next_multiple_of(256) * kernel.warps;
            let blocks = (REGISTERS / registers).min(gpu.shared_kib * 1024 / (shared + SHARED_RESERVED));
            let rings = if kernel.latent { 1 } else { kernel.warps };
            let flight = f64::from(blocks * rings * pieces * kernel.piece);
            // A warp of decode computes a tile alone; the warps of a latent block compute one together.
            let computing = f64::from(if kernel.latent { kernel.warps } else { 1 });
            let bytes = f64::from(kernel.pieces * kernel.piece) * ISSUED / (f64::from(length) * computing);
            let _ = writeln!(
                out,
                "{:32} {:>9} {:>6} {:>6} {:>5.0} KiB {:>6.2} {:>12} {:>9.1} {:>6.2}",
                usage.kernel,
                usage.registers,
                shared,
                format!("{blocks} x{threads}"),
                flight / 1024.0,
                (flight / needed).min(1.0),
                length,
                bytes,
                (bytes / per_clock).min(1.0)
            );
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str =
        ".visible .entry a(\n)\n{\ncp.async.wait_group 4;\ncp.async.wait_group 0;\n}\n.visible .entry b(\n)\n{\n}";
    const SASS: &str = "\n.text.a:\n        /*0000*/  NOP ;\n.L_x_1:\n        /*0010*/  MOV R0, R1 ;\n.L_x_2:\n        /*0020*/  HMMA R1 ;\n        \
                        /*0030*/  @P0 BRA `(.L_x_2) ;\n        /*0040*/  BRA `(.L_x_1) ;\n        /*0050*/  BRA `(.L_x_9) ;\n.text.b:\n\
                        .L_x_9:\n        /*0000*/  BRA `(.L_x_9) ;\n";

    #[test]
    fn the_innermost_loop_with_products_counts() {
        let found = TileLoop { instructions: 2, products: 1 };
        assert_eq!(loops(SASS), HashMap::from([("a".to_string(), found)]));
    }

    #[test]
    fn a_ring_has_one_piece_more_than_are_in_flight() {
        assert_eq!((in_flight(PTX, "a"), in_flight(PTX, "b")), (Some(5), None));
        let decode = kernel("attention_decode_bf16_d128_r8").unwrap();
        assert_eq!((decode.piece, decode.shared(5), decode.products()), (4096, 96 << 10, 16));
        let latent = kernel("attention_mla_bf16_r16").unwrap();
        assert_eq!(latent.shared(3), 96 << 10);
        assert!(kernel("attention_mla_merge_bf16_r16").is_none() && kernel("attention_decode_f16_d32_r8").is_none());
    }
}
