//! Figures of the surrogate: what it predicts, how far it is off, what is known of its coefficients, and where it was trained.

use super::figure::{Axis, Direction, Figure, Ink, Mark, Panel, Series, Shape};
use super::pieces::{ends, histogram, label, listed, matrix, short, thinned};
use super::words::{self, with_unit};
use crate::draws::{Draws, Sorted};
use crate::error::Result;
use crate::matrix::Matrix;
use crate::mcmc::smc::systematic;
use crate::run::Findings;
use crate::special::normal_quantile;
use crate::stream::Stream;
use crate::surrogate::Scratch;
use crate::table::counted;
use crate::train::{Order, TPosterior, TrainedOutput, output_draws};

/// T-draws that bands are made of.
const BAND_DRAWS: usize = 400;

/// Points of a curve.
const CURVE: usize = 61;

/// Most panels of an output's slices, parameters of the T-posterior, and inputs of the design.
const SLICES: usize = 6;
const PARAMETERS: usize = 8;
const INPUTS: usize = 5;

/// Most runs that are markers with a text; more are dots.
const MARKED: usize = 200;

/// Most dots of a panel, and of a panel among many.
const DOTS: usize = 400;
const FEW_DOTS: usize = 200;

/// Most intervals of a panel.
const INTERVALS: usize = 150;

/// All figures that the runs and the T-posterior have.
///
/// # Errors
/// A training set that does not belong to the T-posterior.
pub fn figures(findings: &Findings) -> Result<Vec<Figure>> {
    let mut out = Vec::new();
    if let Some(posterior) = &findings.posterior {
        let draws = some_draws(&posterior.draws);
        out.push(slices(findings, posterior, &draws)?);
        out.extend(leave_one_out(findings, posterior)?);
        out.extend(t_posterior(posterior));
        out.extend(sobol(findings, posterior));
    }
    out.extend(design(findings));
    Ok(out)
}

/// A number of equally weighted draws that stand for all.
fn some_draws(draws: &Draws) -> Draws {
    let weights = draws.weights();
    let n = draws.n_draws().min(BAND_DRAWS);
    let kept: Vec<usize> = systematic(&weights, n, &mut Stream::root(0).named("figures").rng()).collect();
    let equal = vec![0.0; n];
    draws.select(&kept, equal)
}

/// Back from the surrogate's scale.
fn natural(output: &TrainedOutput, eta: f64) -> f64 {
    if output.log { eta.exp() } else { eta }
}

fn output_label(findings: &Findings, o: usize) -> String {
    let output = &findings.study.outputs[o];
    label(&output.name, output.unit.as_deref())
}

/// `eta` of one output at inputs in rows, under draws in columns, and the sds of its approximation error.
fn predict(posterior: &TPosterior, draws: &Draws, o: usize, inputs: &Matrix) -> (Matrix, Matrix) {
    let (coefficients, sigma_a) = output_draws(&posterior.outputs, draws.values(), o);
    let (output, mut eta) = (&posterior.outputs[o], Matrix::default());
    output.surrogate.predict(inputs, &coefficients, &mut eta, &mut Scratch::default());
    let (shift, factor) = output.affine;
    eta.data_mut().iter_mut().for_each(|eta| *eta = shift + factor * *eta);
    let errors = output.error_sds(inputs, &coefficients, &sigma_a);
    (eta, errors)
}

/// Where the inputs that a slice does not follow are held: unknowns at the mean of the answer, conditions in the middle of the
/// measurements.
fn held(findings: &Findings) -> Vec<f64> {
    let study = &findings.study;
    let answer = findings.answers.first();
    let unknown = |unknown: &crate::study::Unknown| {
        let of_answer = answer.and_then(|a| a.unknowns.iter().find(|u| u.name == unknown.name)).map(|u| u.mean);
        let (lower, upper) = unknown.range;
        of_answer.filter(|mean| mean.is_finite()).unwrap_or_else(|| unknown.prior.median()).clamp(lower, upper)
    };
    let scales = study.input_scales();
    let condition = |d: usize| {
        let mut known: Vec<f64> = findings
            .measured
            .iter()
            .filter(|m| m.known.cols() > d)
            .flat_map(|m| m.known.col(d))
            .filter(|x| x.is_finite())
            .collect();
        known.sort_by(f64::total_cmp);
        let scale = scales[study.unknowns.len() + d];
        let middle = known.get(known.len() / 2).copied().unwrap_or_else(|| scale.at_fraction(0.5));
        middle.clamp(scale.lower, scale.upper)
    };
    study.unknowns.iter().map(unknown).chain((0..study.conditions.len()).map(condition)).collect()
}

