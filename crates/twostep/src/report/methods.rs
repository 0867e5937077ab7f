//! Findings to `methods.md`: a methods section for a paper with the numbers of the study, and BibTeX of what it rests on.

use super::words::{held, listed, percent, title};
use crate::calibrate::Truth;
use crate::infer::IPosterior;
use crate::infer::propagation::{Method, OwnKind, PointEstimate};
use crate::likelihood::{ErrorSharing, Family, Generator, Scale};
use crate::run::{Calibration, Findings, VERSION};
use crate::simulate::{SimulatorKind, design};
use crate::study::{MeasurementSource, Output, Stage, Study};
use crate::surrogate::{SigmaA, SurrogateKind};
use crate::table::counted;
use crate::train::{TReport, TrainedOutput};
use std::fmt::Write;

/// A work that a section cites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Reiser2025,
    Arthur2007,
    Burley2020,
    Carvalho2010,
    Halton1960,
    Hoffman2014,
    Joe2008,
    McKay1979,
    Sailynoja2022,
    Seelinger2023,
    Tierney1986,
    Vehtari2021,
    Vehtari2024,
    Zhang2022,
}

impl Work {
    const ALL: [Self; 14] = [
        Self::Reiser2025,
        Self::Arthur2007,
        Self::Burley2020,
        Self::Carvalho2010,
        Self::Halton1960,
        Self::Hoffman2014,
        Self::Joe2008,
        Self::McKay1979,
        Self::Sailynoja2022,
        Self::Seelinger2023,
        Self::Tierney1986,
        Self::Vehtari2021,
        Self::Vehtari2024,
        Self::Zhang2022,
    ];

    /// Its key, and its entry without it.
    fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::Reiser2025 => (
                "reiser2025",
                "author = {Reiser, Philipp and Aguilar, Javier Enrique and Guthke, Anneli and B{\\\"u}rkner, Paul-Christian},\n  \
                 title = {Uncertainty Quantification and Propagation in Surrogate-Based {Bayesian} Inference},\n  \
                 journal = {Statistics and Computing},\n  year = {2025},",
            ),
            Self::Arthur2007 => (
                "arthur2007",
                "author = {Arthur, D. and Vassilvitskii, S.},\n  title = {k-means++: The Advantages of Careful Seeding},\n  \
                 booktitle = {Proceedings of the Eighteenth Annual {ACM-SIAM} Symposium on Discrete Algorithms},\n  \
                 pages = {1027--1035},\n  year = {2007},",
            ),
            Self::Burley2020 => (
                "burley2020",
                "author = {Burley, B.},\n  title = {Practical Hash-Based {Owen} Scrambling},\n  \
                 journal = {Journal of Computer Graphics Techniques},\n  volume = {9},\n  number = {4},\n  \
                 pages = {1--20},\n  year = {2020},",
            ),
            Self::Carvalho2010 => (
                "carvalho2010",
                "author = {Carvalho, C. M. and Polson, N. G. and Scott, J. G.},\n  title = {The Horseshoe Estimator for Sparse \
                 Signals},\n  journal = {Biometrika},\n  volume = {97},\n  pages = {465--480},\n  year = {2010},",
            ),
            Self::Halton1960 => (
                "halton1960",
                "author = {Halton, J. H.},\n  \
                 title = {On the Efficiency of Certain Quasi-Random Sequences of Points in Evaluating Multi-Dimensional \
                 Integrals},\n  journal = {Numerische Mathematik},\n  volume = {2},\n  pages = {84--90},\n  \
                 year = {1960},",
            ),
            Self::Hoffman2014 => (
                "hoffman2014",
                "author = {Hoffman, M. D. and Gelman, A.},\n  \
                 title = {The {No-U-Turn} Sampler: Adaptively Setting Path Lengths in {Hamiltonian} {Monte} {Carlo}},\n  \
                 journal = {Journal of Machine Learning Research},\n  volume = {15},\n  pages = {1593--1623},\n  \
                 year = {2014},",
            ),
            Self::Joe2008 => (
                "joe2008",
                "author = {Joe, S. and Kuo, F. Y.},\n  \
                 title = {Constructing {Sobol} Sequences with Better Two-Dimensional Projections},\n  \
                 journal = {SIAM Journal on Scientific Computing},\n  volume = {30},\n  number = {5},\n  \
                 pages = {2635--2654},\n  year = {2008},",
            ),
            Self::McKay1979 => (
                "mckay1979",
                "author = {McKay, M. D. and Beckman, R. J. and Conover, W. J.},\n  \
                 title = {A Comparison of Three Methods for Selecting Values of Input Variables in the Analysis of Output \
                 from a Computer Code},\n  journal = {Technometrics},\n  volume = {21},\n  number = {2},\n  \
                 pages = {239--245},\n  year = {1979},",
            ),
            Self::Sailynoja2022 => (
                "sailynoja2022",
                "author = {S{\\\"a}ilynoja, T. and B{\\\"u}rkner, P.-C. and Vehtari, A.},\n  \
                 title = {Graphical Test for Discrete Uniformity and Its Applications in Goodness-of-Fit Evaluation and \
                 Multiple Sample Comparison},\n  journal = {Statistics and Computing},\n  volume = {32},\n  year = {2022},",
            ),
            Self::Seelinger2023 => (
                "seelinger2023",
                "author = {Seelinger, L. and Cheng-Seelinger, V. and Davis, A. and Parno, M. and Reinarz, A.},\n  \
                 title = {{UM-Bridge}: Uncertainty Quantification and Modeling Bridge},\n  \
                 journal = {Journal of Open Source Software},\n  volume = {8},\n  number = {83},\n  year = {2023},",
            ),
            Self::Tierney1986 => (
                "tierney1986",
                "author = {Tierney, L. and Kadane, J. B.},\n  \
                 title = {Accurate Approximations for Posterior Moments and Marginal Densities},\n  \
                 journal = {Journal of the American Statistical Association},\n  volume = {81},\n  number = {393},\n  \
                 pages = {82--86},\n  year = {1986},",
            ),
            Self::Vehtari2021 => (
                "vehtari2021",
                "author = {Vehtari, A. and Gelman, A. and Simpson, D. and Carpenter, B. and B{\\\"u}rkner, P.-C.},\n  \
                 title = {Rank-Normalization, Folding, and Localization: An Improved {R-hat} for Assessing Convergence of \
                 {MCMC}},\n  journal = {Bayesian Analysis},\n  volume = {16},\n  number = {2},\n  \
                 pages = {667--718},\n  year = {2021},",
            ),
            Self::Vehtari2024 => (
                "vehtari2024",
                "author = {Vehtari, A. and Simpson, D. and Gelman, A. and Yao, Y. and Gabry, J.},\n  \
                 title = {Pareto Smoothed Importance Sampling},\n  \
                 journal = {Journal of Machine Learning Research},\n  volume = {25},\n  year = {2024},",
            ),
            Self::Zhang2022 => (
                "zhang2022",
                "author = {Zhang, L. and Carpenter, B. and Gelman, A. and Vehtari, A.},\n  \
                 title = {Pathfinder: Parallel Quasi-{Newton} Variational Inference},\n  \
                 journal = {Journal of Machine Learning Research},\n  volume = {23},\n  number = {306},\n  pages = {1--49},\n  \
                 year = {2022},",
            ),
        }
    }

    /// A citation as Pandoc reads it.
    fn cited(self) -> String {
        format!("[@{}]", self.entry().0)
    }
}

