//! Figures to SVG: a file of its own, or the pieces of a page that arranges them and lets series be toggled and read.

use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::look::{self, Marker, Theme};
use super::scale::{Scale, value};
use super::text::{escaped, fitted, lines, width};
use crate::infer::propagation::Method;
use std::fmt::Write;

/// Size of axis labels; ticks are smaller.
const FONT: f64 = 11.0;
const TICK: f64 = 10.0;

/// A panel of a page: alone, among others, among four or more in a row, in a matrix.
const ALONE: f64 = 400.0;
const AMONG: f64 = 340.0;
const AMONG_FOUR: f64 = 280.0;
const IN_MATRIX: f64 = 150.0;

/// A panel of a file is not made narrower than this: there are fewer in a row.
const NARROWEST: f64 = 150.0;

/// Height of a row of a vertical axis of names.
const CATEGORY: f64 = 24.0;

/// Between panels.
const GAP: f64 = 10.0;

/// Most of a panel's width that the names of a vertical axis take.
const MOST_NAMES: f64 = 0.42;

/// Room around the plot for ticks, labels and title.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Margins {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Margins {
    fn or(self, other: Self) -> Self {
        Self {
            left: self.left.max(other.left),
            right: self.right.max(other.right),
            top: self.top.max(other.top),
            bottom: self.bottom.max(other.bottom),
        }
    }
}

/// Whether panels keep their places, those without marks staying empty, as in a pairs plot.
fn is_matrix(figure: &Figure) -> bool {
    figure.columns > 1 && figure.panels.iter().any(|panel| panel.marks.is_empty())
}

/// The series of the legend, each with the first shape that it has.
fn keys(figure: &Figure) -> Vec<(&Series, &Shape)> {
    let mut keys: Vec<(&Series, &Shape)> = Vec::new();
    let named = figure.panels.iter().flat_map(|panel| &panel.marks).filter(|mark| !mark.series.name.is_empty());
    for Mark { series, shape } in named {
        if !keys.iter().any(|(known, _)| known.name == series.name) {
            keys.push((series, shape));
        }
    }
    // Methods in one order everywhere, whichever is drawn on top.
    let order = |ink: Ink| match ink {
        Ink::Method(method) => Method::known().iter().position(|own| own.name() == method.name()),
        _ => None,
    };
    let mut methods: Vec<(&Series, &Shape)> = keys.iter().copied().filter(|key| order(key.0.ink).is_some()).collect();
    methods.sort_by_key(|key| order(key.0.ink));
    let mut methods = methods.into_iter();
    let placed = keys.iter().map(|key| if order(key.0.ink).is_some() { methods.next().unwrap_or(*key) } else { *key });
    placed.collect()
}

/// Names of the series of the legend with the drawing that stands beside each, 26 by 12.
pub(super) fn legend(figure: &Figure, theme: Theme) -> Vec<(String, String)> {
    keys(figure).into_iter().map(|(series, shape)| (series.name.clone(), swatch(series, shape, theme))).collect()
}

fn swatch(series: &Series, shape: &Shape, theme: Theme) -> String {
    let look = look::of(series.ink);
    let colour = look.colour(theme);
    let line = |thick: f64| {
        format!(
            "<path d=\"M1 6H25\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{thick}\"{}/>",
            dashes(look.dashes)
        )
    };
    match shape {
        Shape::Line(_) | Shape::Rules(..) => line(1.8),
        Shape::Band(_) => format!(
            "<rect x=\"1\" y=\"1\" width=\"24\" height=\"10\" fill=\"{colour}\" fill-opacity=\"{}\"/>",
            look.band
        ),
        Shape::Bars(..) => format!("<rect x=\"5\" y=\"1\" width=\"16\" height=\"10\" fill=\"{colour}\"/>"),
        Shape::Intervals(..) => {
            let line = format!("<path d=\"M1 6H25\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>");
            line + &marker(look.marker, 13.0, 6.0, 3.2, &colour, look::ground(theme), "")
        }
        Shape::Points(..) | Shape::Dots(_) => marker(look.marker, 13.0, 6.0, 3.4, &colour, look::ground(theme), ""),
    }
}

