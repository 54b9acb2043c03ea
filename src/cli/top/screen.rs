//! Layout and tables of the screen. It fits 80 columns and 24 lines; what does not fit is counted in a table's title.

use super::super::cache::slow;
use super::super::status::units::{bytes, duration, percent, rate};
use super::rates::{Found, HitRates, Moves, Rates};
use super::{Sort, View};
use kvtide_daemon::status::{SessionInfo, SessionStatus, Snapshot, SpaceStatus};
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
/// Lines of one message in the head, at most; a longer message ends with "…".
const MESSAGE: usize = 4;
/// Lines of a table without its rows: title with border, header.
const FRAME: u16 = 2;
/// Disks shown if the screen is short.
const DISKS: u16 = 2;

/// Return the style of what is wrong; without color if `NO_COLOR` is set (no-color.org).
fn alarm() -> Style {
    let colored = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if colored { BOLD.fg(Color::Red) } else { BOLD.add_modifier(Modifier::REVERSED) }
}

/// Return a screen of this size as text.
pub(super) fn text(rates: &Rates, view: View, width: u16, height: u16) -> String {
    let (width, height) = (width.max(1), height.max(1));
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw(frame, rates, view));
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    let lines: Vec<String> = (0..height).map(line).collect();
    format!("{}\n", lines.join("\n").trim_end())
}

/// Draw the screen.
pub(super) fn draw(frame: &mut Frame<'_>, rates: &Rates, view: View) {
    let Some(status) = rates.status() else {
        return frame.render_widget(Paragraph::new("waiting for the daemon …"), frame.area());
    };
    let sessions: usize = status.spaces.iter().map(|space| space.attached.len()).sum();
    let lines = heading(status, rates, frame.area().width.into());
    let head_rows = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let rows =
        rows_of(frame.area().height.saturating_sub(head_rows), status.disks.len(), status.spaces.len(), sessions);
    let height = |rows: u16| Constraint::Length(rows + FRAME);
    let disks = if rows.disks == 0 { Constraint::Length(0) } else { height(rows.disks) };
    let parts = [Constraint::Length(head_rows), height(3), disks, height(rows.spaces), height(rows.engines)];
    let [head, tiers, disks, spaces, engines] = Layout::vertical(parts).areas(frame.area());
    let first = lines.first().map_or(0, Line::width);
    frame.render_widget(Paragraph::new(lines), head);
    frame.render_widget(tier_table(status, rates), tiers);
    if rows.disks > 0 {
        frame.render_widget(disk_table(status, rates, rows.disks), disks);
    }
    frame.render_widget(space_table(status, rates, view, rows.spaces), spaces);
    frame.render_widget(engine_table(status, rates, view, rows.engines), engines);
    keys(frame, head, first, view);
}

/// Rows of each table.
struct Rows {
    disks: u16,
    spaces: u16,
    engines: u16,
}

/// Divide the lines of a screen below its head among the tables: disks first, then spaces and engines alike.
fn rows_of(height: u16, disks: usize, spaces: usize, engines: usize) -> Rows {
    let at_most = |count: usize, max: u16| u16::try_from(count).unwrap_or(u16::MAX).min(max);
    let left = height.saturating_sub(3 + FRAME);
    let disks = at_most(disks, if height > 26 { left / 3 } else { DISKS });
    let left = left.saturating_sub(if disks == 0 { 0 } else { disks + FRAME }).saturating_sub(2 * FRAME);
    let half = left.div_ceil(2);
    let spaces_all = at_most(spaces, left);
    let engines_all = at_most(engines, left);
    let spaces = spaces_all.min(half.max(left.saturating_sub(engines_all)));
    Rows { disks, spaces, engines: engines_all.min(left - spaces) }
}

/// Return the lines above the tables: the daemon, its health, hits. A message that does not fit the width is wrapped: its end says what to do.
fn heading(status: &Snapshot, rates: &Rates, width: usize) -> Vec<Line<'static>> {
    let of = format!(
        "kvtided {}  pid {}  {}, up {}",
        status.build.version,
        status.pid,
        if status.drained { "drained".to_owned() } else { status.stage.to_string() },
        duration(status.uptime_s)
    );
    let (health, style) = match rates.lost() {
        Some(why) => (format!("LOST: {why}"), alarm()),
        None if status.unhealthy.is_empty() && status.degraded.is_empty() => (status.health(), Style::new()),
        None => (status.health(), alarm()),
    };
    let (hits, now) = (&status.hits, rates.hits_of_all(status));
    let asked = format!(
        "hits {} now, {} since start: {} of {} tokens found",
        percent(now.found, now.asked),
        percent(hits.found_tokens, hits.asked_tokens),
        count(hits.found_tokens as f64),
        count(hits.asked_tokens as f64)
    );
    let loaded = hits.loaded_tokens;
    let by_tier = [("tier 0", loaded.tier0), ("host", loaded.host), ("nvme", loaded.nvme)];
    let by_tier = by_tier.map(|(tier, tokens)| format!("{tier} {}", percent(tokens, loaded.total())));
    let loaded = format!("loaded {} tokens/s, from {}", count(now.loaded), by_tier.join(", "));
    let mut lines = vec![Line::styled(of, BOLD)];
    let mut message =
        |text: &str, style| lines.extend(wrapped(text, width).into_iter().map(|line| Line::styled(line, style)));
    message(&health, style);
    message(&asked, Style::new());
    message(&loaded, Style::new());
    slow(hits).inspect(|slow| message(&format!("SLOW: {slow}"), alarm()));
    lines
}

