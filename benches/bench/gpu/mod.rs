//! `kvtide bench gpu`: ratios on a GPU, each next to its target and measured in one run.
//!
//! Benchmarks that need only the device (copies, attention) use the client library's safe calls. Those that need an engine use a
//! session of this process with tier 0 on the device, and a private daemon. On the CPU stand-in everything runs in small sizes, and
//! no result is called a measurement.

mod attention;
mod copies;
mod engines;
mod figures;
mod migrate;
mod nvme;
mod prefix;
pub mod probe;
mod session;
mod step;

use super::{BenchError, NOT_RUN, Output, progress};
use figures::Figures;
use kvtide_client::client::DeviceChoice;
use kvtide_client::cuda::measure::Size;
use kvtide_client::cuda::{Device, Driver, Priority, Stream, Which};
use kvtide_daemon::output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Flags of `kvtide bench gpu`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Device: cuda, cuda:N or cuda:GPU-UUID
    #[arg(long, default_value = "cuda:0")]
    device: String,
    /// Groups to measure (default: all)
    #[arg(long, value_enum)]
    only: Vec<Group>,
    /// Directory for the NVMe tier (default: the system's temporary directory)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print drivers, devices and their capabilities, without measuring
    #[arg(long, conflicts_with_all = ["only", "dir"])]
    probe: bool,
    #[command(flatten)]
    output: Output,
}

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Copies between device and host: pages, blocks and fragments relative to one large copy
    Copies,
    /// Decode attention relative to device copies; cost of page tables, fixed splits and mass export
    Attention,
    /// Time added to a step when everything is resident
    Step,
    /// Decode steps while migrations run
    Migrate,
    /// NVMe to device relative to the NVMe tier alone
    Nvme,
    /// Load of a 10k-token prefix of an 8B-shaped model from host memory
    Prefix,
    /// Two engine processes with tier 0 on the device and one daemon
    Engines,
}

impl Group {
    const ALL: [Group; 7] =
        [Group::Copies, Group::Attention, Group::Step, Group::Migrate, Group::Nvme, Group::Prefix, Group::Engines];

    fn measure(self, place: &Place, figures: &mut Figures) -> Result<(), BenchError> {
        match self {
            Group::Copies => copies::measure(place, figures),
            Group::Attention => attention::measure(place, figures),
            Group::Step => step::measure(place, figures),
            Group::Migrate => migrate::measure(place, figures),
            Group::Nvme => nvme::measure(place, figures),
            Group::Prefix => prefix::measure(place, figures),
            Group::Engines => engines::measure(place, figures),
        }
    }
}

/// Device and directory of the measurement.
struct Place {
    device: Arc<Device>,
    choice: DeviceChoice,
    name: String,
    dir: PathBuf,
}

impl Place {
    fn new(args: &Args) -> Result<Place, BenchError> {
        let driver = Driver::probe()?;
        let which: Which = args.device.parse()?;
        let device = Device::open(&driver, which)?;
        let choice = args.device.parse().map_err(BenchError::Odd)?;
        let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
        Ok(Place { device, choice, name: args.device.clone(), dir })
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn size(&self, figures: &Figures) -> Size {
        if figures.tiny() { Size::Tiny } else { Size::Full }
    }

    /// Return the device choice and a stream for the session's lane.
    fn engine(&self) -> Result<(DeviceChoice, Arc<Stream>), BenchError> {
        Ok((self.choice, Arc::new(Stream::new(&self.device, Priority::Normal)?)))
    }
}

/// Run the benchmark and print the results.
pub(super) fn run(args: &Args) -> ExitCode {
    let ended = if args.probe { probe::probe(args.output.json) } else { measure(args) };
    match ended {
        Ok(text) => output::print(&text, ExitCode::SUCCESS),
        Err(error) => {
            output::say(format_args!("kvtide bench gpu: {error}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

fn measure(args: &Args) -> Result<String, BenchError> {
    let place = Place::new(args)?;
    let info = place.device.info();
    let mut figures = Figures::new(info.name.clone());
    figures.on("uuid", info.uuid.to_string());
    figures.on("driver", place.device.driver().version().to_string());
    let groups = if args.only.is_empty() { &Group::ALL[..] } else { &args.only };
    for group in groups {
        progress(&format!("{group:?}"));
        group.measure(&place, &mut figures)?;
    }
    Ok(if args.output.json { figures.json() } else { figures.table() })
}
