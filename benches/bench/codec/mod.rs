//! `kvtide bench codec`: compression ratio and CPU cost of the NVMe tier's codecs and encryption, on real KV.
//!
//! All figures are of one core. Pages are read from more memory than the caches hold, as in a daemon, and every stored form is
//! decoded and compared. A codec reduces latency on drives slower than its *break-even*: a page of B bytes takes B/drive without
//! it, and B/(ratio·drive) plus the codec's time with it, so the limit is (1 − 1/ratio) / (seconds a byte). This is the latency of
//! a single page. In bulk and with idle cores, a codec helps up to the total speed of its threads.

mod pages;

use super::report::Report;
use super::{BenchError, Output};
use kvtide_format::PageKey;
use kvtide_format::log::{SlabHeader, Storage};
use kvtide_nvme::{Codec, Coder, Encryption, KeySource, Keyring, stored_bytes};
use pages::{FORMS, Form, Kv};
use rustix::time::{ClockId, clock_gettime};
use std::io;

/// Flags of `kvtide bench codec`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CodecArgs {
    /// Tokens of text whose KV is used, a multiple of 256
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    /// CPU seconds per figure
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Pages are spread over this many bytes, more than caches hold.
const COLD_BYTES: usize = 64 << 20;
/// Maximum text length: the context length of the model.
const TOKENS_MAX: usize = 8192;
const GB: f64 = 1e9;

/// Run the benchmark.
pub(super) fn measure(args: &CodecArgs) -> Result<Report, BenchError> {
    let wrong = |what, value, expected: &str| BenchError::Setting { what, value, expected: expected.into() };
    if args.tokens == 0 || args.tokens > TOKENS_MAX || !args.tokens.is_multiple_of(256) {
        return Err(wrong("--tokens", args.tokens as u64, "a multiple of 256, at most 8192"));
    }
    if !(0.01..=60.0).contains(&args.seconds) {
        return Err(wrong("--seconds", args.seconds.max(0.0) as u64, "0.01 to 60"));
    }
    super::progress("computing the KV of the demo's text");
    let kv = Kv::compute(args.tokens)?;
    let mut report = Report::default();
    for form in FORMS {
        super::progress(form.what);
        let (pages, page) = kv.pages(form);
        let cold = Cold::new(&pages, page);
        if form.key == FORMS[0].key {
            copies_and_ciphers(&mut report, args, &cold)?;
        }
        for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::None) {
            report_codec(&mut report, args, form, codec, &cold)?;
        }
    }
    report.note(
        "ratio: page bytes per byte written, in whole sectors; break-even: on drives slower than this, a page is read \
        faster with the codec, on one thread"
            .into(),
    );
    Ok(report)
}

/// Pages repeated over more memory than caches hold.
struct Cold {
    from: Vec<u8>,
    page: usize,
    /// Distinct pages.
    pages: usize,
}

impl Cold {
    fn new(pages: &[u8], page: usize) -> Cold {
        let from = pages.iter().copied().cycle().take(COLD_BYTES / pages.len().max(1) * pages.len()).collect();
        Cold { from, page, pages: pages.len() / page }
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.from.chunks_exact(self.page)
    }

    /// Return this thread's CPU seconds per GB of pages, measured over at least `seconds`. `one` is called with the number and
    /// bytes of every page in turn.
    fn cost(&self, seconds: f64, mut one: impl FnMut(usize, &[u8])) -> f64 {
        let (began, mut bytes) = (cpu(), 0u64);
        loop {
            for (number, page) in self.iter().enumerate() {
                one(number, page);
                bytes += page.len() as u64;
                if cpu() - began >= seconds && number >= self.pages {
                    return (cpu() - began) * GB / bytes as f64;
                }
            }
        }
    }
}

