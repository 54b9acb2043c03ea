//! Copies between device and host memory: rates of kvtide's copier relative to one large pinned copy.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use kvtide_client::cuda::Way;
use kvtide_client::cuda::copy::{Crossover, Path};
use kvtide_client::cuda::measure::{Forced, Kind, copies, forced};

const SCATTERED: f64 = 0.95;
const CONTIGUOUS: f64 = 0.97;
const FRAGMENTS: f64 = 0.80;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let (both, crossover) = copies(&place.device, place.size(figures))?;
    for found in both {
        let (to, words) = named(found.way);
        figures.plain(
            format!("copy_large_{to}_gb_s"),
            format!("{words}, one large pinned copy"),
            found.large / 1e9,
            "GB/s",
        );
        let what = format!("{words}, size below which fragments use the copy kernel");
        figures.plain(format!("copy_crossover_{to}"), what, found.crossover_bytes as f64, "B");
        // The fragment size with the lowest ratio counts.
        let mut fragments = f64::INFINITY;
        for (kind, rate) in found.kinds {
            let ratio = rate / found.large;
            match kind {
                Kind::Scattered64K => {
                    let what = format!("{words}, scattered 64 KiB pages ÷ one large copy");
                    let target = Target::AtLeast(SCATTERED);
                    figures.judged(format!("copy_scattered_64k_{to}"), what, (ratio, "x"), target);
                }
                Kind::Contiguous2M => {
                    let what = format!("{words}, contiguous 2 MiB blocks ÷ one large copy");
                    let target = Target::AtLeast(CONTIGUOUS);
                    figures.judged(format!("copy_contiguous_2m_{to}"), what, (ratio, "x"), target);
                }
                Kind::Fragments(bytes) => {
                    fragments = fragments.min(ratio);
                    let what = format!("{words}, engine layout, fragments of {} KiB ÷ one large copy", bytes >> 10);
                    figures.plain(format!("copy_fragments_{}k_{to}", bytes >> 10), what, ratio, "x");
                }
            }
        }
        let what = format!("{words}, engine layout, fragments of 4 to 16 KiB ÷ one large copy, worst");
        figures.judged(format!("copy_fragments_{to}"), what, (fragments, "x"), Target::AtLeast(FRAGMENTS));
    }
    by_path(&forced(&place.device, place.size(figures))?, figures);
    choice(&crossover, figures);
    Ok(())
}

/// Report the rate of each path alone for the same copies: a missed target is then a property of the copy engines, of their calls, or of
/// the kernel.
fn by_path(forced: &[Forced], figures: &mut Figures) {
    for &Forced { way, kind, path, rate } in forced {
        let Some(rate) = rate else { continue };
        let (way, words) = named(way);
        let (kind, data) = match kind {
            Kind::Scattered64K => ("scattered_64k".to_owned(), "scattered 64 KiB pages".to_owned()),
            Kind::Contiguous2M => ("contiguous_2m".to_owned(), "contiguous 2 MiB blocks".to_owned()),
            Kind::Fragments(bytes) => {
                (format!("fragments_{}k", bytes >> 10), format!("engine layout, fragments of {} KiB", bytes >> 10))
            }
        };
        let (path, by) = match path {
            Path::OneByOne => ("one_by_one", "engines, one by one"),
            Path::Kernel => ("kernel", "kernel"),
            Path::Engines | Path::Measured | Path::Below(_) => ("engines", "engines, in batches"),
        };
        figures.plain(format!("copy_{kind}_{way}_{path}_gb_s"), format!("{words}, {data}, {by}"), rate / 1e9, "GB/s");
    }
}

/// Return the name of a direction in keys and in words.
fn named(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Up => ("to_device", "host → HBM"),
        Way::Down => ("to_host", "HBM → host"),
        Way::Within => ("within", "within HBM"),
    }
}

/// Report the rates from which the choice between copy engines and kernel was made.
fn choice(crossover: &Crossover, figures: &mut Figures) {
    for row in &crossover.measured {
        let (way, words) = named(row.way);
        let size = row.bytes >> 10;
        for (by, rate) in [("engines", row.engines), ("kernel", row.kernel)] {
            let what = format!("{words}, {size} KiB in batches of {}, by {by}", row.batch);
            figures.plain(format!("copy_{by}_{size}k_x{}_{way}_gb_s", row.batch), what, rate / 1e9, "GB/s");
        }
    }
}
