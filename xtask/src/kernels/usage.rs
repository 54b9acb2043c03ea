//! Resource usage of each kernel as reported by ptxas (`ptxas -v`).

use crate::run::Error;

/// One function of one architecture. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Architecture, as in `sm_90`.
    pub arch: u32,
    /// Name of the function.
    pub kernel: String,
    /// Registers per thread.
    pub registers: u32,
    /// Static shared memory per block, without the dynamic part.
    pub shared: u32,
    /// Local memory: an array indexed at run time, or spills.
    pub stack: u32,
    /// Bytes of spill stores and spill loads.
    pub spills: u32,
    /// Time that ptxas took; a driver's compiler takes about as long.
    pub milliseconds: f32,
}

impl Usage {
    /// Return a message if the kernel uses local memory. No kernel may: its traffic is missing from all byte counts.
    pub fn complaint(&self, source: &str, arch: u32, from: &str) -> Option<String> {
        (self.stack > 0 || self.spills > 0).then(|| {
            format!(
                "{}: {} for sm_{arch}, compiled from {from}: {} bytes of stack frame, {} bytes of spills",
                source, self.kernel, self.stack, self.spills
            )
        })
    }
}

/// Parse the report. A report without kernels is an error, because nothing would be checked.
pub fn parse(report: &str, arch: u32) -> Result<Vec<Usage>, Error> {
    let mut all: Vec<Usage> = vec![];
    for line in report.lines() {
        if let Some(name) = line.split_once("Function properties for ").map(|(_, name)| name.trim()) {
            all.push(Usage { arch, kernel: name.to_string(), ..Usage::default() });
        }
        let Some(usage) = all.last_mut() else { continue };
        usage.registers = before(line, " registers").unwrap_or(usage.registers);
        usage.shared = before(line, " bytes smem").unwrap_or(usage.shared);
        usage.stack = before(line, " bytes stack frame").unwrap_or(usage.stack);
        usage.spills +=
            before(line, " bytes spill stores").unwrap_or(0) + before(line, " bytes spill loads").unwrap_or(0);
        if let Some((_, time)) = line.split_once("Compile time = ") {
            usage.milliseconds = time.trim_end_matches(" ms").trim().parse().unwrap_or(0.0);
        }
    }
    if all.is_empty() {
        return Err(Error::Check(format!("ptxas reported no kernel for sm_{arch}: {report:?}")));
    }
    Ok(all)
}

/// Return the number before some words.
fn before(line: &str, words: &str) -> Option<u32> {
    let (head, _) = line.split_once(words)?;
    head.rsplit([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'wide' for 'sm_90'
ptxas info    : Function properties for wide
    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 12.044 ms
ptxas info    : Compiling entry function 'narrow' for 'sm_90'
ptxas info    : Function properties for narrow
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 48 registers, used 1 barriers, 368 bytes cmem[0]
ptxas info    : Compile time = 4.767 ms
";

    #[test]
    fn a_report_is_read_kernel_by_kernel() {
        let all = parse(REPORT, 90).expect("two kernels");
        let wide = Usage {
            arch: 90,
            kernel: "wide".to_string(),
            registers: 80,
            shared: 1024,
            stack: 8,
            spills: 16,
            milliseconds: 12.044,
        };
        assert_eq!(all[0], wide);
        assert_eq!((all[1].kernel.as_str(), all[1].registers, all[1].stack, all[1].spills), ("narrow", 48, 0, 0));
        assert!(all[0].complaint("file", 90, "its PTX").is_some_and(|c| c.contains("wide for sm_90")));
        assert_eq!(all[1].complaint("file", 90, "its PTX"), None);
    }

    #[test]
    fn a_report_without_a_kernel_is_an_error() {
        assert!(parse("ptxas info    : 0 bytes gmem\n", 90).is_err());
    }
}