/// The figure as a file `width` pixels wide (96 to the inch), its legend above the panels.
pub fn file(figure: &Figure, width: f64) -> String {
    let theme = Theme::Paper;
    let columns = match is_matrix(figure) {
        true => figure.columns,
        false => figure.columns.min((width / NARROWEST) as usize).clamp(1, figure.panels.len().max(1)),
    };
    let (legend, below) = legend_rows(figure, width, theme);
    let (panels, height) = grid(figure, columns, width, theme);
    let total = below + height;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" \
         font-family=\"Inter, Helvetica, Arial, sans-serif\"><title>{}</title><desc>{}</desc>\
         <rect width=\"100%\" height=\"100%\" fill=\"{}\"/>{legend}<g transform=\"translate(0 {})\">{panels}</g></svg>\n",
        short(width),
        short(total),
        short(width),
        short(total),
        escaped(&figure.title),
        escaped(&figure.caption),
        look::ground(theme),
        short(below),
    )
}

/// The figure's panels as a page arranges them: one drawing each, or one of all where they keep their places.
pub(super) fn page(figure: &Figure) -> Vec<String> {
    let theme = Theme::Page;
    let open = |width: f64, height: f64, title: &str, least: f64| {
        format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" style=\"max-width:{}px;min-width:{}px\">",
            short(width),
            short(height),
            escaped(title),
            short(1.25 * width),
            short(least)
        )
    };
    if is_matrix(figure) {
        let width = (IN_MATRIX * figure.columns as f64).max(ALONE);
        let (panels, height) = grid(figure, figure.columns, width, theme);
        return vec![format!("{}{panels}</svg>", open(width, height, &figure.title, 0.6 * width))];
    }
    let width = match figure.columns {
        _ if figure.panels.len() == 1 => ALONE,
        0..4 => AMONG,
        _ => AMONG_FOUR,
    };
    let scales: Vec<[Scale; 2]> = figure.panels.iter().map(scales).collect();
    let heights: Vec<f64> = figure.panels.iter().map(|panel| plot_height(panel, figure.aspect, width)).collect();
    let margins: Vec<Margins> =
        (0..heights.len()).map(|i| margins(&figure.panels[i], &scales[i], width, heights[i])).collect();
    // Panels that stand above each other have their axes above each other.
    let common = margins.iter().copied().fold(Margins::default(), Margins::or);
    let one = |i: usize| {
        let margins = Margins { left: common.left, right: common.right, ..margins[i] };
        let height = margins.top + heights[i] + margins.bottom;
        let name = if figure.panels[i].title.is_empty() { &figure.title } else { &figure.panels[i].title };
        format!(
            "{}{}</svg>",
            open(width, height, name, 0.0),
            panel(figure, i, &scales[i], width, heights[i], margins, theme)
        )
    };
    (0..heights.len()).map(one).collect()
}

/// All panels in rows of `columns`, and how high they are together.
fn grid(figure: &Figure, columns: usize, total: f64, theme: Theme) -> (String, f64) {
    let cell = (total - GAP * (columns as f64 - 1.0)) / columns as f64;
    let n = figure.panels.len();
    let scales: Vec<[Scale; 2]> = figure.panels.iter().map(scales).collect();
    let all: Vec<Margins> = (0..n)
        .map(|i| {
            let panel = &figure.panels[i];
            margins(panel, &scales[i], cell, plot_height(panel, figure.aspect, cell))
        })
        .collect();
    let rows = n.div_ceil(columns);
    let of = |keep: &dyn Fn(usize) -> bool| {
        (0..n).filter(|i| keep(*i)).map(|i| all[i]).fold(Margins::default(), Margins::or)
    };
    let by_column: Vec<Margins> = (0..columns).map(|column| of(&|i| i % columns == column)).collect();
    let by_row: Vec<Margins> = (0..rows).map(|row| of(&|i| i / columns == row)).collect();
    // Plots are equally wide; what labels take comes from all.
    let labels: f64 = by_column.iter().map(|m| m.left + m.right).sum();
    let plot = ((total - GAP * (columns as f64 - 1.0) - labels) / columns as f64).max(20.0);
    let mut out = String::new();
    let mut y = 0.0;
    for (row, around) in by_row.iter().enumerate() {
        let members = row * columns..n.min((row + 1) * columns);
        let height = members.clone().map(|i| plot_height(&figure.panels[i], figure.aspect, cell)).fold(0.0, f64::max);
        let mut x = 0.0;
        for (i, beside) in members.zip(&by_column) {
            let margins = Margins { left: beside.left, right: beside.right, top: around.top, bottom: around.bottom };
            let width = margins.left + plot + margins.right;
            if !figure.panels[i].marks.is_empty() {
                let drawn = panel(figure, i, &scales[i], width, height, margins, theme);
                let _ = write!(out, "<g transform=\"translate({} {})\">{drawn}</g>", short(x), short(y));
            }
            x += width + GAP;
        }
        y += around.top + height + around.bottom + GAP;
    }
    (out, (y - GAP).max(0.0))
}

