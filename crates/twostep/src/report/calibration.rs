//! Calibrations to figures: the paper's ECDF differences, log-gamma and sharpness against N_T, coverage, and where it fails.

use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::pieces::short;
use super::sweep::last_part;
use super::words::with_unit;
use crate::calibrate::uniformity::Coverage;
use crate::calibrate::{MethodSummary, Region, UnknownSummary};
use crate::error::Result;
use crate::infer::propagation::Method;
use crate::run::{Calibration, Project};
use crate::study::Study;
use crate::table::counted;

/// With more unknowns than this, regions are shown of an unknown's own prior only.
const MAX_CROSSED: usize = 2;

/// Room that the methods share at a place of an axis of names, whose neighbours are at a distance of one.
const SHARED_ROOM: f64 = 0.6;

/// The level of the intervals whose width is shown.
const NINETY: f64 = 0.9;

/// Ends of an axis of shares in percent, a little beyond none and all, so that markers there are whole.
const SHARES: [f64; 2] = [-3.0, 103.0];

/// Words on the trials that most captions end with.
const TRIALS: &str = "I-trials of one T-trial share a surrogate, so that they are worth fewer independent ones";

/// Everything that the trials show; nothing where there are none.
///
/// # Errors
/// None that a calibration of this program has.
pub fn figures(project: &Project, calibrations: &[Calibration]) -> Result<Vec<Figure>> {
    figures_of(project, calibrations, None)
}

/// The same of the setting of this number alone, where one is given.
///
/// # Errors
/// None that a calibration of this program has.
pub fn figures_of(project: &Project, calibrations: &[Calibration], only: Option<usize>) -> Result<Vec<Figure>> {
    let studies = project.settings().iter().map(|setting| &setting.study);
    let settings = calibrations.iter().zip(studies).enumerate();
    let sweep = Sweep::new(settings.filter(|(i, _)| only.is_none_or(|only| only == *i)).map(|(_, setting)| setting));
    let mut figures = vec![sweep.ecdf(), sweep.log_gamma(), sweep.sharpness(), sweep.coverage()];
    if sweep.axis.is_some() {
        figures.push(sweep.coverage_90());
    }
    figures.push(sweep.regions());
    figures.retain(|figure| !figure.panels.is_empty());
    Ok(figures)
}

/// One setting with its trials.
struct Tried<'a> {
    calibration: &'a Calibration,
    study: &'a Study,
    /// Its place on the axis of the sweep.
    x: f64,
}

/// Settings that differ only in what the axis shows.
struct Group<'a> {
    /// What sets them apart from other groups; empty where there is one.
    name: String,
    settings: Vec<Tried<'a>>,
}

/// Calibrated settings in groups, along the axis of N_T or of a swept number.
pub(super) struct Sweep<'a> {
    groups: Vec<Group<'a>>,
    /// What is swept along; `None` where no number is.
    axis: Option<String>,
    unknowns: Vec<String>,
}

/// Letters of a title that names what is swept.
const LONG_TITLE: usize = 36;