/// A methods section in Markdown with Pandoc's citations, and the BibTeX entries of what it cites: as far as the stages of the
/// findings are finished.
pub fn methods(findings: &Findings, calibration: Option<&Calibration>) -> String {
    let study = &findings.study;
    let mut paragraphs = vec![runs(findings), t_step(findings)];
    if !findings.answers.is_empty() {
        paragraphs.push(measurements(findings));
        paragraphs.push(i_step(findings));
    }
    paragraphs.extend(calibration.map(|calibration| calibrated(calibration, study)));
    paragraphs.push(software(findings));
    let label: Vec<String> =
        findings.label.iter().map(|(key, value)| format!("{} = {}", escaped(key), escaped(value))).collect();
    let setting = if label.is_empty() { String::new() } else { format!(" ({})", label.join(", ")) };
    let text = format!("# Methods of the study {}{setting}\n\n{}\n", escaped(&study.name), paragraphs.join("\n\n"));
    let mut bibtex = String::new();
    for work in Work::ALL {
        let (key, rest) = work.entry();
        if text.contains(&format!("@{key}")) {
            let kind = if rest.contains("booktitle") { "inproceedings" } else { "article" };
            let _ = write!(bibtex, "@{kind}{{{key},\n  {rest}\n}}\n\n");
        }
    }
    format!(
        "{text}\n## References\n\n```bibtex\n{bibtex}@software{{twostep,\n  author = {{{{The twostep developers}}}},\n  \
         title = {{twostep}},\n  version = {{{}}},\n}}\n```\n",
        version(findings)
    )
}

/// User text that Markdown shows as it is, in one line.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_control() {
            out.push(' ');
            continue;
        }
        if "\\`*_[]<>&|~$#@^{}!".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn in_unit(unit: Option<&String>) -> String {
    unit.map_or(String::new(), |unit| format!(" {}", escaped(unit)))
}

