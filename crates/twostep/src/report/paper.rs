//! The paper's results figures and tables from its studies: each study is written into a folder, run there as far as it is not
//! finished, and arranged as the paper does.

use super::calibration::{Sweep, share_range};
use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::pieces::{matrix, short, thinned};
use super::surrogate;
use super::words::with_unit;
use crate::draws::Sorted;
use crate::error::{Error, Result};
use crate::infer::IPosterior;
use crate::infer::propagation::Method;
use crate::matrix::Matrix;
use crate::monitor::Monitor;
use crate::run::{Findings, Project};
use crate::special::normal_quantile;
use crate::study::{Stage, Study, load, shipped};
use crate::surrogate::Scratch;
use crate::table::{Table, write_atomically};
use rayon::ThreadPoolBuilder;
use std::path::Path;

/// Points at which a surrogate is drawn.
const CURVE: usize = 121;

/// Density below which a curve is not worth room, relative to its peak.
const FAINT: f64 = 5e-3;

/// Densities are cut off above so many times the peak of the lowest: they have equal areas, so that it would be flat beside a
/// narrow one.
const TALLEST: f64 = 5.0;

/// Words on that for captions.
const CUT: &str = "Peaks more than five times as high as the lowest are cut off. E-Lik and E-Post are mixtures of as many densities as there are \
                   T-draws, ragged where those are narrow.";

/// I-draws of all methods together in the pairs plot of case study 3, as in the paper.
const DOTS: usize = 5000;

/// Standard normal quantiles that stand for the approximation error of each T-draw.
const ERROR_NODES: usize = 21;

/// What the paper numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Its number in the paper.
    pub number: usize,
    /// What it shows, in a few words.
    pub about: &'static str,
    /// The studies that it is made of, by their shipped names; none where it is a drawing without results.
    pub studies: &'static [&'static str],
}

/// All figures of the paper, counted as in its source: main text first, then the appendix.
pub const FIGURES: [Numbered; 15] = [
    drawing(1, "overview of the two-step procedure"),
    drawing(2, "graphical model of T-step and I-step"),
    of(3, "case study 1: I-posteriors of the linear model", &["paper/linear"]),
    of(4, "case study 2: selected results, logistic surrogate", &["paper/logistic"]),
    of(5, "case study 2: calibration and sharpness, logistic surrogate", &["paper/logistic_calibration"]),
    of(6, "case study 2: selected results, PCE surrogate", &["paper/pce"]),
    of(7, "case study 2: calibration and sharpness, PCE surrogate", &["paper/pce_calibration"]),
    of(8, "case study 3: pairs plot of the SIR I-posteriors", &["paper/sir"]),
    drawing(9, "graphical model of the linear case"),
    of(10, "appendix: I-posteriors of the slope-only model", &["paper/slope"]),
    of(11, "appendix: T-posterior of the logistic surrogate, N_T = 7", &["paper/logistic"]),
    of(12, "appendix: PCE surrogate, theta = c", &["paper/pce"]),
    of(13, "appendix: PCE surrogate, theta = (c, sigma_A)", &["paper/pce"]),
    of(14, "appendix: sampling times", &["paper/times"]),
    of(15, "appendix: effect of parallelization", &["paper/workers"]),
];