impl<'a> Sweep<'a> {
    /// Settings without trials are left out.
    pub(super) fn new(settings: impl Iterator<Item = (&'a Calibration, &'a Study)>) -> Self {
        let has_trials = |(calibration, _): &(&Calibration, &Study)| {
            calibration.methods.iter().any(|method| !method.unknowns.is_empty())
        };
        let tried: Vec<(&Calibration, &Study)> = settings.filter(has_trials).collect();
        let labels: Vec<&[(String, String)]> = tried.iter().map(|(c, _)| c.plan.label.as_slice()).collect();
        let runs: Vec<usize> = tried.iter().map(|(c, _)| c.plan.trained_runs).collect();
        let along = along(&labels, &runs);
        let axis = along.as_ref().map(|(_, name, _)| name.clone());
        let key = along.as_ref().map(|(key, ..)| *key);
        let mut groups: Vec<Group<'a>> = Vec::new();
        let distinct = |k: usize| labels.iter().any(|label| label[k].1 != labels[0][k].1);
        for (i, (calibration, study)) in tried.iter().enumerate() {
            let others = (0..labels[i].len()).filter(|k| Some(*k) != key && distinct(*k));
            let named = |k: usize| format!("{} = {}", last_part(&labels[i][k].0), labels[i][k].1);
            let parts: Vec<String> = others.clone().map(named).collect();
            // Long titles are cut: words speak for themselves, numbers do not.
            let is_long = parts.join(", ").chars().count() > LONG_TITLE;
            let is_word = |k: usize| labels[i][k].1.parse::<f64>().is_err();
            let short = |k: usize| if is_long && is_word(k) { labels[i][k].1.clone() } else { named(k) };
            let parts: Vec<String> = others.map(short).collect();
            let setting = Tried { calibration, study, x: along.as_ref().map_or(i as f64, |(.., x)| x[i]) };
            let name = parts.join(", ");
            match groups.iter_mut().find(|group| group.name == name && axis.is_some()) {
                Some(group) => group.settings.push(setting),
                None => groups.push(Group { name, settings: vec![setting] }),
            }
        }
        for group in &mut groups {
            group.settings.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        // Settings that differ in nothing that matters to trials share them: shown once.
        let trials = |group: &Group<'_>| -> Vec<String> {
            group.settings.iter().map(|tried| tried.calibration.plan.fingerprint.clone()).collect()
        };
        let shown: Vec<usize> =
            (0..groups.len()).filter(|&g| (0..g).all(|f| trials(&groups[f]) != trials(&groups[g]))).collect();
        let mut number = 0..;
        groups.retain(|_| number.next().is_some_and(|g| shown.contains(&g)));
        let mut unknowns: Vec<String> = Vec::new();
        for unknown in tried.iter().flat_map(|(c, _)| &c.methods).flat_map(|method| &method.unknowns) {
            if !unknowns.contains(&unknown.unknown) {
                unknowns.push(unknown.unknown.clone());
            }
        }
        Self { groups, axis, unknowns }
    }

    /// The same of one unknown alone.
    pub(super) fn of(mut self, unknown: &str) -> Self {
        self.unknowns.retain(|name| name == unknown);
        self
    }

    /// The first and the last setting of every group: as many as stay readable.
    fn ends(&self) -> Vec<(&Tried<'a>, String)> {
        let mut out = Vec::new();
        for group in &self.groups {
            let ends = match &group.settings[..] {
                [] => Vec::new(),
                [one] => vec![one],
                [first, .., last] => vec![first, last],
            };
            for tried in ends {
                let place = self.axis.as_ref().map(|axis| format!("{axis} = {}", tried.x));
                let parts = place.into_iter().chain((!group.name.is_empty()).then(|| group.name.clone()));
                out.push((tried, parts.collect::<Vec<_>>().join(", ")));
            }
        }
        out
    }

    /// The methods of a setting, in the order of tables.
    fn methods(tried: &Tried<'a>) -> Vec<(Method, &'a MethodSummary)> {
        let calibration = tried.calibration;
        let of = |method: Method| calibration.methods.iter().find(|m| m.method == method.name());
        Method::known().into_iter().filter_map(|method| of(method).map(|summary| (method, summary))).collect()
    }

    /// How many trials there are, and of how many.
    fn trials(&self) -> String {
        let of = |calibration: &Calibration| {
            let done = calibration.methods.iter().map(|method| method.trials).max().unwrap_or(0);
            let (plan, t_trials) = (&calibration.plan, calibration.methods.iter().map(|m| m.t_trials).max());
            match done < plan.i_trials {
                true => format!("{done} of {} so far", counted(plan.i_trials, "I-trial")),
                false => format!("{} in {}", counted(done, "I-trial"), counted(t_trials.unwrap_or(0), "T-trial")),
            }
        };
        let mut texts: Vec<String> = self.groups.iter().flat_map(|g| &g.settings).map(|t| of(t.calibration)).collect();
        texts.sort();
        texts.dedup();
        let each =
            if self.groups.iter().map(|g| g.settings.len()).sum::<usize>() > 1 { " for each setting" } else { "" };
        format!("{}{each}", texts.join("; "))
    }