/// Return the CPU seconds of this thread.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn report_codec(
    report: &mut Report,
    args: &CodecArgs,
    form: Form,
    codec: Codec,
    cold: &Cold,
) -> Result<(), BenchError> {
    let system = |tried: &str| {
        let tried = tried.to_owned();
        |source| BenchError::System { tried, source }
    };
    let mut coder = Coder::new().map_err(system("allocate memory for a codec"))?;
    let page = cold.page;
    // Stored forms of all pages of the text.
    let mut stored = vec![0; cold.pages * page];
    let mut sectors = vec![0; cold.pages];
    for ((page, stored), sectors) in cold.iter().zip(stored.chunks_exact_mut(page)).zip(&mut sectors) {
        *sectors = coder.encode(codec, page, stored);
    }
    let bytes = |sectors: u16| stored_bytes(page as u32, sectors) as usize;
    let mut again = vec![0; page];
    for ((page, stored), sectors) in cold.iter().zip(stored.chunks_exact(page)).zip(&sectors) {
        if *sectors > 0 {
            let decoded = coder.decode(codec, &stored[..bytes(*sectors)], &mut again);
            if decoded.is_err() || again != page {
                return Err(BenchError::Odd(format!("{} did not restore a page", codec.name())));
            }
        }
    }
    let all: usize = sectors.iter().map(|sectors| bytes(*sectors)).sum();
    let mut place = vec![0; page];
    let encode = cold.cost(args.seconds, |_, page| {
        coder.encode(codec, page, &mut place);
    });
    // Stored forms, spread over memory like the pages.
    let forms = Cold::new(&stored, page);
    let mut failed = false;
    let decode = forms.cost(args.seconds, |number, stored| {
        let sectors = sectors[number % sectors.len()];
        if sectors == 0 {
            again.copy_from_slice(stored);
        } else {
            failed |= coder.decode(codec, &stored[..bytes(sectors)], &mut again).is_err();
        }
    });
    if failed {
        return Err(BenchError::Odd(format!("{} did not restore a page", codec.name())));
    }
    let ratio = (cold.pages * page) as f64 / all as f64;
    let key = |what: &str| format!("{}.{}_{what}", form.key, codec.name().replace('-', "_"));
    let what = |what: &str| format!("{}: {} {what}", form.what, codec.name());
    report.number(key("ratio"), what("ratio"), ratio, "x", None);
    report.number(key("in_s_per_gb"), what("in"), encode, "CPU s/GB", None);
    report.number(key("out_s_per_gb"), what("out"), decode, "CPU s/GB", None);
    let even = (1.0 - 1.0 / ratio).max(0.0) / decode * GB;
    report.count(key("read_break_even_bytes_per_s"), what("break-even, read"), even as u64, "bytes/s", None);
    Ok(())
}

/// The key store of a disk without one: an ephemeral key is not written.
struct Nowhere;

impl Storage for Nowhere {
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Measure memcpy and encryption, which do not depend on the content of pages.
fn copies_and_ciphers(report: &mut Report, args: &CodecArgs, cold: &Cold) -> Result<(), BenchError> {
    let mut place = vec![0; cold.page];
    let copy = cold.cost(args.seconds, |_, page| {
        place.copy_from_slice(page);
        std::hint::black_box(&mut place);
    });
    report.number("memcpy_s_per_gb", "memcpy", copy, "CPU s/GB", None);
    let odd = |error: &dyn std::fmt::Display| BenchError::Odd(error.to_string());
    let encryption = Encryption { source: KeySource::Ephemeral, new_slabs: true };
    let keyring = Keyring::open(1, &encryption, None, &[]).map_err(|e| odd(&e))?;
    keyring.begin(1).map_err(|e| odd(&e))?;
    let page_bytes = vec![cold.page as u32];
    let slab = SlabHeader { encrypted: true, ..SlabHeader::new(0, 1, [0; 32], "bench", cold.page as u64, page_bytes) };
    let code = keyring.grant(&slab, &mut Nowhere).map_err(|e| odd(&e))?;
    let code = code.ok_or_else(|| BenchError::Odd("an encrypted slab without a key".into()))?;
    let key = PageKey { store: 1, region: 0, slot: 0, generation: 1, plane: 0 };
    let (subkey, _, _) = code.take(1, 0).map_err(|e| odd(&e))?;
    let stored = code.stored(cold.page as u32, 0);
    let mut number = 0u32;
    let encrypt = cold.cost(args.seconds, |_, page| {
        place.copy_from_slice(page);
        number += 1;
        std::hint::black_box(subkey.seal_page(&key, number, stored, &mut place));
    });
    report.number("encrypt_s_per_gb", "encryption, including a copy", encrypt, "CPU s/GB", None);
    Ok(())
}