/// The surrogate along each of its inputs.
fn slices(findings: &Findings, posterior: &TPosterior, draws: &Draws) -> Result<Figure> {
    let (study, held) = (&findings.study, held(findings));
    let scales = study.input_scales();
    let names = study.input_names();
    let mut panels = Vec::new();
    let (mut left_out, mut most) = (false, 0);
    let is_slice = posterior.outputs.iter().any(|output| output.n_inputs > 1);
    let runs = if is_slice { "runs, moved to the slice" } else { "runs" };
    for (o, output) in posterior.outputs.iter().enumerate() {
        let rows = output.training_rows(&findings.training)?;
        let (at_rows, _) = predict(posterior, draws, o, &rows.inputs);
        let medians: Vec<f64> = (0..rows.eta.len()).map(|i| quantiles(at_rows.row(i), &[0.5])[0]).collect();
        let mut of_output: Vec<(f64, Panel)> = Vec::new();
        let mut shown = Vec::new();
        for d in 0..output.n_inputs {
            let along = Matrix::from_fn(CURVE, output.n_inputs, |i, e| match e == d {
                true => scales[d].at_fraction(i as f64 / (CURVE - 1) as f64),
                false => held[e],
            });
            let (eta, errors) = predict(posterior, draws, o, &along);
            let curve: Vec<[f64; 6]> = (0..CURVE)
                .map(|i| {
                    let [low, middle, high] =
                        quantiles(eta.row(i), &[0.05, 0.5, 0.95]).try_into().unwrap_or([f64::NAN; 3]);
                    let [lowest, highest] = total(eta.row(i), errors.row(i));
                    [along[(i, d)], lowest, low, middle, high, highest]
                })
                .collect();
            // Runs lie off the slice: what the surrogate predicts between there and here is taken off.
            let moved =
                Matrix::from_fn(
                    rows.eta.len(),
                    output.n_inputs,
                    |i, e| if e == d { rows.inputs[(i, d)] } else { held[e] },
                );
            let (on_slice, _) = predict(posterior, draws, o, &moved);
            let n = rows.eta.len();
            let eta: Vec<f64> = match output.n_inputs {
                1 => rows.eta.clone(),
                _ => (0..n).map(|i| rows.eta[i] - medians[i] + quantiles(on_slice.row(i), &[0.5])[0]).collect(),
            };
            let place = |i: usize| [rows.inputs[(i, d)], natural(output, eta[i])];
            shown.extend(curve.iter().flat_map(|c| [c[1], c[5]]).chain(eta.iter().copied()));
            let points = match output.n_inputs == 1 && n <= MARKED {
                true => {
                    let note = |i: usize| format!("run {}: {}", findings.run_number(rows.runs[i]), short(place(i)[1]));
                    Shape::Points((0..n).map(place).collect(), (0..n).map(note).collect())
                }
                false => Shape::Dots(thinned(n, DOTS).map(place).collect()),
            };
            let band = |a: usize, b: usize| {
                Shape::Band(curve.iter().map(|c| [c[0], natural(output, c[a]), natural(output, c[b])]).collect())
            };
            let line: Vec<[f64; 2]> = curve.iter().map(|c| [c[0], natural(output, c[3])]).collect();
            let marks = vec![
                Series::new("with approximation error, 90 %", Ink::Approximation).mark(band(1, 5)),
                Series::new("epistemic, 90 %", Ink::Epistemic).mark(band(2, 4)),
                Series::new(runs, Ink::Data).mark(points),
                Series::new("median", Ink::Epistemic).mark(Shape::Line(line)),
            ];
            let reach = curve.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), c| (l.min(c[3]), h.max(c[3])));
            let x = Axis { log: scales[d].log, ..Axis::new(with_unit(&names[d], study)) };
            let y = Axis { log: output.log, ..Axis::new(output_label(findings, o)) };
            of_output.push((reach.1 - reach.0, Panel { title: String::new(), x, y, marks }));
        }
        if of_output.len() > SLICES {
            left_out = true;
            let mut reaches: Vec<f64> = of_output.iter().map(|p| p.0).collect();
            reaches.sort_by(|a, b| b.total_cmp(a));
            of_output.retain(|p| p.0 >= reaches[SLICES - 1]);
        }
        // One axis for all inputs of an output: those that do little look like it.
        let [low, high] = ends(shown.into_iter());
        // Ends that are no numbers on the natural scale, or orders of magnitude that nobody reads, are left to the drawing.
        let is_readable = low < high && !(output.log && high - low > 12.0 * std::f64::consts::LN_10);
        let range = Some([low, high].map(|eta| natural(output, eta))).filter(|_| is_readable);
        most = most.max(of_output.len());
        panels.extend(of_output.into_iter().map(|(_, panel)| Panel { y: Axis { range, ..panel.y }, ..panel }));
    }
    let mut caption = "The trained surrogate: the line is its median, the inner band holds 90 % of what the T-posterior \
                       leaves possible for its mean (epistemic uncertainty), the outer band 90 % of what it predicts for a new \
                       run (approximation error included)."
        .to_owned();
    if is_slice {
        let places: Vec<String> =
            names.iter().zip(&held).map(|(name, at)| format!("{name} = {}", short(*at))).collect();
        caption += &format!(
            " Each panel follows one input, with the others held at {}; runs lie elsewhere, and are shown as far from the line as \
             the surrogate misses them.",
            listed(&places)
        );
    }
    if left_out {
        caption += &format!(" Of the inputs, the {SLICES} that move each output most are shown.");
    }
    let columns = match (most, posterior.outputs.len()) {
        (1, n) => n.min(2),
        (4, 1) => 2,
        (4, _) => 4,
        (most, _) => most.min(3),
    };
    Ok(Figure {
        id: "surrogate".into(),
        title: "The surrogate".into(),
        caption,
        columns,
        aspect: if panels.len() == 1 { 0.5 } else { 0.7 },
        panels,
    })
}