    /// Words on which settings [`Sweep::ends`] leaves out.
    fn about_ends(&self) -> String {
        match self.groups.iter().any(|group| group.settings.len() > 2) {
            true => " Shown are the first and the last setting of the sweep.".into(),
            false => String::new(),
        }
    }

    /// Parts of a title that are not empty; the unknown, first since long titles are cut, only where there are several.
    fn title(&self, parts: &[&str], unknown: &str) -> String {
        let unknown = (self.unknowns.len() > 1).then_some(unknown);
        unknown.into_iter().chain(parts.iter().copied()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// ECDF minus z of each method (columns) for each unknown and setting (rows).
    pub(super) fn ecdf(&self) -> Figure {
        let mut panels = Vec::new();
        let mut columns = 1;
        for (tried, setting) in self.ends() {
            for unknown in &self.unknowns {
                let methods = Self::methods(tried);
                columns = columns.max(methods.len());
                let first = panels.len();
                let shown = methods.iter().filter_map(|(method, summary)| Some((*method, find(summary, unknown)?)));
                for (method, summary) in shown {
                    let Some(ecdf) = &summary.ecdf else { continue };
                    let along = |of: &[[f64; 2]], end: usize| -> Vec<[f64; 2]> {
                        ecdf.z.iter().zip(of).map(|(z, ends)| [*z, ends[end]]).collect()
                    };
                    let band = ecdf.z.iter().zip(&ecdf.t_trials).map(|(z, [low, high])| [*z, *low, *high]).collect();
                    let envelope = Series::new("95 % envelope that respects T-trials", Ink::Reference);
                    let mut marks = vec![envelope.mark(Shape::Band(band))];
                    if let Some(independent) = &ecdf.independent {
                        let series = Series::new("95 % envelope of independent trials", Ink::Reference);
                        marks.extend([0, 1].map(|end| series.mark(Shape::Line(along(independent, end)))));
                    }
                    let line = ecdf.z.iter().zip(&ecdf.difference).map(|(z, d)| [*z, *d]).collect();
                    marks.push(Series::method(method).mark(Shape::Line(line)));
                    panels.push(Panel {
                        title: [method.title(), &setting].join(if setting.is_empty() { "" } else { ", " }),
                        x: Axis { range: Some([0.0, 1.0]), ..Axis::new("PIT z") },
                        y: Axis::new(match self.unknowns.len() {
                            1 => "ECDF(z) − z".to_owned(),
                            _ => format!("{unknown}: ECDF(z) − z"),
                        }),
                        marks,
                    });
                }
                // One scale for a row, so that methods can be compared.
                share_range(&mut panels[first..]);
            }
        }
        Figure {
            id: "ecdf".into(),
            title: "Are ranks uniform?".into(),
            caption: format!(
                "Empirical distribution function of the PITs (where the truth lies in its posterior, from 0 to 1) minus that of \
                 the uniform distribution, which calibrated posteriors have. A line that leaves the band rejects calibration at \
                 5 %; posteriors too narrow rise at the left and fall at the right of the middle, those too wide the other way \
                 round. {}. {TRIALS}: the band respects that, the dashed envelope is that of independent ones.{}",
                self.trials(),
                self.about_ends()
            ),
            panels,
            columns,
            aspect: 0.8,
        }
    }

    /// A number of each method against the axis of the sweep, or by method where there is none: one panel for each group and
    /// unknown. `value` gives middle and both ends, NaN where there are none.
    fn against(
        &self,
        y: impl Fn(&Study, &str) -> Axis,
        value: impl Fn(&UnknownSummary) -> Option<[f64; 3]>,
        reference: impl Fn(&UnknownSummary) -> Option<f64>,
        name_of_reference: &str,
    ) -> Vec<Panel> {
        let mut panels = Vec::new();
        for unknown in &self.unknowns {
            for group in &self.groups {
                let Some(first) = group.settings.first() else { continue };
                let names: Vec<Method> = Self::methods(first).into_iter().map(|(method, _)| method).collect();
                let found = |tried: &Tried<'a>, method: Method| {
                    let of_method = Self::methods(tried).into_iter().find(|(other, _)| *other == method);
                    of_method.and_then(|(_, summary)| find(summary, unknown))
                };
                let mut marks = Vec::new();
                let limits: Vec<[f64; 2]> = group
                    .settings
                    .iter()
                    .filter_map(|tried| Some([tried.x, names.iter().find_map(|m| reference(found(tried, *m)?))?]))
                    .collect();
                let series = Series::new(name_of_reference, Ink::Reference);
                match &limits[..] {
                    [] => {}
                    [first, rest @ ..] if rest.iter().all(|[_, limit]| *limit == first[1]) => {
                        marks.push(series.mark(Shape::Rules(Direction::Horizontal, vec![first[1]])));
                    }
                    _ => marks.push(series.mark(Shape::Line(limits))),
                }
                for (place, method) in names.iter().enumerate() {
                    let series = Series::method(*method);
                    let of_setting = |tried: &Tried<'a>| {
                        let [middle, low, high] = value(found(tried, *method)?)?;
                        let x = if self.axis.is_some() { tried.x } else { place as f64 };
                        middle.is_finite().then_some([x, low, f64::NAN, middle, f64::NAN, high])
                    };
                    let values: Vec<[f64; 6]> = group.settings.iter().filter_map(of_setting).collect();
                    let points: Vec<[f64; 2]> = values.iter().map(|value| [value[0], value[3]]).collect();
                    if points.is_empty() {
                        continue;
                    }
                    if points.len() > 1 {
                        marks.push(series.mark(Shape::Line(points.clone())));
                    }
                    let with_ends: Vec<[f64; 6]> = values.into_iter().filter(|value| value[1].is_finite()).collect();
                    if !with_ends.is_empty() {
                        marks.push(series.mark(Shape::Intervals(Direction::Vertical, with_ends)));
                    }
                    marks.push(series.mark(Shape::Points(points, Vec::new())));
                }
                if !marks.iter().any(|mark| matches!(mark.shape, Shape::Points(..))) {
                    continue;
                }
                let x = match &self.axis {
                    Some(axis) => Axis::new(axis),
                    None => Axis::of(names.iter().map(|method| method.title().to_owned()).collect()),
                };
                panels.push(Panel { title: self.title(&[&group.name], unknown), x, y: y(first.study, unknown), marks });
            }
        }
        panels
    }