/// The legend of a file, row by row, and where what stands below it begins.
fn legend_rows(figure: &Figure, room: f64, theme: Theme) -> (String, f64) {
    const ROW: f64 = 17.0;
    let (mut x, mut y, mut out) = (4.0, 4.0, String::new());
    for (name, swatch) in legend(figure, theme) {
        let name = fitted(&name, (room - 44.0) / TICK);
        let needed = 30.0 + TICK * width(&name) + 14.0;
        if x > 4.0 && x + needed > room {
            (x, y) = (4.0, y + ROW);
        }
        let _ = write!(
            out,
            "<g transform=\"translate({} {})\">{swatch}<text x=\"30\" y=\"9.6\" font-size=\"{TICK}\" fill=\"{}\">{}</text></g>",
            short(x),
            short(y),
            look::text(theme),
            escaped(&name)
        );
        x += needed;
    }
    if out.is_empty() { (out, 0.0) } else { (out, y + ROW + 4.0) }
}

fn plot_height(panel: &Panel, aspect: f64, width: f64) -> f64 {
    match panel.y.categories.len() {
        0 => aspect * width.min(ALONE),
        n => CATEGORY * n as f64 + 8.0,
    }
}

/// Scales of both axes, not yet placed.
fn scales(panel: &Panel) -> [Scale; 2] {
    let (mut x, mut y): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for mark in &panel.marks {
        match &mark.shape {
            Shape::Line(points) | Shape::Points(points, _) | Shape::Dots(points) => {
                x.extend(points.iter().map(|p| p[0]));
                y.extend(points.iter().map(|p| p[1]));
            }
            Shape::Band(points) => {
                x.extend(points.iter().map(|p| p[0]));
                y.extend(points.iter().flat_map(|p| [p[1], p[2]]));
            }
            Shape::Intervals(direction, intervals) => {
                let (along, across) = match direction {
                    Direction::Horizontal => (&mut x, &mut y),
                    Direction::Vertical => (&mut y, &mut x),
                };
                along.extend(intervals.iter().flat_map(|i| [i[1], i[3], i[5]]));
                across.extend(intervals.iter().map(|i| i[0]));
            }
            Shape::Bars(bars, _) => {
                x.extend(bars.iter().flat_map(|b| [b[0], b[1]]));
                y.extend(bars.iter().flat_map(|b| [b[2], b[3]]));
            }
            Shape::Rules(Direction::Horizontal, at) => y.extend(at),
            Shape::Rules(Direction::Vertical, at) => x.extend(at),
        }
    }
    [Scale::new(&panel.x, x.into_iter()), Scale::new(&panel.y, y.into_iter())]
}

/// Ticks of a vertical axis of this height.
fn y_ticks(panel: &Panel, scale: &Scale, height: f64) -> Vec<(f64, String)> {
    if panel.y.bare { Vec::new() } else { scale.ticks(((height / 30.0) as usize).clamp(2, 7)) }
}

/// As many ticks of a horizontal axis of this width as do not touch.
fn x_ticks(panel: &Panel, scale: &Scale, room: f64) -> Vec<(f64, String)> {
    if panel.x.bare {
        return Vec::new();
    }
    let fits = |ticks: &Vec<(f64, String)>| {
        let widest = ticks.iter().map(|(_, text)| width(text)).fold(0.0, f64::max);
        let scale = scale.drawn(0.0, room);
        let gaps = ticks.windows(2).map(|pair| (scale.at(pair[1].0) - scale.at(pair[0].0)).abs());
        gaps.fold(f64::INFINITY, f64::min) >= TICK * widest + 8.0
    };
    let candidates = (1..=7).rev().map(|most| scale.ticks(most));
    candidates.clone().find(fits).unwrap_or_else(|| scale.ticks(1).into_iter().take(1).collect())
}

/// Names of a horizontal axis stand upright where each has room, else aslant.
fn slant(panel: &Panel, plot: f64) -> bool {
    let widest = panel.x.categories.iter().map(|name| width(name)).fold(0.0, f64::max);
    TICK * widest + 6.0 > plot / panel.x.categories.len().max(1) as f64
}

/// Longest drawn name of a horizontal axis.
const LONGEST_SLANTED: f64 = 12.0;