/// Simulator, its runs, and where they lie.
fn runs(findings: &Findings) -> String {
    let study = &findings.study;
    let name = escaped(&study.simulator.name());
    let simulator = match &study.simulator.kind {
        SimulatorKind::Builtin(_) => format!("The simulator {name}, built into twostep,"),
        SimulatorKind::Command(_) => format!("The simulator ({name})"),
        SimulatorKind::Function(_) => format!("The simulator, the Python function {name},"),
        SimulatorKind::Umbridge(_) => {
            format!("The simulator ({name}), called over UM-Bridge {},", Work::Seelinger2023.cited())
        }
        SimulatorKind::Elsewhere => format!("The simulator, whose finished runs were read from {name},"),
    };
    let finished = findings.training.n_runs();
    let failed = match findings.failed.len() {
        0 => String::new(),
        n => format!("; {} failed and {} left out", counted(n, "further run"), if n == 1 { "was" } else { "were" }),
    };
    let times = if finished == 1 { "once".to_owned() } else { format!("{finished} times") };
    let noise = match study.simulator.sigma_s {
        sd if sd > 0.0 => format!(" Noise with standard deviation {sd} was added to its outputs."),
        _ => String::new(),
    };
    let unknowns = study.unknowns.iter().map(|u| (&u.name, u.range, u.unit.as_ref(), u.log));
    let conditions = study.conditions.iter().map(|c| (&c.name, c.range, c.unit.as_ref(), c.log));
    let ranges: Vec<String> = unknowns
        .chain(conditions)
        .map(|(name, (from, to), unit, log)| {
            let scale = if log { ", on a logarithmic scale" } else { "" };
            format!("{} from {from} to {to}{}{scale}", escaped(name), in_unit(unit))
        })
        .collect();
    let constants: Vec<String> =
        study.constants.iter().map(|(name, value)| format!("{} = {value}", escaped(name))).collect();
    let constants = match constants.as_slice() {
        [] => String::new(),
        some => format!(" Constant were {}.", listed(some)),
    };
    format!(
        "{simulator} was run {times}{failed}{}. The ranges were: {}.{constants}{noise}",
        design(study),
        ranges.join("; ")
    )
}

fn design(study: &Study) -> String {
    if matches!(study.simulator.kind, SimulatorKind::Elsewhere) {
        return String::new();
    }
    if let Some(points) = &study.design.points {
        let file = points.file_name().unwrap_or_default().to_string_lossy();
        return format!(", at the points of {}", escaped(&file));
    }
    let points = match study.design.method {
        design::Method::HaltonEnds => {
            format!("the two opposite corners of the ranges and a Halton sequence {}", Work::Halton1960.cited())
        }
        design::Method::Halton => format!("a Halton sequence {}", Work::Halton1960.cited()),
        design::Method::Sobol => format!("a Sobol' sequence {}", Work::Joe2008.cited()),
        design::Method::SobolScrambled => {
            format!("a Sobol' sequence {} with Owen scrambling {}", Work::Joe2008.cited(), Work::Burley2020.cited())
        }
        design::Method::LatinHypercube => format!("a Latin hypercube {}", Work::McKay1979.cited()),
        design::Method::Grid => "a regular grid".to_owned(),
        design::Method::Random => "independent uniform draws".to_owned(),
    };
    format!(", at the points of {points}")
}

/// Surrogates and T-posterior.
fn t_step(findings: &Findings) -> String {
    let study = &findings.study;
    let posterior = findings.posterior.as_ref();
    let mut text = format!(
        "The simulator was replaced by a surrogate, and the uncertainty about the surrogate was carried into the inference \
         by the two-step procedure of {}.",
        Work::Reiser2025.cited()
    );
    for (o, output) in study.outputs.iter().enumerate() {
        text += &surrogate(output, posterior.map(|posterior| &posterior.outputs[o]));
    }
    let Some(posterior) = posterior else { return text };
    for output in &posterior.outputs {
        text += &trained(&output.report, study, posterior.draws.n_draws());
    }
    text
}