    /// Log-gamma against N_T.
    pub(super) fn log_gamma(&self) -> Figure {
        let value = |unknown: &UnknownSummary| unknown.log_gamma.map(|value| [value, f64::NAN, f64::NAN]);
        let y = |_: &Study, _: &str| Axis::new("log-gamma");
        let limit = "5 % point of log-gamma";
        Figure {
            id: "log-gamma".into(),
            title: "Calibration in one number".into(),
            caption: format!(
                "Log-gamma of the ranks: the more negative, the less uniform they are. Below the line, uniformity would be rejected \
                 at 5 % if all trials were independent. It falls with the number of trials, so it compares methods at equal \
                 trials. {}. {TRIALS}, which this statistic does not know.",
                self.trials()
            ),
            panels: self.against(y, value, |unknown| unknown.log_gamma_threshold, limit),
            columns: self.columns(),
            aspect: 0.7,
        }
    }

    /// Mean width of 90 % intervals against N_T.
    pub(super) fn sharpness(&self) -> Figure {
        let value = |unknown: &UnknownSummary| {
            let (width, error) = (unknown.width_90?, unknown.width_90_standard_error.unwrap_or(f64::NAN));
            Some([width, width - error, width + error])
        };
        let y = |study: &Study, unknown: &str| Axis::new(format!("90 % width of {}", with_unit(unknown, study)));
        Figure {
            id: "sharpness".into(),
            title: "Sharpness".into(),
            caption: format!(
                "Mean width of the central 90 % intervals over all trials, with its standard error between T-trials. Of methods that \
                 are calibrated alike the one with narrower intervals is better; narrow intervals that do not hold the truth are \
                 overconfident. {}.",
                self.trials()
            ),
            panels: self.against(y, value, |_| None, ""),
            columns: self.columns(),
            aspect: 0.7,
        }
    }

