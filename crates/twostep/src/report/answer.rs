//! Figures of the answer: what was inferred by each method, how it fits the measurements, and where its variance comes from.

use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::pieces::{ends, histogram, label, matrix, short, thinned, truth};
use super::words;
use crate::draws::Sorted;
use crate::infer::propagation::Method;
use crate::infer::{Budget, IPosterior, Measured, QuantitySummary, VarianceShares};
use crate::matrix::{Matrix, bits};
use crate::prior::Marginal;
use crate::run::{At, Findings, predicted};
use crate::table::counted;
use crate::train::PROBABILITIES;
use rayon::prelude::*;

/// Most quantities of forest and densities, of a matrix of pairs, and of traces.
const QUANTITIES: usize = 24;
const PAIRS: usize = 6;
const TRACES: usize = 6;

/// I-draws that predictions are made of.
const PREDICTIVE_DRAWS: usize = 2000;

/// Most measurements of an output that are compared with their predictions.
const CHECKED: usize = 2000;

/// Most dots of a method in a panel of pairs: of the answer, and of the others behind it.
const DOTS: usize = 250;
const FEW_DOTS: usize = 150;

/// Most measurements that are shown one by one.
const MEASUREMENTS: usize = 200;

/// How far beyond its 90 % interval a density is shown, in widths of that.
const TAIL: f64 = 0.75;

/// How many times as high as the answer's curve others are shown.
const HIGHEST: f64 = 4.0;

/// Points of a line.
const POINTS: usize = 200;

/// Most chains that have a look of their own.
const CHAINS: usize = 6;

/// All figures that the I-step has, with what is known of the variances by each method, and [`checks`].
pub fn figures(findings: &Findings, budgets: &[&Budget], checks: &[Check]) -> Vec<Figure> {
    let answers = Answers::new(findings);
    let Some(answer) = answers.all.first() else { return Vec::new() };
    let out = [
        answers.forest(),
        answers.densities(),
        answers.pairs(),
        predictive_check(findings, answer.method, checks),
        budget(findings, budgets),
        weights(findings, budgets),
        answers.trace(),
        answers.ranks(),
    ];
    out.into_iter().flatten().collect()
}

/// An I-posterior with its method.
struct Answer<'a> {
    method: Method,
    posterior: &'a IPosterior,
}

impl Answer<'_> {
    fn of(&self, name: &str) -> Option<&QuantitySummary> {
        self.posterior.unknowns.iter().find(|u| u.name == name)
    }
}

/// I-posteriors, the answer first, and what is shown of them.
struct Answers<'a> {
    findings: &'a Findings,
    all: Vec<Answer<'a>>,
    /// Quantities with a finite mean by some method, each with its true value, where that is known.
    quantities: Vec<(&'a str, Option<f64>)>,
    /// Number of quantities that are left out.
    hidden: usize,
}

impl<'a> Answers<'a> {
    fn new(findings: &'a Findings) -> Self {
        let named =
            |posterior: &'a IPosterior| Method::named(&posterior.method).map(|method| Answer { method, posterior });
        let all: Vec<Answer<'_>> = findings.answers.iter().filter_map(named).collect();
        let finite = |name: &str| all.iter().any(|a| a.of(name).is_some_and(|u| u.mean.is_finite()));
        let first: &[QuantitySummary] = all.first().map_or(&[], |answer| &answer.posterior.unknowns);
        let mut quantities: Vec<(&str, Option<f64>)> = first
            .iter()
            .map(|u| u.name.as_str())
            .filter(|name| finite(name))
            .map(|name| (name, words::truth(findings, name)))
            .collect();
        let hidden = quantities.len().saturating_sub(QUANTITIES);
        quantities.truncate(QUANTITIES);
        Self { findings, all, quantities, hidden }
    }

    fn axis(&self, name: &str) -> Axis {
        Axis::new(words::with_unit(name, &self.findings.study))
    }

    /// What a caption says of truth and of quantities that are not shown.
    fn remarks(&self) -> String {
        let mut out = String::new();
        if self.quantities.iter().any(|(_, truth)| truth.is_some()) {
            out += " The line marked truth is the value that the measurements were made with.";
        }
        if self.hidden > 0 {
            out += &format!(" The first {QUANTITIES} of {} quantities are shown.", QUANTITIES + self.hidden);
        }
        out
    }