/// Break a message into lines at spaces, at most [`MESSAGE`] of them.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is a line");
        let (used, more) = (last.chars().count(), word.chars().count());
        match used {
            0 => last.push_str(word),
            _ if used + 1 + more <= width => *last += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.len() > MESSAGE {
        lines.truncate(MESSAGE);
        let last = lines.last_mut().expect("there is a line");
        *last = last.chars().take(width.saturating_sub(2)).chain(" …".chars()).collect();
    }
    lines
}

/// Format a number of things with three digits.
fn count(value: f64) -> String {
    match value {
        value if value < 0.05 => "0".into(),
        value if value < 10.0 => format!("{value:.1}"),
        value if value < 10_000.0 => format!("{value:.0}"),
        value if value < 10e6 => format!("{:.0}k", value / 1e3),
        value if value < 10e9 => format!("{:.0}M", value / 1e6),
        value => format!("{:.0}G", value / 1e9),
    }
}

/// Draw what keys do, to the right of the first line, which has `used` columns.
fn keys(frame: &mut Frame<'_>, head: Rect, used: usize, view: View) {
    let hint = format!("s sort: {}  d {}  q quit", view.sort.name(), if view.detail { "hits" } else { "pages" });
    let fits = |hint: &str| used + 2 + hint.len() <= usize::from(head.width);
    let hint = if fits(&hint) { hint } else { "s d q".to_owned() };
    if fits(&hint) {
        let width = hint.len() as u16;
        let place = Rect { x: head.right() - width, width, height: 1, ..head };
        frame.render_widget(Paragraph::new(Span::styled(hint, DIM)), place);
    }
}

fn table<'a>(title: String, names: &[&'a str], widths: &[u16], rows: Vec<Row<'a>>) -> Table<'a> {
    let block = Block::new().borders(Borders::TOP).title(Span::styled(format!("{title} "), BOLD)).border_style(DIM);
    let header = Row::new(names.iter().map(|name| Span::styled(*name, DIM)));
    Table::new(rows, widths.iter().map(|width| Constraint::Length(*width))).header(header).block(block)
}

/// Return a title that says how many rows are left out.
fn title(name: &str, all: usize, shown: u16) -> String {
    match all.saturating_sub(usize::from(shown)) {
        0 => name.to_owned(),
        more => format!("{name} ({more} more)"),
    }
}

/// Build the table of the tiers, summed over all spaces: fill, hits, transfer rates.
fn tier_table<'a>(status: &Snapshot, rates: &Rates) -> Table<'a> {
    let mut moves = Moves::default();
    let (mut tier0, mut host, mut nvme) = ((0, 0), (0, 0), (0, 0));
    let add = |sum: &mut (u64, u64), (used, all)| {
        *sum = (sum.0 + used, sum.1 + all);
    };
    for space in &status.spaces {
        let (edges, full) = (rates.moves(space), &space.occupancy);
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
    let row = |name: &'a str, (used, granted), all, incoming, outgoing| {
        let cells = [bytes(used), bytes(granted), bytes(all), percent(used, all)];
        Row::new([name.to_owned()].into_iter().chain(cells).chain([rate(incoming), rate(outgoing)]))
    };
    let rows = vec![
        row("tier 0", tier0, tier0.1, moves.host_to_tier0, moves.tier0_to_host),
        row("host", host, host_all, moves.tier0_to_host + moves.nvme_to_host, moves.host_to_tier0 + moves.host_to_nvme),
        row("nvme", nvme, nvme_all, moves.host_to_nvme, moves.nvme_to_host),
    ];
    let names = ["", "used", "granted", "capacity", "full", "in", "out"];
    table("tiers".into(), &names, &[7, 10, 10, 10, 7, 12, 12], rows)
}

fn disk_table<'a>(status: &Snapshot, rates: &Rates, shown: u16) -> Table<'a> {
    let rows = status.disks.iter().take(shown.into()).map(|disk| {
        let (read, written) = rates.disk(disk);
        let wrong = disk.out_of_service.is_some() || disk.stalled || disk.failed() + disk.checksum_failures > 0;
        let style = if wrong { alarm() } else { Style::new() };
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
        let (recorded, queued) = (disk.log.blocks.to_string(), disk.queued().to_string());
        let cells = [disk.number.to_string(), rate(read), rate(written), device, queued, failed, state, recorded, life];
        Row::new(cells).style(style)
    });
    let names = ["", "read", "write", "flight", "queued", "failed", "state", "blocks", "life"];
    table(title("disks", status.disks.len(), shown), &names, &[3, 12, 12, 8, 7, 7, 8, 9, 10], rows.collect())
}