const fn of(number: usize, about: &'static str, studies: &'static [&'static str]) -> Numbered {
    Numbered { number, about, studies }
}

const fn drawing(number: usize, about: &'static str) -> Numbered {
    of(number, about, &[])
}

/// A figure of the paper, with the table that belongs to it.
pub struct Made {
    /// The figure, named `figure-03` and so on.
    pub figure: Figure,
    /// A table of the paper, with the name of its file.
    pub table: Option<(&'static str, Table)>,
}

/// Makes the figure with this number. Studies are written into `folder` where they are missing, and what is finished there is
/// kept: a second call computes nothing.
///
/// # Errors
/// A number that is not that of a results figure, a folder that cannot be used, whatever stops a study, or an interruption.
pub fn figure(number: usize, folder: &Path, monitor: &dyn Monitor) -> Result<Made> {
    let numbered = FIGURES.iter().find(|figure| figure.number == number && !figure.studies.is_empty());
    let Some(numbered) = numbered else {
        let known: Vec<String> =
            FIGURES.iter().filter(|figure| !figure.studies.is_empty()).map(|f| f.number.to_string()).collect();
        let found = match FIGURES.iter().find(|figure| figure.number == number) {
            Some(drawing) => format!("figure {number} is a drawing ({}), not a result", drawing.about),
            None => format!("the paper has no figure {number}"),
        };
        return Err(Error::invalid("--figure", found, format!("choose among {}", known.join(", "))));
    };
    let study = numbered.studies[0];
    let mut table = None;
    let mut figure = match number {
        3 => {
            let found = run(study, folder, monitor)?;
            table = Some(("table-2", parameters(&found)?));
            by_sigma_a(&found, [-1.6, 0.9])
        }
        4 => posteriors(&run(study, folder, monitor)?, &["5", "7", "10"], &["-0.05", "0.1", "0.3"], None, false)?,
        5 => logistic_calibration(study, folder, monitor)?,
        6 => selected_pce(&run(study, folder, monitor)?)?,
        7 => pce_calibration(study, folder, monitor)?,
        8 => sir(&run(study, folder, monitor)?)?,
        10 => by_sigma_a(&run(study, folder, monitor)?, [-3.0, 3.0]),
        11 => t_posterior(&run(study, folder, monitor)?)?,
        12 | 13 => {
            let carried = if number == 12 { "coefficients" } else { "coefficients + sigma-a" };
            let found = run(study, folder, monitor)?;
            posteriors(&found, &["10", "30", "50"], &["-0.05", "0.1", "0.4"], Some(carried), true)?
        }
        14 => times(study, folder, monitor)?,
        _ => workers(study, folder, monitor)?,
    };
    figure.id = format!("figure-{number:02}");
    figure.title = format!("Figure {number}: {}", numbered.about);
    Ok(Made { figure, table })
}

/// The study as it lies in the folder, written there if it is missing; results lie beside it in `results`.
fn project(name: &str, folder: &Path, results: &str, monitor: &dyn Monitor) -> Result<Project> {
    let unknown =
        || Error::failed("twostep paper", format!("there is no shipped study {name}"), "report this as a bug");
    let (_, files) = shipped().iter().find(|(other, _)| *other == name).ok_or_else(unknown)?;
    std::fs::create_dir_all(folder)
        .map_err(|problem| Error::file(folder, problem, "choose a folder you may write to with --out"))?;
    for (file, text) in files.iter() {
        let path = folder.join(file);
        match std::fs::read(&path) {
            Ok(found) if found == text.as_bytes() => {}
            Ok(_) => monitor.notice(&format!("{} is not as it was shipped, and is used as it is", path.display())),
            Err(_) => write_atomically(&path, text.as_bytes())?,
        }
    }
    let path = folder.join(files[0].0);
    let settings = load(&path).map_err(|problems| {
        Error::invalid(path.display().to_string(), problems.to_string(), "delete the file: it is then written anew")
    })?;
    Ok(Project::new(settings, folder.join(results)))
}

fn results(name: &str) -> String {
    format!("{}.twostep", name.rsplit('/').next().unwrap_or(name))
}

/// Runs the study and gives what every setting found.
fn run(name: &str, folder: &Path, monitor: &dyn Monitor) -> Result<Vec<Findings>> {
    let project = project(name, folder, &results(name), monitor)?;
    project.run(Stage::Infer, monitor)?;
    (0..project.settings().len()).map(|index| project.findings(index)).collect()
}

/// The value of a swept key.
fn swept<'f>(found: &'f Findings, key: &str) -> Option<&'f str> {
    found.label.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

/// The setting with these values of swept keys.
///
/// # Errors
/// A study that has been changed and has no such setting.
fn setting<'f>(all: &'f [Findings], values: &[(&str, &str)]) -> Result<&'f Findings> {
    let fits = |found: &&Findings| values.iter().all(|(key, value)| swept(found, key) == Some(*value));
    all.iter().find(fits).ok_or_else(|| {
        let asked: Vec<String> = values.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        let place = all.first().map_or_else(String::new, |found| found.study.name.clone());
        let repair = "delete the study file: it is then written anew";
        Error::invalid(place, format!("its sweep has no {}", asked.join(", ")), repair)
    })
}