/// Quantiles of equally weighted values.
fn quantiles(values: &[f64], probabilities: &[f64]) -> Vec<f64> {
    let sorted = Sorted::new(values, &vec![1.0; values.len()]);
    probabilities.iter().map(|p| sorted.quantile(*p)).collect()
}

/// The 90 % interval of `eta_s + sigma_a,s z`: each normal by as many values of equal probability.
fn total(eta: &[f64], sigma_a: &[f64]) -> [f64; 2] {
    const VALUES: usize = 20;
    let scores: Vec<f64> = (0..VALUES).map(|i| normal_quantile((i as f64 + 0.5) / VALUES as f64)).collect();
    let values: Vec<f64> =
        eta.iter().zip(sigma_a).flat_map(|(eta, sigma)| scores.iter().map(move |z| eta + sigma * z)).collect();
    let both = quantiles(&values, &[0.05, 0.95]);
    [both[0], both[1]]
}

/// By how much runs are missed: intervals, their middles, and a text for each.
#[derive(Default)]
struct Missed {
    intervals: Vec<[f64; 6]>,
    points: Vec<[f64; 2]>,
    notes: Vec<String>,
}

/// Runs against what is predicted for them without them.
fn leave_one_out(findings: &Findings, posterior: &TPosterior) -> Result<Option<Figure>> {
    // Of a normal distribution.
    let reach = normal_quantile(0.95);
    let (mut panels, mut words, mut left_out) = (Vec::new(), Vec::new(), false);
    for (o, output) in posterior.outputs.iter().enumerate() {
        let rows = output.training_rows(&findings.training)?;
        let (shift, factor) = output.affine;
        let own = &output.report.leave_one_out;
        let all: Vec<(usize, f64, f64)> = own
            .predictions
            .iter()
            .enumerate()
            .filter_map(|(i, p)| p.map(|(mean, sd)| (i, shift + factor * mean, factor * sd)))
            .filter(|(i, ..)| *i < rows.eta.len())
            .collect();
        if all.is_empty() {
            continue;
        }
        let mut shown: [Missed; 2] = Default::default();
        for place in thinned(all.len(), INTERVALS) {
            let (i, mean, sd) = all[place];
            let off = rows.eta[i] - mean;
            let at = natural(output, mean);
            let [low, middle, high] = [off - reach * sd, off, off + reach * sd].map(|v| natural(output, v));
            let Missed { intervals, points, notes } = &mut shown[usize::from(off.abs() > reach * sd)];
            intervals.push([at, low, f64::NAN, middle, f64::NAN, high]);
            points.push([at, middle]);
            let value = natural(output, rows.eta[i]);
            notes.push(format!(
                "run {}: {} simulated, {} predicted",
                findings.run_number(rows.runs[i]),
                short(value),
                short(at)
            ));
        }
        let zero = natural(output, 0.0);
        let mut marks = vec![Series::unnamed(Ink::Reference).mark(Shape::Rules(Direction::Horizontal, vec![zero]))];
        let series = [Series::new("inside the 90 % interval", Ink::Data), Series::new("outside", Ink::Failed)];
        for (series, Missed { intervals, points, notes }) in series.iter().zip(shown) {
            if !points.is_empty() {
                marks.push(series.mark(Shape::Intervals(Direction::Vertical, intervals)));
                marks.push(series.mark(Shape::Points(points, notes)));
            }
        }
        let unit = findings.study.outputs[o].unit.as_deref();
        let y = match output.log {
            true => Axis { log: true, ..Axis::new("simulated / predicted") },
            false => Axis::new(label("simulated - predicted", unit)),
        };
        let x = Axis { log: output.log, ..Axis::new(format!("predicted {}", output_label(findings, o))) };
        panels.push(Panel { title: String::new(), x, y, marks });
        let mut sentence =
            format!("{}: {} of the values lie inside their 90 % interval", output.name, words::held(own.coverage_90));
        if let Some(q2) = own.q2 {
            sentence += &format!(", Q2 = {q2:.3}");
        }
        if own.unreliable > 0 {
            sentence += &format!("; the predictions of {} are unreliable", counted(own.unreliable, "run"));
        }
        words.push(sentence);
        left_out |= all.len() > INTERVALS;
    }
    let some = if left_out { format!(" {INTERVALS} values of each output are drawn.") } else { String::new() };
    let caption = format!(
        "Every run against the prediction of a surrogate trained without it; the bar is the 90 % predictive interval, and covers \
         the dashed line where the prediction is right. {}. Q2 is 1 for perfect predictions and 0 for ones no better than the mean.{some}",
        words.join(". ")
    );
    let columns = panels.len().clamp(1, 2);
    let figure = Figure {
        id: "leave-one-out".into(),
        title: "Runs predicted without them".into(),
        caption,
        panels,
        columns,
        aspect: 0.5,
    };
    Ok(Some(figure).filter(|figure| !figure.panels.is_empty()))
}