/// Sort keys: tokens loaded a second, hit rate.
fn order(sort: Sort, hits: HitRates, name: &str, number: u32) -> (f64, String, u32) {
    match sort {
        Sort::Number => (0.0, String::new(), number),
        Sort::Loaded => (-hits.loaded, String::new(), number),
        Sort::HitRate if hits.asked == 0 => (f64::INFINITY, String::new(), number),
        Sort::HitRate => (hits.found as f64 / hits.asked as f64, String::new(), number),
        Sort::Name => (0.0, name.to_owned(), number),
    }
}

fn sorted<T>(items: impl Iterator<Item = T>, key: impl Fn(&T) -> (f64, String, u32)) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort_by(|a, b| {
        let ((a, of_a, nth_a), (b, of_b, nth_b)) = (key(a), key(b));
        a.total_cmp(&b).then(of_a.cmp(&of_b)).then(nth_a.cmp(&nth_b))
    });
    items
}

fn space_table<'a>(status: &Snapshot, rates: &Rates, view: View, shown: u16) -> Table<'a> {
    let spaces = sorted(status.spaces.iter(), |space| order(view.sort, rates.hits_of(space), &space.name, space.space));
    let rows = spaces.iter().take(shown.into()).map(|space| {
        let lost = space.core.pages_lost + space.core.checksum_failed + space.sample.all().1 > 0;
        let cells = if view.detail { pages(space, rates) } else { hits(space, rates) };
        Row::new(cells).style(if lost { alarm() } else { Style::new() })
    });
    let title = match status.spaces.is_empty() {
        true => "spaces: no engine attached".to_owned(),
        false => title("spaces", status.spaces.len(), shown),
    };
    match view.detail {
        true => {
            let names = ["", "name", "tier 0", "host", "nvme", "loads", "write-back", "faults/s", "stall"];
            table(title, &names, &[3, 14, 6, 6, 6, 11, 11, 8, 7], rows.collect())
        }
        false => {
            let names = ["", "name", "tenant", "blocks", "hit rate", "tokens/s", "host", "nvme"];
            table(title, &names, &[3, 16, 12, 8, 8, 9, 8, 8], rows.collect())
        }
    }
}

/// Cells of a space: its hits.
fn hits(space: &SpaceStatus, rates: &Rates) -> Vec<String> {
    let (now, full) = (rates.hits_of(space), &space.occupancy);
    vec![
        space.space.to_string(),
        space.name.clone(),
        space.domain.clone(),
        full.published.to_string(),
        percent(now.found, now.asked),
        count(now.loaded),
        bytes(full.host.used_of_all().0),
        bytes(full.nvme_used_of_all().0),
    ]
}

/// Cells of a space: where steps found their pages, and how long lanes waited.
fn pages(space: &SpaceStatus, rates: &Rates) -> Vec<String> {
    let (found, moves, (faults, waited)) = (rates.found(space), rates.moves(space), rates.faults(space));
    let share = |count| percent(count, Found::all(&found));
    vec![
        space.space.to_string(),
        space.name.clone(),
        share(found.tier0),
        share(found.host),
        share(found.nvme),
        rate(moves.host_to_tier0),
        rate(moves.tier0_to_host),
        per_second(faults),
        stall(waited),
    ]
}

fn engine_table<'a>(status: &Snapshot, rates: &Rates, view: View, shown: u16) -> Table<'a> {
    let info = |session: u32| status.sessions.iter().find(|info| info.session == session);
    let program = |session: u32| info(session).map_or(String::new(), |info| info.program.clone());
    let all = status.spaces.iter().flat_map(|space| space.attached.iter().map(move |attached| (space, attached)));
    let engines = sorted(all, |(space, attached): &(&SpaceStatus, &SessionStatus)| {
        let hits = rates.hits_of_session(space, attached);
        order(view.sort, hits, &program(attached.session), attached.session)
    });
    let rows = engines.iter().take(shown.into()).map(|(space, attached)| {
        let (figures, now) = (rates.session(space, attached), rates.hits_of_session(space, attached));
        let SessionInfo { program, pid, shard, .. } = info(attached.session).cloned().unwrap_or_default();
        Row::new([
            attached.session.to_string(),
            program,
            pid.to_string(),
            space.space.to_string(),
            shard.to_string(),
            percent(now.found, now.asked),
            count(now.loaded),
            rate(figures.loaded),
            rate(figures.stored),
            per_second(figures.faults),
        ])
    });
    let names = ["", "engine", "pid", "space", "shard", "hit rate", "tokens/s", "loads", "stores", "faults/s"];
    let rows = rows.collect();
    table(title("engines", engines.len(), shown), &names, &[4, 13, 7, 5, 5, 8, 8, 10, 10, 8], rows)
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