fn margins(panel: &Panel, [_, y]: &[Scale; 2], cell: f64, height: f64) -> Margins {
    let label = |axis: &Axis| if axis.label.is_empty() { 0.0 } else { FONT + 6.0 };
    let names = |axis: &Axis| axis.categories.iter().map(|name| width(name)).fold(0.0, f64::max);
    if panel.marks.is_empty() {
        return Margins::default();
    }
    let left = match panel.y.categories.is_empty() {
        false => (TICK * names(&panel.y) + 9.0).min(MOST_NAMES * cell),
        true => {
            let widest = y_ticks(panel, y, height).iter().map(|(_, text)| width(text)).fold(0.0, f64::max);
            TICK * widest + if widest > 0.0 { 8.0 } else { 4.0 }
        }
    };
    let left = left + label(&panel.y);
    let plot = cell - left - 8.0;
    let below = match (panel.x.categories.is_empty(), panel.x.bare) {
        (false, _) if slant(panel, plot) => 8.0 + 0.6 * TICK * names(&panel.x).min(LONGEST_SLANTED) + TICK,
        (true, true) => 4.0,
        _ => TICK + 8.0,
    };
    let title = if panel.title.is_empty() { 8.0 } else { title_lines(panel, cell).len() as f64 * (FONT + 3.0) + 8.0 };
    Margins { left, right: 10.0, top: title, bottom: below + label(&panel.x) }
}

/// A title has two lines at most.
fn title_lines(panel: &Panel, cell: f64) -> Vec<String> {
    let room = (cell - 12.0) / FONT;
    let mut lines = lines(&panel.title, room);
    if lines.len() > 2 {
        let rest = lines.split_off(1).join(" ");
        lines.push(fitted(&format!("{rest}…"), room));
    }
    lines
}

/// One panel with its axes, `width` wide.
fn panel(
    figure: &Figure,
    index: usize,
    [x, y]: &[Scale; 2],
    width: f64,
    height: f64,
    margins: Margins,
    theme: Theme,
) -> String {
    let panel = &figure.panels[index];
    let plot = (width - margins.left - margins.right).max(20.0);
    let x = x.drawn(0.0, plot);
    let y = if panel.y.categories.is_empty() { y.drawn(height, 0.0) } else { y.drawn(0.0, height) };
    let mut out = String::new();
    let lines = title_lines(panel, width);
    for (i, line) in lines.iter().enumerate() {
        let at = margins.top - 6.0 - (lines.len() - 1 - i) as f64 * (FONT + 3.0);
        let anchor = margins.left.min(width - 12.0);
        // Titles begin above the plot where there is room, else at the edge.
        let fits = anchor + FONT * self::width(line) <= width;
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"{FONT}\" font-weight=\"600\" fill=\"{}\">{}</text>",
            short(if fits { anchor } else { 2.0 }),
            short(at),
            look::text(theme),
            escaped(line)
        );
    }
    axes(&mut out, panel, &x, &y, [plot, height], margins, width, theme);
    let _ = write!(
        out,
        "<svg class=\"plot\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\"",
        short(margins.left),
        short(margins.top),
        short(plot),
        short(height),
        short(plot),
        short(height)
    );
    if theme == Theme::Page {
        let ends = |axis: &Axis, scale: &Scale| format!("{:e},{:e},{}", scale.low, scale.high, u8::from(axis.log));
        let readable = |axis: &Axis| axis.categories.is_empty();
        if readable(&panel.x) && readable(&panel.y) {
            let _ = write!(
                out,
                " data-x=\"{}\" data-y=\"{}\" data-xl=\"{}\" data-yl=\"{}\"",
                ends(&panel.x, &x),
                ends(&panel.y, &y),
                escaped(&panel.x.label),
                escaped(&panel.y.label)
            );
        }
    }
    out.push('>');
    for mark in &panel.marks {
        match mark.series.name.as_str() {
            "" => out.push_str("<g class=\"marks\">"),
            name => {
                let _ = write!(out, "<g class=\"series\" data-series=\"{}\">", escaped(name));
            }
        }
        draw(&mut out, mark, panel, &x, &y, [plot, height], theme);
        out.push_str("</g>");
    }
    out.push_str("</svg>");
    out
}

