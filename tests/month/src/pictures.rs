//! The pictures of `docs/lab-month.md`: plain SVG, in black and one colour for each policy, readable on white and on
//! black.

use std::path::Path;

use crate::measures::Ratio;
use crate::run::Policy;
use crate::span::hours;
use crate::table::{BIN, Seed};

const POLICIES: [(Policy, &str, &str); 3] = [
    (Policy::Fleet, "fleet", "#0072b2"),
    (Policy::Fifo, "FIFO with backfill", "#999999"),
    (Policy::Multifactor, "multifactor", "#d55e00"),
];
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
/// Around the lines: left, top.
const LEFT: f64 = 50.0;
const TOP: f64 = 30.0;
const INNER: (f64, f64) = (WIDTH - LEFT - 20.0, HEIGHT - TOP - 45.0);

/// One line of a picture: its colour and its points, both from 0 to 1.
type Line = (&'static str, Vec<(f64, f64)>);

/// Writes all three.
pub(crate) fn write(folder: &Path, seeds: &[Seed]) -> std::io::Result<()> {
    std::fs::write(folder.join("lab-month-shares.svg"), shares(seeds))?;
    std::fs::write(folder.join("lab-month-waits.svg"), waits(seeds))?;
    std::fs::write(folder.join("lab-month-use.svg"), held(seeds))
}

/// For each policy: which part of the windows got at most so much of the share due.
fn shares(seeds: &[Seed]) -> String {
    let lines = POLICIES.map(|(policy, _, colour)| {
        let mut all: Vec<f64> =
            seeds.iter().flat_map(|seed| seed.of(policy).ratios.iter().map(Ratio::value)).collect();
        all.sort_by(f64::total_cmp);
        let points = (0..=100).map(|percent| {
            let at = (all.len().saturating_sub(1)) * percent / 100;
            let value = all.get(at).copied().unwrap_or(1.0).min(1.5);
            (value / 1.5, percent as f64 / 100.0)
        });
        (colour, points.collect())
    });
    picture(
        "Part of the share due that people with work waiting received, in windows of 3 days",
        &["0", "0.5", "1.0", "1.5"],
        &["0 %", "50 %", "100 % of the windows"],
        &lines,
    )
}

/// For each policy: the mean wait by the number of GPUs.
fn waits(seeds: &[Seed]) -> String {
    let mean = |policy: Policy, at: usize| {
        let sum: f64 = seeds.iter().map(|seed| seed.of(policy).waits[at]).sum();
        sum / seeds.len().max(1) as f64
    };
    let most = POLICIES
        .iter()
        .flat_map(|(policy, ..)| (0..4).map(|at| mean(*policy, at)))
        .fold(1.0, f64::max);
    let lines = POLICIES.map(|(policy, _, colour)| {
        let points = (0..4).map(|at| (at as f64 / 3.0, mean(policy, at) / most));
        (colour, points.collect())
    });
    let top = format!("{most:.0} h mean wait");
    picture(
        "Mean wait to the first start, without scavengers",
        &["1 GPU", "2", "4", "8 GPUs"],
        &["0", &top],
        &lines,
    )
}

/// For each policy: the part of all GPUs that jobs held, in the month of the first seed.
fn held(seeds: &[Seed]) -> String {
    let lines: Vec<Line> = POLICIES
        .iter()
        .zip(0..)
        .filter_map(|((_, _, colour), at): (_, usize)| {
            let held = &seeds.first()?.held[at];
            let last = held.len().saturating_sub(1).max(1) as f64;
            let points = held.iter().enumerate().map(|(x, part)| (x as f64 / last, *part));
            Some((*colour, points.collect()))
        })
        .collect();
    let title = format!("GPUs held by jobs of the queue, means over {:.0} hours", hours(BIN));
    picture(&title, &["day 0", "7", "14", "21", "28"], &["0", "50 %", "100 %"], &lines)
}

fn picture(title: &str, across: &[&str], up: &[&str], lines: &[Line]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    let place = |(x, y): (f64, f64)| (LEFT + x * INNER.0, TOP + (1.0 - y) * INNER.1);
    let step = |at: usize, of: usize| at as f64 / of.saturating_sub(1).max(1) as f64;
    let mut add = |text: String| {
        svg.push_str(&text);
        svg.push('\n');
    };
    for (at, label) in across.iter().enumerate() {
        let ((x, bottom), (_, top)) =
            (place((step(at, across.len()), 0.0)), place((step(at, across.len()), 1.0)));
        add(format!(
            "<path d=\"M{x:.1} {bottom:.1}V{top:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        ));
    }
    for (at, label) in up.iter().enumerate() {
        let ((x, y), (right, _)) =
            (place((0.0, step(at, up.len()))), place((1.0, step(at, up.len()))));
        add(format!(
            "<path d=\"M{x:.1} {y:.1}H{right:.1}\" stroke=\"#ddd\"/>\
             <text x=\"4\" y=\"{:.1}\">{label}</text>",
            y - 3.0
        ));
    }
    for (colour, points) in lines {
        let points: Vec<String> = points
            .iter()
            .map(|point| place(*point))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        add(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        ));
    }
    for (at, (_, name, colour)) in POLICIES.iter().enumerate() {
        let x = LEFT + at as f64 * 170.0;
        let y = HEIGHT - 8.0;
        add(format!("<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{name}</text>"));
    }
    svg.push_str("</svg>\n");
    svg
}