    fn figure(&self, id: &str, title: &str, caption: String, panels: Vec<Panel>, aspect: f64) -> Option<Figure> {
        let columns = if panels.len() == 4 { 2 } else { panels.len().clamp(1, 3) };
        let figure = Figure { id: id.into(), title: title.into(), caption, panels, columns, aspect };
        Some(figure).filter(|figure| !figure.panels.is_empty())
    }

    fn forest(&self) -> Option<Figure> {
        let panel = |&(name, true_value): &(&str, Option<f64>)| {
            let mut marks: Vec<Mark> = truth(true_value).into_iter().collect();
            for (place, answer) in self.all.iter().enumerate() {
                let Some(u) = answer.of(name).filter(|u| u.mean.is_finite()) else { continue };
                let [q05, q25, q50, q75, q95] = u.quantiles();
                let interval = Shape::Intervals(Direction::Horizontal, vec![[place as f64, q05, q25, q50, q75, q95]]);
                marks.push(Series::method(answer.method).mark(interval));
            }
            let y = Axis::of(self.all.iter().map(|answer| answer.method.title().to_owned()).collect());
            Panel { title: String::new(), x: self.axis(name), y, marks }
        };
        let caption = format!(
            "What was inferred, by each method: the thick line holds 50 % of the posterior, the thin line 90 %, the marker is the \
             median. {} leads, as the study says.{}",
            self.all[0].method.title(),
            self.remarks()
        );
        self.figure("forest", "Every method", caption, self.quantities.iter().map(panel).collect(), 0.5)
    }

    fn densities(&self) -> Option<Figure> {
        let panels: Vec<Panel> =
            self.quantities.iter().filter_map(|(name, true_value)| self.density(name, *true_value)).collect();
        let has_prior = panels.iter().flat_map(|panel| &panel.marks).any(|mark| mark.series.ink == Ink::Prior);
        let prior = match has_prior {
            true => " Where it has the shape of the prior, the measurements said nothing.",
            false => "",
        };
        let cut = match panels.iter().any(|panel| panel.y.range.is_some()) {
            true => " Curves that rise far above that of the answer are cut off.",
            false => "",
        };
        let caption = format!(
            "Posterior densities by all methods: a narrow curve is a sure answer, which is not to say a right one.{prior}{cut}{}",
            self.remarks()
        );
        self.figure("densities", "Posterior densities", caption, panels, 0.62)
    }

    fn density(&self, name: &str, true_value: Option<f64>) -> Option<Panel> {
        let curves: Vec<(Method, &QuantitySummary)> = self
            .all
            .iter()
            .filter_map(|answer| answer.of(name).filter(|u| !u.curve.is_empty()).map(|u| (answer.method, u)))
            .collect();
        // Far tails take room from what is to be seen.
        let visible = |u: &QuantitySummary| {
            let reach = TAIL * (u.q95 - u.q05);
            let places = u.curve.iter().map(|p| p[0]);
            places.filter(|x| (u.q05 - reach..=u.q95 + reach).contains(x)).collect::<Vec<_>>()
        };
        let [low, high] = ends(curves.iter().flat_map(|(_, u)| visible(u)).chain(true_value));
        let mut marks = Vec::new();
        if let Some(prior) = prior_of(self.findings, name).filter(|_| low < high) {
            let (lower, upper) = prior.support();
            let (low, high) = (low.max(lower), high.min(upper));
            let at = |i: usize| low + (high - low) * i as f64 / (POINTS / 2) as f64;
            let line = (0..=POINTS / 2).map(at).map(|x| [x, prior.log_density(x).exp()]);
            let line: Vec<[f64; 2]> = line.filter(|p| p[1].is_finite()).collect();
            marks.push(Series::new("prior", Ink::Prior).mark(Shape::Line(line)));
        }
        // The answer lies on top.
        for (method, u) in curves.iter().rev() {
            marks.push(Series::method(*method).mark(Shape::Line(u.curve.clone())));
        }
        marks.extend(truth(true_value));
        let x = Axis { range: Some([low, high]).filter(|_| low < high), ..self.axis(name) };
        let height = |u: &QuantitySummary| u.curve.iter().map(|p| p[1]).fold(0.0, f64::max);
        let highest = curves.iter().map(|(_, u)| height(u)).fold(0.0, f64::max);
        let top = curves.first().map(|(_, u)| HIGHEST * height(u)).filter(|top| *top < highest);
        let y = Axis { bare: true, range: top.map(|top| [0.0, top]), ..Axis::new("density") };
        (!curves.is_empty()).then(|| Panel { title: String::new(), x, y, marks })
    }