fn axes(
    out: &mut String,
    panel: &Panel,
    x: &Scale,
    y: &Scale,
    [plot, height]: [f64; 2],
    margins: Margins,
    width: f64,
    theme: Theme,
) {
    let (grid, muted, ink) = (look::grid(theme), look::muted(theme), look::text(theme));
    let (left, top) = (margins.left, margins.top);
    let bottom = top + height;
    let inside = |at: f64, end: f64| at.is_finite() && at >= -0.5 && at <= end + 0.5;
    let text = |out: &mut String, x: f64, y: f64, anchor: &str, words: &str, full: Option<&str>| {
        let hint = full.map_or(String::new(), |full| format!("<title>{}</title>", escaped(full)));
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{}\" font-size=\"{TICK}\" text-anchor=\"{anchor}\" fill=\"{muted}\">{}{hint}</text>",
            short(x),
            short(y),
            escaped(words)
        );
    };
    let mut lines = String::new();
    if panel.x.categories.is_empty() {
        let ticks = x_ticks(panel, x, plot);
        let half = |words: &str| 0.5 * TICK * self::width(words);
        for (value, words) in ticks.iter().filter(|(value, _)| inside(x.at(*value), plot)) {
            let _ = write!(lines, "M{} {}V{}", short(left + x.at(*value)), short(top), short(bottom));
            // A number at the end of the axis stays within the drawing.
            let at = (left + x.at(*value)).min(width - half(words)).max(half(words));
            text(out, at, bottom + TICK + 4.0, "middle", words, None);
        }
    } else {
        let slanted = slant(panel, plot);
        for (i, name) in panel.x.categories.iter().enumerate() {
            let at = left + x.at(i as f64);
            if slanted {
                let short_name = fitted(name, LONGEST_SLANTED);
                let _ = write!(
                    out,
                    "<text class=\"tick\" transform=\"translate({} {}) rotate(-36)\" font-size=\"{TICK}\" \
                     text-anchor=\"end\" fill=\"{muted}\">{}<title>{}</title></text>",
                    short(at + 3.0),
                    short(bottom + TICK + 1.0),
                    escaped(&short_name),
                    escaped(name)
                );
            } else {
                text(out, at, bottom + TICK + 4.0, "middle", name, None);
            }
        }
    }
    if panel.y.categories.is_empty() {
        for (value, words) in y_ticks(panel, y, height).iter().filter(|(value, _)| inside(y.at(*value), height)) {
            let at = top + y.at(*value);
            let _ = write!(lines, "M{} {}H{}", short(left), short(at), short(left + plot));
            text(out, left - 5.0, at + 0.35 * TICK, "end", words, None);
        }
    } else {
        let label = if panel.y.label.is_empty() { 0.0 } else { FONT + 6.0 };
        for (i, name) in panel.y.categories.iter().enumerate() {
            let shown = fitted(name, (left - label - 8.0) / TICK);
            let full = (shown != *name).then_some(name.as_str());
            text(out, left - 6.0, top + y.at(i as f64) + 0.35 * TICK, "end", &shown, full);
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "<path d=\"{lines}\" stroke=\"{grid}\" stroke-width=\"0.8\" fill=\"none\"/>");
    }
    let _ = write!(
        out,
        "<path d=\"M{} {}V{}H{}\" stroke=\"{muted}\" stroke-width=\"0.9\" fill=\"none\"/>",
        short(left),
        short(top),
        short(bottom),
        short(left + plot)
    );
    let title = |room: f64, axis: &Axis| {
        let shown = fitted(&axis.label, room / FONT);
        let hint = if shown == axis.label { String::new() } else { format!("<title>{}</title>", escaped(&axis.label)) };
        format!("{}{hint}", escaped(&shown))
    };
    if !panel.x.label.is_empty() {
        let words = title(width - 4.0, &panel.x);
        let half = 0.5 * FONT * self::width(&panel.x.label).min((width - 4.0) / FONT);
        let at = (left + 0.5 * plot).min(width - half - 1.0).max(half + 1.0);
        let _ = write!(
            out,
            "<text class=\"label\" x=\"{}\" y=\"{}\" font-size=\"{FONT}\" text-anchor=\"middle\" fill=\"{ink}\">{words}</text>",
            short(at),
            short(bottom + margins.bottom - 5.0)
        );
    }
    if !panel.y.label.is_empty() {
        let words = title(height + margins.top, &panel.y);
        // A label longer than its axis reaches above it rather than below.
        let half = 0.5 * FONT * self::width(&panel.y.label).min((height + margins.top) / FONT);
        let at = (top + 0.5 * height).min(bottom - half).max(half);
        let _ = write!(
            out,
            "<text class=\"label\" transform=\"translate({} {}) rotate(-90)\" font-size=\"{FONT}\" text-anchor=\"middle\" \
             fill=\"{ink}\">{words}</text>",
            short(FONT),
            short(at)
        );
    }
}