/// The methods of a setting in the order of tables.
fn methods(found: &Findings) -> impl Iterator<Item = (Method, &IPosterior)> {
    let of = |method: Method| found.answers.iter().find(move |posterior| posterior.method == method.name());
    Method::known().into_iter().filter_map(move |method| of(method).map(|posterior| (method, posterior)))
}

/// The density of a quantity by each method, with its true value.
fn densities(found: &Findings, quantity: &str) -> Vec<Mark> {
    let curve = |(method, posterior): (Method, &IPosterior)| {
        let summary = posterior.unknowns.iter().find(|summary| summary.name == quantity)?;
        Some(Series::method(method).mark(Shape::Line(summary.curve.clone())))
    };
    let truth = found.truth().iter().filter(|(name, _)| name == quantity).map(|(_, value)| *value).collect();
    let truth = Series::new("true value", Ink::Truth).mark(Shape::Rules(Direction::Vertical, truth));
    std::iter::once(truth).chain(methods(found).filter_map(curve)).collect()
}

/// Heights up to which densities are shown, so that the lowest can be seen beside the highest.
fn heights(marks: &[Mark]) -> Option<[f64; 2]> {
    let peak = |mark: &Mark| match &mark.shape {
        Shape::Line(points) => points.iter().map(|point| point[1]).reduce(f64::max),
        _ => None,
    };
    let peaks: Vec<f64> = marks.iter().filter_map(peak).collect();
    let (low, high) = peaks.iter().fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), p| (l.min(*p), h.max(*p)));
    (high > 0.0).then_some([0.0, 1.05 * high.min(TALLEST * low)])
}

/// Where the curves are worth room.
fn visible(marks: &[Mark]) -> Option<[f64; 2]> {
    let mut ends: Option<[f64; 2]> = None;
    for mark in marks {
        let Shape::Line(points) = &mark.shape else { continue };
        let peak = points.iter().fold(0.0, |peak: f64, point| peak.max(point[1]));
        for [x, _] in points.iter().filter(|point| point[1] > FAINT * peak) {
            ends = Some(ends.map_or([*x, *x], |[low, high]| [low.min(*x), high.max(*x)]));
        }
    }
    ends.filter(|[low, high]| low < high)
}

fn density_panel(title: String, found: &Findings, quantity: &str, range: Option<[f64; 2]>) -> Panel {
    let marks = densities(found, quantity);
    let range = range.or_else(|| visible(&marks));
    let y = Axis { bare: true, range: heights(&marks), ..Axis::new("density") };
    Panel { title, x: Axis { range, ..Axis::new(quantity) }, y, marks }
}

/// Case study 1: one panel for each sigma_A.
fn by_sigma_a(all: &[Findings], range: [f64; 2]) -> Figure {
    let panel = |found: &Findings| {
        let sigma_a = swept(found, "surrogate.sigma_a").unwrap_or("?");
        density_panel(format!("sigma_A = {sigma_a}"), found, "omega", Some(range))
    };
    let panels: Vec<Panel> = all.iter().map(panel).collect();
    arranged(
        panels.len(),
        panels,
        format!(
            "I-posterior densities by the four methods, for several widths sigma_A of the T-likelihood: Point does not know of it, \
             E-Lik and E-Post widen with it, E-Log-Lik narrows. All of them are exact: the T-posterior enters as quadrature nodes. {CUT}"
        ),
    )
}

fn arranged(columns: usize, panels: Vec<Panel>, caption: impl Into<String>) -> Figure {
    // Number and title are the caller's.
    Figure { id: String::new(), title: String::new(), caption: caption.into(), panels, columns, aspect: 0.75 }
}

