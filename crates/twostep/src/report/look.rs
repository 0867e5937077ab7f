//! Colours, dashes and markers: one look for what a mark stands for, in every figure, on a page and on paper.

use super::figure::Ink;
use crate::infer::propagation::Method;

/// Where a figure is drawn for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// A page that defines the colours as variables, light and dark.
    Page,
    /// A file of its own: dark on white.
    Paper,
}

/// Colours of a mark by name of its variable, light and dark; how its lines are dashed; its marker.
///
/// Hues are those of Okabe and Ito, told apart by people with any colour vision; dashes and markers tell them apart in grey.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    name: &'static str,
    light: &'static str,
    dark: &'static str,
    pub(super) dashes: &'static str,
    pub(super) marker: Marker,
    /// Opacity of its bands.
    pub(super) band: f64,
}

/// A marker's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

const fn look(
    name: &'static str,
    [light, dark]: [&'static str; 2],
    dashes: &'static str,
    marker: Marker,
    band: f64,
) -> Look {
    Look { name, light, dark, dashes, marker, band }
}

const E_LIK: Look = look("e-lik", ["#0072b2", "#5ab4ee"], "", Marker::Circle, 0.25);
const E_POST: Look = look("e-post", ["#d98f00", "#f2b84b"], "7 2.5", Marker::Square, 0.25);
const POINT: Look = look("point", ["#d55e00", "#f58344"], "2.5 2", Marker::Triangle, 0.25);
const E_LOG_LIK: Look = look("e-log-lik", ["#b0568c", "#e3a0c8"], "7 2 1.5 2", Marker::Diamond, 0.25);
// Of methods that are not the paper's; names tell them apart.
const OWN: Look = look("own", ["#3d3d8f", "#a3a3f0"], "1.5 1.5", Marker::Square, 0.25);
const DATA: Look = look("data", ["#1a1a1a", "#f0f0f0"], "", Marker::Circle, 0.3);
const FAILED: Look = look("failed", ["#c1121f", "#ff6b6b"], "", Marker::Cross, 0.3);
const TRUTH: Look = look("truth", ["#1a1a1a", "#f0f0f0"], "", Marker::Diamond, 0.3);
const PRIOR: Look = look("prior", ["#767676", "#a0a0a0"], "1.5 2.5", Marker::Circle, 0.18);
const EPISTEMIC: Look = look("epistemic", ["#008a66", "#2fbf98"], "", Marker::Circle, 0.38);
const APPROXIMATION: Look = look("approximation", ["#005240", "#8fe3cb"], "5 3", Marker::Square, 0.16);
const NOISE: Look = look("noise", ["#b8b8b8", "#6e6e6e"], "3 2", Marker::Circle, 0.3);
const REFERENCE: Look = look("reference", ["#8a8a8a", "#8a8a8a"], "4 3", Marker::Circle, 0.16);
const NUMBERED: [Look; 6] = [
    look("n1", ["#0072b2", "#5ab4ee"], "", Marker::Circle, 0.25),
    look("n2", ["#d55e00", "#f58344"], "7 2.5", Marker::Square, 0.25),
    look("n3", ["#008a66", "#2fbf98"], "2.5 2", Marker::Triangle, 0.25),
    look("n4", ["#b0568c", "#e3a0c8"], "7 2 1.5 2", Marker::Diamond, 0.25),
    look("n5", ["#d98f00", "#f2b84b"], "10 3", Marker::Circle, 0.25),
    look("n6", ["#3d3d8f", "#a3a3f0"], "1.5 1.5", Marker::Square, 0.25),
];

/// Every look, for the page's variables.
const ALL: [&[Look]; 2] = [
    &[E_LIK, E_POST, POINT, E_LOG_LIK, OWN, DATA, FAILED, TRUTH, PRIOR, EPISTEMIC, APPROXIMATION, NOISE, REFERENCE],
    &NUMBERED,
];

pub(super) fn of(ink: Ink) -> Look {
    match ink {
        Ink::Method(Method::ELik) => E_LIK,
        Ink::Method(Method::EPost) => E_POST,
        Ink::Method(Method::Point) => POINT,
        Ink::Method(Method::ELogLik) => E_LOG_LIK,
        Ink::Method(Method::Own(_)) => OWN,
        Ink::Data => DATA,
        Ink::Failed => FAILED,
        Ink::Truth => TRUTH,
        Ink::Prior => PRIOR,
        Ink::Epistemic => EPISTEMIC,
        Ink::Approximation => APPROXIMATION,
        Ink::Noise => NOISE,
        Ink::Reference => REFERENCE,
        Ink::Number(i) => NUMBERED[i % NUMBERED.len()],
    }
}

/// A look as other programs draw it, on white.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// What it stands for: `e-lik`, `data`.
    pub name: &'static str,
    /// Colour, as `#rrggbb`.
    pub colour: &'static str,
    /// Lengths of dashes and gaps in points, apart by spaces; empty for a whole line.
    pub dashes: &'static str,
    /// `circle`, `square`, `triangle`, `diamond` or `cross`.
    pub marker: &'static str,
    /// Opacity of bands.
    pub band: f64,
}

/// The style of what a mark stands for.
pub fn style(ink: Ink) -> Style {
    let Look { name, light, dashes, marker, band, .. } = of(ink);
    let marker = match marker {
        Marker::Circle => "circle",
        Marker::Square => "square",
        Marker::Triangle => "triangle",
        Marker::Diamond => "diamond",
        Marker::Cross => "cross",
    };
    Style { name, colour: light, dashes, marker, band }
}

impl Look {
    pub(super) fn colour(&self, theme: Theme) -> String {
        match theme {
            Theme::Page => format!("var(--ink-{})", self.name),
            Theme::Paper => self.light.to_owned(),
        }
    }
}

/// Colours of text, of axes and of the ground.
pub(super) fn text(theme: Theme) -> &'static str {
    if theme == Theme::Page { "var(--text)" } else { "#1a1a1a" }
}

pub(super) fn muted(theme: Theme) -> &'static str {
    if theme == Theme::Page { "var(--muted)" } else { "#555555" }
}

pub(super) fn grid(theme: Theme) -> &'static str {
    if theme == Theme::Page { "var(--grid)" } else { "#e2e2e2" }
}

pub(super) fn ground(theme: Theme) -> &'static str {
    if theme == Theme::Page { "var(--ground)" } else { "#ffffff" }
}

/// `--ink-e-lik:#0072b2;...`, for light or dark pages.
pub(super) fn variables(dark: bool) -> String {
    let declaration = |look: &Look| format!("--ink-{}:{};", look.name, if dark { look.dark } else { look.light });
    ALL.iter().flat_map(|looks| looks.iter()).map(declaration).collect()
}