fn draw(out: &mut String, mark: &Mark, panel: &Panel, x: &Scale, y: &Scale, size: [f64; 2], theme: Theme) {
    let look = look::of(mark.series.ink);
    let (colour, ground) = (look.colour(theme), look::ground(theme));
    let [plot, height] = size;
    let place = |p: &[f64; 2]| [x.at(p[0]), y.at(p[1])];
    let tip = |words: String| match theme {
        Theme::Page if !words.is_empty() => format!(" data-tip=\"{}\"", escaped(&words)),
        _ => String::new(),
    };
    let name_of = |axis: &Axis, at: f64| axis.categories.get(at.round() as usize).cloned();
    match &mark.shape {
        Shape::Line(points) => {
            let path = path(points.iter().map(place));
            // Dashes and width would hide what a line of many points does, such as a chain.
            let (dashes, width) = if points.len() > MANY { (String::new(), 0.8) } else { (dashes(look.dashes), 1.7) };
            let _ = write!(
                out,
                "<path class=\"line\" d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
                 stroke-linejoin=\"round\"{dashes}/>"
            );
        }
        Shape::Band(points) => {
            let usable: Vec<&[f64; 3]> = points.iter().filter(|p| p.iter().all(|v| v.is_finite())).collect();
            // On a logarithmic axis what is not positive lies below everything.
            let low = |v: f64| if y.at(v).is_nan() { height } else { y.at(v) };
            let upper = usable.iter().map(|p| [x.at(p[0]), low(p[2])]);
            let lower = usable.iter().rev().map(|p| [x.at(p[0]), low(p[1])]);
            let path = path(upper.chain(lower));
            let _ = write!(
                out,
                "<path class=\"band\" d=\"{path}Z\" fill=\"{colour}\" fill-opacity=\"{}\" stroke=\"none\"/>",
                look.band
            );
        }
        Shape::Points(points, tips) => {
            for (i, point) in points.iter().enumerate() {
                let [px, py] = place(point);
                if px.is_finite() && py.is_finite() {
                    let words = tips.get(i).cloned().unwrap_or_else(|| {
                        let named = name_of(&panel.x, point[0]).or_else(|| name_of(&panel.y, point[1]));
                        let numbers = format!("{}, {}", value(point[0]), value(point[1]));
                        let said = named.map_or(numbers, |name| format!("{name}: {}", value(point[1])));
                        [mark.series.name.as_str(), &said].join("\n").trim().to_owned()
                    });
                    out.push_str(&marker(look.marker, px, py, 3.0, &colour, ground, &tip(words)));
                }
            }
        }
        Shape::Dots(points) => {
            let mut path = String::new();
            for [px, py] in points.iter().map(place).filter(|p| p.iter().all(|v| v.is_finite())) {
                let _ = write!(path, "M{} {}h0", short(px), short(py));
            }
            let _ = write!(
                out,
                "<path class=\"dots\" d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.4\" stroke-opacity=\"0.45\" \
                 stroke-linecap=\"round\"/>"
            );
        }
        Shape::Intervals(direction, intervals) => {
            for [at, low, inner_low, middle, inner_high, high] in intervals {
                let (along, across, axis) = match direction {
                    Direction::Horizontal => (x, y.at(*at), &panel.y),
                    Direction::Vertical => (y, x.at(*at), &panel.x),
                };
                let [low_at, high_at, middle_at] = [*low, *high, *middle].map(|v| along.at(v));
                if ![across, low_at, high_at, middle_at].iter().all(|v| v.is_finite()) {
                    continue;
                }
                let heading: Vec<String> = [mark.series.name.clone()]
                    .into_iter()
                    .chain(name_of(axis, *at))
                    .filter(|s| !s.is_empty())
                    .collect();
                let mut heading = heading;
                heading.dedup();
                let words = format!("{}\n{} [{}, {}]", heading.join(", "), value(*middle), value(*low), value(*high));
                let _ = write!(out, "<g{}>", tip(words.trim().to_owned()));
                let mut segment = |a: f64, b: f64, thick: f64| {
                    let d = match direction {
                        Direction::Horizontal => format!("M{} {}H{}", short(a), short(across), short(b)),
                        Direction::Vertical => format!("M{} {}V{}", short(across), short(a), short(b)),
                    };
                    let _ = write!(out, "<path d=\"{d}\" stroke=\"{colour}\" stroke-width=\"{thick}\" fill=\"none\"/>");
                };
                segment(low_at, high_at, 1.5);
                let [a, b] = [*inner_low, *inner_high].map(|v| along.at(v));
                if a.is_finite() && b.is_finite() {
                    segment(a, b, 4.5);
                }
                let (mx, my) =
                    if *direction == Direction::Horizontal { (middle_at, across) } else { (across, middle_at) };
                out.push_str(&marker(look.marker, mx, my, 3.3, &colour, ground, ""));
                out.push_str("</g>");
            }
        }
        Shape::Bars(bars, tips) => {
            for (i, bar) in bars.iter().enumerate() {
                let [x0, x1] = [bar[0], bar[1]].map(|v| x.at(v));
                let [y0, y1] = [bar[2], bar[3]].map(|v| y.at(v));
                if ![x0, x1, y0, y1].iter().all(|v| v.is_finite()) {
                    continue;
                }
                let _ = write!(
                    out,
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\" stroke=\"{ground}\" \
                     stroke-width=\"0.6\"{}/>",
                    short(x0.min(x1)),
                    short(y0.min(y1)),
                    short((x1 - x0).abs()),
                    short((y1 - y0).abs()),
                    tip(tips.get(i).cloned().unwrap_or_default())
                );
            }
        }
        Shape::Rules(direction, places) => {
            for at in places {
                let d = match direction {
                    Direction::Horizontal => {
                        let at = y.at(*at);
                        at.is_finite().then(|| format!("M0 {}H{}", short(at), short(plot)))
                    }
                    Direction::Vertical => {
                        let at = x.at(*at);
                        at.is_finite().then(|| format!("M{} 0V{}", short(at), short(height)))
                    }
                };
                let words = [mark.series.name.as_str(), &value(*at)].join(" ");
                if let Some(d) = d {
                    let _ = write!(
                        out,
                        "<path d=\"{d}\" stroke=\"{colour}\" stroke-width=\"1.3\" fill=\"none\"{}{}/>",
                        dashes(look.dashes),
                        tip(words.trim().to_owned())
                    );
                }
            }
        }
    }
}