/// The T-posterior predictive of a surrogate with one input: mean, epistemic band and, where asked for, the band that the
/// approximation error is part of.
fn surrogate_panel(title: String, found: &Findings, with_error: bool) -> Result<Panel> {
    let posterior = found.posterior.as_ref().ok_or_else(|| unfinished(found))?;
    let (output, unknown) = (&posterior.outputs[0], &found.study.unknowns[0]);
    let (low, high) = unknown.range;
    let at = |i: usize| low + (high - low) * i as f64 / (CURVE - 1) as f64;
    let x = Matrix::from_fn(CURVE, 1, |i, _| at(i));
    let (coefficients, sigma_a) = posterior.output_draws(0);
    let weights = posterior.draws.weights();
    let mut eta = Matrix::default();
    output.surrogate.predict(&x, &coefficients, &mut eta, &mut Scratch::default());
    let errors = output.error_sds(&x, &coefficients, &sigma_a);
    let (shift, factor) = output.affine;
    let nodes: Vec<f64> = (0..ERROR_NODES).map(|i| normal_quantile((i as f64 + 0.5) / ERROR_NODES as f64)).collect();
    let (mut mean, mut epistemic, mut predictive) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..CURVE {
        let values: Vec<f64> = eta.row(i).iter().map(|eta| shift + factor * eta).collect();
        mean.push([at(i), values.iter().zip(&weights).map(|(value, weight)| value * weight).sum()]);
        let ends = |sorted: Sorted| [at(i), sorted.quantile(0.025), sorted.quantile(0.975)];
        epistemic.push(ends(Sorted::new(&values, &weights)));
        if with_error {
            let errors = errors.row(i);
            let noisy: Vec<f64> =
                values.iter().zip(errors).flat_map(|(value, sd)| nodes.iter().map(move |z| value + sd * z)).collect();
            let repeated: Vec<f64> = weights.iter().flat_map(|weight| [*weight; ERROR_NODES]).collect();
            predictive.push(ends(Sorted::new(&noisy, &repeated)));
        }
    }
    let mut marks = Vec::new();
    if with_error {
        let series = Series::new("surrogate with its approximation error, 95 %", Ink::Approximation);
        marks.push(series.mark(Shape::Band(predictive)));
    }
    let series = Series::new("surrogate, mean and 95 %", Ink::Epistemic);
    marks.extend([series.mark(Shape::Band(epistemic)), series.mark(Shape::Line(mean))]);
    let y = &found.training.outputs[0].1;
    let runs = (0..y.len()).map(|row| [found.training.inputs[(row, 0)], y[row]]).collect();
    marks.push(Series::new("training runs", Ink::Data).mark(Shape::Points(runs, Vec::new())));
    Ok(Panel { title, x: Axis::new(&unknown.name), y: Axis::new("y"), marks })
}

fn unfinished(found: &Findings) -> Error {
    let why = found.stale.as_ref().map_or_else(String::new, |(_, why)| why.clone());
    Error::failed(&found.study.name, format!("a stage is not finished: {why}"), "run it again")
}

/// Rows for N_T: the surrogate, then I-posteriors for several true values.
fn posteriors(
    all: &[Findings],
    runs: &[&str],
    truths: &[&str],
    carried: Option<&str>,
    with_error: bool,
) -> Result<Figure> {
    let mut panels = Vec::new();
    for n_t in runs {
        for (i, truth) in truths.iter().enumerate() {
            let keys = [("design.runs", *n_t), ("measurements.synthetic.truth.omega", *truth)];
            let carried = carried.map(|carried| ("infer.propagate", carried));
            let found = setting(all, &keys.into_iter().chain(carried).collect::<Vec<_>>())?;
            if i == 0 {
                panels.push(surrogate_panel(format!("N_T = {n_t}"), found, with_error)?);
            }
            panels.push(density_panel(format!("N_T = {n_t}, omega = {truth}"), found, "omega", None));
        }
    }
    Ok(arranged(
        1 + truths.len(),
        panels,
        format!(
            "Left: training runs and the T-posterior predictive. Right: I-posterior densities by the four methods, for several true \
             values. {CUT}"
        ),
    ))
}

