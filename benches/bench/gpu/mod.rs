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
mod step;

use super::engine::{Engine, Model, trying};
use super::{BenchError, NOT_RUN, Output, progress};
use figures::Figures;
use kvtide_client::client::{DeviceChoice, Options};
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

    /// Attach an engine with tier 0 in the device's memory and room for `blocks` blocks there, and bind its lane to a stream.
    fn attach(
        &self,
        socket: &Path,
        name: &str,
        model: Model,
        blocks: u64,
    ) -> Result<(Engine, Arc<Stream>), BenchError> {
        let frames = blocks as u32 * u32::from(model.planes);
        let options = |space| Options { device: self.choice, ..Options::new(socket.into(), space, vec![frames]) };
        let mut engine = Engine::with(&format!("gpu-{name}"), model, options)?;
        let stream = Arc::new(Stream::new(&self.device, Priority::Normal)?);
        trying("bind the lane to a stream", engine.lane.bind_stream(&stream))?;
        Ok((engine, stream))
    }
}

impl Model {
    /// Llama 3.1 8B: 32 layers of 8 KV heads × 128, bf16, keys and values, in pages of 64 tokens.
    const LLAMA_8B: Model = Model { planes: 32, page_tokens: 64, page_bytes: 64 * 8 * 128 * 2 * 2, chunk_blocks: 4 };
    /// A small shape for the stand-in.
    const TINY: Model = Model { planes: 4, page_tokens: 16, page_bytes: 16 << 10, chunk_blocks: 4 };

    fn of(tiny: bool) -> Model {
        if tiny { Model::TINY } else { Model::LLAMA_8B }
    }

    /// Return the number of blocks for `tokens` tokens.
    fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(u64::from(self.page_tokens))
    }

    /// Return the bytes of `blocks` blocks.
    fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.planes) * u64::from(self.page_bytes)
    }
}

/// Run the benchmark and print the results.
pub(super) fn run(args: &Args) -> ExitCode {
    let ended = if args.probe { probe(args.output.json) } else { measure(args) };
    match ended {
        Ok(text) => output::print(&text, ExitCode::SUCCESS),
        Err(error) => {
            output::say(format_args!("kvtide bench gpu: {error}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

/// Return the report of the driver, the devices, and their capabilities, as text or as one JSON object.
fn probe(json: bool) -> Result<String, BenchError> {
    let report = Driver::probe()?.report();
    Ok(if json { format!("{}\n", report.to_json().trim_end()) } else { report.to_string() })
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