    fn pairs(&self) -> Option<Figure> {
        let names = &self.findings.parameters;
        let shown: Vec<usize> =
            (0..names.len()).filter(|&d| self.quantities.iter().any(|(n, _)| *n == names[d])).take(PAIRS).collect();
        if shown.len() < 2 {
            return None;
        }
        let true_value =
            |d: usize| self.quantities.iter().find(|(name, _)| *name == names[d]).and_then(|(_, truth)| *truth);
        let most = |place: usize| if place == 0 { DOTS } else { FEW_DOTS };
        let range = |d: usize| {
            let values = self.all.iter().enumerate().flat_map(|(place, answer)| {
                let draws = &answer.posterior.draws;
                thinned(draws.len(), most(place)).map(move |i| draws[i][d])
            });
            ends(values.chain(true_value(d)))
        };
        let quantities: Vec<(String, [f64; 2])> =
            shown.iter().map(|&d| (words::with_unit(&names[d], &self.findings.study), range(d))).collect();
        let diagonal = |i: usize| {
            let mut marks = Vec::new();
            for answer in self.all.iter().rev() {
                let u = answer.of(&names[shown[i]]);
                let series = Series::method(answer.method);
                match u.filter(|u| !u.curve.is_empty()) {
                    Some(u) => marks.push(series.mark(Shape::Line(u.curve.clone()))),
                    None => {
                        let values: Vec<f64> = answer.posterior.draws.iter().map(|x| x[shown[i]]).collect();
                        let bars = histogram(&values, &vec![1.0; values.len()]);
                        let tops = bars.iter().map(|b| [0.5 * (b[0] + b[1]), b[3]]).collect();
                        marks.push(series.mark(Shape::Line(tops)));
                    }
                }
            }
            marks.extend(truth(true_value(shown[i])));
            marks
        };
        let below = |row: usize, column: usize| {
            let (y, x) = (shown[row], shown[column]);
            let mut marks = Vec::new();
            for (place, answer) in self.all.iter().enumerate().rev() {
                let draws = &answer.posterior.draws;
                let dots = thinned(draws.len(), most(place)).map(|i| [draws[i][x], draws[i][y]]).collect();
                marks.push(Series::method(answer.method).mark(Shape::Dots(dots)));
            }
            if let (Some(x), Some(y)) = (true_value(x), true_value(y)) {
                marks.push(Series::new("truth", Ink::Truth).mark(Shape::Points(vec![[x, y]], Vec::new())));
            }
            marks
        };
        let panels = matrix(&quantities, diagonal, below);
        let mut caption = "Draws of the posteriors in pairs, with the density of each on the diagonal: a slanted cloud means that the \
                           measurements fix a combination of the two better than either."
            .to_owned();
        if names.len() > shown.len() {
            caption += &format!(" The first {} of {} are shown.", shown.len(), names.len());
        }
        Some(Figure {
            id: "pairs".into(),
            title: "The answer in pairs".into(),
            caption,
            columns: shown.len(),
            panels,
            aspect: 0.85,
        })
    }

    /// The first method whose draws are chains.
    fn chains(&self) -> Option<(&Answer<'a>, usize, usize)> {
        let answer = self.all.iter().find(|answer| answer.posterior.chains > 1)?;
        let n = answer.posterior.chains;
        Some((answer, n, answer.posterior.draws.len() / n)).filter(|(_, _, length)| *length > 1)
    }

    fn trace(&self) -> Option<Figure> {
        let (answer, n, length) = self.chains()?;
        let panel = |(d, name): (usize, &String)| {
            let of_chain = |chain: usize| {
                let draws = &answer.posterior.draws[chain * length..(chain + 1) * length];
                let line = thinned(length, POINTS).map(|i| [(i + 1) as f64, draws[i][d]]).collect();
                Series::new(format!("chain {}", chain + 1), Ink::Number(chain)).mark(Shape::Line(line))
            };
            let marks = (0..n.min(CHAINS)).map(of_chain).collect();
            Panel { title: String::new(), x: Axis::new("draw"), y: self.axis(name), marks }
        };
        let panels = self.findings.parameters.iter().enumerate().take(TRACES).map(panel).collect();
        let mut caption = format!(
            "Traces of the chains of {}: they should look like noise around one level, and like each other. {}",
            answer.method.title(),
            self.shown_chains(n)
        );
        if length > POINTS {
            caption += &format!(" {POINTS} of {length} draws of each are drawn.");
        }
        self.figure("trace", "Traces", caption.trim_end().to_owned(), panels, 0.5)
    }