/// Figure 6: rows for N_T; the surrogate, theta = c, theta = (c, sigma_A).
fn selected_pce(all: &[Findings]) -> Result<Figure> {
    let mut panels = Vec::new();
    for n_t in ["10", "20"] {
        for (i, (carried, theta)) in THETAS.into_iter().enumerate() {
            let keys =
                [("design.runs", n_t), ("measurements.synthetic.truth.omega", "-0.05"), ("infer.propagate", carried)];
            let found = setting(all, &keys)?;
            if i == 0 {
                panels.push(surrogate_panel(format!("N_T = {n_t}"), found, true)?);
            }
            panels.push(density_panel(format!("N_T = {n_t}: {theta}"), found, "omega", None));
        }
    }
    Ok(arranged(
        3,
        panels,
        format!(
            "Left: training runs and the T-posterior predictive of a polynomial of degree 5, which cannot follow the simulator. Right: \
             I-posterior densities at omega = -0.05, carrying the uncertainty of the coefficients alone, or the approximation error \
             too. {CUT}"
        ),
    ))
}

/// What is carried into the I-step, as the sweep writes it, and the paper's name of it.
const THETAS: [(&str, &str); 2] = [("coefficients", "c"), ("coefficients + sigma-a", "c, sigma_A")];

/// ECDF differences at the ends of the sweep, then log-gamma, sharpness and coverage against N_T.
fn logistic_calibration(name: &str, folder: &Path, monitor: &dyn Monitor) -> Result<Figure> {
    let project = project(name, folder, &results(name), monitor)?;
    let calibrations = project.calibrate(monitor)?;
    let sweep = Sweep::new(calibrations.iter().zip(project.settings().iter().map(|s| &s.study))).of("omega");
    let mut panels = sweep.ecdf().panels;
    panels.extend([sweep.log_gamma(), sweep.sharpness(), sweep.coverage_90()].into_iter().flat_map(|f| f.panels));
    Ok(arranged(
        Method::ALL.len(),
        panels,
        "Above: ECDF differences of the ranks of omega with 95 % envelopes, for the fewest and the most training runs. Below: log-gamma \
         with the 5 % point of independent trials, mean width of 90 % intervals, and how often they hold the truth.",
    ))
}

/// ECDF differences for ten runs by what is carried, then log-gamma and sharpness against N_T for each.
fn pce_calibration(name: &str, folder: &Path, monitor: &dyn Monitor) -> Result<Figure> {
    let project = project(name, folder, &results(name), monitor)?;
    let calibrations = project.calibrate(monitor)?;
    let (mut above, mut below): (Vec<Panel>, _) = (Vec::new(), [Vec::new(), Vec::new()]);
    for (carried, theta) in THETAS {
        let of_theta = |runs: Option<&str>| {
            let settings = project.settings().iter().zip(&calibrations).filter(|(setting, _)| {
                let is = |key: &str, value: &str| setting.label.iter().any(|(k, v)| k == key && v == value);
                let fits = is("infer.propagate", carried) && is("infer.error", "independent");
                fits && runs.is_none_or(|runs| is("design.runs", runs))
            });
            let pairs: Vec<_> = settings.map(|(setting, calibration)| (calibration, &setting.study)).collect();
            Sweep::new(pairs.into_iter()).of("omega")
        };
        let titled = |mut panel: Panel, title: String| {
            panel.title = title;
            panel
        };
        let ecdf = of_theta(Some("10")).ecdf().panels.into_iter();
        above.extend(ecdf.map(|panel| {
            let title = format!("{}: {theta}", panel.title);
            titled(panel, title)
        }));
        let whole = of_theta(None);
        for (row, figure) in below.iter_mut().zip([whole.log_gamma(), whole.sharpness()]) {
            row.extend(figure.panels.into_iter().map(|panel| titled(panel, theta.to_owned())));
        }
    }
    share_range(&mut above);
    above.extend(below.into_iter().flatten());
    Ok(arranged(
        Method::ALL.len(),
        above,
        "Above: ECDF differences of the ranks of omega for N_T = 10 with 95 % envelopes, carrying the coefficients c alone or sigma_A too. \
         Below: log-gamma with the 5 % point of independent trials, and mean width of 90 % intervals.",
    ))
}

