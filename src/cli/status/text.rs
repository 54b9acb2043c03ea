//! Status as text: a few lines for each component, errors first.

use super::super::cache::{hits_text, load_time, slow};
use super::units::{bytes, duration, percent};
use kvtide_daemon::status::{
    DiskStatus, DriveEndurance, Hits, RecoveryReport, RelayStatus, SessionInfo, Snapshot, SpaceStatus, WriteBudget,
};
use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Render the whole status.
pub(super) fn render(status: &Snapshot) -> String {
    let mut text = String::new();
    write(status, &mut text).expect("writing into a String cannot fail");
    text
}

fn write(status: &Snapshot, out: &mut String) -> fmt::Result {
    let Snapshot { build, pid, stage, uptime_s, .. } = status;
    writeln!(out, "kvtided {}  pid {pid}  {stage}, up {}", build.version, duration(*uptime_s))?;
    for reason in &status.unhealthy {
        writeln!(out, "UNHEALTHY  {}", reason.text)?;
    }
    for reason in &status.degraded {
        writeln!(out, "DEGRADED   {}", reason.text)?;
    }
    if status.drained {
        writeln!(out, "DRAINED    no engine can attach (kvtide drain --end admits them again)")?;
    }
    if status.hits.asked_tokens > 0 {
        let Hits { asked_tokens, found_tokens, loaded_tokens, .. } = status.hits;
        writeln!(
            out,
            "hits       {} of the tokens that engines asked for: {found_tokens} of {asked_tokens}; {} loaded in {}",
            percent(found_tokens, asked_tokens),
            loaded_tokens.total(),
            load_time(&status.hits)
        )?;
        slow(&status.hits).map_or(Ok(()), |slow| writeln!(out, "SLOW       {slow}"))?;
    }
    if !status.progress.is_empty() {
        writeln!(out, "starting   {}", status.progress)?;
    }
    for thread in status.threads.iter().filter(|thread| thread.silent_s > 0.0) {
        writeln!(out, "           thread {} unresponsive for {:.1} s", thread.name, thread.silent_s)?;
    }
    for thread in status.threads.iter().filter(|thread| thread.age_s > 0.0) {
        writeln!(out, "           statistics of thread {} are {:.1} s old", thread.name, thread.age_s)?;
    }
    let live = status.sessions.iter().filter(|session| session.live).count();
    let totals = status.session_totals;
    writeln!(
        out,
        "sessions   {live} attached, {} disconnected, process still alive; since start {} attached, {} ended \
        ({} by the daemon), {} attaches rejected",
        status.sessions.len() - live,
        totals.attached,
        totals.ended,
        totals.expelled,
        totals.refused,
    )?;
    if let Some(host) = &status.host {
        writeln!(out, "host       {} of {} granted to spaces", bytes(host.granted_bytes), bytes(host.capacity_bytes))?;
    }
    for each in &status.disks {
        disk(each, out)?;
        log(each, out)?;
        let own = status.endurance.iter().find(|endurance| endurance.disk == each.number);
        own.map_or(Ok(()), |own| endurance(each, own, out))?;
    }
    let WriteBudget { bytes_per_day, window_s, all, .. } = &status.write_budget;
    if let Some(day) = bytes_per_day {
        writeln!(
            out,
            "budget     {} a day; {} written in the last {}; {} blocks ({}) dropped unwritten",
            bytes(*day),
            bytes(all.written_bytes),
            duration(*window_s),
            all.over_budget_blocks,
            bytes(all.over_budget_bytes),
        )?;
    }
    status.relays.iter().try_for_each(|each| relay(each, out))?;
    status.spaces.iter().try_for_each(|each| space(each, &status.sessions, out))
}

