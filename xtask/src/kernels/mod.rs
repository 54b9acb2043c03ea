//! `cargo xtask kernels`: compile the CUDA kernels and compare the committed PTX with its sources.
//!
//! Needs Python and a C++ compiler, but no GPU, driver or toolkit: the compilers are pinned PyPI wheels in their own environment
//! below target/. NVRTC produces the PTX that is shipped. ptxas assembles that PTX for every architecture, as a driver would, and
//! reports the resources of each kernel. nvcc compiles the sources for every architecture with warnings as errors. This module does
//! not depend on the content of the kernels.

mod compile;
mod estimate;
mod pool;
mod sources;
mod table;
mod usage;
mod venv;

use crate::run::Error;
use compile::Compilers;
use sources::Source;
use std::time::Instant;
use usage::Usage;

/// Supported architectures: A100, consumer Ampere, Ada, Hopper, Blackwell, consumer Blackwell.
const ARCHITECTURES: [u32; 6] = [80, 86, 89, 90, 100, 120];

/// Options of one call.
#[derive(Debug, Default)]
pub struct Options {
    /// Write the PTX instead of comparing it.
    write: bool,
    /// Print estimates of decode attention's speed, too.
    estimate: bool,
    /// Names of sources without extension; all if empty.
    only: Vec<String>,
    /// One of [`ARCHITECTURES`]; all if none is named.
    arch: Option<u32>,
}

impl Options {
    /// Parse the words after `kernels`.
    pub fn parse(words: &[&str]) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match (word, word.strip_prefix("--only=")) {
                ("--write", _) => options.write = true,
                ("--estimate", _) => options.estimate = true,
                (_, Some(name)) => options.only.push(name.to_string()),
                ("--only", _) => match words.next() {
                    Some(name) => options.only.push(name.to_string()),
                    None => return Err(Error::Usage("--only takes the name of a kernel source".to_string())),
                },
                ("--arch", _) => options.arch = Some(architecture(words.next().copied())?),
                _ => {
                    let takes = "kernels takes --write, --estimate, --only NAME and --arch NUMBER";
                    return Err(Error::Usage(format!("{takes}, not {word:?}")));
                }
            }
        }
        Ok(options)
    }

    /// Return the architectures to compile for.
    fn architectures(&self) -> Vec<u32> {
        self.arch.map_or_else(|| ARCHITECTURES.to_vec(), |arch| vec![arch])
    }
}

/// Return the architecture given by a word.
fn architecture(word: Option<&str>) -> Result<u32, Error> {
    let named = word.and_then(|word| word.parse().ok());
    named.filter(|arch| ARCHITECTURES.contains(arch)).ok_or_else(|| {
        let word = word.unwrap_or_default();
        Error::Usage(format!("--arch {word:?}: not a supported architecture; use one of {ARCHITECTURES:?}"))
    })
}

/// Create the environment with the compilers.
pub fn environment() -> Result<(), Error> {
    venv::packages().map(|_| ())
}

/// Compile, print the table, and write or compare the PTX, which does not depend on the chosen architectures. All failures are
/// printed before the error.
pub fn check(options: &Options) -> Result<(), Error> {
    let began = Instant::now();
    let sources = sources::list(&options.only)?;
    let architectures = options.architectures();
    let compilers = Compilers::new()?;
    let ready = Instant::now();

    let mut problems = vec![];
    let mut texts = vec![];
    for (source, result) in sources.iter().zip(pool::each(&sources, |source| text(&compilers, source, options.write))) {
        match result {
            Ok(text) => texts.push((source, text)),
            Err(e) => problems.push(e.to_string()),
        }
    }
    let mut tasks: Vec<(&Source, u32, bool)> = vec![];
    for (source, _) in &texts {
        tasks.extend(architectures.iter().flat_map(|&arch| [(*source, arch, true), (*source, arch, false)]));
    }
    let mut shipped: Vec<Usage> = vec![];
    let results = pool::each(&tasks, |&(source, arch, ptx)| match ptx {
        true => compilers.assemble(source, arch),
        false => compilers.compile(source, arch),
    });
    for (&(source, arch, ptx), result) in tasks.iter().zip(results) {
        match result {
            Ok(used) => {
                let from = if ptx { "its PTX" } else { "its source" };
                problems.extend(used.iter().filter_map(|u| u.complaint(&source.name, arch, from)));
                shipped.extend(used.into_iter().filter(|_| ptx));
            }
            Err(e) => problems.push(e.to_string()),
        }
    }
    for (source, text) in &texts {
        problems.extend(if options.write { source.write_ptx(text)? } else { source.drift(text) });
    }
    if options.only.is_empty() {
        problems.extend(sources::strays(&sources, options.write)?);
    }
    print!("{}", table::render(&architectures, &texts, &shipped));
    for arch in architectures.iter().filter(|_| options.estimate) {
        let disassembled: Result<Vec<String>, Error> =
            texts.iter().map(|(source, _)| compilers.disassemble(source, *arch)).collect();
        print!("\n{}", estimate::render(*arch, &texts, &disassembled?, &shipped)?);
    }
    println!(
        "kernels: {} sources, {} architectures, compilers ready after {:.0} s, compiled in {:.0} s",
        sources.len(),
        architectures.len(),
        (ready - began).as_secs_f32(),
        ready.elapsed().as_secs_f32()
    );
    if problems.is_empty() { Ok(()) } else { Err(Error::Check(problems.join("\n"))) }
}

/// Return a source's PTX. NVRTC orders its output by memory addresses: about one run in sixty assigns other registers for the same
/// source. The committed text counts as drifted only if none of several runs produces it.
fn text(compilers: &Compilers, source: &Source, write: bool) -> Result<String, Error> {
    const RUNS: usize = 4;
    let mut text = compilers.ptx(source)?;
    for _ in 1..RUNS {
        if write || source.drift(&text).is_none() {
            break;
        }
        text = compilers.ptx(source)?;
    }
    Ok(text)
}
