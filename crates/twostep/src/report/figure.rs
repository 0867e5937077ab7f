//! Figures as data: panels, axes and marks, which [`super::svg`] draws and [`Figure::table`] writes as tidy CSV.

use crate::error::Result;
use crate::infer::propagation::Method;
use crate::table::Table;

/// One or more panels with one legend.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Name of its files, and of its place in the report: `densities`, `ecdf`.
    pub id: String,
    /// A few words.
    pub title: String,
    /// What is to be seen, with every definition a reader needs.
    pub caption: String,
    /// Panels, row by row.
    pub panels: Vec<Panel>,
    /// Panels of one row where there is room.
    pub columns: usize,
    /// Height of a panel over its width.
    pub aspect: f64,
}

/// One pair of axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// Stands above it; may be empty.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Drawn in this order.
    pub marks: Vec<Mark>,
}

/// An axis. Its ends are those of the marks unless given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// With its unit: `beta (1/day)`.
    pub label: String,
    /// Whether it is logarithmic.
    pub log: bool,
    /// Its ends.
    pub range: Option<[f64; 2]>,
    /// Names at 0, 1, 2, ..., in place of numbers. The first stands at the top of a vertical axis.
    pub categories: Vec<String>,
    /// Whether its numbers say nothing, as those of a density: no ticks.
    pub bare: bool,
}

/// Something drawn that belongs to a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Its series: one entry of the legend, which toggles all marks of that name.
    pub series: Series,
    /// What is drawn.
    pub shape: Shape,
}

/// Marks of one name have one look.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend; empty for marks that are in none, such as a zero line.
    pub name: String,
    /// Its look.
    pub ink: Ink,
}

/// What a mark stands for, which decides on colour, dashes and marker in every figure alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// An I-posterior.
    Method(Method),
    /// Runs of the simulator, measurements.
    Data,
    /// Runs that failed.
    Failed,
    /// True values.
    Truth,
    /// Priors.
    Prior,
    /// The surrogate's mean, and its epistemic uncertainty.
    Epistemic,
    /// The surrogate's approximation error.
    Approximation,
    /// Measurement noise.
    Noise,
    /// Envelopes, zero lines, thresholds.
    Reference,
    /// One of several equals (chains, settings), by number.
    Number(usize),
}

/// Shapes in the coordinates of the axes. Points that are not finite are left out.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line through points.
    Line(Vec<[f64; 2]>),
    /// A filled band: x, lower, upper.
    Band(Vec<[f64; 3]>),
    /// Markers, each with what is shown where the pointer rests on it; no texts, or one for each.
    Points(Vec<[f64; 2]>, Vec<String>),
    /// Many small dots.
    Dots(Vec<[f64; 2]>),
    /// Intervals at places of the other axis: place, thin line's lower end, thick line's, middle, thick line's upper end, thin
    /// line's. NaN where there is no thick line.
    Intervals(Direction, Vec<[f64; 6]>),
    /// Rectangles: x from and to, y from and to; as `Points` with texts.
    Bars(Vec<[f64; 4]>, Vec<String>),
    /// A straight line across the panel, at these places of an axis.
    Rules(Direction, Vec<f64>),
}

/// Where intervals and rules lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Along the x axis: a horizontal interval at a y; a horizontal rule.
    Horizontal,
    /// Along the y axis.
    Vertical,
}

impl Series {
    /// A series of the legend.
    pub fn new(name: impl Into<String>, ink: Ink) -> Self {
        Self { name: name.into(), ink }
    }

    /// An I-posterior's.
    pub fn method(method: Method) -> Self {
        Self::new(method.title(), Ink::Method(method))
    }

    /// One that is in no legend.
    pub fn unnamed(ink: Ink) -> Self {
        Self::new("", ink)
    }

    /// A mark of this series.
    pub fn mark(&self, shape: Shape) -> Mark {
        Mark { series: self.clone(), shape }
    }
}

impl Axis {
    /// An axis with a label.
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// One of names.
    pub fn of(categories: Vec<String>) -> Self {
        Self { categories, ..Self::default() }
    }
}

impl Figure {
    /// Every mark, one value a row: panel, series, shape, x, y, and lower and upper ends where there are any; with seven digits,
    /// which is more than can be seen.
    ///
    /// # Errors
    /// None that a figure of this program has.
    pub fn table(&self) -> Result<Table> {
        const NUMBERS: [&str; 8] = ["x", "y", "lower", "inner_lower", "inner_upper", "upper", "x_to", "y_to"];
        let mut texts: [Vec<String>; 4] = Default::default();
        let mut numbers: [Vec<f64>; 8] = Default::default();
        let nan = f64::NAN;
        for (panel, number) in self.panels.iter().zip(1..) {
            let name = if panel.title.is_empty() { number.to_string() } else { panel.title.clone() };
            for Mark { series, shape } in &panel.marks {
                let (kind, rows, notes): (&str, Vec<[f64; 8]>, &[String]) = match shape {
                    Shape::Line(p) => ("line", p.iter().map(|p| plain(*p)).collect(), &[]),
                    Shape::Dots(p) => ("dot", p.iter().map(|p| plain(*p)).collect(), &[]),
                    Shape::Points(p, notes) => ("point", p.iter().map(|p| plain(*p)).collect(), notes),
                    Shape::Band(p) => {
                        ("band", p.iter().map(|[x, l, u]| [*x, nan, *l, nan, nan, *u, nan, nan]).collect(), &[])
                    }
                    Shape::Bars(p, notes) => {
                        ("bar", p.iter().map(|[x, x2, y, y2]| [*x, *y, nan, nan, nan, nan, *x2, *y2]).collect(), notes)
                    }
                    Shape::Intervals(direction, p) => {
                        let row = |[at, a, b, m, c, d]: &[f64; 6]| match direction {
                            Direction::Horizontal => [*m, *at, *a, *b, *c, *d, nan, nan],
                            Direction::Vertical => [*at, *m, *a, *b, *c, *d, nan, nan],
                        };
                        ("interval", p.iter().map(row).collect(), &[])
                    }
                    Shape::Rules(direction, p) => {
                        let row = |at: &f64| match direction {
                            Direction::Horizontal => plain([nan, *at]),
                            Direction::Vertical => plain([*at, nan]),
                        };
                        ("rule", p.iter().map(row).collect(), &[])
                    }
                };
                for (i, row) in rows.into_iter().enumerate() {
                    let note = notes.get(i).cloned().unwrap_or_default();
                    let cells = [name.clone(), series.name.clone(), kind.to_owned(), note];
                    texts.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
                    numbers.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
                }
            }
        }
        let [panels, series, kinds, notes] = texts;
        let mut table =
            Table::new().with_texts("panel", panels)?.with_texts("series", series)?.with_texts("mark", kinds)?;
        for (name, column) in NUMBERS.into_iter().zip(numbers) {
            if column.iter().any(|value| value.is_finite()) {
                let text = |value: &f64| if value.is_finite() { rounded(*value) } else { String::new() };
                table = table.with_texts(name, column.iter().map(text).collect())?;
            }
        }
        if notes.iter().any(|note| !note.is_empty()) {
            table = table.with_texts("note", notes)?;
        }
        Ok(table)
    }
}

fn rounded(value: f64) -> String {
    let digits = format!("{value:.6e}");
    digits.parse::<f64>().map_or(digits, |rounded| rounded.to_string())
}

fn plain([x, y]: [f64; 2]) -> [f64; 8] {
    let nan = f64::NAN;
    [x, y, nan, nan, nan, nan, nan, nan]
}