fn relay(relay: &RelayStatus, out: &mut String) -> fmt::Result {
    let RelayStatus { domain, pid, uid, since_s, text } = relay;
    write!(out, "relay      domain {domain}  pid {pid} uid {uid}: ")?;
    if text.is_empty() {
        return writeln!(out, "watches, no state");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    // The daemon may run on a machine with another clock.
    writeln!(out, "{text} (since {})", duration(now.saturating_sub(*since_s) as f64))
}

fn disk(disk: &DiskStatus, out: &mut String) -> fmt::Result {
    let DiskStatus { number, dir, mode, capacity_bytes, .. } = disk;
    writeln!(out, "disk {number:<5} {}  {}  {mode}", dir.display(), bytes(*capacity_bytes))?;
    let (read, written) = disk.bytes();
    writeln!(
        out,
        "           read {}, written {} ({} today); in flight {} of {}, queued {}",
        bytes(read),
        bytes(written),
        bytes(disk.written_today_bytes),
        disk.at_device,
        disk.depth,
        disk.queued(),
    )?;
    if disk.failed() + disk.checksum_failures > 0 || disk.stalled || disk.out_of_service.is_some() {
        let stalled = match (disk.out_of_service, disk.stalled) {
            (Some(_), _) => "OUT OF SERVICE; ",
            (None, true) => "STALLED; ",
            (None, false) => "",
        };
        let failed = disk.failed();
        writeln!(out, "           {stalled}{failed} transfers failed, {} checksum errors", disk.checksum_failures)?;
    }
    Ok(())
}

/// Write the state of the index log, and the counts of blocks recovered from it at the daemon's start.
fn log(disk: &DiskStatus, out: &mut String) -> fmt::Result {
    let log = &disk.log;
    if log.half_bytes == 0 {
        return Ok(());
    }
    let RecoveryReport {
        took_us,
        records,
        blocks,
        sealed,
        torn,
        stale,
        corrupt,
        unreadable,
        lost_unflushed,
        partial,
        ..
    } = log.recovery;
    writeln!(
        out,
        "           index log: {} blocks in {} slabs, {} of {} used",
        log.blocks,
        log.slabs,
        bytes(log.live_bytes),
        bytes(log.half_bytes)
    )?;
    let took = duration_of_us(took_us);
    writeln!(
        out,
        "           recovered {blocks} blocks from {records} records in {took}; {torn} torn batches, {stale} stale records"
    )?;
    if corrupt + unreadable + lost_unflushed + sealed > 0 || partial {
        let part = if partial { "BOTH HALVES DAMAGED; " } else { "" };
        writeln!(
            out,
            "           {part}{corrupt} corrupt, {unreadable} unreadable sectors, {lost_unflushed} lost unflushed, \
            {sealed} without key"
        )?;
    }
    if log.full > 0 {
        writeln!(out, "           LOG FULL   {} records dropped: their blocks will not survive a restart", log.full)?;
    }
    Ok(())
}

/// Write the disk's write budget and endurance.
fn endurance(disk: &DiskStatus, endurance: &DriveEndurance, out: &mut String) -> fmt::Result {
    let mut parts = vec![format!("{} written in total", bytes(disk.written_ever_bytes))];
    parts.extend(disk.write_amplification().map(|times| format!("write amplification {times:.3}")));
    parts.extend(endurance.bytes_per_day.map(|day| format!("limit {} a day", bytes(day))));
    parts.extend(endurance.rate_bytes_per_day.map(|rate| format!("currently {} a day", bytes(rate as u64))));
    parts.extend(endurance.endurance_bytes.map(|life| format!("rated for {}", bytes(life))));
    parts.extend(endurance.life_s.map(|life| format!("endurance left: {}", duration(life))));
    writeln!(out, "           {}", parts.join(", "))
}

fn space(space: &SpaceStatus, sessions: &[SessionInfo], out: &mut String) -> fmt::Result {
    let SpaceStatus { space: number, name, domain, occupancy, core, .. } = space;
    let sessions_of = if space.sessions == 1 { "session" } else { "sessions" };
    writeln!(out, "space {number:<4} {name}  (domain {domain})  {} {sessions_of}", space.sessions)?;
    let found = [core.found_tier0, core.found_host, core.found_nvme, core.found_nowhere];
    let [tier0, host, nvme, nowhere] = found.map(|count| percent(count, found.iter().sum()));
    writeln!(out, "  blocks   {} in the cache; since start {} stored by engines", occupancy.published, core.published)?;
    if space.hits.asked_tokens > 0 {
        out.push_str(&hits_text(&space.hits));
    }
    if found.iter().sum::<u64>() > 0 {
        writeln!(out, "  pages    of steps: found in tier 0 {tier0}, host {host}, nvme {nvme}, none {nowhere}")?;
    }
    let room = |(used, all)| format!("{} of {}", bytes(used), bytes(all));
    let nvme = occupancy.nvme_used_of_all();
    let (tier0, host) = (room(occupancy.tier0.used_of_all()), room(occupancy.host.used_of_all()));
    writeln!(out, "  used     tier 0 {tier0}, host {host}, nvme {}", room(nvme))?;
    writeln!(
        out,
        "  moved    host→tier 0 {}, tier 0→host {}, nvme→host {}, host→nvme {}",
        bytes(core.host_to_tier0.total_bytes()),
        bytes(core.tier0_to_host.total_bytes()),
        bytes(core.nvme_to_host.total_bytes()),
        bytes(core.host_to_nvme.total_bytes()),
    )?;
    let waited = duration_of_us(space.request_times.fault.sum_us);
    writeln!(
        out,
        "  waits    {} faults, {waited} in total; {} requests waited for free memory",
        core.faults, core.stalls
    )?;
    if core.prefetch_used + core.prefetch_late + core.prefetch_wasted > 0 {
        let (used, late, wasted) = (core.prefetch_used, core.prefetch_late, core.prefetch_wasted);
        writeln!(out, "  prefetch pages read ahead: {used} used, {late} late, {wasted} unused")?;
    }
    if core.scheduled_used + core.scheduled_late + core.scheduled_missed + core.scheduled_wasted > 0 {
        let (used, late) = (core.scheduled_used, core.scheduled_late);
        let (missed, wasted) = (core.scheduled_missed, core.scheduled_wasted);
        writeln!(
            out,
            "  queued   pages loaded for queued sequences: {used} in time, {late} late, {missed} missed, {wasted} unused"
        )?;
    }
    if occupancy.nvme_slots > 0 {
        let (index_only, persisting, awaiting_erasure) =
            (occupancy.index_only, occupancy.persisting, occupancy.nvme_slots_awaiting_erasure);
        writeln!(
            out,
            "  nvme     {} of {} published blocks stored since start, {persisting} being written; {index_only} cached only on NVMe, \
            {awaiting_erasure} slots waiting for erasure",
            core.stored, core.published
        )?;
        let refused = core.restore_refused;
        writeln!(out, "  restored {} blocks, {refused} not restored; {} NVMe hits", core.restored, core.nvme_hits)?;
    }
    if space.budget.bytes_per_day > 0 {
        let (left, day) = (bytes(space.budget.left_bytes), bytes(space.budget.bytes_per_day));
        let (blocks, lost) = (core.over_budget_drops, bytes(core.over_budget_drop_bytes));
        writeln!(
            out,
            "  budget   {day} a day, {left} available; {} blocks wait for it; {blocks} ({lost}) dropped unwritten since start",
            space.budget.waiting_blocks
        )?;
    }
    if core.unwritten_drops > 0 {
        let (blocks, lost) = (core.unwritten_drops, bytes(core.unwritten_drop_bytes));
        writeln!(out, "  OVERLOAD {blocks} blocks ({lost}) dropped: stores exceed the disks' write rate")?;
    }
    let (checked, failed) = space.sample.all();
    if failed > 0 {
        writeln!(out, "  CORRUPT  {failed} of {checked} sampled pages differ from the stored page")?;
    }
    if core.records_failed + core.entries_corrupt + core.entries_gone + space.nvme.lost_unflushed > 0 {
        let (records, corrupt, gone) = (core.records_failed, core.entries_corrupt, core.entries_gone);
        let unflushed = space.nvme.lost_unflushed;
        writeln!(
            out,
            "  DROPPED  {records} blocks not recorded, {corrupt} unreadable, {gone} lost with a disk, {unflushed} pages lost \
            unflushed"
        )?;
    }
    if core.pages_lost + core.io_failed + core.checksum_failed > 0 {
        let (lost, failed, wrong) = (core.pages_lost, core.io_failed, core.checksum_failed);
        writeln!(out, "  LOST     {lost} pages; {failed} transfers failed, {wrong} checksum errors")?;
    }
    for attached in &space.attached {
        let known = sessions.iter().find(|session| session.session == attached.session).cloned().unwrap_or_default();
        writeln!(
            out,
            "  {} {} shard {} pid {} uid {}: loaded {}, stored {}, {} faults ({}), {} requests and {} jobs in flight",
            if known.relay { "relay" } else { "session" },
            attached.session,
            known.shard,
            known.pid,
            known.uid,
            bytes(attached.stats.loaded_bytes),
            bytes(attached.stats.stored_bytes),
            attached.stats.faults,
            duration_of_us(attached.stats.stalled_us),
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
            "degraded": [{"reason": "disk_out_of_service", "disk": 1, "dir": "/e", "errno": 5, "why": "", "text": "disk 1 (/e) is out of service"}],
            "endurance": [{"disk": 0, "bytes_per_day": 1099511627776, "endurance_bytes": 1125899906842624, "life_s": 86400.0}],
            "unhealthy": [{"reason": "thread_silent", "thread": "space-1", "silent_s": 9.0, "limit_s": 5.0, "text": "thread space-1 has been unresponsive"}],
            "sessions": [{"session": 4, "space": 2, "live": true, "pid": 9, "uid": 1000, "shard": 1}],
            "write_budget": {"bytes_per_day": 1099511627776, "window_s": 3600.0, "spaces": {"2": {"uses": 9}},
                "all": {"written_bytes": 1073741824, "over_budget_blocks": 12, "over_budget_bytes": 49152}},
            "host": {"capacity_bytes": 2147483648, "granted_bytes": 1073741824},
            "relays": [{"domain": "a", "pid": 70, "uid": 990, "since_s": 1, "text": "store s3://b/ is NOT USED: no answer"},
                {"domain": "b", "pid": 71, "uid": 0}],
            "hits": {"asked_tokens": 400, "found_tokens": 300, "loaded_tokens": {"host": 200, "nvme": 100}, "recompute_us": 5000000,
                "load_us": 1000000},
            "disks": [{"number": 0, "dir": "/d", "mode": "threads+buffered",
                "classes": [{"reads": {"bytes": 1048576}}, {}, {}], "stalled": true, "written_ever_bytes": 2199023255552,
                "written": {"page_bytes": 1000, "request_bytes": 1000}, "out_of_service": 5,
                "log": {"half_bytes": 1048576, "live_bytes": 65536, "blocks": 7, "slabs": 2, "appended_bytes": 36, "full": 3,
                    "recovery": {"blocks": 5, "records": 9, "took_us": 2500, "torn": 1, "corrupt": 4}}}],
            "spaces": [{"space": 2, "name": "llama", "domain": "default", "sessions": 1,
                "hits": {"asked_tokens": 400, "found_tokens": 300, "loaded_tokens": {"host": 200, "nvme": 100}, "recompute_us": 5000000,
                    "load_us": 1000000},
                "core": {"found_tier0": 3, "found_host": 1, "published": 9, "blocks_loaded": 5, "stored": 8, "restored": 5, "restore_refused": 2,
                    "over_budget_drops": 12, "over_budget_drop_bytes": 49152,
                    "unwritten_drops": 3, "unwritten_drop_bytes": 12288, "records_failed": 1},
                "occupancy": {"published": 7, "nvme_slots": 4, "index_only": 6, "persisting": 1}, "sample": {"checked": 3, "written_failed": 1},
                "budget": {"bytes_per_day": 1099511627776, "left_bytes": 1073741824, "waiting_blocks": 6},
                "attached": [{"session": 4, "stalled_us": 1500}]}]}"#;
        let text = render(&serde_json::from_str(status).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "kvtided 0.1.0  pid 7  serving, up 1 h 1 min");
        assert_eq!(lines[1], "UNHEALTHY  thread space-1 has been unresponsive");
        for part in [
            "host       1.00 GiB of 2.00 GiB granted to spaces",
            "threads+buffered",
            "relay      domain a  pid 70 uid 990: store s3://b/ is NOT USED: no answer (since ",
            "relay      domain b  pid 71 uid 0: watches, no state",
            "OUT OF SERVICE; 0 transfers failed",
            "DEGRADED   disk 1 (/e) is out of service",
            "index log: 7 blocks in 2 slabs, 64.0 KiB of 1.00 MiB used",
            "recovered 5 blocks from 9 records in 2.5 ms; 1 torn batches",
            "4 corrupt, 0 unreadable sectors",
            "LOG FULL   3 records dropped",
            "2.00 TiB written in total, write amplification 1.036, limit 1.00 TiB a day",
            "a day, rated for 1.00 PiB, endurance left: 1 d 0 h",
            "nvme     8 of 9 published blocks stored since start, 1 being written; 6 cached only on NVMe",
            "restored 5 blocks, 2 not restored",
            "budget   1.00 TiB a day, 1.00 GiB available; 6 blocks wait for it; 12 (48.0 KiB) dropped unwritten since start",
            "budget     1.00 TiB a day; 1.00 GiB written in the last 1 h 0 min; 12 blocks (48.0 KiB) dropped unwritten",
            "CORRUPT  1 of 3 sampled pages",
            "DROPPED  1 blocks not recorded",
            "OVERLOAD 3 blocks (12.0 KiB) dropped: stores exceed the disks' write rate",
            "blocks   7 in the cache; since start 9 stored by engines",
            "hits     75.0% of the tokens asked for: 300 of 400; since start",
            "loaded   300 tokens: 0 from tier 0, 200 from host memory, 100 from NVMe; loading took 1.0 s",
            "hits       75.0% of the tokens that engines asked for: 300 of 400; 300 loaded in 1.0 s",
            "found in tier 0 75.0%, host 25.0%, nvme 0.0%",
            "session 4 shard 1 pid 9 uid 1000: loaded 0 B, stored 0 B, 0 faults (1.5 ms)",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains("saved"), "what computing would take is not measured:\n{text}");
    }

    #[test]
    fn loading_that_is_slower_than_computing_is_a_warning() {
        let told = |recompute_us: u64| {
            let hits = format!(r#""hits": {{"asked_tokens": 4, "recompute_us": {recompute_us}, "load_us": 2000}}"#);
            render(&serde_json::from_str(&format!(r#"{{"schema": 1, "stage": "serving", {hits}}}"#)).unwrap())
        };
        assert!(
            told(1000).contains("SLOW       loading took 2.0 ms; computing would take 1.0 ms by eviction."),
            "{}",
            told(1000)
        );
        // 0: the key is 0, and nothing is known.
        for recompute_us in [0, 3000] {
            assert!(!told(recompute_us).contains("SLOW"), "{}", told(recompute_us));
        }
    }
}