/// The parameters that leave most of the outputs unknown, in pairs.
pub(super) fn t_posterior(posterior: &TPosterior) -> Option<Figure> {
    let draws = &posterior.draws;
    let names = draws.names();
    // What each parameter's spread makes of the output, on the scale of the surrogate.
    let mut effects = Vec::new();
    for output in &posterior.outputs {
        let (series, basis) = (output.surrogate.series(), output.surrogate.basis());
        for p in 0..output.surrogate.names().len() {
            // Hyper-parameters of a Gaussian process are no terms of its basis.
            let size = match series {
                Some(series) => series.size_of(p),
                None => basis.filter(|basis| p < basis.len()).map_or(1.0, |basis| basis.size(p)),
            };
            let at = effects.len();
            effects.push(size * draws.sd(at));
        }
        // The approximation error belongs to it in any case.
        let at = effects.len();
        let values = draws.values().row(at);
        // The sd of equal values is rounded, and need not be zero.
        effects.push(if values.iter().any(|value| *value != values[0]) { f64::INFINITY } else { 0.0 });
    }
    let mut order: Vec<usize> = (0..effects.len()).filter(|&p| effects[p] > 0.0).collect();
    let n_varying = order.len();
    order.sort_by(|&a, &b| effects[b].total_cmp(&effects[a]));
    order.truncate(PARAMETERS);
    order.sort_unstable();
    if order.is_empty() {
        return None;
    }
    let quantity = |&p: &usize| (names[p].clone(), ends(draws.values().row(p).iter().copied()));
    let quantities: Vec<(String, [f64; 2])> = order.iter().map(quantity).collect();
    let weights = draws.weights();
    let kept: Vec<usize> =
        systematic(&weights, draws.n_draws().min(FEW_DOTS), &mut Stream::root(0).named("figures").rng()).collect();
    let series = Series::unnamed(Ink::Epistemic);
    let diagonal = |i: usize| {
        let bars = histogram(draws.values().row(order[i]), &weights);
        vec![series.mark(Shape::Bars(bars, Vec::new()))]
    };
    let below = |row: usize, column: usize| {
        let (y, x) = (draws.values().row(order[row]), draws.values().row(order[column]));
        vec![series.mark(Shape::Dots(kept.iter().map(|&s| [x[s], y[s]]).collect()))]
    };
    let panels = matrix(&quantities, diagonal, below);
    let which = match n_varying > order.len() {
        true => format!("Of {n_varying} parameters, the {} whose uncertainty moves the output most", order.len()),
        false => "All parameters that were learned".into(),
    };
    let scaled = posterior.outputs.iter().any(|output| output.affine != (0.0, 1.0));
    let scaled = if scaled { " They are those of outputs brought to mean 0 and sd 1." } else { "" };
    let caption = format!(
        "The T-posterior: what the runs say of the surrogate. {which}: histograms, and {} draws of each pair; a narrow or slanted cloud \
         means that the runs fix a combination of the two.{scaled}",
        kept.len()
    );
    Some(Figure {
        id: "t-posterior".into(),
        title: "T-posterior".into(),
        caption,
        columns: quantities.len(),
        panels,
        aspect: 0.8,
    })
}