    /// Coverage of 90 % intervals against N_T.
    pub(super) fn coverage_90(&self) -> Figure {
        let value = |unknown: &UnknownSummary| {
            let found = unknown.coverage.iter().find(|coverage| coverage.level == NINETY)?;
            Some([found.share, found.lower, found.upper].map(|share| 100.0 * share))
        };
        let y = |_: &Study, _: &str| Axis::new("90 % coverage (%)");
        Figure {
            id: "coverage-90".into(),
            title: "Coverage of 90 % intervals".into(),
            caption: format!(
                "How often the central 90 % interval holds the truth, with 95 % intervals that respect T-trials. Below the line \
                 intervals are too narrow. {}.",
                self.trials()
            ),
            panels: self.against(y, value, |_| Some(100.0 * NINETY), "nominal"),
            columns: self.columns(),
            aspect: 0.7,
        }
    }

    /// Panels of a row in figures with one panel for each group and unknown.
    fn columns(&self) -> usize {
        if self.groups.len() > 1 { self.groups.len() } else { self.unknowns.len().clamp(1, 3) }
    }

    /// Observed minus nominal coverage by level.
    fn coverage(&self) -> Figure {
        let mut panels = Vec::new();
        for (tried, setting) in self.ends() {
            for unknown in &self.unknowns {
                let methods = Self::methods(tried);
                let mut levels: Vec<f64> = Vec::new();
                let mut marks =
                    vec![Series::new("nominal", Ink::Reference).mark(Shape::Rules(Direction::Horizontal, vec![0.0]))];
                for (number, (method, summary)) in methods.iter().enumerate() {
                    let Some(summary) = find(summary, unknown) else { continue };
                    let interval = |(place, coverage): (usize, &Coverage)| {
                        let [low, middle, high] =
                            [coverage.lower, coverage.share, coverage.upper].map(|x| 100.0 * (x - coverage.level));
                        [beside(place, number, methods.len()), low, f64::NAN, middle, f64::NAN, high]
                    };
                    if levels.is_empty() {
                        levels = summary.coverage.iter().map(|coverage| coverage.level).collect();
                    }
                    let values = summary.coverage.iter().enumerate().map(interval).collect();
                    marks.extend(intervals(*method, values));
                }
                if levels.is_empty() {
                    continue;
                }
                panels.push(Panel {
                    title: self.title(&[&setting], unknown),
                    x: Axis {
                        label: "nominal coverage".into(),
                        ..Axis::of(levels.iter().map(|level| format!("{:.0} %", 100.0 * level)).collect())
                    },
                    y: Axis::new("excess (points)"),
                    marks,
                });
            }
        }
        panels.chunks_mut(1).for_each(share_range);
        Figure {
            id: "coverage".into(),
            title: "Do intervals hold the truth as often as they say?".into(),
            caption: format!(
                "Excess: share of the trials whose central interval holds the truth minus the share that it should be, in percentage points: \
                 below zero intervals are too narrow, above too wide. Lines are 95 % intervals that respect T-trials. {}.{}",
                self.trials(),
                self.about_ends()
            ),
            panels,
            columns: self.unknowns.len().clamp(1, 3),
            aspect: 0.7,
        }
    }

    /// Coverage and width of 90 % intervals where the truth is low, medium or high.
    fn regions(&self) -> Figure {
        let mut panels = Vec::new();
        let mut columns = 2;
        for (tried, setting) in self.ends() {
            let own: Vec<&String> = tried.study.unknowns.iter().map(|unknown| &unknown.name).collect();
            for unknown in &own {
                let crossed: Vec<&String> =
                    own.iter().copied().filter(|of| of == unknown || own.len() <= MAX_CROSSED).collect();
                columns = columns.max(2 * crossed.len());
                for of in crossed {
                    let about = if own.len() > 1 { unknown.as_str() } else { "" };
                    let title = [about, setting.as_str()].into_iter().filter(|part| !part.is_empty());
                    let title = title.collect::<Vec<_>>().join(", ");
                    panels.extend(Self::thirds(tried, unknown, of, &title).into_iter().flatten());
                }
            }
        }
        Figure {
            id: "regions".into(),
            title: "Where in the input space it fails".into(),
            caption: format!(
                "Coverage and mean width of central 90 % intervals in the trials whose truth lies in the lower, middle or upper third \
                 of the prior's probability. Given where the truth lies, coverage is not nominal even for the right posterior, \
                 which holds it on average over the prior only: compare methods with each other, and coverage with width, \
                 not with 90 %. {}.{}",
                self.trials(),
                self.about_ends()
            ),
            panels,
            columns,
            aspect: 0.8,
        }
    }