    fn shown_chains(&self, n: usize) -> String {
        let mut parts = Vec::new();
        if n > CHAINS {
            parts.push(format!("The first {CHAINS} of {n} chains"));
        }
        if self.findings.parameters.len() > TRACES {
            parts.push(format!("The first {TRACES} of {} quantities", self.findings.parameters.len()));
        }
        parts.iter().map(|part| format!("{part} are shown.")).collect::<Vec<_>>().join(" ")
    }

    fn ranks(&self) -> Option<Figure> {
        const BINS: usize = 20;
        let (answer, n, length) = self.chains()?;
        let used = n * length;
        // Chance of a binomial number with this mean, were draws independent.
        let expected = length as f64 / BINS as f64;
        let spread = 2.0 * (expected * (1.0 - 1.0 / BINS as f64) * (1.0 - 1.0 / n as f64)).sqrt() / expected;
        let panel = |(d, name): (usize, &String)| {
            let draws = &answer.posterior.draws;
            let mut order: Vec<usize> = (0..used).collect();
            order.sort_by(|&a, &b| draws[a][d].total_cmp(&draws[b][d]));
            let mut counts = vec![[0.0; BINS]; n];
            for (rank, &i) in order.iter().enumerate() {
                counts[i / length][rank * BINS / used] += 1.0;
            }
            let mut marks = vec![
                Series::new("chance", Ink::Reference)
                    .mark(Shape::Band(vec![[0.0, 1.0 - spread, 1.0 + spread], [1.0, 1.0 - spread, 1.0 + spread]])),
            ];
            for (chain, counts) in counts.iter().enumerate().take(CHAINS) {
                let steps = counts
                    .iter()
                    .enumerate()
                    .flat_map(|(b, count)| [b, b + 1].map(|edge| [edge as f64 / BINS as f64, count / expected]));
                let series = Series::new(format!("chain {}", chain + 1), Ink::Number(chain));
                marks.push(series.mark(Shape::Line(steps.collect())));
            }
            let x = Axis { range: Some([0.0, 1.0]), ..Axis::new(format!("rank of {name}")) };
            Panel { title: String::new(), x, y: Axis::new("relative number"), marks }
        };
        let panels = self.findings.parameters.iter().enumerate().take(TRACES).map(panel).collect();
        let caption = format!(
            "Ranks of each chain's draws among those of all chains of {}, as a histogram relative to what is expected: chains that agree stay \
             near 1, mostly inside the band (two standard deviations of independent draws); one that leans to a side explored another part. {}",
            answer.method.title(),
            self.shown_chains(n)
        );
        self.figure("ranks", "Ranks", caption.trim_end().to_owned(), panels, 0.5)
    }
}

/// The prior of an unknown or of an unknown sd.
fn prior_of(findings: &Findings, name: &str) -> Option<Marginal> {
    let study = &findings.study;
    let unknown = study.inferred().into_iter().find(|u| u.name == name).map(|u| u.prior);
    let sigmas = study.sigma_names();
    let of_sigma =
        || study.outputs[sigmas.iter().position(|sigma| sigma.as_deref() == Some(name))?].noise.scale.prior().cloned();
    unknown.or_else(of_sigma)
}

/// Measurements of one output against what the answer expects of them.
pub struct Check {
    output: usize,
    /// The experiment, where there are several.
    experiment: Option<usize>,
    /// Rows of the measurements that were looked at.
    rows: Vec<usize>,
    /// Quantiles of the prediction of each.
    intervals: Vec<[f64; 5]>,
    /// How many of them lie inside the 90 % interval.
    inside: usize,
}