fn surrogate(output: &Output, trained: Option<&TrainedOutput>) -> String {
    let name = escaped(&output.name);
    let what = if output.log { format!("the logarithm of {name}") } else { name };
    let spec = &trained.map_or_else(
        || output.surrogate.clone(),
        |own| crate::train::chosen_spec(&output.surrogate, own.n_inputs, &own.report),
    );
    let standardised = if spec.standardise { ", after standardisation" } else { "" };
    let score = spec.components();
    let scores = score.as_ref().map_or(String::new(), |_| {
        let found = trained.and_then(|own| own.report.series);
        let (number, share) = found.map_or(("few".to_owned(), String::new()), |found| {
            (found.components.to_string(), format!(" (with {:.2} % of their variance)", 100.0 * found.share))
        });
        format!("{number} principal components of its runs{share}, the score of each modelled by ")
    });
    let (kind, varying) = match score.as_ref().map_or(&spec.kind, |score| &score.kind) {
        SurrogateKind::VaryingError { of, degree, coefficients } => (&**of, Some((degree, coefficients))),
        kind => (kind, None),
    };
    let kind = match kind {
        SurrogateKind::Pce { degree, coefficients, .. } => {
            let own = trained.filter(|_| score.is_none());
            let number =
                own.and_then(|own| own.surrogate.basis()).map_or(String::new(), |own| format!("{} ", own.len()));
            format!(
                "a polynomial chaos expansion in Legendre polynomials of total degree {degree}, whose {number}coefficients had the \
                 prior {coefficients}"
            )
        }
        SurrogateKind::SparsePce { degree, .. } => {
            let found = trained.and_then(|own| own.report.terms.as_ref()).map_or(String::new(), |terms| {
                let n = terms.matter.len();
                format!(" ({} candidates, of which {n} had a sign known with 97.5 % probability)", terms.candidates)
            });
            format!(
                "a sparse polynomial chaos expansion in Legendre polynomials of total degree {degree}{found}, whose coefficients had a \
                 horseshoe prior with scales that fall with degree and number of inputs {}",
                Work::Carvalho2010.cited()
            )
        }
        SurrogateKind::Gp { degree, coefficients: (mean, sd), gp, .. } => {
            let trend = match degree {
                0 => "a constant".to_owned(),
                1 => "a linear trend".to_owned(),
                degree => format!("a polynomial chaos expansion in Legendre polynomials of total degree {degree}"),
            };
            format!(
                "a Gaussian process with a {} kernel on {trend}, whose coefficients had the prior normal({mean}, {sd}), the standard \
                 deviation of the process the prior {}",
                gp.kernel.name(),
                gp.sd
            )
        }
        SurrogateKind::Formula { formula, parameters } => {
            let priors: Vec<String> =
                parameters.iter().map(|(name, prior)| format!("{} \\~ {prior}", escaped(name))).collect();
            format!("the formula {} with {}", escaped(formula), listed(&priors))
        }
        SurrogateKind::Function(function) => format!("the function {}", escaped(&function.name())),
        // Before the T-step.
        SurrogateKind::Auto(_) => "the one of several surrogates that predicts left-out runs best".to_owned(),
        // Scores have no components of their own, and of a varying error only its surrogate is left here.
        SurrogateKind::Components(_) | SurrogateKind::VaryingError { .. } => String::new(),
    };
    let sigma_a = match &spec.sigma_a {
        SigmaA::Fixed(value) if spec.function().is_some() => {
            format!("was that of its draws, or {value} where they had none")
        }
        SigmaA::Fixed(value) => format!("was {value}"),
        SigmaA::Prior(prior) => format!("had the prior {prior}"),
    };
    let error = match varying {
        None => format!("of its approximation error {sigma_a}"),
        Some((degree, coefficients)) => format!(
            "of its approximation error depended on the inputs: log sigma\\_A was an expansion in orthonormal Legendre polynomials of total \
             degree {degree}, whose coefficients had the prior {coefficients}; the exponential of its constant {sigma_a}"
        ),
    };
    let choice = trained.and_then(|own| own.report.choice.as_ref()).map_or(String::new(), |choice| {
        let n = choice.candidates.len();
        format!(" It had the highest leave-one-run-out log predictive density of {n} that were compared.")
    });
    format!(
        " The surrogate of {what} was {scores}{kind}{standardised}; the standard deviation sigma\\_A {error}.{choice}"
    )
}

fn trained(report: &TReport, study: &Study, draws: usize) -> String {
    let of = if study.outputs.len() > 1 { format!(" of {}", escaped(&report.output)) } else { String::new() };
    let (method, given) = match report.method.strip_prefix("exact-given-") {
        Some(sampler) => (
            sampler,
            " for the parameters of sigma\\_A; the coefficients were integrated out, and drawn exactly given these",
        ),
        None => (report.method.as_str(), ""),
    };
    let how = match method {
        "exact" => format!("represented by {draws} independent draws, made exactly"),
        "nodes" => format!("represented by {draws} weighted quadrature nodes of its exact form"),
        "nuts" => format!(
            "represented by {draws} draws of the No-U-Turn sampler {} ({} after {} warm-up iterations each)",
            Work::Hoffman2014.cited(),
            counted(study.train.nuts.chains, "chain"),
            study.train.nuts.warmup
        ),
        "horseshoe" => format!(
            "represented by {draws} draws of a Gibbs sampler that draws scales with the coefficients integrated out, and coefficients \
             exactly given these"
        ),
        "laplace" | "pathfinder" => resampled(report, draws),
        "smc" => format!("represented by {draws} draws of tempered sequential Monte Carlo"),
        "gp" => format!(
            "represented by {draws} functions, made by pathwise conditioning for draws of the hyper-parameters from their posterior"
        ),
        "function" => format!("represented by {draws} draws that the surrogate's own program made or brought"),
        _ => format!("represented by {draws} draws that were made elsewhere"),
    };
    let own = &report.leave_one_out;
    let smoothed = match report.is_left_out_by_draws() {
        false => String::new(),
        true => format!(", by Pareto smoothed importance sampling {}", Work::Vehtari2024.cited()),
    };
    let q2 = own.q2.filter(|q2| q2.is_finite()).map_or(String::new(), |q2| format!(" and Q2 was {q2:.3}"));
    let check = match own.coverage_90.is_finite() {
        true => format!(
            " Left out of the training one at a time{smoothed}, {} of the runs lay inside their 90 % predictive \
             interval{q2}.",
            held(own.coverage_90)
        ),
        false => String::new(),
    };
    format!(" The posterior of the surrogate's parameters{of} (T-posterior) was {how}{given}.{check}")
}