/// A line of more points is drawn thin.
const MANY: usize = 400;

/// Points that are nearer than this to the last one add nothing that can be seen.
const NEAR: f64 = 0.35;

/// A path through points, interrupted where they are not finite.
fn path(points: impl Iterator<Item = [f64; 2]>) -> String {
    let (mut out, mut last): (String, Option<[f64; 2]>) = (String::new(), None);
    let mut skipped: Option<[f64; 2]> = None;
    let push = |out: &mut String, command: char, p: [f64; 2]| {
        let _ = write!(out, "{command}{} {}", short(p[0]), short(p[1]));
    };
    for p in points {
        if !(p[0].is_finite() && p[1].is_finite()) {
            last = None;
            skipped = None;
            continue;
        }
        // Far outside the plot nothing is drawn, and numbers stay short.
        let p = p.map(|v| v.clamp(-1e4, 1e4));
        match last {
            None => push(&mut out, 'M', p),
            Some(before) if (p[0] - before[0]).abs() < NEAR && (p[1] - before[1]).abs() < NEAR => {
                skipped = Some(p);
                continue;
            }
            Some(_) => push(&mut out, 'L', p),
        }
        last = Some(p);
        skipped = None;
    }
    if let Some(p) = skipped {
        push(&mut out, 'L', p);
    }
    out
}

fn marker(form: Marker, x: f64, y: f64, radius: f64, colour: &str, ground: &str, attributes: &str) -> String {
    let [x, y] = [x, y].map(|v| v.clamp(-1e4, 1e4));
    let points = |corners: &[[f64; 2]]| -> String {
        let corner = |(i, c): (usize, &[f64; 2])| {
            format!("{}{} {}", if i == 0 { 'M' } else { 'L' }, short(x + radius * c[0]), short(y + radius * c[1]))
        };
        corners.iter().enumerate().map(corner).collect()
    };
    let filled = |d: String| {
        format!("<path d=\"{d}Z\" fill=\"{colour}\" stroke=\"{ground}\" stroke-width=\"0.8\"{attributes}/>")
    };
    match form {
        Marker::Circle => format!(
            "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{colour}\" stroke=\"{ground}\" stroke-width=\"0.8\"{attributes}/>",
            short(x),
            short(y),
            short(radius)
        ),
        Marker::Square => filled(points(&[[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]])),
        Marker::Triangle => filled(points(&[[0.0, -1.2], [1.1, 0.8], [-1.1, 0.8]])),
        Marker::Diamond => filled(points(&[[0.0, -1.3], [1.3, 0.0], [0.0, 1.3], [-1.3, 0.0]])),
        Marker::Cross => {
            let d = points(&[[-1.0, -1.0], [1.0, 1.0]]) + &points(&[[-1.0, 1.0], [1.0, -1.0]]);
            format!("<path d=\"{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{attributes}/>")
        }
    }
}