/// Pairs of the SIR study's unknowns.
fn sir(all: &[Findings]) -> Result<Figure> {
    let found = all.first().ok_or_else(|| Error::failed("sir", "no setting", "report this as a bug"))?;
    let names: Vec<String> = found.study.unknowns.iter().map(|unknown| unknown.name.clone()).collect();
    let each = DOTS / found.answers.len().max(1);
    let scatter = |row: usize, column: usize| {
        let dots = |(method, posterior): (Method, &IPosterior)| {
            let draws = thinned(posterior.draws.len(), each).map(|k| &posterior.draws[k]);
            let dots = draws.map(|draw| [draw[column], draw[row]]);
            Series::method(method).mark(Shape::Dots(dots.collect()))
        };
        let truth = |name: &str| found.truth().iter().find(|(other, _)| other == name).map(|(_, value)| *value);
        let at = truth(&names[column]).zip(truth(&names[row])).map(|(x, y)| [x, y]);
        let truth = Series::new("true value", Ink::Truth).mark(Shape::Points(at.into_iter().collect(), Vec::new()));
        // The widest first, so that the narrow ones stay visible.
        let order = [Method::EPost, Method::ELik, Method::ELogLik, Method::Point];
        let of = |method: Method| methods(found).find(|(other, _)| *other == method).map(dots);
        order.into_iter().filter_map(of).chain([truth]).collect()
    };
    let density = |i: usize| densities(found, &names[i]);
    let axis = |i: usize| {
        (with_unit(&names[i], &found.study), visible(&density(i)).unwrap_or(found.study.unknowns[i].range.into()))
    };
    let axes: Vec<(String, [f64; 2])> = (0..names.len()).map(axis).collect();
    Ok(arranged(
        names.len(),
        matrix(&axes, density, scatter),
        "I-posteriors of the SIR study through a polynomial of degree 4 trained on 38 runs, theta = c. On the diagonal the marginal \
         densities, below it I-draws.",
    ))
}

/// Pairs of the logistic surrogate's parameters for seven runs.
fn t_posterior(all: &[Findings]) -> Result<Figure> {
    let found = setting(all, &[("design.runs", "7")])?;
    let posterior = found.posterior.as_ref().ok_or_else(|| unfinished(found))?;
    surrogate::t_posterior(posterior).ok_or_else(|| unfinished(found))
}

/// Seconds that the I-step of a setting took.
fn seconds(found: &Findings) -> Result<f64> {
    let record = found.records.iter().find(|(stage, _)| *stage == Stage::Infer);
    record.map(|(_, record)| record.seconds).ok_or_else(|| unfinished(found))
}

/// The one method of a setting.
fn only_method(found: &Findings) -> Option<Method> {
    found.answers.first().and_then(|posterior| Method::named(&posterior.method))
}

/// Runs a study with so many threads, as `run` does.
fn run_with(threads: usize, name: &str, folder: &Path, results: &str, monitor: &dyn Monitor) -> Result<Vec<Findings>> {
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|problem| Error::failed("threads", problem.to_string(), "end other programs and try again"))?;
    let project = project(name, folder, results, monitor)?;
    pool.install(|| project.run(Stage::Infer, monitor))?;
    (0..project.settings().len()).map(|index| project.findings(index)).collect()
}

/// Seconds against the number of T-draws, by engine (rows), degree (columns) and method.
fn times(name: &str, folder: &Path, monitor: &dyn Monitor) -> Result<Figure> {
    let all = run_with(1, name, folder, &results(name), monitor)?;
    let distinct = |key: &str| {
        let mut values: Vec<&str> = Vec::new();
        all.iter().filter_map(|found| swept(found, key)).for_each(|value| {
            if !values.contains(&value) {
                values.push(value);
            }
        });
        values
    };
    let mut panels = Vec::new();
    for engine in distinct("infer.engine") {
        for degree in distinct("surrogate.degree") {
            let mut marks = Vec::new();
            for method in Method::ALL {
                let mut points = Vec::new();
                for found in &all {
                    let is = |key: &str, value: &str| swept(found, key) == Some(value);
                    if is("infer.engine", engine)
                        && is("surrogate.degree", degree)
                        && only_method(found) == Some(method)
                    {
                        let draws = swept(found, "train.draws").and_then(|draws| draws.parse().ok());
                        points.push([draws.unwrap_or(f64::NAN), seconds(found)?]);
                    }
                }
                let series = Series::method(method);
                marks
                    .extend([series.mark(Shape::Line(points.clone())), series.mark(Shape::Points(points, Vec::new()))]);
            }
            panels.push(Panel {
                title: format!("{engine}, degree {degree}"),
                x: Axis { log: true, ..Axis::new("T-draws K") },
                y: Axis { log: true, ..Axis::new("I-step (s)") },
                marks,
            });
        }
    }
    share_log_range(&mut panels);
    Ok(arranged(
        distinct("surrogate.degree").len(),
        panels,
        "Time of the I-step on one thread. Above: NUTS, one chain of 250 warm-up iterations and 250 draws (the paper: four of 1000 and \
         1000), for E-Post as many for each T-draw; with the search for modes that no chain visited. Below: the engine that this program \
         takes by itself, quadrature, whose answers have no Monte Carlo error. K draws of the T-posterior stand for the paper's K clusters.",
    ))
}