/// Draws by importance weights of a normal approximation.
fn resampled(report: &TReport, draws: usize) -> String {
    let n = report.importance.map_or(1, |own| own.normals);
    let from = match (report.method.as_str(), n) {
        ("pathfinder", _) => format!(
            "the normal approximations that Pathfinder {} found on {}",
            Work::Zhang2022.cited(),
            counted(n, "path")
        ),
        (_, 1) => format!("the normal approximation at its mode {}", Work::Tierney1986.cited()),
        _ => format!("a mixture of normal approximations at its {n} modes {}", Work::Tierney1986.cited()),
    };
    let weights = report.importance.map_or(String::new(), |own| {
        format!(" (k-hat {:.2}, worth {:.0} draws without repetition)", own.k_hat, own.effective)
    });
    format!(
        "represented by {draws} draws, resampled with Pareto smoothed importance weights {}{weights} from {from}",
        Work::Vehtari2024.cited()
    )
}

/// What was measured, and its noise.
fn measurements(findings: &Findings) -> String {
    let study = &findings.study;
    let mut sentences = Vec::new();
    let counts: Vec<String> = findings
        .measured
        .iter()
        .filter(|measured| !measured.y.is_empty())
        .map(|measured| format!("{} of {}", counted(measured.y.len(), "measured value"), escaped(&measured.output)))
        .collect();
    let censored = findings.measured.iter().map(|m| m.sides.iter().flatten().count()).sum::<usize>();
    let censored = match censored {
        0 => String::new(),
        n => format!(", of which {} by the probability of lying beyond its bound", counted(n, "censored one entered")),
    };
    sentences.push(format!("There were {}{censored}.", listed(&counts)));
    if let MeasurementSource::Synthetic { truth, noise, .. } = &study.measurements {
        let truth: Vec<String> = truth.iter().map(|(name, value)| format!("{} = {value}", escaped(name))).collect();
        let noise: Vec<String> =
            noise.iter().map(|(name, generator)| format!("{} of {}", generated(generator), escaped(name))).collect();
        sentences.push(format!(
            "They are synthetic, made by the simulator itself at {} with {}.",
            listed(&truth),
            listed(&noise)
        ));
    }
    for (output, name) in study.outputs.iter().zip(study.sigma_names()) {
        let family = match output.noise.family {
            Family::Normal => "normal".to_owned(),
            Family::LogNormal { .. } => "log-normal".to_owned(),
            Family::StudentT { df } => format!("Student-t with {df} degrees of freedom"),
            Family::Relative { relative } => format!("normal, its sd growing by {relative} times the output"),
            Family::UnknownRelative { sd } => format!("normal, its sd growing from {sd} in proportion to the output"),
            Family::Poisson => "Poisson".to_owned(),
            Family::NegativeBinomial { .. } => "negative binomial".to_owned(),
            Family::Binomial => "binomial".to_owned(),
        };
        let what = match output.noise.family {
            Family::NegativeBinomial { inverse: true } => "inverse dispersion",
            Family::NegativeBinomial { inverse: false } => "dispersion phi",
            Family::UnknownRelative { .. } => "relative sd",
            Family::Binomial => "number of trials",
            _ => "scale",
        };
        let name = escaped(&name.unwrap_or_else(|| "sigma_i".to_owned()));
        let sd = match &output.noise.scale {
            _ if output.noise.family == Family::Poisson => String::new(),
            Scale::Fixed(value) => format!(", with {what} {value}"),
            Scale::Prior(prior) => format!(", with an unknown {what} {name} with prior {prior}"),
            Scale::Column if output.covariance.is_some() => {
                ", with a known covariance between all measurements".to_owned()
            }
            Scale::Multiple(prior) if output.covariance.is_some() => format!(
                ", with a covariance between all measurements that is known but for the square of a factor {name} with prior {prior}"
            ),
            Scale::Column => format!(", with a known {what} for each measurement"),
            Scale::Multiple(prior) => {
                format!(
                    ", with a {what} for each measurement that is known but for a common factor {name} with prior {prior}"
                )
            }
        };
        sentences.push(format!("The likelihood of {} was {family}{sd}.", escaped(&output.name)));
        if let Some(prior) = &output.offset {
            let scale = if output.log { "the logarithm of " } else { "" };
            let name = escaped(&output.name);
            sentences.push(format!("All measurements share an unknown offset from {scale}{name}, with prior {prior}."));
        }
    }
    sentences.join(" ")
}

fn generated(generator: &Generator) -> String {
    match generator {
        Generator::Normal { sd } => format!("normal noise (sd {sd})"),
        Generator::LogNormal { sd } => format!("log-normal noise (sd of the logarithm {sd})"),
        Generator::StudentT { sd, df } => format!("Student-t noise (scale {sd}, {df} degrees of freedom)"),
        Generator::NegativeBinomial { phi } => format!("negative-binomial noise (phi = {phi})"),
        Generator::Poisson => "Poisson noise".to_owned(),
        Generator::Relative { sd, relative } => format!("normal noise (sd {sd} and {relative} times the output)"),
        Generator::Binomial { trials } => format!("binomial noise ({trials} trials)"),
        Generator::None => "no noise".to_owned(),
    }
}