    /// Coverage and width of `unknown` by thirds of the prior of `of`.
    fn thirds(tried: &Tried<'a>, unknown: &str, of: &str, title: &str) -> Option<[Panel; 2]> {
        let methods = Self::methods(tried);
        let regions = |summary: &'a MethodSummary| -> Vec<&'a Region> {
            find(summary, unknown).map_or_else(Vec::new, |s| s.regions.iter().filter(|r| r.of == of).collect())
        };
        let cut = methods.iter().map(|(_, summary)| regions(summary)).find(|regions| !regions.is_empty())?;
        let end = |value: Option<f64>, none: &str| value.map_or_else(|| none.to_owned(), short);
        let names = |region: &&Region| format!("{} to {}", end(region.lower, "−∞"), end(region.upper, "∞"));
        let x = Axis { label: with_unit(of, tried.study), ..Axis::of(cut.iter().map(names).collect()) };
        let (mut coverage, mut width) = (Vec::new(), Vec::new());
        for (number, (method, summary)) in methods.iter().enumerate() {
            let regions = regions(summary);
            let place = |region: &Region| beside(region.third, number, methods.len());
            let held = regions.iter().filter_map(|region| {
                let c = region.coverage_90.as_ref()?;
                let [low, middle, high] = [c.lower, c.share, c.upper].map(|x| 100.0 * x);
                Some([place(region), low, f64::NAN, middle, f64::NAN, high])
            });
            coverage.extend(intervals(*method, held.collect()));
            let widths: Vec<[f64; 2]> =
                regions.iter().filter_map(|region| Some([place(region), region.width_90?])).collect();
            width.push(Series::method(*method).mark(Shape::Points(widths, Vec::new())));
        }
        let label = with_unit(unknown, tried.study);
        Some([
            Panel {
                title: title.to_owned(),
                x: x.clone(),
                y: Axis { range: Some(SHARES), ..Axis::new("90 % coverage (%)") },
                marks: coverage,
            },
            Panel { title: title.to_owned(), x, y: Axis::new(format!("90 % width of {label}")), marks: width },
        ])
    }
}

/// What a sweep goes along: the place of its key in the labels, a name for the axis, and each setting's place. N_T where the
/// settings differ in it by one key, else the first key whose values are numbers.
fn along(labels: &[&[(String, String)]], runs: &[usize]) -> Option<(usize, String, Vec<f64>)> {
    let keys = labels.first().map_or(0, |label| label.len());
    let decides =
        |k: usize| (0..labels.len()).all(|i| (0..i).all(|j| labels[i][k].1 != labels[j][k].1 || runs[i] == runs[j]));
    if runs.windows(2).any(|pair| pair[0] != pair[1])
        && let Some(key) = (0..keys).find(|&k| decides(k))
    {
        return Some((key, "N_T".into(), runs.iter().map(|&n| n as f64).collect()));
    }
    (0..keys).find_map(|k| {
        let numbers: Option<Vec<f64>> = labels.iter().map(|label| label[k].1.parse().ok()).collect();
        let numbers = numbers.filter(|numbers| numbers.windows(2).any(|pair| pair[0] != pair[1]))?;
        Some((k, labels[0][k].0.clone(), numbers))
    })
}

fn find<'s>(summary: &'s MethodSummary, unknown: &str) -> Option<&'s UnknownSummary> {
    summary.unknowns.iter().find(|u| u.unknown == unknown)
}

