//! Print the table: one line for each kernel.

use super::sources::Source;
use super::usage::Usage;
use std::fmt::Write;

/// Registers of a multiprocessor, on every architecture from sm_80 on (CUDA programming guide, technical specifications).
const REGISTERS: u32 = 65536;

/// Return the table: registers by architecture, threads per block, blocks that fit a multiprocessor's registers, static shared
/// memory, stack, spills, and the time of the assembler for the first architecture, which is about the time that a session waits
/// for its driver.
pub fn render(architectures: &[u32], texts: &[(&Source, String)], shipped: &[Usage]) -> String {
    let mut out = String::new();
    let width = shipped.iter().map(|u| u.kernel.len()).max().unwrap_or(6).max(6);
    let _ = write!(out, "{:width$}", "kernel");
    for arch in architectures {
        let _ = write!(out, " {:>6}", format!("sm_{arch}"));
    }
    let _ = writeln!(out, " threads blocks shared stack spills     ms");
    for first in shipped.iter().filter(|u| architectures.first() == Some(&u.arch)) {
        let same: Vec<&Usage> = shipped.iter().filter(|u| u.kernel == first.kernel).collect();
        let _ = write!(out, "{:width$}", first.kernel);
        for arch in architectures {
            let registers = same.iter().find(|u| u.arch == *arch).map_or("-".to_string(), |u| u.registers.to_string());
            let _ = write!(out, " {registers:>6}");
        }
        let threads = texts.iter().find_map(|(_, text)| threads(text, &first.kernel));
        let registers = same.iter().map(|u| u.registers).max().unwrap_or(0);
        let most = |get: fn(&Usage) -> u32| same.iter().map(|u| get(u)).max().unwrap_or(0);
        let _ = writeln!(
            out,
            " {:>7} {:>6} {:>6} {:>5} {:>6} {:>6.0}",
            threads.map_or("-".to_string(), |t| t.to_string()),
            threads.map_or("-".to_string(), |t| (REGISTERS / (t * registers).max(1)).to_string()),
            most(|u| u.shared),
            most(|u| u.stack),
            most(|u| u.spills),
            first.milliseconds
        );
    }
    out
}

/// Return the threads of a block from the kernel's launch bounds.
fn threads(ptx: &str, kernel: &str) -> Option<u32> {
    let head = ptx.split_once(&format!(".entry {kernel}("))?.1.split_once("\n{")?.0;
    let dimensions = head.split_once(".maxntid")?.1.lines().next()?;
    dimensions.split(',').map(|n| n.trim().parse::<u32>().ok()).product()
}

#[cfg(test)]
mod tests {
    use super::threads;

    #[test]
    fn threads_are_those_of_the_launch_bounds() {
        let ptx = ".visible .entry a(\n\t.param .align 8 .b8 a_param_0[16]\n)\n.maxntid 128, 2, 1\n{\n}\n.visible .entry ab(\n)\n{\n}";
        assert_eq!((threads(ptx, "a"), threads(ptx, "ab"), threads(ptx, "b")), (Some(256), None, None));
    }
}