/// Every measured output whose noise is known, in each experiment, by the answer.
pub fn checks(findings: &Findings) -> Vec<Check> {
    let (Some(own), Some(posterior)) = (findings.answers.first(), &findings.posterior) else { return Vec::new() };
    let study = &findings.study;
    let kept: Vec<usize> = thinned(own.draws.len(), PREDICTIVE_DRAWS).collect();
    let some = IPosterior {
        draws: kept.iter().map(|&i| own.draws[i].clone()).collect(),
        t_draws: own.t_draws.as_ref().map(|t_draws| kept.iter().map(|&i| t_draws[i]).collect()),
        ..own.clone()
    };
    let experiments: Vec<Option<usize>> = match study.has_experiments() {
        true => (0..study.experiments.len()).map(Some).collect(),
        false => vec![None],
    };
    let of_output = |(output, measured, experiment): (usize, &Measured, Option<usize>)| {
        let is_own = |i: &usize| experiment.is_none_or(|experiment| measured.experiment_of(*i) == experiment);
        // Where a censored measurement lies is not known.
        let known: Vec<usize> = (0..measured.y.len()).filter(is_own).filter(|&i| measured.side(i).is_none()).collect();
        let rows: Vec<usize> = thinned(known.len(), CHECKED).map(|i| known[i]).collect();
        let known = measured.known.select_rows(&rows);
        let sd: Option<Vec<f64>> = measured.scale.as_ref().map(|sd| rows.iter().map(|&i| sd[i]).collect());
        let of_rows: Vec<usize> = experiment.iter().flat_map(|&experiment| vec![experiment; rows.len()]).collect();
        let at = At { known: &known, experiment: &of_rows, scales: sd.as_deref() };
        let drawn = predicted(study, posterior, &findings.parameters, &some, output, &at);
        let interval = |i: usize| {
            let values: Vec<f64> = drawn.iter().map(|d| d.measured[i]).collect();
            let sorted = Sorted::new(&values, &vec![1.0; values.len()]);
            PROBABILITIES.map(|p| sorted.quantile(p))
        };
        let intervals: Vec<[f64; 5]> = (0..rows.len()).into_par_iter().map(interval).collect();
        let is_inside = |(row, q): (&usize, &[f64; 5])| (q[0]..=q[4]).contains(&measured.y[*row]);
        let inside = rows.iter().zip(&intervals).filter(|pair| is_inside(*pair)).count();
        Check { output, experiment, rows, intervals, inside }
    };
    let measured = findings.measured.iter().enumerate();
    let all = measured.flat_map(|(o, measured)| experiments.iter().map(move |experiment| (o, measured, *experiment)));
    all.map(of_output)
        .filter(|check| !check.rows.is_empty())
        .filter(|check| !check.intervals.iter().flatten().any(|v| v.is_nan()))
        .collect()
}

/// How many measurements lie inside the 90 % intervals in which the answer expects them, and how many there are.
pub(super) fn inside(checks: &[Check]) -> Option<[usize; 2]> {
    let sum = |of: fn(&Check) -> usize| checks.iter().map(of).sum::<usize>();
    Some([sum(|check| check.inside), sum(|check| check.rows.len())]).filter(|[_, all]| *all > 0)
}

fn predictive_check(findings: &Findings, method: Method, checks: &[Check]) -> Option<Figure> {
    let study = &findings.study;
    let (mut panels, mut words) = (Vec::new(), Vec::new());
    for Check { output, experiment, rows, intervals, inside } in checks {
        let (output, measured) = (&study.outputs[*output], &findings.measured[*output]);
        let experiment = experiment.map_or("", |experiment| study.experiments[experiment].as_str());
        let of = if experiment.is_empty() { String::new() } else { format!(" in {experiment}") };
        words.push(format!("{inside} of {} of {}{of}", counted(rows.len(), "measurement"), output.name));
        let shown: Vec<usize> = thinned(rows.len(), MEASUREMENTS).collect();
        if shown.len() < rows.len() {
            words.push(format!("of which {} are shown", shown.len()));
        }
        let all: Vec<usize> = shown.iter().map(|&k| rows[k]).collect();
        let intervals: Vec<[f64; 5]> = shown.iter().map(|&k| intervals[k]).collect();
        let y: Vec<f64> = all.iter().map(|&i| measured.y[i]).collect();
        let known = measured.known.select_rows(&all);
        let has_sds = measured.scale.is_some();
        // One condition that varies is a place to show them at.
        let n_inputs = study.n_inputs(output) - study.unknowns.len();
        let varies = |d: &usize| (1..known.rows()).any(|i| known[(i, *d)] != known[(0, *d)]);
        let varying: Vec<usize> = (0..n_inputs.min(known.cols())).filter(varies).collect();
        let (x, places): (Axis, Vec<f64>) = match varying[..] {
            [d] => {
                let condition = &study.conditions[d];
                (Axis { log: condition.log, ..Axis::new(words::with_unit(&condition.name, study)) }, known.col(d))
            }
            _ => (Axis::new("measurement"), all.iter().map(|i| (i + 1) as f64).collect()),
        };
        panels.push(Panel {
            title: experiment.to_owned(),
            x,
            y: Axis {
                log: output.log && y.iter().all(|y| *y > 0.0),
                ..Axis::new(label(&output.name, output.unit.as_deref()))
            },
            marks: predictive_marks(method, &known, &places, &y, &intervals, varying.len() == 1 && !has_sds),
        });
    }
    let caption = format!(
        "What {} predicts for measurements like these, noise included, against the measurements: inside the 90 % interval lie {}. \
         Many outside, or all on one side, mean that model and measurements disagree.",
        method.title(),
        words.join(", ")
    );
    let columns = panels.len().clamp(1, 2);
    let figure = Figure {
        id: "predictive-check".into(),
        title: "Predictions against measurements".into(),
        caption,
        panels,
        columns,
        aspect: 0.55,
    };
    Some(figure).filter(|figure| !figure.panels.is_empty())
}

