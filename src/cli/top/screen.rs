//! Layout and tables of the screen.

use super::super::status::units::{bytes, duration, percent, rate};
use super::rates::{Found, Moves, Rates};
use kvtide_daemon::status::{SessionInfo, Snapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Return the lines of a table: title with border, header, rows.
fn height(rows: usize) -> Constraint {
    Constraint::Length(rows as u16 + 2)
}

/// Draw the screen.
pub(super) fn draw(frame: &mut Frame<'_>, rates: &Rates) {
    let Some(status) = rates.status() else {
        return frame.render_widget(Paragraph::new("waiting for the daemon …"), frame.area());
    };
    let sessions: usize = status.spaces.iter().map(|space| space.attached.len()).sum();
    let disks = if status.disks.is_empty() { Constraint::Length(0) } else { height(status.disks.len()) };
    let parts = [Constraint::Length(2), height(3), disks, height(status.spaces.len()), height(sessions)];
    let [head, tiers, disks, spaces, sessions] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(heading(status, rates), head);
    frame.render_widget(tier_table(status, rates), tiers);
    if !status.disks.is_empty() {
        frame.render_widget(disk_table(status, rates), disks);
    }
    frame.render_widget(space_table(status, rates), spaces);
    frame.render_widget(session_table(status, rates), sessions);
    quit_hint(frame, head);
}

fn heading<'a>(status: &'a Snapshot, rates: &'a Rates) -> Paragraph<'a> {
    let of = format!(
        "kvtided {}  pid {}  {}, up {}",
        status.build.version,
        status.pid,
        status.stage,
        duration(status.uptime_s)
    );
    let health = match rates.lost() {
        Some(why) => Span::styled(format!("LOST: {why}"), ALARM),
        None if status.unhealthy.is_empty() && status.degraded.is_empty() => Span::raw(status.health()),
        None => Span::styled(status.health(), ALARM),
    };
    Paragraph::new(vec![Line::styled(of, BOLD), Line::from(health)])
}

fn quit_hint(frame: &mut Frame<'_>, head: Rect) {
    let hint = "q quits";
    if head.width > 60 {
        let place = Rect { x: head.right() - hint.len() as u16, width: hint.len() as u16, height: 1, ..head };
        frame.render_widget(Paragraph::new(Span::styled(hint, DIM)), place);
    }
}

fn table<'a>(title: &'a str, names: &[&'a str], widths: &[u16], rows: Vec<Row<'a>>) -> Table<'a> {
    let block = Block::new().borders(Borders::TOP).title(Span::styled(format!("{title} "), BOLD)).border_style(DIM);
    let header = Row::new(names.iter().map(|name| Span::styled(*name, DIM)));
    Table::new(rows, widths.iter().map(|width| Constraint::Length(*width))).header(header).block(block)
}

/// Build the table of the tiers, summed over all spaces: fill, hits, transfer rates.
fn tier_table<'a>(status: &Snapshot, rates: &Rates) -> Table<'a> {
    let (mut found, mut moves) = (Found::default(), Moves::default());
    let (mut tier0, mut host, mut nvme) = ((0, 0), (0, 0), (0, 0));
    let add = |sum: &mut (u64, u64), (used, all)| {
        *sum = (sum.0 + used, sum.1 + all);
    };
    for space in &status.spaces {
        let (own, edges, full) = (rates.found(space), rates.moves(space), &space.occupancy);
        found.tier0 += own.tier0;
        found.host += own.host;
        found.nvme += own.nvme;
        found.nowhere += own.nowhere;
        moves.host_to_tier0 += edges.host_to_tier0;
        moves.tier0_to_host += edges.tier0_to_host;
        moves.nvme_to_host += edges.nvme_to_host;
        moves.host_to_nvme += edges.host_to_nvme;
        add(&mut tier0, full.tier0.used_of_all());
        add(&mut host, full.host.used_of_all());
        add(&mut nvme, full.nvme_used_of_all());
    }
    let host_all = status.host.as_ref().map_or(0, |host| host.capacity_bytes);
    let nvme_all = status.disks.iter().map(|disk| disk.capacity_bytes).sum();
    let row = |name: &'a str, (used, granted), all, found_here, incoming, outgoing| {
        let cells = [bytes(used), bytes(granted), bytes(all), percent(used, all), percent(found_here, found.all())];
        Row::new([name.to_owned()].into_iter().chain(cells).chain([rate(incoming), rate(outgoing)]))
    };
    let rows = vec![
        row("tier 0", tier0, tier0.1, found.tier0, moves.host_to_tier0, moves.tier0_to_host),
        row(
            "host",
            host,
            host_all,
            found.host,
            moves.tier0_to_host + moves.nvme_to_host,
            moves.host_to_tier0 + moves.host_to_nvme,
        ),
        row("nvme", nvme, nvme_all, found.nvme, moves.host_to_nvme, moves.nvme_to_host),
    ];
    let names = ["", "used", "granted", "capacity", "full", "hits", "in", "out"];
    table("tiers", &names, &[7, 10, 10, 10, 7, 7, 12, 12], rows)
}