/// Where the `number`th of `of` methods stands at a place of an axis of names.
fn beside(place: usize, number: usize, of: usize) -> f64 {
    place as f64 + SHARED_ROOM * ((number as f64 + 0.5) / of as f64 - 0.5)
}

/// A method's intervals with a marker in the middle.
fn intervals(method: Method, values: Vec<[f64; 6]>) -> [Mark; 2] {
    let points = values.iter().map(|value| [value[0], value[3]]).collect();
    let series = Series::method(method);
    [series.mark(Shape::Intervals(Direction::Vertical, values)), series.mark(Shape::Points(points, Vec::new()))]
}

/// Gives all panels one vertical range, symmetric about zero, that holds all lines and intervals; bands may be cut off.
pub(super) fn share_range(panels: &mut [Panel]) {
    let heights = panels.iter().flat_map(|panel| &panel.marks).flat_map(|mark| -> Vec<f64> {
        match &mark.shape {
            Shape::Line(points) => points.iter().map(|p| p[1]).collect(),
            Shape::Intervals(_, values) => values.iter().flat_map(|v| [v[1], v[5]]).collect(),
            _ => Vec::new(),
        }
    });
    let largest = heights.filter(|height| height.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
    if largest > 0.0 {
        panels.iter_mut().for_each(|panel| panel.y.range = Some([-1.05 * largest, 1.05 * largest]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{Monitor, Silent};
    use crate::run::calibration_json;
    use crate::study::{self, shipped};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A small version of a shipped calibration, in a folder of one test alone.
    struct Place(PathBuf);

    impl Place {
        fn new(test: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("twostep-figures-{}-{test}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn project(&self, change: impl Fn(String) -> String) -> Project {
            let (_, files) = shipped().iter().find(|(name, _)| *name == "paper/pce_calibration").unwrap();
            let text = files[0].1.replace("t_trials = 10", "t_trials = 3").replace("i_trials = 20", "i_trials = 2");
            let text = text.replace("[10, 20, 30, 40, 50]", "[10, 12, 14]").replace("draws = 1000", "draws = 60");
            let settings = study::parse(&change(text), "study.toml", &self.0).unwrap_or_else(|e| panic!("{e}"));
            Project::new(settings, self.0.join("results"))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Stops after so many I-trials.
    struct StopAfter(usize, AtomicUsize);

    impl Monitor for StopAfter {
        fn proceed(&self) -> bool {
            self.1.load(Ordering::SeqCst) < self.0
        }

        fn progress(&self, what: &str, done: usize, _: usize) {
            if what == crate::calibrate::I_TRIALS && done > 0 {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn points(panel: &Panel, method: Method) -> Vec<[f64; 2]> {
        let own = |mark: &&Mark| mark.series == Series::method(method);
        let points = |mark: &Mark| match &mark.shape {
            Shape::Points(points, _) => points.clone(),
            _ => Vec::new(),
        };
        panel.marks.iter().filter(own).flat_map(points).collect()
    }

    fn has_data(panel: &Panel) -> bool {
        let is_finite = |mark: &Mark| match &mark.shape {
            Shape::Line(points) | Shape::Points(points, _) => {
                !points.is_empty() && points.iter().flatten().all(|x| x.is_finite())
            }
            Shape::Band(points) => points.iter().flatten().all(|x| x.is_finite()),
            Shape::Intervals(_, values) => values.iter().all(|v| v[1].is_finite() && v[5].is_finite()),
            _ => true,
        };
        let is_method = |mark: &Mark| matches!(mark.series.ink, Ink::Method(_));
        panel.marks.iter().any(is_method) && panel.marks.iter().all(is_finite)
    }

    #[test]
    fn figures_have_the_numbers_of_the_json_file_and_no_empty_panel() {
        let place = Place::new("numbers");
        let project = place.project(|text| text);
        let calibrations = project.calibrate(&Silent).unwrap();
        let json = calibration_json(&project, &calibrations);
        let figures = figures(&project, &calibrations).unwrap();
        let ids: Vec<&str> = figures.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(ids, ["ecdf", "log-gamma", "sharpness", "coverage", "coverage-90", "regions"]);
        for figure in &figures {
            assert!(figure.panels.iter().all(has_data), "{}", figure.id);
            assert!(figure.table().unwrap().n_rows() > 0);
        }
        // Without sigma_a there is no error to share: of the four groups one pair has the same trials, shown once.
        let [ecdf, log_gamma, sharpness, ..] = &figures[..] else { panic!("six figures") };
        assert_eq!(ecdf.panels.len(), 4 * 2 * 2 * 3, "methods, unknowns, ends, groups");
        assert_eq!(log_gamma.panels.len(), 2 * 3);
        for (figure, key) in [(log_gamma, "log_gamma"), (sharpness, "width_90")] {
            for method in Method::ALL {
                let shown = points(&figure.panels[0], method);
                assert_eq!(shown.iter().map(|p| p[0]).collect::<Vec<_>>(), [10.0, 12.0, 14.0]);
                for [runs, value] in shown {
                    let of_setting = |setting: &&serde_json::Value| {
                        setting["runs"] == runs && setting["setting"]["infer.propagate"] == "coefficients"
                    };
                    let setting = json["settings"].as_array().unwrap().iter().find(of_setting).unwrap();
                    assert_eq!(setting["methods"][method.name()]["unknowns"][0][key], value);
                }
            }
        }
        let Shape::Line(line) = &ecdf.panels[0].marks.last().unwrap().shape else { panic!("a line") };
        let ecdf = &json["settings"][0]["methods"]["e-lik"]["unknowns"][0]["ecdf"];
        assert!(line.iter().enumerate().all(|(i, [z, d])| ecdf["z"][i] == *z && ecdf["difference"][i] == *d));
    }

    #[test]
    fn without_a_sweep_methods_stand_side_by_side() {
        let place = Place::new("single");
        let project = place.project(|text| text.split("[sweep]").next().unwrap_or_default().to_owned());
        let figures = figures(&project, &project.calibrate(&Silent).unwrap()).unwrap();
        let ids: Vec<&str> = figures.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(ids, ["ecdf", "log-gamma", "sharpness", "coverage", "regions"]);
        assert!(figures.iter().flat_map(|figure| &figure.panels).all(has_data));
        assert_eq!(figures[1].panels[0].x.categories, ["E-Lik", "E-Post", "Point", "E-Log-Lik"]);
        assert_eq!(points(&figures[1].panels[0], Method::Point)[0][0], 2.0);
    }

    #[test]
    fn kept_trials_read_back_as_they_were_summarised() {
        let place = Place::new("kept");
        let change = |text: String| text.replace("\"infer.error\" = [\"independent\", \"shared\"]", "");
        let project = place.project(change);
        assert!(project.calibrations().unwrap().is_none());
        assert!(project.calibrate(&StopAfter(4, AtomicUsize::new(0))).is_err());
        // Half a campaign says what it has, and of how many.
        let half = project.calibrations().unwrap().unwrap();
        assert!((1..6).contains(&half[0].plan.kept), "{:?}", half[0].plan);
        assert!(half.last().unwrap().methods.is_empty());
        let shown = figures(&project, &half).unwrap();
        assert!(shown[0].caption.contains("of 6 I-trials so far"), "{}", shown[0].caption);
        let done = project.calibrate(&Silent).unwrap();
        let same = |kept: &[Calibration]| {
            assert_eq!(kept.len(), done.len());
            for (kept, done) in kept.iter().zip(&done) {
                assert_eq!((&kept.methods, &kept.trials), (&done.methods, &done.trials));
                assert_eq!((&kept.made_by, &kept.plan.fingerprint), (&done.made_by, &done.plan.fingerprint));
            }
        };
        same(&project.calibrations().unwrap().unwrap());
        // What flags changed is known from the files.
        let fewer = place.project(change).with_calibration(|spec| spec.t_trials = 2);
        fewer.calibrate(&Silent).unwrap();
        assert!(project.calibrations().unwrap().unwrap().iter().all(|c| c.plan.t_trials == 2 && c.plan.i_trials == 4));
        project.calibrate(&Silent).unwrap();
        same(&project.calibrations().unwrap().unwrap());
    }
}