/// Gives all panels one vertical range.
fn share_log_range(panels: &mut [Panel]) {
    let heights = panels.iter().flat_map(|panel| &panel.marks).flat_map(|mark| match &mark.shape {
        Shape::Line(points) => points.iter().map(|point| point[1]).collect(),
        _ => Vec::new(),
    });
    let (low, high) =
        heights.filter(|y| *y > 0.0).fold((f64::INFINITY, 0.0), |(l, h): (f64, f64), y| (l.min(y), h.max(y)));
    if low < high {
        panels.iter_mut().for_each(|panel| panel.y.range = Some([0.8 * low, 1.25 * high]));
    }
}

/// Workers of the paper's figure, as far as this machine has them, and two.
fn worker_counts() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2, 4, 16].into_iter().filter(|&workers| workers == 1 || workers <= cores).collect()
}

/// Seconds against the number of threads, by method: mean and sd of the repetitions.
fn workers(name: &str, folder: &Path, monitor: &dyn Monitor) -> Result<Figure> {
    let mut times: Vec<(Method, Vec<[f64; 6]>)> = Method::ALL.map(|method| (method, Vec::new())).to_vec();
    let counts = worker_counts();
    for (place, &workers) in counts.iter().enumerate() {
        let all = run_with(workers, name, folder, &format!("workers-{workers}.twostep"), monitor)?;
        for (method, values) in &mut times {
            let own = all.iter().filter(|found| only_method(found) == Some(*method));
            let seconds: Vec<f64> = own.map(seconds).collect::<Result<_>>()?;
            let n = seconds.len() as f64;
            let mean = seconds.iter().sum::<f64>() / n;
            let sd = (seconds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
            // A logarithmic axis has no place for an end at or below zero.
            values.push([place as f64, (mean - sd).max(0.5 * mean), f64::NAN, mean, f64::NAN, mean + sd]);
        }
    }
    let mut marks = Vec::new();
    for (method, values) in times {
        let series = Series::method(method);
        let points: Vec<[f64; 2]> = values.iter().map(|value| [value[0], value[3]]).collect();
        marks.push(series.mark(Shape::Line(points.clone())));
        marks.push(series.mark(Shape::Intervals(Direction::Vertical, values)));
        marks.push(series.mark(Shape::Points(points, Vec::new())));
    }
    let panel = Panel {
        title: String::new(),
        x: Axis { label: "threads".into(), ..Axis::of(counts.iter().map(usize::to_string).collect()) },
        y: Axis { log: true, ..Axis::new("I-step by NUTS (s)") },
        marks,
    };
    let caption = "Time of the I-step by NUTS with 500 T-draws, one chain, against the number of threads: mean and standard deviation \
                   of three repetitions with seeds of their own. A single chain is not shared between threads; the fits of E-Post are.";
    Ok(Figure { aspect: 0.45, ..arranged(1, vec![panel], caption) })
}

/// Table 2: the parameters of case study 1, read from its study and results.
fn parameters(all: &[Findings]) -> Result<Table> {
    let found = all.first().ok_or_else(|| Error::failed("linear", "no setting", "report this as a bug"))?;
    let Findings { study, training, .. } = found;
    let mut rows: Vec<[String; 3]> = Vec::new();
    let mut row = |step: &str, name: String, value: String| rows.push([step.to_owned(), name, value]);
    let (runs, y) = (&training.inputs, &training.outputs[0].1);
    for i in 0..y.len() {
        row("T", format!("omega_T({})", i + 1), short(runs[(i, 0)]));
        row("T", format!("y_T({})", i + 1), short(y[i]));
    }
    let coefficients = |study: &Study| study.outputs[0].surrogate.clone();
    let names: Vec<String> = found.posterior.iter().flat_map(|p| p.draws.names().to_vec()).collect();
    let priors = coefficients(study).build(&study.input_names(), &study.input_scales())?;
    for (name, prior) in names.iter().zip(priors.priors()) {
        row("T", format!("prior of {name}"), prior.to_string());
    }
    let sigma_a: Vec<&str> = all.iter().filter_map(|found| swept(found, "surrogate.sigma_a")).collect();
    row("T", "sigma_A".into(), sigma_a.join(", "));
    for (name, value) in found.truth() {
        row("I", format!("true {name}"), value.to_string());
    }
    for unknown in &study.unknowns {
        row("I", format!("prior of {}", unknown.name), unknown.prior.to_string());
    }
    let noise = &study.outputs[0].noise.scale;
    if let crate::likelihood::Scale::Fixed(sd) = noise {
        row("I", "sigma_I".into(), sd.to_string());
    }
    let column = |i: usize| rows.iter().map(|row| row[i].clone()).collect::<Vec<_>>();
    Table::new().with_texts("step", column(0))?.with_texts("parameter", column(1))?.with_texts("value", column(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Silent;

    #[test]
    fn drawings_and_unknown_numbers_are_refused() {
        let folder = std::env::temp_dir().join(format!("twostep-paper-{}-none", std::process::id()));
        let refused = |number: usize| figure(number, &folder, &Silent).err().unwrap().to_string();
        assert!(refused(2).contains("figure 2 is a drawing"));
        assert!(refused(16).contains("the paper has no figure 16"));
        assert!(!folder.exists());
    }

    #[test]
    fn every_study_of_a_figure_is_shipped() {
        for (place, numbered) in FIGURES.iter().enumerate() {
            assert_eq!(numbered.number, place + 1);
            assert!(numbered.studies.iter().all(|study| shipped().iter().any(|(name, _)| name == study)));
        }
    }

    #[test]
    fn the_slope_only_figure_shows_what_the_study_found() {
        let folder = std::env::temp_dir().join(format!("twostep-paper-{}-slope", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let made = figure(10, &folder, &Silent).unwrap();
        assert_eq!((made.figure.id.as_str(), made.figure.panels.len()), ("figure-10", 2));
        for panel in &made.figure.panels {
            assert_eq!(panel.marks.len(), 1 + Method::ALL.len(), "the true value, and each method");
            for mark in &panel.marks[1..] {
                let Shape::Line(points) = &mark.shape else { panic!("{mark:?}") };
                assert!(points.len() > 2, "{:?}", mark.series);
            }
        }
        // For sigma_A = 1 the sign of the slope is open: E-Lik has a maximum on each side of zero.
        let Shape::Line(e_lik) = &made.figure.panels[1].marks[1].shape else { panic!("a line") };
        let rises = |low: f64, high: f64| {
            let inside: Vec<f64> = e_lik.iter().filter(|p| low < p[0] && p[0] < high).map(|p| p[1]).collect();
            let peak = inside.iter().fold(0.0, |peak: f64, y| peak.max(*y));
            inside.first().is_some_and(|y| *y < peak) && inside.last().is_some_and(|y| *y < peak)
        };
        assert!(rises(-3.0, 0.0) && rises(0.0, 3.0));
        // Nothing is computed again.
        let stages = folder.join("slope.twostep/stages.json");
        let before = std::fs::metadata(&stages).and_then(|file| file.modified()).ok();
        assert_eq!(figure(10, &folder, &Silent).unwrap().figure, made.figure);
        assert_eq!(std::fs::metadata(&stages).and_then(|file| file.modified()).ok(), before);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
