//! A status for people: a few lines a part, what is wrong first.

use super::model::{Disk, Session, Space, Status};
use super::units::{bytes, duration, percent};
use std::fmt::{self, Write};

/// The whole.
pub(super) fn render(status: &Status) -> String {
    let mut text = String::new();
    write(status, &mut text).expect("a text takes whatever is written");
    text
}

fn write(status: &Status, out: &mut String) -> fmt::Result {
    let Status { build, pid, stage, uptime_s, .. } = status;
    writeln!(out, "kvtided {}  pid {pid}  {stage}, up {}", build.version, duration(*uptime_s))?;
    for reason in &status.unhealthy {
        writeln!(out, "UNHEALTHY  {}", reason.text)?;
    }
    for thread in status.threads.iter().filter(|thread| thread.silent_s > 0.0) {
        writeln!(out, "           {} did not answer ({:.1} s)", thread.name, thread.silent_s)?;
    }
    let live = status.sessions.iter().filter(|session| session.live).count();
    let totals = status.session_totals;
    writeln!(
        out,
        "sessions   {live} attached, {} lingering; so far {} attached, {} ended ({} by the daemon), {} peers refused",
        status.sessions.len() - live,
        totals.attached,
        totals.ended,
        totals.expelled,
        totals.refused,
    )?;
    if let Some(host) = status.host {
        writeln!(out, "host       {} of {} granted", bytes(host.granted_bytes), bytes(host.capacity_bytes))?;
    }
    status.disks.iter().try_for_each(|each| disk(each, out))?;
    status.spaces.iter().try_for_each(|each| space(each, &status.sessions, out))
}

fn disk(disk: &Disk, out: &mut String) -> fmt::Result {
    let Disk { number, dir, mode, capacity_bytes, regions, regions_ready, .. } = disk;
    writeln!(out, "disk {number:<5} {dir}  {}  {mode}", bytes(*capacity_bytes))?;
    if regions_ready < regions {
        writeln!(out, "           {} of its regions were written once and serve", percent(*regions_ready, *regions))?;
    }
    let (read, written) = disk.bytes();
    writeln!(
        out,
        "           read {}, written {} ({} today); {} at the device of {}, {} queued",
        bytes(read),
        bytes(written),
        bytes(disk.written_today_bytes),
        disk.at_device,
        disk.depth,
        disk.queued(),
    )?;
    if disk.failed() + disk.checksum_failures > 0 || disk.stalled {
        let stalled = if disk.stalled { "STALLED; " } else { "" };
        let failed = disk.failed();
        writeln!(
            out,
            "           {stalled}{failed} transfers failed, {} pages were not what was written",
            disk.checksum_failures
        )?;
    }
    Ok(())
}

fn space(space: &Space, sessions: &[Session], out: &mut String) -> fmt::Result {
    let Space { space: number, name, domain, occupancy, core, .. } = space;
    let sessions_of = if space.sessions == 1 { "session" } else { "sessions" };
    writeln!(out, "space {number:<4} {name}  (domain {domain})  {} {sessions_of}", space.sessions)?;
    let found = [core.found_tier0, core.found_host, core.found_nvme, core.found_nowhere];
    let [tier0, host, nvme, nowhere] = found.map(|count| percent(count, found.iter().sum()));
    writeln!(out, "  found    tier 0 {tier0}, host {host}, nvme {nvme}, nowhere {nowhere}")?;
    let room = |(used, all)| format!("{} of {}", bytes(used), bytes(all));
    let nvme =
        (occupancy.nvme_slots_used * occupancy.nvme_slot_bytes, occupancy.nvme_slots * occupancy.nvme_slot_bytes);
    let (tier0, host) = (room(occupancy.tier0.used_of_all()), room(occupancy.host.used_of_all()));
    writeln!(out, "  holds    tier 0 {tier0}, host {host}, nvme {}", room(nvme))?;
    writeln!(
        out,
        "  moved    host→tier 0 {}, tier 0→host {}, nvme→host {}, host→nvme {}",
        bytes(core.host_to_tier0.total()),
        bytes(core.tier0_to_host.total()),
        bytes(core.nvme_to_host.total()),
        bytes(core.host_to_nvme.total()),
    )?;
    let waited = duration_of_us(space.request_times.fault.sum_us);
    writeln!(
        out,
        "  waited   {} faults, {waited} together; {} requests had to wait for room",
        core.faults, core.stalls
    )?;
    if core.prefetch_used + core.prefetch_late + core.prefetch_wasted > 0 {
        let (used, late, wasted) = (core.prefetch_used, core.prefetch_late, core.prefetch_wasted);
        writeln!(out, "  ahead    {used} pages read ahead were used, {late} came late, {wasted} were not used")?;
    }
    if core.pages_lost + core.io_failed + core.checksum_failed > 0 {
        let (lost, failed, wrong) = (core.pages_lost, core.io_failed, core.checksum_failed);
        writeln!(out, "  LOST     {lost} pages; {failed} transfers failed, {wrong} pages were not what was written")?;
    }
    for attached in &space.attached {
        let known = sessions.iter().find(|session| session.session == attached.session).cloned().unwrap_or_default();
        writeln!(
            out,
            "  session {} shard {} pid {} uid {}: loaded {}, stored {}, {} faults ({}), {} requests and {} jobs in flight",
            attached.session,
            known.shard,
            known.pid,
            known.uid,
            bytes(attached.loaded_bytes),
            bytes(attached.stored_bytes),
            attached.faults,
            duration_of_us(attached.stalled_us),
            attached.requests_in_flight,
            attached.jobs_in_flight,
        )?;
    }
    Ok(())
}

fn duration_of_us(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ => duration(us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_stands_first() {
        let status = r#"{"schema": 1, "stage": "serving", "build": {"version": "0.1.0"}, "pid": 7, "uptime_s": 3700,
            "unhealthy": [{"reason": "thread_silent", "text": "thread space-1 has not answered"}],
            "sessions": [{"session": 4, "space": 2, "live": true, "pid": 9, "uid": 1000, "shard": 1}],
            "host": {"capacity_bytes": 2147483648, "granted_bytes": 1073741824},
            "disks": [{"number": 0, "dir": "/d", "mode": "threads+buffered", "regions": 4, "regions_ready": 1,
                "classes": [{"reads": {"bytes": 1048576}}], "stalled": true}],
            "spaces": [{"space": 2, "name": "llama", "domain": "default", "sessions": 1,
                "core": {"found_tier0": 3, "found_host": 1}, "attached": [{"session": 4, "stalled_us": 1500}]}]}"#;
        let text = render(&serde_json::from_str(status).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "kvtided 0.1.0  pid 7  serving, up 1 h 1 min");
        assert_eq!(lines[1], "UNHEALTHY  thread space-1 has not answered");
        for part in [
            "host       1.00 GiB of 2.00 GiB granted",
            "threads+buffered",
            "25.0% of its regions",
            "STALLED",
            "tier 0 75.0%, host 25.0%, nvme 0.0%",
            "session 4 shard 1 pid 9 uid 1000: loaded 0 B, stored 0 B, 0 faults (1.5 ms)",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