fn predictive_marks(
    method: Method,
    known: &Matrix,
    places: &[f64],
    y: &[f64],
    intervals: &[[f64; 5]],
    is_curve: bool,
) -> Vec<Mark> {
    let mut order: Vec<usize> = (0..y.len()).collect();
    order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
    order.dedup_by_key(|i| bits(known.row(*i)));
    let series = Series::new("predicted, 50 % and 90 %", Ink::Method(method));
    let middle = Series::new("predicted, median", Ink::Method(method));
    let mut marks = if is_curve && order.len() > 2 {
        let band = |a: usize, b: usize| {
            Shape::Band(order.iter().map(|&i| [places[i], intervals[i][a], intervals[i][b]]).collect())
        };
        let line = Shape::Line(order.iter().map(|&i| [places[i], intervals[i][2]]).collect());
        vec![series.mark(band(0, 4)), series.mark(band(1, 3)), middle.mark(line)]
    } else {
        let row = |i: usize| {
            let [a, b, c, d, e] = intervals[i];
            [places[i], a, b, c, d, e]
        };
        vec![series.mark(Shape::Intervals(Direction::Vertical, (0..y.len()).map(row).collect()))]
    };
    let notes = y
        .iter()
        .zip(intervals)
        .map(|(y, q)| format!("measured {}, predicted {} to {} (90 %)", short(*y), short(q[0]), short(q[4])));
    let points = places.iter().zip(y).map(|(x, y)| [*x, *y]).collect();
    marks.push(Series::new("measured", Ink::Data).mark(Shape::Points(points, notes.collect())));
    marks
}

