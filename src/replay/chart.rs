//! Charts, as SVG.

use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

/// A named line.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// Size of a chart, in pixels.
const SIZE: (u32, u32) = (960, 540);
/// Colours that people who do not tell red from green can tell apart (Okabe and Ito 2008), black for the ceiling.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 120, 120),
    RGBColor(140, 86, 75),
];

struct Frame {
    caption: &'static str,
    x: &'static str,
    y: &'static str,
    across: Range<f64>,
    up: Range<f64>,
    /// Digits of what stands below the plot.
    digits: usize,
}

fn ends(lines: &[Line], of: fn(&(f64, f64)) -> f64) -> Range<f64> {
    let all = || lines.iter().flat_map(|(_, points)| points).map(of);
    all().fold(f64::INFINITY, f64::min)..all().fold(f64::NEG_INFINITY, f64::max)
}

/// Hit ratio by capacity: a line a policy.
pub(super) fn hits(path: &Path, lines: &[Line]) -> Result<(), String> {
    let frame = Frame {
        caption: "Prefix blocks found again",
        x: "blocks that NVMe holds, percent of the distinct ones",
        y: "hits of all blocks asked for",
        across: 0.0..ends(lines, |point| point.0).end * 1.05,
        up: 0.0..(ends(lines, |point| point.1).end * 1.1).max(0.01),
        digits: 1,
    };
    draw(path, lines, &frame).map_err(|error| error.to_string())
}

/// Share of attention in tier 0 by plane: a line a policy.
pub(super) fn shares(path: &Path, lines: &[Line]) -> Result<(), String> {
    let up = ends(lines, |point| point.1);
    let margin = ((up.end - up.start) * 0.1).max(0.005);
    let frame = Frame {
        caption: "Attention found in tier 0 when it was wanted",
        x: "plane",
        y: "share of the plane's attention",
        across: -0.2..ends(lines, |point| point.0).end + 0.2,
        up: (up.start - margin).max(0.0)..(up.end + margin).min(1.0 + margin),
        digits: 0,
    };
    draw(path, lines, &frame).map_err(|error| error.to_string())
}

fn draw(path: &Path, lines: &[Line], frame: &Frame) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    // Names stand beside the plot: over it they would hide lines.
    let (plot, names) = area.split_horizontally(SIZE.0 as i32 - 190);
    let mut chart = ChartBuilder::on(&plot)
        .caption(frame.caption, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(frame.across.clone(), frame.up.clone())?;
    // Whole numbers stand at whole numbers.
    let labels = if frame.digits == 0 { (frame.across.end.ceil() as usize).clamp(2, 16) } else { 11 };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(frame.x).y_desc(frame.y).light_line_style(TRANSPARENT).x_labels(labels);
    mesh.x_label_formatter(&|x| format!("{x:.*}", frame.digits)).draw()?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(4))?;
        let y = 60 + 26 * i as i32;
        names.draw(&PathElement::new([(0, y), (24, y)], colour.stroke_width(3)))?;
        names.draw(&Text::new(name.as_str(), (32, y - 8), ("sans-serif", 15)))?;
    }
    area.present()?;
    Ok(())
}