fn dashes(pattern: &str) -> String {
    if pattern.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{pattern}\"") }
}

/// A coordinate with one decimal.
fn short(v: f64) -> String {
    let text = format!("{v:.1}");
    text.strip_suffix(".0").map_or(text.clone(), |whole| if whole == "-0" { "0".into() } else { whole.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::super::png::png;
    use super::*;

    /// Every shape, with names that are not nice.
    fn figure(name: &str) -> Figure {
        let curve = |shift: f64| {
            let x = (0..200).map(|i| f64::from(i) / 40.0);
            x.map(|x| [x, (-(x - shift).powi(2)).exp()]).collect::<Vec<_>>()
        };
        let lik = Series::method(Method::ELik);
        let densities = Panel {
            title: format!("density of {name}"),
            x: Axis::new(format!("{name} (1/day)")),
            y: Axis { bare: true, ..Axis::new("density") },
            marks: vec![
                Series::new("prior", Ink::Prior)
                    .mark(Shape::Band(curve(2.0).iter().map(|p| [p[0], 0.0, p[1]]).collect())),
                lik.mark(Shape::Line(curve(2.2))),
                Series::method(Method::Point).mark(Shape::Line(curve(1.2))),
                Series::new("truth", Ink::Truth).mark(Shape::Rules(Direction::Vertical, vec![2.4])),
            ],
        };
        let forest = Panel {
            title: name.to_owned(),
            x: Axis::new(name),
            y: Axis::of(vec!["E-Lik".into(), name.into(), "Point".into()]),
            marks: vec![
                lik.mark(Shape::Intervals(Direction::Horizontal, vec![[0.0, 1.0, 1.4, 1.6, 1.8, 2.2]])),
                Series::method(Method::EPost)
                    .mark(Shape::Intervals(Direction::Horizontal, vec![[1.0, 1.1, f64::NAN, 1.6, f64::NAN, 2.2]])),
            ],
        };
        let scatter = Panel {
            x: Axis { log: true, ..Axis::new("run") },
            y: Axis::new(name),
            marks: vec![
                Series::new("runs", Ink::Data)
                    .mark(Shape::Points(vec![[1.0, -2e6], [1000.0, 3e6]], vec![name.into(); 2])),
                Series::new("failed", Ink::Failed).mark(Shape::Points(vec![[10.0, 1e6]], vec![])),
                Series::new("draws", Ink::Number(3)).mark(Shape::Dots(vec![[30.0, 2e6], [f64::NAN, 1.0]])),
            ],
            ..Panel::default()
        };
        let bars = Panel {
            x: Axis::of((0..9).map(|i| format!("{name} {i}")).collect()),
            y: Axis::new("share"),
            marks: vec![
                Series::new("noise", Ink::Noise).mark(Shape::Bars(vec![[-0.3, 0.3, 0.0, 0.7]], vec!["70 %".into()])),
            ],
            ..Panel::default()
        };
        Figure {
            id: "sample".into(),
            title: name.into(),
            caption: name.into(),
            panels: vec![densities, forest, scatter, bars],
            columns: 2,
            aspect: 0.62,
        }
    }

    #[test]
    fn any_name_makes_a_drawing() {
        let hostile = "</text><script>alert(\"1\")</script>'&😀\u{1}\u{202e}".to_owned() + &"x".repeat(300);
        for name in ["omega", "", hostile.as_str()] {
            let figure = figure(name);
            for width in [300.0, 700.0] {
                let svg = file(&figure, width);
                assert!(!svg.contains("<script") && !svg.contains("NaN"), "{svg}");
                let image = png(&svg, 1.0).unwrap_or_else(|e| panic!("{e}\n{svg}"));
                assert!(image.starts_with(b"\x89PNG"));
            }
            let page = page(&figure).concat();
            assert!(!page.contains("<script") && !page.contains("NaN") && page.matches("<svg").count() == 8, "{page}");
        }
    }

    #[test]
    fn the_legend_names_each_series_once() {
        let names: Vec<String> = legend(&figure("omega"), Theme::Paper).into_iter().map(|key| key.0).collect();
        assert_eq!(names, ["prior", "E-Lik", "E-Post", "truth", "Point", "runs", "failed", "draws", "noise"]);
    }
}