/// Priors, propagation and engine.
fn i_step(findings: &Findings) -> String {
    let study = &findings.study;
    let priors: Vec<String> =
        study.unknowns.iter().map(|unknown| format!("{} \\~ {}", escaped(&unknown.name), unknown.prior)).collect();
    let mut sentences = vec![format!("The priors of the unknowns were {}.", listed(&priors))];
    let own: Vec<String> =
        study.unknowns.iter().filter(|unknown| unknown.per_experiment).map(|unknown| escaped(&unknown.name)).collect();
    if !own.is_empty() {
        let experiments: Vec<String> = study.experiments.iter().map(|name| escaped(name)).collect();
        sentences.push(format!(
            "There were {} ({}), each with its own value of {}, independently from that prior; all else was shared.",
            counted(experiments.len(), "experiment"),
            listed(&experiments),
            listed(&own)
        ));
    }
    let others: Vec<String> = findings.answers.iter().skip(1).map(|own| title(&own.method).to_owned()).collect();
    sentences.push(propagation(study.infer.answer, study.infer.point));
    if let Some(clusters) = study.infer.clusters.count().filter(|_| study.infer.answer != Method::Point) {
        sentences.push(format!(
            "The T-draws were first reduced to {clusters} clusters by k-means {}.",
            Work::Arthur2007.cited()
        ));
    }
    if let Some(clusters) = findings.answers.first().and_then(|answer| answer.diagnostics.clusters) {
        let k_hat = clusters.k_hat.map_or(String::new(), |k_hat| format!(" (k-hat {k_hat:.2})"));
        let how = match clusters.k_hat {
            Some(_) => format!("by Pareto-smoothed importance sampling {}{k_hat}", Work::Vehtari2024.cited()),
            None => "by quadrature on the cells that they ask for".to_owned(),
        };
        sentences.push(format!(
            "The posterior under {} clusters of T-draws, by k-means {}, was corrected to that of all T-draws {how}, with an error of at most \
             {:.3} sd.",
            clusters.clusters,
            Work::Arthur2007.cited(),
            (1e3 * clusters.error).ceil() / 1e3
        ));
    }
    if findings.answers.first().is_some_and(|answer| answer.diagnostics.marginal) {
        sentences.push(
            "Functions of the Gaussian process were integrated out exactly for every draw of its hyper-parameters, in place of the average \
             over functions."
                .to_owned(),
        );
    }
    let by_components = |output: &Output| output.surrogate.has_components();
    if study.outputs.iter().any(by_components) && study.infer.series_errors {
        sentences.push(
            "Errors of the scores, and what the components leave out, entered the likelihood with their covariance over the coordinate."
                .to_owned(),
        );
    }
    let of_values = match (study.infer.sigma_a, study.infer.error) {
        (false, _) => {
            "The approximation error of the surrogate was not added to the noise of the measurements.".to_owned()
        }
        (true, ErrorSharing::Shared) => {
            "The approximation error of the surrogate was added to the noise of the measurements, \
                                         and is shared by measurements at the same inputs."
                .to_owned()
        }
        (true, ErrorSharing::Independent) => {
            "The approximation error of the surrogate was added to the noise of each measurement independently."
                .to_owned()
        }
    };
    if !study.outputs.iter().all(by_components) || !study.infer.series_errors {
        sentences.push(of_values);
    }
    if !others.is_empty() {
        sentences.push(format!("For comparison the same was done by {}.", listed(&others)));
    }
    sentences.extend(findings.answers.first().map(engine));
    let derived: Vec<String> =
        study.derived.iter().map(|(name, formula)| format!("{} = {}", escaped(name), escaped(formula))).collect();
    if !derived.is_empty() {
        sentences.push(format!("Derived quantities were {}, computed draw by draw.", listed(&derived)));
    }
    sentences.join(" ")
}

fn propagation(method: Method, point: PointEstimate) -> String {
    let how = match method {
        Method::ELik => {
            "the likelihood of the measurements was averaged over the T-draws, and the average, times the prior, was taken as the \
             posterior of the unknowns up to a constant"
        }
        Method::EPost => {
            "for every T-draw the posterior of the unknowns was computed and normalised, and these posteriors were averaged over \
             the T-draws"
        }
        Method::ELogLik => {
            "the logarithm of the likelihood of the measurements was averaged over the T-draws, and its exponential, times the \
             prior, was taken as the posterior of the unknowns up to a constant"
        }
        Method::Own(own) if own.kind() == OwnKind::Weights => {
            "for every T-draw the posterior of the unknowns was computed, and these posteriors were mixed with weights of the \
             authors' own"
        }
        Method::Own(_) => {
            "the likelihoods of the measurements under the T-draws were pooled in a way of the authors' own, and the result, times \
             the prior, was taken as the posterior of the unknowns up to a constant"
        }
        Method::Point => match point {
            PointEstimate::Mean => "the surrogate's parameters were fixed at the mean of the T-draws",
            PointEstimate::Median => "the surrogate's parameters were fixed at the medians of the T-draws",
            PointEstimate::Mode => "the surrogate's parameters were fixed at the modes of the T-draws",
        },
    };
    format!("The unknowns were inferred by {}: {how}.", method.title())
}

