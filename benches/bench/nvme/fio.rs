//! fio on the same file: io_uring, direct I/O, registered buffers and files.

use super::drive::Stream;
use super::rig::Rig;
use super::stop::{LOOK, Stop, failed};
use super::{BenchError, NvmeArgs};
use kvtide_tiering::api::IoKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Additional time that fio may take.
const GRACE: Duration = Duration::from_secs(30);
/// Bytes of fio's error output that are shown.
const SHOWN: usize = 800;

/// Result of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Done {
    pub(in crate::bench) bytes: f64,
    pub(in crate::bench) seconds: f64,
    pub(super) cpu_s: f64,
    pub(in crate::bench) p99_us: f64,
}

/// Check that fio is installed.
pub(in crate::bench) fn look(stop: &Stop) -> Result<(), BenchError> {
    let mut command = Command::new("fio");
    command.arg("--version");
    hear(command, Duration::ZERO, stop).map(drop)
}

/// Run jobs like these streams at the same time.
pub(super) fn run(args: &NvmeArgs, rig: &Rig, jobs: &[Stream], stop: &Stop) -> Result<Vec<Done>, BenchError> {
    let page = u64::from(args.page);
    let mut command = Command::new("fio");
    command.args(["--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1", "--output-format=json"]);
    command.args(["--time_based=1", "--randrepeat=0", "--norandommap=1", "--lat_percentiles=1", "--thinktime=0"]);
    command.arg(format!("--filename={}", rig.file().display())).arg(format!("--bs={page}"));
    command.arg(format!("--runtime={}ms", args.round().as_millis()));
    let begin = rig.disk().offset(0, 0);
    for job in jobs {
        let way = match job.kind {
            IoKind::Read => "randread",
            IoKind::Write => "randwrite",
        };
        command.arg(format!("--name={way}")).arg(format!("--rw={way}")).arg(format!("--iodepth={}", job.depth));
        command.arg(format!("--offset={}", begin + job.pages.start * page));
        command.arg(format!("--size={}", (job.pages.end - job.pages.start) * page));
    }
    let said = hear(command, args.round(), stop)?;
    let kinds: Vec<IoKind> = jobs.iter().map(|job| job.kind).collect();
    let done = parse(&said, &kinds).filter(|done| done.iter().all(|done| done.bytes > 0.0));
    done.ok_or_else(|| peer("read fio's report", &said))
}

/// Parse fio's report. Return `None` if it does not match jobs of these kinds. The latencies of a job that moved no bytes are NaN.
pub(in crate::bench) fn parse(said: &str, kinds: &[IoKind]) -> Option<Vec<Done>> {
    // Notes may precede the object.
    let report: serde_json::Value = serde_json::from_str(&said[said.find('{')?..]).ok()?;
    let done = report["jobs"].as_array()?;
    let one = |(kind, done): (&IoKind, &serde_json::Value)| {
        let way = match kind {
            IoKind::Read => &done["read"],
            IoKind::Write => &done["write"],
        };
        let seconds = way["runtime"].as_f64()? / 1000.0;
        let share = (done["usr_cpu"].as_f64()? + done["sys_cpu"].as_f64()?) / 100.0;
        let bytes = way["io_bytes"].as_f64()?;
        let percentile = |percent| match way["lat_ns"]["percentile"][percent].as_f64() {
            None if bytes == 0.0 => Some(f64::NAN),
            nanos => Some(nanos? / 1000.0),
        };
        Some(Done {
            bytes,
            seconds,
            cpu_s: share * done["job_runtime"].as_f64()? / 1000.0,
            p99_us: percentile("99.000000")?,
        })
    };
    (done.len() == kinds.len()).then(|| kinds.iter().zip(done).map(one).collect())?
}

/// Run a program and return its output. It ends at a signal or a timeout.
pub(in crate::bench) fn hear(mut command: Command, time: Duration, stop: &Stop) -> Result<String, BenchError> {
    let (mut stdout, theirs) = std::io::pipe().map_err(|e| failed("make a pipe", e))?;
    let until = Instant::now() + time + GRACE;
    let spawned = command.stdin(Stdio::null()).stdout(theirs).stderr(Stdio::piped()).spawn();
    // Close the other end of the pipe here, so that the end of the output is seen.
    drop(command);
    let mut child = spawned.map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => peer("compare with fio", "fio not found; install it or omit --fio"),
        _ => failed("start fio", e),
    })?;
    let listened = listen(&mut stdout, until, stop);
    if listened.is_err() {
        // Fails only if the process has ended.
        let _ = child.kill();
    }
    let complaints = ended(&mut child)?;
    let said = listened?;
    match complaints {
        None => Ok(said),
        Some(why) => Err(peer("run fio", &why)),
    }
}

/// Return the output of the pipe until its end.
fn listen(stdout: &mut PipeReader, until: Instant, stop: &Stop) -> Result<String, BenchError> {
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        stop.check()?;
        if Instant::now() >= until {
            return Err(peer("wait for fio", "timeout"));
        }
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::IN)], Some(&look)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed("wait for fio", errno)),
        }
        match stdout.read(&mut chunk).map_err(|e| failed("read from fio", e))? {
            0 => return Ok(String::from_utf8_lossy(&said).into_owned()),
            count => said.extend_from_slice(&chunk[..count]),
        }
    }
}

/// Wait for the child, which has ended or was killed. Return its error output if it failed.
fn ended(child: &mut Child) -> Result<Option<String>, BenchError> {
    let mut complaints = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut complaints).map_err(|e| failed("read from fio", e))?;
    }
    let status = child.wait().map_err(|e| failed("wait for fio", e))?;
    Ok((!status.success()).then(|| format!("{status}: {complaints}")))
}

pub(in crate::bench) fn peer(tried: &str, why: &str) -> BenchError {
    let why = why.trim();
    let end = why.char_indices().nth(SHOWN).map_or(why.len(), |(at, _)| at);
    BenchError::Peer { tried: tried.into(), why: why[..end].into() }
}
