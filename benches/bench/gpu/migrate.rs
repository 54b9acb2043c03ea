//! Decode steps while migrations run at full bandwidth in both directions.

use super::super::BenchError;
use super::super::report::Target;
use super::Place;
use super::figures::Figures;
use kvtide_client::cuda::measure::interference;

pub(super) fn measure(place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
    let found = interference(&place.device, place.size(figures))?;
    for (percent, at, most) in [(50, 0, 1.05), (99, 1, 1.10)] {
        let what = format!("decode step without migrations, p{percent}");
        figures.plain(format!("migrate_alone_ms_p{percent}"), what, found.alone[at] * 1e3, "ms");
        let what = format!("decode step with migrations ÷ without, p{percent}");
        let ratio = found.beside[at] / found.alone[at];
        figures.judged(format!("migrate_p{percent}"), what, (ratio, "x"), Target::AtMost(most));
    }
    let what = "migrations during steps, both directions, 64 KiB pages";
    figures.plain("migrate_moved_gb_s", what, found.moved_bytes_per_s / 1e9, "GB/s");
    Ok(())
}