fn engine(answer: &IPosterior) -> String {
    let diagnostics = &answer.diagnostics;
    let r_hat = diagnostics.max_r_hat.filter(|r_hat| r_hat.is_finite());
    let r_hat = r_hat
        .map_or(String::new(), |r_hat| format!("; the largest R-hat {} was {r_hat:.3}", Work::Vehtari2021.cited()));
    let effective = answer.unknowns.iter().filter_map(|u| u.ess_bulk).filter(|ess| ess.is_finite()).reduce(f64::min);
    let effective = effective.map_or(String::new(), |ess| format!(", the smallest effective sample size {ess:.0}"));
    match answer.engine.as_str() {
        "exact" => "This posterior was computed in closed form.".to_owned(),
        "grid" => {
            let error = diagnostics.quadrature_error.filter(|error| error.is_finite());
            let error = error.map_or(String::new(), |error| {
                format!(
                    ", with an estimated error of means, standard deviations and quantiles of at most {error:.1e} sd"
                )
            });
            format!("This posterior was computed by adaptive quadrature{error}.")
        }
        "nuts" => {
            let diverged = diagnostics.divergences.unwrap_or(0);
            format!(
                "This posterior was sampled by the No-U-Turn sampler {}{r_hat}{effective}, with {}.",
                Work::Hoffman2014.cited(),
                counted(diverged, "divergent transition")
            )
        }
        _ => format!("This posterior was sampled by tempered sequential Monte Carlo{r_hat}{effective}."),
    }
}

/// Trials and what they say.
fn calibrated(calibration: &Calibration, study: &Study) -> String {
    let plan = &calibration.plan;
    let truths = match plan.truth {
        Truth::Simulator => {
            "truths were drawn from the prior, and training runs and measurements made by the simulator"
        }
        Truth::SurrogatePrior => {
            "truths and the surrogate's parameters were drawn from their priors, and training runs and \
                                  measurements made by the surrogate"
        }
        Truth::HeldOutRuns => "truths were the inputs of finished runs, which were left out of the training",
    };
    let mut text = format!(
        "The whole procedure was calibrated by two-step simulation-based calibration {}: in {} with {} in all, {truths}; each \
         surrogate was trained with {}. Uniformity of the ranks was judged by the difference of their empirical distribution from \
         the uniform one with simultaneous 95 % envelopes {}.",
        Work::Reiser2025.cited(),
        counted(plan.t_trials, "T-trial"),
        counted(plan.i_trials, "I-trial"),
        counted(plan.trained_runs, "run"),
        Work::Sailynoja2022.cited()
    );
    let answer = study.infer.answer.name();
    let (own, others): (Vec<_>, Vec<_>) = calibration.methods.iter().partition(|method| method.method == answer);
    for method in own.into_iter().chain(others) {
        let coverages: Vec<String> = method
            .unknowns
            .iter()
            .filter_map(|unknown| {
                let ninety = unknown.coverage.iter().find(|coverage| (coverage.level - 0.9).abs() < f64::EPSILON)?;
                let [share, lower, upper] = [ninety.share, ninety.lower, ninety.upper].map(|share| 100.0 * share);
                let known = share.is_finite() && lower.is_finite() && upper.is_finite();
                known.then(|| format!("{share:.0} % ({lower:.0} to {upper:.0}) for {}", escaped(&unknown.unknown)))
            })
            .collect();
        let held = match coverages.as_slice() {
            [] => String::new(),
            some => format!("; its 90 % intervals held the truth in {}", listed(some)),
        };
        let failed = match method.failed {
            0 => String::new(),
            n => format!(" ({} of its trials failed)", percent(n as f64 / method.trials.max(1) as f64)),
        };
        let _ = write!(text, " {} was {}{held}{failed}.", title(&method.method), method.verdict.kind.name());
    }
    text
}

/// The version that made the last stage.
fn version(findings: &Findings) -> &str {
    findings.records.last().map_or(VERSION, |(_, record)| record.version.as_str())
}

