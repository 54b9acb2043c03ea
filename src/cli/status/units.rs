//! Formatting of bytes, rates, durations and shares.

/// Format bytes in binary units with three digits: `1.50 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    scaled(count as f64)
}

/// Format a rate in binary units: `12.3 MiB/s`; a dash for zero.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 0.5 { "-".into() } else { scaled(per_second) + "/s" }
}

fn scaled(value: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match (unit, value) {
        (0, _) => 0,
        (_, value) if value < 9.995 => 2,
        (_, value) if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Format seconds as days, hours, minutes: the two largest units that are not zero.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Format a share in percent; a dash if `whole` is 0.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let share = part as f64 * 100.0 / whole as f64;
    // A value below 100 % is never shown as 100 %, one above 0 % never as 0 %.
    match share {
        share if part < whole && share > 99.95 => "99.9%".into(),
        share if part > 0 && share < 0.05 => "0.1%".into(),
        share => format!("{share:.1}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        let shown = [0, 999, 1000, 1 << 20, 10 << 20, 1023 << 20, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "0.98 KiB", "1.00 MiB", "10.0 MiB", "1.00 GiB", "16384 PiB"]);
        assert_eq!([rate(0.0), rate(2048.0)], ["-", "2.00 KiB/s"]);
        assert_eq!([5.0, 61.0, 7300.0, 90_000.0].map(duration), ["5 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]);
        assert_eq!(
            [percent(0, 0), percent(1, 3), percent(99_999, 100_000), percent(1, 100_000)],
            ["-", "33.3%", "99.9%", "0.1%"]
        );
    }
}
