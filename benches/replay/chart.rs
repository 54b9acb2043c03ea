//! SVG charts.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;
use std::path::Path;

/// A named line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    /// An upper bound, drawn thin.
    pub(super) bound: bool,
}

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (960, 540);
/// Colours that remain distinct with red-green colour blindness (Okabe and Ito 2008); black for the upper bound.
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
    caption: String,
    x: String,
    y: &'static str,
    across: Range<f64>,
    up: Range<f64>,
    /// Decimal places of the x axis.
    digits: usize,
}

fn ends(lines: &[Line], of: fn(&(f64, f64)) -> f64) -> Range<f64> {
    let all = || lines.iter().flat_map(|line| &line.points).map(of);
    all().fold(f64::INFINITY, f64::min)..all().fold(f64::NEG_INFINITY, f64::max)
}

/// Draw the hit rate by capacity of the lowest tier, with one line per policy.
pub(super) fn hits(path: &Path, lines: &[Line], tier: &str) -> Result<(), String> {
    let frame = Frame {
        caption: "Prefix cache hit rate".into(),
        x: format!("capacity of {tier}, % of the trace's distinct blocks"),
        y: "hit rate of requested blocks",
        across: 0.0..ends(lines, |point| point.0).end * 1.05,
        up: 0.0..(ends(lines, |point| point.1).end * 1.1).max(0.01),
        digits: 1,
    };
    draw(path, lines, &frame).map_err(|error| error.to_string())
}

/// Draw the share of attention in tier 0 by plane, and its bounds.
pub(super) fn shares(path: &Path, lines: &[Line], capacity_percent: f64) -> Result<(), String> {
    let up = ends(lines, |point| point.1);
    let margin = ((up.end - up.start) * 0.1).max(0.005);
    let frame = Frame {
        caption: format!("Attention in a tier 0 of {capacity_percent} % of the pages"),
        x: "plane (layer, or group of layers)".into(),
        y: "mean share of a step's attention",
        across: -0.2..ends(lines, |point| point.0).end + 0.2,
        up: (up.start - margin).max(0.0)..(up.end + margin).min(1.0 + margin),
        digits: 0,
    };
    draw(path, lines, &frame).map_err(|error| error.to_string())
}

fn draw(path: &Path, lines: &[Line], frame: &Frame) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    // Names are beside the plot, where they do not hide lines.
    let (plot, names) = area.split_horizontally(SIZE.0 as i32 - 190);
    let mut chart = ChartBuilder::on(&plot)
        .caption(&frame.caption, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(52)
        .y_label_area_size(72)
        .build_cartesian_2d(frame.across.clone(), frame.up.clone())?;
    // Labels are at whole numbers.
    let labels = if frame.digits == 0 { (frame.across.end.ceil() as usize).clamp(2, 16) } else { 11 };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&frame.x).y_desc(frame.y).axis_desc_style(("sans-serif", 16)).label_style(("sans-serif", 14));
    mesh.light_line_style(TRANSPARENT).x_labels(labels);
    mesh.x_label_formatter(&|x| format!("{x:.*}", frame.digits)).y_label_formatter(&|y| format!("{y:.2}")).draw()?;
    for (i, line) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points = || line.points.iter().copied();
        // Not dashed: plotters would call a function of glibc 2.35, which RHEL 9 lacks.
        let stroke = colour.stroke_width(if line.bound { 1 } else { 3 });
        chart.draw_series(LineSeries::new(points(), stroke))?;
        // Different mark shapes make overlapping lines visible.
        let (shape, full) = (colour.stroke_width(2), colour.filled());
        match i % 3 {
            0 => _ = chart.draw_series(points().map(|at| Circle::new(at, 5, shape)))?,
            1 => _ = chart.draw_series(points().map(|at| Cross::new(at, 4, shape)))?,
            _ => _ = chart.draw_series(points().map(|at| TriangleMarker::new(at, 5, full)))?,
        }
        let y = 60 + 26 * i as i32;
        names.draw(&PathElement::new([(0, y), (26, y)], stroke))?;
        match i % 3 {
            0 => names.draw(&Circle::new((13, y), 5, shape))?,
            1 => names.draw(&Cross::new((13, y), 4, shape))?,
            _ => names.draw(&TriangleMarker::new((13, y), 5, full))?,
        }
        let style = ("sans-serif", 15).into_text_style(&names).pos(Pos::new(HPos::Left, VPos::Center));
        names.draw(&Text::new(line.name.as_str(), (36, y), style))?;
    }
    area.present()?;
    Ok(())
}