fn disk_table<'a>(status: &Snapshot, rates: &Rates) -> Table<'a> {
    let rows = status.disks.iter().map(|disk| {
        let (read, written) = rates.disk(disk);
        let alarming = disk.out_of_service.is_some() || disk.stalled || disk.failed() + disk.checksum_failures > 0;
        let style = if alarming { ALARM } else { Style::new() };
        let state = match (disk.out_of_service, disk.stalled) {
            (Some(_), _) => "OUT".to_owned(),
            (None, true) => "STALLED".to_owned(),
            (None, false) => "ready".to_owned(),
        };
        let endurance =
            status.endurance.iter().find(|endurance| endurance.disk == disk.number).copied().unwrap_or_default();
        let life = endurance.life_s.map_or_else(|| "-".to_owned(), duration);
        let failed = (disk.failed() + disk.checksum_failures).to_string();
        let device = format!("{}/{}", disk.at_device, disk.depth);
        let recorded = disk.log.blocks.to_string();
        let queued = disk.queued().to_string();
        let cells = [disk.number.to_string(), rate(read), rate(written), device, queued, failed, state, recorded, life];
        Row::new(cells.into_iter().chain([disk.mode.clone()])).style(style)
    });
    let names = ["disk", "read", "write", "flight", "queued", "failed", "state", "blocks", "life", "mode"];
    table("disks", &names, &[5, 12, 12, 8, 7, 7, 12, 9, 12, 28], rows.collect())
}

fn space_table<'a>(status: &Snapshot, rates: &Rates) -> Table<'a> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for space in &status.spaces {
        let (found, moves, (faults, waited)) = (rates.found(space), rates.moves(space), rates.faults(space));
        let share = |count| percent(count, found.all());
        let cells = [
            space.space.to_string(),
            space.name.clone(),
            share(found.tier0),
            share(found.host),
            share(found.nvme),
            rate(moves.host_to_tier0),
            rate(moves.tier0_to_host),
            rate(moves.nvme_to_host),
            rate(moves.host_to_nvme),
            per_second(faults),
            stall(waited),
        ];
        let lost = space.core.pages_lost + space.core.checksum_failed + space.sample.all().1 > 0;
        rows.push(Row::new(cells).style(if lost { ALARM } else { Style::new() }));
    }
    let title = match rows.is_empty() {
        true => "spaces: no engine attached",
        false => "spaces: hits by tier, transfers, waits",
    };
    let names =
        ["", "name", "tier 0", "host", "nvme", "host→t0", "t0→host", "nvme→host", "host→nvme", "faults/s", "stall"];
    table(title, &names, &[4, 14, 6, 6, 6, 11, 11, 11, 11, 8, 7], rows)
}

fn session_table<'a>(status: &Snapshot, rates: &Rates) -> Table<'a> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for space in &status.spaces {
        for attached in &space.attached {
            let figures = rates.session(space, attached);
            let known = status.sessions.iter().find(|session| session.session == attached.session);
            let SessionInfo { pid, uid, shard, .. } = known.cloned().unwrap_or_default();
            rows.push(Row::new([
                attached.session.to_string(),
                space.space.to_string(),
                shard.to_string(),
                pid.to_string(),
                uid.to_string(),
                rate(figures.loaded),
                rate(figures.stored),
                per_second(figures.requests),
                per_second(figures.faults),
                stall(figures.stalled),
                format!("{}+{}", attached.requests_in_flight, attached.jobs_in_flight),
            ]));
        }
    }
    let names = ["", "space", "shard", "pid", "uid", "loads", "stores", "req/s", "faults/s", "stall", "in flight"];
    table("sessions", &names, &[4, 5, 5, 8, 6, 12, 12, 8, 8, 7, 9], rows)
}

fn per_second(rate: f64) -> String {
    match rate {
        rate if rate < 0.05 => "-".into(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// Format waiting as a share of one lane's time. The sum of several lanes can exceed 100 %.
fn stall(seconds_a_second: f64) -> String {
    if seconds_a_second < 0.0005 { "-".into() } else { format!("{:.1}%", seconds_a_second * 100.0) }
}

#[cfg(test)]
mod tests;