/// Sensitivity of polynomial surrogates to their inputs.
fn sobol(findings: &Findings, posterior: &TPosterior) -> Option<Figure> {
    const WIDTH: f64 = 0.18;
    let names = findings.study.input_names();
    let mut panels = Vec::new();
    for (o, output) in posterior.outputs.iter().enumerate() {
        let indices = posterior.sensitivity(o);
        let Some(indices) = indices.filter(|indices| indices.n_inputs() > 1) else { continue };
        let intervals = |order: Order, shift: f64| -> Vec<[f64; 6]> {
            (0..indices.n_inputs())
                .map(|d| {
                    let q = indices.quantiles(order, d, [0.05, 0.25, 0.5, 0.75, 0.95]);
                    [d as f64 + shift, q[0], q[1], q[2], q[3], q[4]]
                })
                .filter(|row| row.iter().all(|v| v.is_finite()))
                .collect()
        };
        let [first, total] = [intervals(Order::First, -WIDTH), intervals(Order::Total, WIDTH)];
        if first.is_empty() {
            continue;
        }
        let marks = vec![
            Series::new("first-order", Ink::Number(0)).mark(Shape::Intervals(Direction::Horizontal, first)),
            Series::new("total", Ink::Number(1)).mark(Shape::Intervals(Direction::Horizontal, total)),
        ];
        let what = if output.log { format!("log {}", output.name) } else { output.name.clone() };
        let x = Axis { range: Some([0.0, 1.0]), ..Axis::new(format!("share of the variance of {what}")) };
        let y = Axis::of(names[..output.n_inputs].to_vec());
        panels.push(Panel { title: String::new(), x, y, marks });
    }
    let caption = "Sobol' indices of the surrogate for inputs that are uniform between their bounds (those scaled by their logarithm, on it): first-order is the share of the output's \
                   variance that an input explains by itself, total adds what it does together with others. Lines hold 50 % and \
                   90 % of the T-draws, and what the surrogate leaves open: at their upper ends its approximation error belongs to the input, at their lower ends to others, as do \
                   terms whose sign is not certain."
        .into();
    let columns = panels.len().clamp(1, 2);
    let figure =
        Figure { id: "sobol".into(), title: "Which inputs matter".into(), caption, panels, columns, aspect: 0.6 };
    Some(figure).filter(|figure| !figure.panels.is_empty())
}

