//! Time of a start with a full disk: the index is read and rewritten.
//!
//! A log is filled with records of blocks as by the log thread, over a file opened with `O_DIRECT`, so that no byte comes from the
//! page cache. It is then opened as at a start. A daemon without disks shows how soon it serves, and when all its host memory is allocated.

mod file;

use super::report::{Report, Target};
use super::{BenchError, Output};
use crate::private_daemon::{Options, PrivateDaemon};
use file::Direct;
use kvtide_daemon::config::ByteSize;
use kvtide_format::Superblock;
use kvtide_format::log::{Log, LogError, Put, SlabHeader};
use std::path::PathBuf;
use std::time::Instant;

/// Bytes of a block.
const SLOT_BYTES: u64 = 64 << 10;
/// Bytes of a region.
const REGION_BYTES: u64 = 1 << 30;
const SLOTS: u32 = (REGION_BYTES / SLOT_BYTES) as u32;
/// Records of one write, similar to the log thread's batches.
const GROUP: u32 = 256;

/// Flags of `kvtide bench recovery`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RecoveryArgs {
    /// Directory for the file, on the disk to measure
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Number of recorded blocks
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    records: u32,
    /// Planes of a block
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=256))]
    planes: u16,
    /// Host memory of the daemon that is started
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    host: ByteSize,
    #[command(flatten)]
    pub(super) output: Output,
}

/// Fill a log and open it.
pub(super) fn measure(args: &RecoveryArgs) -> Result<Report, BenchError> {
    let regions = args.records.div_ceil(SLOTS);
    let superblock = Superblock::new(1, u64::from(regions) * REGION_BYTES, REGION_BYTES);
    let superblock = superblock.map_err(|error| BenchError::Odd(error.to_string()))?;
    let superblock = Superblock { starts: 1, ..superblock };
    let mut file = Direct::new(&args.dir, superblock.regions_offset)?;
    super::progress(&format!("recording {} blocks of {} planes", args.records, args.planes));
    fill(&mut file, &superblock, args)?;

    super::progress("opening the log");
    let next = Superblock { starts: 2, ..superblock };
    let began = Instant::now();
    let (_, recovered) = Log::open(&mut file, &next, None, &mut |_| {}).map_err(odd)?;
    let took = began.elapsed();
    let found: usize = recovered.slabs.iter().map(|slab| slab.blocks.len()).sum();
    if found as u64 != u64::from(args.records) {
        return Err(BenchError::Odd(format!("recovered {found} of {} blocks", args.records)));
    }

    let mut report = Report::default();
    let (records, at_most) = (u64::from(args.records), Some(Target::AtMost(2.0)));
    report.count("recovery.records", "block records", records, "", None);
    report.fine("recovery.s", "start: index read and rewritten", (took.as_secs_f64(), 3), "s", at_most);
    start(args.host.0, &mut report)?;
    Ok(report)
}

/// Start a daemon with this much host memory.
fn start(host_bytes: u64, report: &mut Report) -> Result<(), BenchError> {
    super::progress("starting a daemon");
    let began = Instant::now();
    let mut daemon = PrivateDaemon::launch(&Options { host_bytes: Some(host_bytes), ..Options::default() })?;
    daemon.ready()?;
    let ready = began.elapsed();
    daemon.allocated()?;
    report.count("start.host_bytes", "host memory of a daemon", host_bytes, "", None);
    report.fine("start.ready_s", "it serves after", (ready.as_secs_f64(), 3), "s", Some(Target::AtMost(0.5)));
    report.fine("start.allocated_s", "its memory is allocated after", (began.elapsed().as_secs_f64(), 3), "s", None);
    Ok(())
}

fn odd(error: LogError) -> BenchError {
    BenchError::Odd(error.to_string())
}

/// Record all blocks.
fn fill(file: &mut Direct, superblock: &Superblock, args: &RecoveryArgs) -> Result<(), BenchError> {
    let (mut log, _) = Log::open(file, superblock, None, &mut |_| {}).map_err(odd)?;
    let planes = usize::from(args.planes);
    let present = vec![u32::MAX; planes.div_ceil(32)];
    let mut crcs = vec![0; planes];
    for block in 0..args.records {
        let (region, slot) = (block / SLOTS, block % SLOTS);
        if slot == 0 {
            let page_bytes = vec![(SLOT_BYTES / u64::from(args.planes)) as u32; planes];
            let slab = SlabHeader::new(region, u64::from(region) + 1, [7; 32], "bench", SLOT_BYTES, page_bytes);
            log.grant(&slab).map_err(odd)?;
        }
        crcs.fill(block);
        let hash = u128::from(block) + 1;
        let put = Put {
            region,
            slot,
            generation: 1 << 16,
            shard: 0,
            salt: 0,
            hash,
            parent: hash - 1,
            present: &present,
            crcs: &crcs,
            sectors: &[],
            tags: &[],
        };
        log.put(&put).map_err(odd)?;
        if block % GROUP == GROUP - 1 {
            log.write().map_err(odd)?;
        }
    }
    log.flush().map_err(odd)
}
