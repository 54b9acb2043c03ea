//! Copies between device and host memory: rates of kvtide's copier relative to one large pinned copy.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use kvtide_client::cuda::Way;
use kvtide_client::cuda::copy::Crossover;
use kvtide_client::cuda::measure::{Kind, copies};

const SCATTERED: f64 = 0.95;
const CONTIGUOUS: f64 = 0.97;
const FRAGMENTS: f64 = 0.80;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let (both, crossover) = copies(&place.device, place.size(figures))?;
    for found in both {
        let (to, words) = match found.way {
            Way::Down => ("to_host", "HBM → host"),
            Way::Up | Way::Within => ("to_device", "host → HBM"),
        };
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
    choice(&crossover, figures);
    Ok(())
}

/// Report the rates from which the choice between copy engines and kernel was made.
fn choice(crossover: &Crossover, figures: &mut Figures) {
    for row in &crossover.measured {
        let (way, words) = match row.way {
            Way::Up => ("to_device", "host → HBM"),
            Way::Down => ("to_host", "HBM → host"),
            Way::Within => ("within", "within HBM"),
        };
        let size = row.bytes >> 10;
        for (by, rate) in [("engines", row.engines), ("kernel", row.kernel)] {
            let what = format!("{words}, {size} KiB in batches of {}, by {by}", row.batch);
            figures.plain(format!("copy_{by}_{size}k_x{}_{way}_gb_s", row.batch), what, rate / 1e9, "GB/s");
        }
    }
}