/// The runs in the space of their inputs.
fn design(findings: &Findings) -> Option<Figure> {
    let study = &findings.study;
    let names = &study.input_names()[..study.n_run_inputs()];
    let n = names.len().min(INPUTS);
    if n < 2 && findings.failed.is_empty() {
        return None;
    }
    let set = &findings.training;
    let n_runs = set.n_runs();
    let inputs = |run: usize| &set.inputs.row(set.rows_of(run).start)[..names.len()];
    let described = |x: &[f64]| {
        let pairs: Vec<String> = names.iter().zip(x).map(|(name, x)| format!("{name} = {}", short(*x))).collect();
        listed(&pairs)
    };
    let scales = study.input_scales();
    let pairs: Vec<(usize, usize)> = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect();
    let [done, failed] = [Series::new("runs", Ink::Data), Series::new("failed runs", Ink::Failed)];
    let run_notes: Vec<String> = match n_runs <= MARKED {
        true => {
            (0..n_runs).map(|run| format!("run {}: {}", findings.run_number(run), described(inputs(run)))).collect()
        }
        false => Vec::new(),
    };
    let shown_failures: Vec<usize> = thinned(findings.failed.len(), MARKED).collect();
    let failed_notes: Vec<String> = shown_failures
        .iter()
        .map(|&i| {
            let run = &findings.failed[i];
            // A traceback is no text for a figure.
            let reason: String = run.reason.chars().take(200).collect();
            format!("run {} failed: {reason} ({})", run.run, described(&run.inputs))
        })
        .collect();
    let axis = |d: usize| Axis { log: scales[d].log, ..Axis::new(with_unit(&names[d], study)) };
    let marks = |place: &dyn Fn(usize, &[f64]) -> [f64; 2]| -> Vec<Mark> {
        let mut marks = Vec::new();
        if n_runs > 0 {
            marks.push(done.mark(match n_runs <= MARKED {
                true => Shape::Points(
                    (0..n_runs).map(|run| place(findings.run_number(run), inputs(run))).collect(),
                    run_notes.clone(),
                ),
                false => {
                    Shape::Dots(thinned(n_runs, DOTS).map(|run| place(findings.run_number(run), inputs(run))).collect())
                }
            }));
        }
        if !shown_failures.is_empty() {
            let places = shown_failures.iter().map(|&i| place(findings.failed[i].run, &findings.failed[i].inputs));
            marks.push(failed.mark(Shape::Points(places.collect(), failed_notes.clone())));
        }
        marks
    };
    let prior = Series::new("prior, 90 %", Ink::Prior);
    let prior_ends = |d: usize| study.unknowns.get(d).map(|u| [0.05, 0.95].map(|p| u.prior.quantile(p)).to_vec());
    let panel = |(i, j): (usize, usize)| {
        let mut marks = marks(&|_, x| [x[i], x[j]]);
        marks.extend(prior_ends(i).map(|ends| prior.mark(Shape::Rules(Direction::Vertical, ends))));
        marks.extend(prior_ends(j).map(|ends| prior.mark(Shape::Rules(Direction::Horizontal, ends))));
        Panel { title: String::new(), x: axis(i), y: axis(j), marks }
    };
    let panels: Vec<Panel> = match n {
        1 => vec![Panel {
            title: String::new(),
            x: axis(0),
            y: Axis::new("run"),
            marks: marks(&|run, x| [x[0], run as f64]),
        }],
        _ => pairs.into_iter().map(panel).collect(),
    };
    let mut caption = format!("Where the simulator was run: {}", counted(n_runs, "run"));
    if !findings.failed.is_empty() {
        caption += &format!(", and {} that failed", findings.failed.len());
    }
    caption += ". Where no run is near, the surrogate guesses; failed runs close together hint at a region where the simulator cannot work.";
    if n > 1 {
        caption += " Dotted lines hold 90 % of each unknown's prior.";
    }
    if names.len() > n {
        caption += &format!(" The first {n} of {} inputs are shown.", names.len());
    }
    if n_runs > DOTS {
        caption += &format!(" Of the runs, {DOTS} are drawn.");
    }
    // The ten pairs of five inputs in rows of four leave no panel alone.
    let columns = if panels.len() > 6 { 4 } else { panels.len().clamp(1, 3) };
    let aspect = if panels.len() == 1 { 0.55 } else { 0.9 };
    Some(Figure { id: "design".into(), title: "The runs".into(), caption, panels, columns, aspect })
}