/// Shares of the variance of every quantity, by each method.
fn budget(findings: &Findings, budgets: &[&Budget]) -> Option<Figure> {
    const HALF: f64 = 0.32;
    let panel = |budget: &&Budget| {
        let shown: Vec<&VarianceShares> =
            budget.quantities.iter().filter(|of| of.are_known()).take(QUANTITIES).collect();
        let names = ["measurement noise and prior", "approximation error", "epistemic"];
        let inks = [Ink::Noise, Ink::Approximation, Ink::Epistemic];
        let mut bars: [(Vec<[f64; 4]>, Vec<String>); 3] = Default::default();
        for (place, of) in shown.iter().enumerate() {
            let parts = [of.noise, of.approximation, of.epistemic];
            // Estimates of shares near zero may lie below.
            let total: f64 = parts.iter().map(|p| p.share.max(0.0)).sum();
            let mut left = 0.0;
            for ((part, name), (bars, notes)) in parts.into_iter().zip(names).zip(&mut bars) {
                let right = left + part.share.max(0.0) / total;
                if right > left {
                    bars.push([left, right, place as f64 - HALF, place as f64 + HALF]);
                    notes.push(format!("{}: {name} {part}", of.name));
                }
                left = right;
            }
        }
        let marks = bars.into_iter().zip(names.into_iter().zip(inks)).filter(|(bars, _)| !bars.0.is_empty());
        let marks = marks.map(|((bars, notes), (name, ink))| Series::new(name, ink).mark(Shape::Bars(bars, notes)));
        Panel {
            title: budget.method.title().into(),
            x: Axis { range: Some([0.0, 1.0]), ..Axis::new("share of the posterior variance") },
            y: Axis::of(shown.iter().map(|of| of.name.clone()).collect()),
            marks: marks.collect(),
        }
    };
    let has_known = |budget: &&&Budget| budget.quantities.iter().any(VarianceShares::are_known);
    let panels: Vec<Panel> = budgets.iter().filter(has_known).map(panel).collect();
    let unknown = budgets.iter().flat_map(|budget| {
        let unknown = budget.quantities.iter().filter(|of| !of.are_known());
        unknown.map(|of| format!("{} by {}", of.name, budget.method.title()))
    });
    let unknown = match unknown.collect::<Vec<_>>() {
        none if none.is_empty() => String::new(),
        some => format!(" Left out, since their shares are hardly known, as the table says: {}.", some.join(", ")),
    };
    let worst = budgets
        .iter()
        .flat_map(|budget| budget.quantities.iter().filter(|of| of.are_known()))
        .flat_map(|of| [of.noise.error, of.approximation.error, of.epistemic.error])
        .filter(|error| error.is_finite())
        .fold(0.0, f64::max);
    let propagated = match findings.study.carries_errors() {
        true => "its approximation error (what would go if that were known)",
        false => "its approximation error, which this study does not propagate",
    };
    let caption = format!(
        "Where the posterior variance comes from, by the law of total variance: measurement noise and prior (what a perfect simulator in \
         the surrogate's place would leave), {propagated}, and what the T-step left unknown of the surrogate (epistemic, which more \
         runs reduce). Monte Carlo errors are at most {}.{unknown}",
        counted((100.0 * worst).ceil() as usize, "percentage point")
    );
    let columns = panels.len().clamp(1, 2);
    let figure =
        Figure { id: "budget".into(), title: "Uncertainty budget".into(), caption, panels, columns, aspect: 0.5 };
    Some(figure).filter(|figure| !figure.panels.is_empty())
}

/// How few of the T-draws hold how much of E-Lik's posterior.
fn weights(findings: &Findings, budgets: &[&Budget]) -> Option<Figure> {
    let budget = budgets.iter().find(|budget| budget.method == Method::ELik).filter(|b| b.weights.len() > 1)?;
    let mut sorted = budget.weights.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let n = sorted.len();
    let mut sum = 0.0;
    let cumulative: Vec<f64> = std::iter::once(0.0)
        .chain(sorted.iter().map(|w| {
            sum += w;
            sum
        }))
        .collect();
    let line: Vec<[f64; 2]> = thinned(n, POINTS).chain([n]).map(|k| [k as f64, cumulative[k]]).collect();
    let half = cumulative.partition_point(|share| *share < 0.5);
    let own = findings.answers.iter().find(|answer| answer.method == Method::ELik.name());
    // As a part of the T-draws, of which some may stand for all here.
    let agreement = own.and_then(|answer| answer.diagnostics.evidence_agreement);
    let effective = agreement.map(|share| share * n as f64).filter(|e| *e <= n as f64);
    let mut marks = vec![
        Series::new("all alike", Ink::Reference).mark(Shape::Line(vec![[0.0, 0.0], [n as f64, 1.0]])),
        Series::method(Method::ELik).mark(Shape::Line(line)),
    ];
    if let Some(effective) = effective {
        let series = Series::new("effective number", Ink::Truth);
        marks.push(series.mark(Shape::Rules(Direction::Vertical, vec![effective])));
    }
    let number =
        effective.map_or(String::new(), |e| format!(" All of them are worth {} equal ones.", short(e.round())));
    let caption = format!(
        "How the measurements weigh the T-draws in E-Lik: {half} of {n} hold half of its posterior.{number} The farther the line is above \
         the dashed one, the fewer surrogates the measurements believe, and the more train.draws E-Lik needs."
    );
    let x = Axis { range: Some([0.0, n as f64]), ..Axis::new("T-draws, heaviest first") };
    let y = Axis { range: Some([0.0, 1.0]), ..Axis::new("share of the posterior") };
    let panels = vec![Panel { title: String::new(), x, y, marks }];
    Some(Figure {
        id: "weights".into(),
        title: "Weights of the T-draws".into(),
        caption,
        panels,
        columns: 1,
        aspect: 0.45,
    })
}