fn software(findings: &Findings) -> String {
    let (stage, hash) =
        findings.records.last().map_or((Stage::Simulate, ""), |(stage, record)| (*stage, record.fingerprint.as_str()));
    format!(
        "All computations were done with twostep {} [@twostep] from the study file {} with seed {}. The {} stage and all that it \
         depends on have the hash {}.",
        version(findings),
        escaped(&findings.study.file_name()),
        findings.study.seed,
        stage.name(),
        hash
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::Silent;
    use crate::run::Project;
    use crate::study::parse;
    use std::path::Path;

    const STUDY: &str = r#"
name = "a_bold_ name"
seed = 7
[simulator]
builtin = "logistic"
sigma_s = 0.02
[unknowns.gamma]
range = [-0.5, 0.5]
prior = "normal(0, 0.25)"
unit = "1/day"
[conditions.omega]
range = [-1, 1]
[constants]
beta = 3
[design]
method = "latin-hypercube"
runs = 20
[surrogate]
kind = "pce"
degree = 2
[train]
draws = 50
[measurements]
noise = { family = "normal", sd = "half-normal(0.1)" }
[measurements.synthetic]
truth = { gamma = 0.15 }
at = { omega = "linspace(-1, 1, 4)" }
replicates = 2
noise = { family = "normal", sd = 0.05 }
[derived]
twice = "2 * gamma"
[infer]
methods = ["e-lik", "point"]
draws = 100
[calibrate]
t_trials = 3
i_trials = 1
"#;

    fn project(text: &str, test: &str) -> Project {
        let folder = std::env::temp_dir().join(format!("twostep-methods-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        Project::new(parse(text, "my_study.toml", Path::new("")).unwrap_or_else(|e| panic!("{e}")), folder)
    }

    fn holds(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }

    #[test]
    fn a_finished_study_is_described_with_its_numbers() {
        let project = project(STUDY, "finished");
        project.run(Stage::Infer, &Silent).unwrap();
        let calibrations = project.calibrate(&Silent).unwrap();
        let findings = project.findings(0).unwrap();
        let text = methods(&findings, Some(&calibrations[0]));
        std::fs::remove_dir_all(project.folder()).unwrap();
        let hash = &findings.records[2].1.fingerprint;
        holds(
            &text,
            &[
                "# Methods of the study a\\_bold\\_ name\n",
                "The simulator logistic, built into twostep, was run 20 times, at the points of a Latin hypercube [@mckay1979].",
                "The ranges were: gamma from -0.5 to 0.5 1/day; omega from -1 to 1. Constant were beta = 3.",
                "Noise with standard deviation 0.02 was added",
                "total degree 2, whose 6 coefficients had the prior",
                "There were 8 measured values of y.",
                "made by the simulator itself at gamma = 0.15 with normal noise (sd 0.05) of y.",
                "The likelihood of y was normal, with an unknown scale sigma\\_i with prior half-normal(0.1).",
                "gamma \\~ normal(0, 0.25, lower=-0.5, upper=0.5)",
                "inferred by E-Lik: the likelihood of the measurements was averaged over the T-draws",
                "For comparison the same was done by Point.",
                "computed by adaptive quadrature, with an estimated error",
                "Derived quantities were twice = 2 \\* gamma, computed draw by draw.",
                "in 3 T-trials with 3 I-trials in all, truths were drawn from the prior",
                "each surrogate was trained with 20 runs",
                "E-Lik was undecided",
                "the study file my\\_study.toml with seed 7",
                hash,
                "@article{reiser2025,",
                "@article{sailynoja2022,",
                "@article{mckay1979,",
                "@software{twostep,",
                &format!("version = {{{VERSION}}}"),
            ],
        );
        assert!(!text.contains("hoffman2014") && !text.contains("NaN"), "{text}");
        // Braces of the BibTeX are in pairs.
        let bibtex = text.split("```bibtex").nth(1).unwrap();
        assert_eq!(bibtex.matches('{').count(), bibtex.matches('}').count());
        // No line of a paragraph begins with what would make it something else.
        let body = text.split("## References").next().unwrap();
        assert!(body.lines().skip(1).all(|line| line.is_empty() || line.starts_with(char::is_alphabetic)), "{body}");
    }

    #[test]
    fn what_is_not_finished_is_left_out() {
        let project = project(&STUDY.replace("latin-hypercube", "sobol-scrambled"), "unfinished");
        project.run(Stage::Simulate, &Silent).unwrap();
        let findings = project.findings(0).unwrap();
        std::fs::remove_dir_all(project.folder()).unwrap();
        let text = methods(&findings, None);
        holds(&text, &["[@joe2008] with Owen scrambling [@burley2020]", "@article{joe2008,", "The simulate stage"]);
        assert!(
            !text.contains("measured value") && !text.contains("calibrated") && !text.contains("mckay1979"),
            "{text}"
        );
    }

    #[test]
    fn samplers_are_cited_and_have_diagnostics() {
        let study = STUDY.replace(
            "draws = 100",
            "draws = 100\nengine = \"nuts\"\n[infer.nuts]\nchains = 2\nwarmup = 100\ndraws = 100",
        );
        let study = study.replace("draws = 50", "draws = 50\nmethod = \"nuts\"");
        let project = project(&study, "nuts");
        project.run(Stage::Infer, &Silent).unwrap();
        let text = methods(&project.findings(0).unwrap(), None);
        std::fs::remove_dir_all(project.folder()).unwrap();
        holds(
            &text,
            &[
                "draws of the No-U-Turn sampler [@hoffman2014] (4 chains after 1000 warm-up iterations each)",
                "by Pareto smoothed importance sampling [@vehtari2024]",
                "; the largest R-hat [@vehtari2021] was 1.",
                "the smallest effective sample size",
                "@article{hoffman2014,",
                "@article{vehtari2021,",
            ],
        );
    }

    #[test]
    fn user_text_is_no_markup() {
        assert_eq!(escaped("<script>alert(1)</script>"), "\\<script\\>alert(1)\\</script\\>");
        assert_eq!(escaped("a_b*c`d\n# e 🦠 \"q\""), "a\\_b\\*c\\`d \\# e 🦠 \"q\"");
    }
}
