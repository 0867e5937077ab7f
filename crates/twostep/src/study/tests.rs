use super::*;
use crate::infer::propagation::Method;
use crate::infer::{Engine, Measured};
use crate::likelihood::{Family, Scale};
use crate::surrogate::{SigmaA, SurrogateKind};
use crate::train::TrainMethod;
use proptest::prelude::*;
use std::fs;

/// A study with one of nearly everything.
const BASE: &str = r#"
seed = 7
[simulator]
builtin = "sir"
[unknowns.beta]
range = [1, 3]
prior = "normal(2, 0.5)"
[unknowns.gamma]
range = [0.1, 0.9]
scale = "log"
[conditions.t]
range = [1, 14]
[constants]
population = 763
[outputs.infected]
scale = "log"
[design]
method = "sobol"
runs = 38
[surrogate]
kind = "pce"
degree = 4
[train]
method = "auto"
draws = 500
[measurements]
noise = { sd = "half-normal(0.5)" }
[measurements.synthetic]
truth = { beta = 1.6, gamma = 0.4 }
at = { t = "linspace(1, 14, 5)" }
noise = { family = "negative-binomial", phi = 9.6 }
[derived]
r0 = "beta / gamma"
[infer]
methods = ["e-post", "point"]
engine = "auto"
clusters = "none"
"#;

/// A study of one unknown with a formula.
const FORMULA: &str = r#"
[simulator]
builtin = "logistic"
[unknowns.omega]
range = [-1, 1]
[design]
runs = 5
[surrogate]
kind = "formula"
formula = "alpha * omega + delta"
[surrogate.parameters]
delta = "normal(0, 1)"
alpha = "normal(2, 1)"
[measurements]
noise = { sd = 0.1 }
"#;

fn studies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies")
}

fn read(text: &str) -> std::result::Result<Vec<Setting>, Problems> {
    parse(text, "test.toml", Path::new(""))
}

#[track_caller]
fn one(text: &str) -> Study {
    let mut settings = read(text).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(settings.len(), 1);
    settings.remove(0).study
}

#[track_caller]
fn edit(base: &str, from: &str, to: &str) -> String {
    assert_eq!(base.matches(from).count(), 1, "`{from}`");
    base.replace(from, to)
}

/// The problems of a base with one edit; each with the line it points at.
#[track_caller]
fn refused(text: &str) -> Vec<(String, Problem)> {
    let problems = read(text).expect_err("a wrong study was accepted");
    let line = |problem: &Problem| {
        let number = problem.span.as_ref().map(|span| problems.line_and_column(span.start).0);
        number.map_or(String::new(), |number| text.lines().nth(number - 1).unwrap_or("").to_owned())
    };
    problems.problems.iter().map(|problem| (line(problem), problem.clone())).collect()
}

#[test]
fn a_study_reads_as_written() {
    let study = one(BASE);
    assert_eq!((study.name.as_str(), study.seed), ("test", 7));
    assert_eq!(study.input_names(), ["beta", "gamma", "t"]);
    assert_eq!(study.unknowns[0].prior.to_string(), "normal(2, 0.5, lower=1, upper=3)");
    // P(|Z| > 2) = 0.0455, just not worth a note.
    assert!((study.unknowns[0].mass_outside - 0.045500263896358).abs() < 1e-14 && study.notes.is_empty());
    assert_eq!(study.unknowns[1].prior.to_string(), "log-uniform(0.1, 0.9)");
    assert_eq!(study.constants, [("population".to_owned(), 763.0)]);
    let output = &study.outputs[0];
    assert_eq!((output.name.as_str(), output.log), ("infected", true));
    assert_eq!(output.noise.family, Family::LogNormal { refuse_zeros: false });
    assert!(output.surrogate.standardise && matches!(output.surrogate.kind, SurrogateKind::Pce { degree: 4, .. }));
    assert_eq!((study.infer.answer, study.infer.engine), (Method::EPost, Engine::Auto));
    let MeasurementSource::Synthetic { truth, at, replicates, noise } = &study.measurements else { panic!() };
    assert_eq!(truth, &[("beta".to_owned(), 1.6), ("gamma".to_owned(), 0.4)]);
    assert_eq!(at, &[("t".to_owned(), vec![1.0, 4.25, 7.5, 10.75, 14.0])]);
    assert_eq!((*replicates, noise[0].1), (1, Generator::NegativeBinomial { phi: 9.6 }));
    assert_eq!(study.derived_quantities().unwrap()[0].expression.eval_scalar(&[1.5, 0.5, 0.1]), 3.0);
    assert_eq!(study.prior().unwrap().names(), ["beta", "gamma"]);
}

#[test]
fn defaults_follow_the_rest() {
    let study = one(FORMULA);
    assert_eq!((study.seed, study.outputs[0].name.as_str(), study.train.draws), (1, "y", 1000));
    assert_eq!((study.infer.answer, study.infer.methods.len()), (Method::ELik, 4));
    assert_eq!((study.outputs[0].noise.family, &study.outputs[0].noise.scale), (Family::Normal, &Scale::Fixed(0.1)));
    assert_eq!(study.measurements, MeasurementSource::None);
    assert!(!study.outputs[0].surrogate.standardise);
    // File order, not the alphabet's.
    let SurrogateKind::Formula { parameters, .. } = &study.outputs[0].surrogate.kind else { panic!() };
    assert_eq!(parameters.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["delta", "alpha"]);
    let sir = edit(BASE, "[outputs.infected]\nscale = \"log\"\n", "");
    let sir = edit(&sir, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = 3 }");
    let sir = one(&edit(&sir, "noise = { family = \"negative-binomial\", phi = 9.6 }\n", ""));
    assert_eq!((sir.outputs[0].name.as_str(), sir.outputs[0].log), ("infected", false));
    let MeasurementSource::Synthetic { noise, .. } = &sir.measurements else { panic!() };
    assert_eq!(noise[0].1, Generator::Normal { sd: 3.0 });
}

#[test]
fn outputs_may_have_their_own_surrogate_and_noise() {
    let own = "[outputs.recovered]\nnoise = { family = \"student-t\", df = 4, sd = 2 }\n\
               surrogate = { kind = \"pce\", degree = 1, sigma_a = 0.5 }\n[design]";
    let study = one(&edit(BASE, "[design]", own));
    let (first, second) = (&study.outputs[0], &study.outputs[1]);
    assert_eq!(second.noise.family, Family::StudentT { df: 4.0 });
    assert_eq!(second.surrogate.sigma_a, SigmaA::Fixed(0.5));
    assert!(matches!(first.surrogate.sigma_a, SigmaA::Prior(_)));
}

#[test]
fn every_shipped_study_loads() {
    let expected = [
        ("starter", 1),
        ("sir", 1),
        ("sir_series", 1),
        ("boarding_school", 1),
        ("reactor", 1),
        ("gp_calibration", 32),
        ("sigma_a_calibration", 12),
        ("series_calibration", 4),
        ("single_times_calibration", 2),
        ("null", 1),
        ("paper/linear", 3),
        ("paper/slope", 2),
        ("paper/logistic", 9),
        ("paper/logistic_calibration", 6),
        ("paper/pce", 24),
        ("paper/pce_calibration", 20),
        ("paper/sir", 1),
        ("paper/times", 192),
        ("paper/workers", 12),
    ];
    assert_eq!(shipped().iter().map(|(name, _)| *name).collect::<Vec<_>>(), expected.map(|(name, _)| name));
    for ((name, files), (_, n_settings)) in shipped().iter().zip(expected) {
        let path = studies().join(format!("{name}.toml"));
        let settings = load(&path).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(settings.len(), n_settings, "{name}");
        for (file, text) in *files {
            assert_eq!(fs::read_to_string(path.with_file_name(file)).unwrap(), *text);
        }
        // What the paper asks for and we would not: priors that reach beyond the range.
        let beyond = [
            "sir",
            "sir_series",
            "series_calibration",
            "single_times_calibration",
            "null",
            "paper/sir",
            "paper/linear",
        ];
        let notes = warnings(&settings).map_or(0, |notes| notes.problems.len());
        // Counts along a series, whose errors are taken as independent there.
        let has_counts = *name == "boarding_school";
        assert_eq!(notes, usize::from(beyond.contains(name) || has_counts), "{name}");
    }
    let linear = load(&studies().join("paper/linear.toml")).unwrap();
    assert_eq!(linear[1].label, [("surrogate.sigma_a".to_owned(), "0.5".to_owned())]);
    assert_eq!(linear[1].study.outputs[0].surrogate.sigma_a, SigmaA::Fixed(0.5));
    assert_eq!((linear[0].study.design.runs, linear[0].study.train.method), (2, TrainMethod::Nodes));
    assert_eq!(linear[0].study.unknowns[0].prior.to_string(), "normal(0, 1)");
}

#[test]
fn wrong_studies_are_refused_at_their_line() {
    // Base, what is replaced, by what; then the line, and parts of the message and of label and help.
    // A row a line, where it fits.
    #[rustfmt::skip]
    let table: &[(&str, &str, &str, &str, &str, &str)] = &[
        (BASE, "seed = 7", "sede = 7", "sede = 7", "no key `sede`", "did you mean \"seed\"?"),
        (BASE, "seed = 7", "seed = -7", "seed = -7", "no seed", "at least 0"),
        (BASE, "seed = 7", "name = \"a/b\"", "name = \"a/b\"", "no name for a study", "letters"),
        (BASE, "builtin = \"sir\"", "builtin = \"sirr\"", "builtin = \"sirr\"", "no simulator \"sirr\"",
            "did you mean \"sir\"?"),
        (BASE, "builtin = \"sir\"", "command = \"a\"", "command = \"a\"", "a text was found", "a list of texts"),
        (BASE, "builtin = \"sir\"", "command = [\"no-such-model\", \"{params}\", \"{results}\"]",
            "command = [\"no-such-model\", \"{params}\", \"{results}\"]", "nor on the search path", "correct the name"),
        (BASE, "builtin = \"sir\"", "builtin = \"sir\"\numbridge = \"http://127.0.0.1\"", "umbridge = \"http://127.0.0.1\"",
            "a study has one simulator", "keep one"),
        (BASE, "builtin = \"sir\"", "builtin = \"sir\"\ntimeout = \"8h\"", "timeout = \"8h\"",
            "only a simulator by command, python or umbridge", "remove it"),
        (BASE, "builtin = \"sir\"", "umbridge = \"http://127.0.0.1\"\ntimeout = \"8 parsecs\"",
            "timeout = \"8 parsecs\"", "no length of time", "30min"),
        (BASE, "builtin = \"sir\"", "umbridge = \"http://127.0.0.1\"\nattempts = 3", "attempts = 3",
            "nothing is tried again", "on_failure"),
        (BASE, "builtin = \"sir\"", "comand = [\"a\"]", "comand = [\"a\"]", "[simulator] has no key `comand`",
            "builtin"),
        (BASE, "builtin = \"sir\"", "builtin = \"sir\"\nsigma_s = -1", "sigma_s = -1", "-1 is negative",
            "at least 0"),
        (BASE, "range = [1, 3]", "range = [3, 1]", "range = [3, 1]", "3 is not less than 1", "write range = [1, 3]"),
        (BASE, "range = [1, 3]", "range = [1, 2, 3]", "range = [1, 2, 3]", "3 numbers were found", "[lower, upper]"),
        (BASE, "range = [1, 3]", "range = [1]", "range = [1]", "1 number was found", "[lower, upper]"),
        (BASE, "kind = \"pce\"", "knid = \"pce\"", "knid = \"pce\"", "no key `knid`", "did you mean \"kind\"?"),
        (BASE, "range = [1, 3]", "range = [1, inf]", "range = [1, inf]", "inf is not a finite number", "finite"),
        (BASE, "range = [1, 3]", "range = \"1 to 3\"", "range = \"1 to 3\"", "a text was found",
            "expected a list of two"),
        (BASE, "range = [1, 3]", "rang = [1, 3]", "rang = [1, 3]", "no key `rang`", "did you mean \"range\"?"),
        (BASE, "range = [0.1, 0.9]", "range = [0, 0.9]", "range = [0, 0.9]", "0 has no logarithm",
            "start the range above 0"),
        (BASE, "prior = \"normal(2, 0.5)\"", "prior = \"nromal(2, 0.5)\"", "prior = \"nromal(2, 0.5)\"",
            "unknown distribution `nromal`", "did you mean `normal`?"),
        (BASE, "prior = \"normal(2, 0.5)\"", "prior = \"normal(20, 0.5)\"", "prior = \"normal(20, 0.5)\"",
            "next to none of its probability is in [1, 3]", "move the range"),
        (BASE, "prior = \"normal(2, 0.5)\"", "prior = \"uniform(4, 5)\"\ntruncate = false",
            "prior = \"uniform(4, 5)\"", "of its probability is in [1, 3]", "move the range"),
        (BASE, "prior = \"normal(2, 0.5)\"", "prior = 3", "prior = 3", "a whole number was found",
            "a text in quotes"),
        (BASE, "prior = \"normal(2, 0.5)\"", "truncate = 1", "truncate = 1", "a whole number was found",
            "true or false"),
        (BASE, "[unknowns.beta]", "[unknowns.bta]", "[unknowns.bta]", "no input `bta`", "did you mean \"beta\"?"),
        (BASE, "[conditions.t]", "[conditions.beta]", "[conditions.beta]",
            "is both unknowns.beta and conditions.beta", "keep one"),
        (BASE, "[conditions.t]\nrange = [1, 14]\n", "", "builtin = \"sir\"", "needs a value of t",
            "[conditions.NAME]"),
        (BASE, "population = 763", "population = \"many\"", "population = \"many\"", "a text was found", "a number"),
        (BASE, "[outputs.infected]", "[outputs.infectd]", "[outputs.infectd]", "no output `infectd`",
            "did you mean \"infected\"?"),
        (BASE, "scale = \"log\"\n[design]", "scale = \"logarithmic\"\n[design]", "scale = \"logarithmic\"",
            "`logarithmic` is not known", "linear, log"),
        (BASE, "method = \"sobol\"", "method = \"sobl\"", "method = \"sobl\"", "`sobl` is not known",
            "did you mean \"sobol\"?"),
        (BASE, "method = \"sobol\"", "method = \"grid\"", "runs = 38", "38", "for 3 inputs by grid"),
        (BASE, "runs = 38", "runs = 0", "runs = 0", "0 is out of range", "from 1 to"),
        (BASE, "runs = 38", "runs = \"38\"", "runs = \"38\"", "a text was found", "remove the quotes: 38"),
        (BASE, "runs = 38", "runs = 3.5", "runs = 3.5", "a number was found", "a whole number"),
        (BASE, "runs = 38", "", "[design]", "design.runs is missing", "points = \"design.csv\""),
        (BASE, "method = \"sobol\"\nruns = 38", "points = \"no.csv\"", "points = \"no.csv\"", "no.csv", "a CSV file"),
        (BASE, "runs = 38", "points = \"no.csv\"", "method = \"sobol\"", "in a file already",
            "keep points or method"),
        // C(36 + 3, 3) = 9139 and C(37 + 3, 3) = 9880 terms, C(38 + 3, 3) = 10660.
        (BASE, "degree = 4", "degree = -1", "degree = -1", "-1 is out of range", "from 0 to 37"),
        (BASE, "degree = 4", "degree = 100", "degree = 100", "100 is out of range", "more than 10000 terms"),
        (BASE, "degree = 4", "degree = 12", "degree = 12", "degree 12 in 3 inputs has 455 terms, for 38 runs",
            "to 4 for no more terms than runs"),
        (BASE, "degree = 4", "degree = 4\nsigma_a = \"0.5\"", "sigma_a = \"0.5\"", "a text was found",
            "remove the quotes: 0.5"),
        (BASE, "degree = 4", "", "[surrogate]", "surrogate.degree is missing", "total degree"),
        (BASE, "degree = 4", "degree = 4\nformula = \"a\"", "formula = \"a\"", "no key `formula`", "degree"),
        (BASE, "kind = \"pce\"", "kind = \"nn\"", "kind = \"nn\"", "`nn` is not known", "pce, gp, formula"),
        (BASE, "kind = \"pce\"", "kind = \"gp\"", "degree = 4", "no key `degree`", "trend"),
        (BASE, "degree = 4", "degree = 4\nresidual = \"gq\"", "residual = \"gq\"", "`gq` is not known", "none, gp"),
        (BASE, "degree = 4", "degree = 4\nresidual = \"gp\"\ncoefficients = \"uniform(0, 1)\"",
            "coefficients = \"uniform(0, 1)\"", "is not normal", "normal(mean, sd)"),
        (BASE, "degree = 4", "degree = 4\nresidual = \"gp\"\ngp = { kernel = \"rbf\" }", "gp = { kernel = \"rbf\" }",
            "`rbf` is not known", "matern-5/2, squared-exponential"),
        (BASE, "degree = 4", "degree = 4\nresidual = \"gp\"\ngp = { length = { bta = \"half-normal(1)\" } }",
            "gp = { length = { bta = \"half-normal(1)\" } }", "no key `bta`", "beta"),
        (BASE, "degree = 4\n[train]\nmethod = \"auto\"", "degree = 4\nresidual = \"gp\"\n[train]\nmethod = \"nuts\"", "method = \"nuts\"",
            "is a Gaussian process", "leave out method"),
        (BASE, "degree = 4\n[train]\nmethod = \"auto\"", "degree = 4\nresidual = \"gp\"\n[train]\nmethod = \"laplace\"",
            "method = \"laplace\"", "is a Gaussian process", "leave out method"),
        (BASE, "degree = 4\n[train]\nmethod = \"auto\"", "degree = 4\ncoefficients = \"horseshoe\"\n[train]\nmethod = \"pathfinder\"",
            "method = \"pathfinder\"", "have a horseshoe prior", "leave out method"),
        (BASE, "degree = 4", "degree = 4\nsigma_a_degree = 9", "sigma_a_degree = 9", "9 is out of range", "no finer structure"),
        (BASE, "degree = 4", "degree = 4\nresidual = \"gp\"\nsigma_a_degree = 1", "sigma_a_degree = 1",
            "a Gaussian process knows itself", "residual = \"none\""),
        (BASE, "degree = 4\n[train]\nmethod = \"auto\"", "degree = 4\nsigma_a_degree = 1\n[train]\nmethod = \"exact\"", "method = \"exact\"",
            "has no exact form", "one sigma_a everywhere"),
        (BASE, "degree = 4", "degree = 4\nsigma_a = 0", "sigma_a = 0", "0 is not positive", "above 0"),
        (BASE, "degree = 4", "degree = 4\nsigma_a = \"normal(0, 1)\"", "sigma_a = \"normal(0, 1)\"",
            "reaches below 0", "lower=0"),
        (BASE, "degree = 4", "degree = 4\ncoefficients = \"horseshoo\"", "coefficients = \"horseshoo\"", "is not known", "horseshoe"),
        (BASE, "degree = 4", "degree = 4\ncoefficients = \"horseshoe\"\nresidual = \"gp\"", "coefficients = \"horseshoe\"",
            "a trend has no horseshoe prior", "normal prior"),
        (BASE, "degree = 4", "degree = 4\ncoefficients = \"horseshoe\"\nsigma_a_degree = 1", "sigma_a_degree = 1",
            "the same everywhere", "normal prior"),
        (BASE, "degree = 4", "degree = 4\ncoefficients = \"horseshoe\"\nnormalisation = \"none\"", "normalisation = \"none\"",
            "for orthonormal terms", "remove it"),
        (BASE, "degree = 4", "degree = 4\nq_norm = 2", "q_norm = 2", "2 is above 1", "0.75"),
        (BASE, "degree = 4", "degree = \"autom\"", "degree = \"autom\"", "`autom` is not known", "auto"),
        (BASE, "degree = 4", "degree = \"auto\"\nsigma_a_degree = 1", "sigma_a_degree = 1", "the runs decide", "name the degree"),
        (BASE, "degree = 4", "degree = \"auto\"\nresidual = \"gp\"", "degree = \"auto\"", "a degree of its own", "degree = 2"),
        (BASE, "draws = 500", "draws = 0", "draws = 0", "0 is out of range", "from 1"),
        (BASE, "draws = 500", "import = \"no.csv\"", "import = \"no.csv\"", "no.csv", "a column per parameter"),
        (BASE, "draws = 500", "sigma_s = \"column\"", "sigma_s = \"column\"", "no column `sigma_s`", "design.points"),
        (BASE, "method = \"auto\"", "method = \"nodes\"", "method = \"nodes\"", "not for 35",
            "use method = \"exact\""),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = -1 }", "noise = { sd = -1 }",
            "-1 is not positive", "above 0"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = {}", "noise = {}",
            "measurements.noise.sd is missing", "half-normal"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "", "[measurements]", "measurements.noise is missing",
            "sd = 0.1"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = 1, df = 4 }", "noise = { sd = 1, df = 4 }",
            "log-normal noise has no df", "student-t"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"student-t\", sd = 1 }",
            "noise = { family = \"student-t\", sd = 1 }", "measurements.noise.df is missing", "df = 4"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = \"column\" }", "[measurements.synthetic]",
            "the noise of `infected` has a column", "no columns"),
        (BASE, "prior = \"normal(2, 0.5)\"", "per = \"experiment\"", "per = \"experiment\"", "names no experiments",
            "experiments = ["),
        (BASE, "prior = \"normal(2, 0.5)\"", "per = \"experimnt\"", "per = \"experimnt\"", "`experimnt` is not known",
            "did you mean \"experiment\"?"),
        (BASE, "[measurements]\n", "[measurements]\nexperiments = [\"a\", \"a\"]\n", "experiments = [\"a\", \"a\"]", "`a` comes twice", "each once"),
        (BASE, "[measurements]\n", "[measurements]\nexperiments = [\"a[1]\"]\n", "experiments = [\"a[1]\"]", "no name of an experiment",
            "letters"),
        (BASE, "[measurements]\n", "[measurements]\nexperiments = []\n", "experiments = []", "there is no experiment", "names"),
        (BASE, "[measurements]\n", "[measurements]\noffset = 0.1\n", "offset = 0.1", "a number was found", "a text in quotes"),
        (BASE, "[measurements]\n", "[measurements]\noffset = \"nromal(0, 1)\"\n", "offset = \"nromal(0, 1)\"", "unknown distribution",
            "did you mean `normal`?"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { covariance = \"no.csv\" }", "noise = { covariance = \"no.csv\" }", "no.csv",
            "a row and a column"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { covariance = \"no.csv\", sd = 1 }",
            "noise = { covariance = \"no.csv\", sd = 1 }", "says the sds already", "remove it"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"normal\", covariance = \"no.csv\" }",
            "noise = { family = \"normal\", covariance = \"no.csv\" }", "normal noise has no covariance", "log-normal"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"poisson\", sd = 1 }", "noise = { family = \"poisson\", sd = 1 }",
            "poisson noise has no sd", "follows from its mean"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"negative-binomial\" }", "noise = { family = \"negative-binomial\" }",
            "measurements.noise.inverse_phi is missing", "exponential(5)"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"negative-binomial\", phi = 3, inverse_phi = 0.3 }", "noise = { family = \"negative-binomial\", phi = 3, inverse_phi = 0.3 }",
            "say the same", "remove one"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"binomial\" }", "noise = { family = \"binomial\" }",
            "measurements.noise.trials is missing", "trials = 100"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = 0.1, multiplier = \"half-normal(1)\" }", "noise = { sd = 0.1, multiplier = \"half-normal(1)\" }",
            "a multiplier multiplies known sds", "column"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = 0.1, relative = 0.1 }", "noise = { sd = 0.1, relative = 0.1 }",
            "log-normal noise has no relative", "normal"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"normal\", sd = \"half-normal(1)\", relative = \"half-normal(1)\" }", "noise = { family = \"normal\", sd = \"half-normal(1)\", relative = \"half-normal(1)\" }",
            "both parts of the sd are unknown", "one of them as a number"),
        (BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = 0.1, inverse_phi = 0.1 }", "noise = { sd = 0.1, inverse_phi = 0.1 }",
            "log-normal noise has no inverse_phi", "negative-binomial"),
        (BASE, "[measurements.synthetic]", "file = \"no.csv\"\n[measurements.synthetic]", "[measurements.synthetic]",
            "from a file and from a truth", "keep one"),
        (BASE, "gamma = 0.4 }", "gama = 0.4 }", "truth = { beta = 1.6, gama = 0.4 }", "no key `gama`",
            "did you mean \"gamma\"?"),
        (BASE, ", gamma = 0.4 }", " }", "truth = { beta = 1.6 }", "truth.gamma is missing", "every unknown"),
        (BASE, "linspace(1, 14, 5)", "linspace(1, 15, 5)", "at = { t = \"linspace(1, 15, 5)\" }",
            "15 lies outside the range [1, 14]", "widen"),
        (BASE, "linspace(1, 14, 5)", "linspace(1, 14)", "at = { t = \"linspace(1, 14)\" }", "no row of points",
            "linspace(1, 14, 50)"),
        (BASE, "at = { t = \"linspace(1, 14, 5)\" }\n", "", "[measurements.synthetic]", "synthetic.at is missing",
            "linspace"),
        (BASE, "\"linspace(1, 14, 5)\"", "[]", "at = { t = [] }", "the list is empty", "at least one"),
        (BASE, "noise = { family = \"negative-binomial\", phi = 9.6 }\n", "", "[measurements.synthetic]",
            "that of `infected` is unknown", "sd = 0.1"),
        (BASE, ", phi = 9.6", "", "noise = { family = \"negative-binomial\" }", "phi is missing", "phi = 9.6"),
        (BASE, "phi = 9.6", "phi = 9.6, sd = 1", "noise = { family = \"negative-binomial\", phi = 9.6, sd = 1 }",
            "has no sd", "remove"),
        (BASE, "r0 = \"beta / gamma\"", "r0 = \"beta / gama\"", "r0 = \"beta / gama\"", "gama", "gamma"),
        (BASE, "r0 = \"beta / gamma\"", "beta = \"beta / gamma\"", "beta = \"beta / gamma\"", "an input already",
            "rename"),
        (BASE, "methods = [\"e-post\", \"point\"]", "methods = []", "methods = []", "the list is empty", "e-lik"),
        (BASE, "\"point\"]", "\"e-post\"]", "methods = [\"e-post\", \"e-post\"]", "listed twice", "remove one"),
        (BASE, "\"point\"]", "\"pint\"]", "methods = [\"e-post\", \"pint\"]", "`pint` is not known",
            "did you mean \"point\"?"),
        (BASE, "engine = \"auto\"", "answer = \"e-lik\"", "answer = \"e-lik\"", "not among infer.methods",
            "e-post, point"),
        (BASE, "engine = \"auto\"", "propagate = [\"sigma-a\"]", "propagate = [\"sigma-a\"]",
            "without the coefficients", "coefficients"),
        (BASE, "clusters = \"none\"", "clusters = \"aut\"", "clusters = \"aut\"", "`aut` is not known",
            "did you mean \"auto\"?"),
        (BASE, "clusters = \"none\"", "clusters = 501", "clusters = 501", "501 clusters of 500 T-draws",
            "raise train.draws"),
        (BASE, "clusters = \"none\"", "[infer.nuts]\nchains = 0", "chains = 0", "0 is out of range", "from 1"),
        (BASE, "clusters = \"none\"", "[calibration]\nt_trials = 3", "[calibration]", "no key `calibration`", "calibrate"),
        (BASE, "clusters = \"none\"", "[calibrate]\ntrials = 3", "trials = 3", "no key `trials`", "t_trials"),
        (BASE, "clusters = \"none\"", "[calibrate]\nt_trials = 0", "t_trials = 0", "calibrate.t_trials", "1"),
        (BASE, "clusters = \"none\"", "[calibrate]\ntruth = \"simulater\"", "truth = \"simulater\"",
            "calibrate.truth", "simulator"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"design.rums\" = [1, 2]", "\"design.rums\" = [1, 2]",
            "[design] has no key `rums`", "did you mean \"runs\"?"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"design.runs\" = [10, 0]", "\"design.runs\" = [10, 0]",
            "design.runs: 0 is out of range", "from 1"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"design.runs\" = 10", "\"design.runs\" = 10", "a list of values",
            "write \"design.runs\" = [10]"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"design.runs\" = []", "\"design.runs\" = []", "the list is empty",
            "at least one"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"seed.x\" = [1]", "\"seed.x\" = [1]", "`seed` is not a table",
            "design.runs"),
        (BASE, "clusters = \"none\"", "[sweep]\nseed = [1, 1]", "seed = [1, 1]", "1 is listed twice", "remove one"),
        (BASE, "clusters = \"none\"", "[sweep]\n\"design\" = [1]\n\"design.runs\" = [1]", "\"design.runs\" = [1]",
            "reaches into", "one of them"),
        (BASE, "clusters = \"none\"", "[sweep]\nsweep.x = [1]", "sweep.x = [1]", "cannot sweep itself", ""),
        (FORMULA, "alpha * omega + delta", "alpha * omga + delta", "formula = \"alpha * omga + delta\"", "omga",
            "omega"),
        (FORMULA, "alpha * omega + delta", "alpha * omega", "formula = \"alpha * omega\"",
            "parameter `delta`: the formula", "remove it"),
        (FORMULA, "alpha = \"normal(2, 1)\"", "alpha = \"normal(2)\"", "alpha = \"normal(2)\"", "`sd` is missing",
            "normal(mean, sd)"),
        (FORMULA, "[surrogate.parameters]\ndelta = \"normal(0, 1)\"\nalpha = \"normal(2, 1)\"\n", "", "[surrogate]",
            "surrogate.parameters is missing", "a prior for each"),
        (FORMULA, "[measurements]", "[train]\nmethod = \"nodes\"\n[measurements]", "method = \"nodes\"",
            "sigma_a of `y` has a prior", "exact"),
        (FORMULA, "noise = { sd = 0.1 }", "noise = { sd = 0.1 }\nsynthetic = { truth = { omega = 0 }, at = { t = [1] } }",
            "synthetic = { truth = { omega = 0 }, at = { t = [1] } }", "the study has no conditions",
            "add [conditions.t]"),
        (FORMULA, "[measurements]\nnoise = { sd = 0.1 }\n", "", "", "measurements is missing",
            "noise = { sd = 0.1 }"),
        (FORMULA, "[unknowns.omega]\nrange = [-1, 1]\n", "", "", "nothing to infer", "[unknowns.NAME]"),
        (FORMULA, "[measurements]", "[measurements]\nfile = \"no.csv\"", "file = \"no.csv\"",
            "there is no file no.csv", "create it"),
    ];
    for (base, from, to, line, message, help) in table {
        let text = edit(base, from, to);
        let problems = refused(&text);
        let fits = |(at, problem): &(String, Problem)| {
            let advice = format!("{} {}", problem.label, problem.help.as_deref().unwrap_or(""));
            at == line && problem.message.contains(message) && advice.contains(help)
        };
        assert!(problems.iter().any(fits), "`{to}`: {problems:#?}");
    }
}

/// One wrong value must not make right ones look wrong.
#[test]
fn problems_do_not_spread() {
    for (from, to, count) in [
        ("range = [1, 3]", "range = [3, 1]", 1),
        ("builtin = \"sir\"", "builtin = \"sirr\"", 1),
        ("runs = 38", "runs = 0", 1),
        ("kind = \"pce\"", "kind = \"nn\"", 1),
        ("noise = { sd = \"half-normal(0.5)\" }", "noise = { sd = -1 }", 1),
        ("prior = \"normal(2, 0.5)\"", "prior = \"nromal(2, 0.5)\"", 1),
        ("degree = 4", "degree = 4.5", 1),
        ("range = [1, 3]", "rane = [1, 3]", 1),
        ("degree = 4", "degre = 4", 1),
        ("kind = \"pce\"", "knid = \"pce\"", 1),
        ("[design]", "[desing]", 1),
        ("[unknowns.gamma]", "[unknowns.gama]", 1),
        ("[conditions.t]", "[conditions.T]", 1),
        ("[outputs.infected]", "[outputs.infectd]", 1),
        ("gamma = 0.4 }", "gama = 0.4 }", 1),
    ] {
        let problems = refused(&edit(BASE, from, to));
        assert_eq!(problems.len(), count, "{problems:#?}");
    }
}

#[test]
fn all_problems_come_at_once_and_once() {
    let text = edit(BASE, "range = [1, 3]", "range = [3, 1]");
    let text = edit(&text, "draws = 500", "drwas = 500");
    let text = edit(&text, "clusters = \"none\"", "clusters = true\n[sweep]\n\"design.runs\" = [40, 50]");
    let problems = read(&text).unwrap_err();
    assert_eq!(problems.problems.len(), 3, "{problems}");
    assert_eq!(
        problems.to_string(),
        "test.toml:6:9: unknowns.beta.range: 3 is not less than 1\n\
         \x20 6 | range = [3, 1]\n\
         \x20   |         ^^^^^^ expected [lower, upper]\n\
         \x20 help: write range = [1, 3]\n\
         test.toml:25:1: [train] has no key `drwas`\n\
         \x20 25 | drwas = 500\n\
         \x20    | ^^^^^ unknown key\n\
         \x20 help: did you mean \"draws\"? known are method, draws, import, sigma_s, nuts\n\
         test.toml:37:12: infer.clusters: true or false was found\n\
         \x20 37 | clusters = true\n\
         \x20    |            ^^^^ expected a whole number"
    );
}

#[test]
fn syntax_errors_have_a_place() {
    for (text, line) in [("a = [1,\n", 1), ("seed = 1\nname x\n", 2), ("[design\nruns = 3\n", 1)] {
        let problems = read(text).unwrap_err();
        let span = problems.problems[0].span.clone().unwrap();
        assert!(problems.problems[0].message.starts_with("this is not TOML: "), "{problems}");
        assert!(problems.line_and_column(span.start).0.abs_diff(line) <= 1, "{problems}");
    }
    for (text, message, help) in [
        ("seed = 1\nseed = 2\n", "`seed` stands on line 1 and on line 2", "keep one"),
        ("[a]\nx = 1\n[b]\nx = 1\nx = 2\n", "`x` stands on line 4 and on line 5", "keep one"),
        ("[a.b]\nx = 1\n[c]\nb = 1\n[a.b]\nx = 2\n", "[a.b] stands on line 1 and on line 5", "one section"),
        ("[design]\nruns = 40 40\n", "`40 40` is more than one value", "[40, 40]"),
        ("name = starter\n", "`starter` is neither a number nor a text in quotes", "write \"starter\""),
    ] {
        let problems = read(text).unwrap_err().problems;
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        assert_eq!(problems[0].message, message);
        assert!(problems[0].help.as_ref().unwrap().contains(help), "{problems:?}");
    }
    // A table of measurements where a study should be.
    assert!(read(&"1,2\n".repeat(14)).unwrap_err().problems.len() <= 2);
    let missing = load(Path::new("no-such-study.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("no-such-study.toml: the study cannot be read: "), "{missing}");
}

#[test]
fn judgements_are_notes_at_their_place() {
    let note = |text: &str| {
        let study = one(text);
        assert_eq!(study.notes.len(), 1, "{:?}", study.notes);
        let settings = [Setting { label: Vec::new(), study }];
        warnings(&settings).unwrap().to_string()
    };
    // P(|Z| > 1) = 0.317.
    let outside = note(&edit(BASE, "normal(2, 0.5)", "normal(2, 1)"));
    assert!(
        outside.starts_with(
            "test.toml:7:9: warning: unknowns.beta.prior: 31.7 % of the prior lies outside the range [1, 3]"
        )
    );
    let extrapolates = note(&edit(BASE, "prior = \"normal(2, 0.5)\"", "prior = \"normal(2, 1)\"\ntruncate = false"));
    assert!(extrapolates.contains("the surrogate extrapolates there"), "{extrapolates}");
    let few = note(&edit(BASE, "runs = 38", "runs = 34"));
    assert!(few.contains("degree 4 in 3 inputs has 35 terms, for 34 runs"), "{few}");
    assert!(few.contains("lower the degree to 3"), "{few}");
    let truth = note(&edit(BASE, "beta = 1.6", "beta = 3.5"));
    assert!(truth.contains("3.5 lies outside the range [1, 3]"), "{truth}");
    let own = "[outputs.infected]\nsurrogate = { kind = \"pce\", degree = 1 }";
    let unused = note(&edit(BASE, "[outputs.infected]", own));
    assert!(unused.contains("warning: surrogate: every output has its own"), "{unused}");
    assert_eq!(warnings(&[Setting { label: Vec::new(), study: one(BASE) }]), None);
}

#[test]
fn exact_methods_know_what_they_need() {
    let with = |method: &str, formula: &str, sigma_a: &str| {
        let text = edit(FORMULA, "[measurements]", &format!("[train]\nmethod = \"{method}\"\n[measurements]"));
        let text = edit(&text, "kind = \"formula\"", &format!("kind = \"formula\"\nsigma_a = {sigma_a}"));
        read(&edit(&text, "alpha * omega + delta", formula))
    };
    assert!(with("nodes", "alpha * omega + delta", "0.1").is_ok());
    assert!(with("exact", "alpha * omega + delta", "\"exponential(1)\"").is_ok());
    for method in ["nuts", "laplace", "pathfinder"] {
        assert!(with(method, "exp(alpha * omega) + delta", "0.1").is_ok());
    }
    let refused = with("exact", "exp(alpha * omega) + delta", "0.1").unwrap_err().to_string();
    assert!(refused.contains("the T-posterior of `y` has no exact form"), "{refused}");
}

#[test]
fn scales_and_engines_must_fit_the_outputs() {
    let propagate = |text: &str| edit(text, "engine = \"auto\"", "propagate = [\"coefficients\", \"sigma-a\"]");
    assert!(one(&propagate(BASE)).infer.sigma_a);
    let normal = edit(BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"normal\", sd = 3 }");
    // Errors on another scale than the noise are integrated out.
    assert!(one(&propagate(&normal)).infer.sigma_a);

    let several = "[outputs.recovered]\n[outputs.susceptible]\n[design]";
    let grid = |text: &str| edit(text, "engine = \"auto\"", "engine = \"grid\"");
    // Unknown sds are integrated out beside the grid, however many there are.
    one(&grid(&edit(BASE, "[design]", several)));
    let more = "[unknowns.population]\nrange = [700, 800]\n[unknowns.initial]\nrange = [1, 2]\n";
    let more = edit(BASE, "[constants]\npopulation = 763\n", more);
    let more = edit(&more, "degree = 4", "degree = 1");
    let more = edit(&more, "gamma = 0.4 }", "gamma = 0.4, population = 763, initial = 1.5 }");
    let (line, problem) = refused(&grid(&more)).remove(0);
    assert!(line.starts_with("engine") && problem.message.contains("4 unknowns are too many"), "{problem:?}");
}

#[test]
fn an_exact_i_step_says_what_it_needs() {
    let exact = |text: &str| edit(text, "[measurements]", "[infer]\nengine = \"exact\"\n[measurements]");
    let untruncated = |text: &str| {
        let (before, after) = text.split_once("[unknowns.omega]\n").unwrap();
        format!("{before}[unknowns.omega]\nprior = \"normal(0, 1)\"\ntruncate = false\n{after}")
    };
    let (line, problem) = refused(&exact(FORMULA)).remove(0);
    assert!(line.starts_with("engine") && problem.message.contains("the prior of `omega`"), "{problem:?}");
    let study = one(&exact(&untruncated(FORMULA)));
    assert_eq!(study.engine().unwrap(), Engine::Exact);
    assert_eq!(one(&untruncated(FORMULA)).engine().unwrap(), Engine::Exact);
    let curved = edit(&untruncated(FORMULA), "alpha * omega + delta", "alpha * omega^2 + delta");
    assert_eq!(one(&curved).engine().unwrap(), Engine::Grid);
    assert!(refused(&exact(&curved)).iter().any(|(_, problem)| problem.message.contains("not affine in the unknowns")));
    // A grid integrates what is not affine in few unknowns.
    let derived = |formula: &str| format!("{}\n[derived]\nq = \"{formula}\"\n", untruncated(FORMULA));
    assert_eq!(one(&derived("2 * omega - 1")).engine().unwrap(), Engine::Exact);
    assert_eq!(one(&derived("omega^2")).engine().unwrap(), Engine::Grid);
}

#[test]
fn sweeps_expand_in_file_order() {
    let sweep = "[sweep]\n\"design.runs\" = [40, 50]\nsurrogate.degree = [2, 3]\n\
                 \"infer.propagate\" = [[\"coefficients\"], [\"coefficients\", \"sigma-a\"]]\n";
    let settings = read(&format!("{BASE}{sweep}")).unwrap();
    assert_eq!(settings.len(), 8);
    let label = |setting: &Setting| setting.label.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
    assert_eq!(label(&settings[0]), ["40", "2", "coefficients"]);
    assert_eq!(label(&settings[1]), ["40", "2", "coefficients + sigma-a"]);
    assert_eq!(label(&settings[7]), ["50", "3", "coefficients + sigma-a"]);
    assert_eq!(settings[7].label[1].0, "surrogate.degree");
    assert_eq!((settings[7].study.design.runs, settings[7].study.infer.sigma_a), (50, true));
    assert!(matches!(settings[2].study.outputs[0].surrogate.kind, SurrogateKind::Pce { degree: 3, .. }));
    // A key that only the sweep has.
    let seeds = edit(BASE, "seed = 7\n", "");
    assert_eq!(read(&format!("{seeds}[sweep]\nseed = [3, 4]\n")).unwrap()[1].study.seed, 4);
    let many = (0..101).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let refused = read(&format!("{BASE}[sweep]\nseed = [{many}]\n\"train.draws\" = [{many}]\n")).unwrap_err();
    assert!(refused.to_string().contains("more than 10000 combinations"), "{refused}");
}

#[test]
fn fingerprints_change_where_they_should() {
    let prints =
        |study: &Study| [Stage::Simulate, Stage::Train, Stage::Infer].map(|stage| study.fingerprint(stage, ""));
    let base = prints(&one(BASE));
    assert!(base.iter().all(|print| print.len() == 64) && base[0] != base[1] && base[1] != base[2]);
    // From which stage on something is stale; 3 is never.
    for (from, to, first) in [
        ("seed = 7", "seed = 8", 0),
        ("range = [1, 14]", "range = [1, 15]", 0),
        ("population = 763", "population = 764", 0),
        ("runs = 38", "runs = 39", 0),
        ("scale = \"log\"\n[conditions.t]", "scale = \"linear\"\n[conditions.t]", 0),
        ("[constants]", "[constants]\ninitial = 1", 0),
        ("degree = 4", "degree = 3", 1),
        ("draws = 500", "draws = 400", 1),
        ("scale = \"log\"\n[design]", "scale = \"linear\"\n[design]", 1),
        ("prior = \"normal(2, 0.5)\"", "prior = \"normal(2, 0.6)\"", 2),
        ("half-normal(0.5)", "half-normal(0.6)", 2),
        ("beta = 1.6", "beta = 1.7", 2),
        ("r0 = \"beta / gamma\"", "r0 = \"gamma / beta\"", 2),
        ("[infer]", "[infer]\npropagate = [\"coefficients\", \"sigma-a\"]", 2),
        ("\"point\"]", "\"e-lik\"]", 3),
        ("seed = 7", "seed = 7 # a comment\nname = \"other\"", 3),
        ("prior = \"normal(2, 0.5)\"", "prior = \"normal(mean=2, sd=0.5)\"\nunit = \"1/day\"", 3),
    ] {
        let changed = prints(&one(&edit(BASE, from, to)));
        for stage in 0..3 {
            assert_eq!(changed[stage] != base[stage], stage >= first, "`{to}` at stage {stage}");
        }
    }
    // Noise of the simulator is added on the outputs' scale.
    let mut noisy = one(BASE);
    noisy.simulator.sigma_s = 0.1;
    let before = prints(&noisy);
    noisy.outputs[0].log = !noisy.outputs[0].log;
    assert_ne!(prints(&noisy)[0], before[0]);
}

/// A folder with a file, of one test alone.
fn folder_with(test: &str, file: &str, content: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("twostep-study-{}-{test}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(file), content).unwrap();
    folder
}

#[test]
fn files_are_found_beside_the_study_and_count_by_content() {
    let text = edit(FORMULA, "runs = 5", "points = \"design.csv\"");
    let text = edit(&text, "noise = { sd = 0.1 }", "noise = { sd = 0.1 }\nfile = \"y.csv\"");
    let folder = folder_with("files", "design.csv", "omega,note\n-0.5,a\n0.5,b\n1,c\n");
    fs::write(folder.join("y.csv"), "y\n1\n").unwrap();
    fs::write(folder.join("study.toml"), &text).unwrap();
    let study = load(&folder.join("study.toml")).unwrap().remove(0).study;
    assert_eq!((study.name.as_str(), study.design.runs), ("study", 3));
    assert_eq!(study.measurements, MeasurementSource::File(folder.join("y.csv")));
    let prints = || [Stage::Simulate, Stage::Train, Stage::Infer].map(|stage| study.fingerprint(stage, ""));
    let before = prints();
    fs::write(folder.join("y.csv"), "y\n2\n").unwrap();
    let after = prints();
    assert_eq!([0, 1, 2].map(|stage| before[stage] != after[stage]), [false, false, true]);
    fs::write(folder.join("design.csv"), "omega\n-0.5\n").unwrap();
    assert!(prints().iter().zip(&after).all(|(now, before)| now != before));

    fs::write(folder.join("design.csv"), "omega\n0\n-1.5\n").unwrap();
    let outside = load(&folder.join("study.toml")).unwrap_err().to_string();
    assert!(outside.contains("line 3, column `omega`: -1.5 lies outside the range [-1, 1]"), "{outside}");
    fs::write(folder.join("design.csv"), "omgea\n0\n").unwrap();
    let missing = load(&folder.join("study.toml")).unwrap_err().to_string();
    assert!(missing.contains("there is no column `omega` among `omgea`; rename `omgea`"), "{missing}");
    fs::remove_dir_all(folder).unwrap();
}

/// The measurements of a study in a CSV text.
fn measured(test: &str, study: &str, csv: &str) -> Result<Vec<Measured>, String> {
    let folder = folder_with(test, "y.csv", csv);
    let mut study = one(study);
    study.measurements = MeasurementSource::File(folder.join("y.csv"));
    let measured = read_measurements(&study);
    fs::remove_dir_all(&folder).unwrap();
    measured
        .map_err(|error| error.to_string().replace(&format!("{}{}", folder.display(), std::path::MAIN_SEPARATOR), ""))
}

#[test]
fn measurements_are_read_in_both_layouts() {
    let two = edit(BASE, "[design]", "[outputs.recovered]\nnoise = { sd = 1 }\n[design]");
    let wide = measured("wide", &two, "t,infected,recovered,note\n1,3,,a\n2,,5,b\n14.000000001,6,7,c\n").unwrap();
    let long = "output,t,value\ninfected,1,3\nrecovered,2,5\nrecovered,14.000000001,7\ninfected,14.000000001,6\n";
    assert_eq!(wide, measured("long", &two, long).unwrap());
    assert_eq!(
        (wide[0].output.as_str(), &wide[0].y, wide[0].known.col(0)),
        ("infected", &vec![3.0, 6.0], vec![1.0, 14.000000001])
    );
    assert_eq!((&wide[1].y, wide[1].known.col(0), &wide[1].scale), (&vec![5.0, 7.0], vec![2.0, 14.000000001], &None));
    let partly = measured("partly", &two, "t,recovered\n1,3\n").unwrap();
    assert_eq!((partly[0].y.len(), partly[0].known.rows(), partly[1].y.len()), (0, 0, 1));

    let column = edit(FORMULA, "noise = { sd = 0.1 }", "noise = { sd = \"column\" }");
    assert_eq!(measured("sd", &column, "y,sd\n1,0.5\n").unwrap()[0].scale, Some(vec![0.5]));
    // Not a misspelling of the output `s`, which has no column.
    let short = [Output { name: "s".into(), ..one(&column).outputs[0].clone() }];
    let folder = folder_with("short", "y.csv", "y,sd,sd[y]\n1,9,0.25\n");
    let mut study = one(&column);
    study.outputs.extend(short);
    study.measurements = MeasurementSource::File(folder.join("y.csv"));
    assert_eq!(read_measurements(&study).unwrap()[0].scale, Some(vec![0.25]));
    study.outputs[0].noise.scale = Scale::Fixed(0.1);
    assert_eq!(read_measurements(&study).unwrap()[0].y, [1.0]);
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(measured("own", &column, "y,sd[y],sd\n1,0.25,9\n").unwrap()[0].scale, Some(vec![0.25]));
}

#[test]
fn experiments_are_told_by_their_column() {
    let text = edit(BASE, "prior = \"normal(2, 0.5)\"", "prior = \"normal(2, 0.5)\"\nper = \"experiment\"");
    let text = edit(&text, "[measurements]\n", "[measurements]\nexperiments = [\"north\", \"far south\"]\n");
    let text = edit(&text, "truth = { beta = 1.6, gamma = 0.4 }", "truth = { beta = [1.6, 1.9], gamma = 0.4 }");
    let text = edit(&text, "scale = \"log\"\n[design]", "scale = \"log\"\noffset = \"normal(0, 0.1)\"\n[design]");
    let study = one(&text);
    assert_eq!(study.prior().unwrap().names(), ["beta[north]", "beta[far south]", "gamma", "offset"]);
    assert_eq!((study.places(0), study.places(1), study.offset_place(0)), (vec![0, 2], vec![1, 2], Some(3)));
    let derived = study.derived_quantities().unwrap();
    assert_eq!(derived.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["r0[north]", "r0[far south]"]);
    let x = [1.5, 2.0, 0.5, 9.0, 9.0];
    assert_eq!(derived.iter().map(|d| d.expression.eval_scalar(&x)).collect::<Vec<_>>(), [3.0, 4.0]);
    let MeasurementSource::Synthetic { truth, .. } = &study.measurements else { panic!() };
    assert_eq!(truth[1], ("beta[far south]".to_owned(), 1.9));

    let read =
        measured("experiments", &text, "t,experiment,infected\n1,north,3\n2,far south,\n3,far south,5\n").unwrap();
    assert_eq!((&read[0].y, &read[0].experiment), (&vec![3.0, 5.0], &vec![0, 1]));
    let refused = |csv: &str| measured("experiments", &text, csv).unwrap_err();
    let none = refused("t,experiment,infected\n1,north,3\n2,far south,\n");
    assert!(none.contains("experiment `far south` has no measurements"), "{none}");
    let typo = refused("t,experiment,infected\n1,nroth,3\n");
    assert!(
        typo.contains("line 2") && typo.contains("there is no experiment `nroth`") && typo.contains("`north`"),
        "{typo}"
    );
    assert!(refused("t,infected\n1,3\n").contains("experiment"));
    // One truth for two experiments.
    let one_truth = edit(&text, "beta = [1.6, 1.9]", "beta = [1.6]");
    let (line, problem) = super::tests::refused(&one_truth).remove(0);
    assert!(line.contains("truth") && problem.message.contains("1 value of beta, and 2 experiments"), "{problem:?}");
}

#[test]
fn a_covariance_is_read_and_checked() {
    let text = edit(FORMULA, "noise = { sd = 0.1 }", "noise = { covariance = \"c.csv\" }");
    let read = |covariance: &str| {
        let folder = folder_with("covariance", "c.csv", covariance);
        fs::write(folder.join("y.csv"), "y\n1\n2\n").unwrap();
        let mut study =
            parse(&text, "test.toml", &folder).unwrap_or_else(|problems| panic!("{problems}")).remove(0).study;
        study.measurements = MeasurementSource::File(folder.join("y.csv"));
        let measured = read_measurements(&study).map_err(|error| error.to_string());
        fs::remove_dir_all(&folder).unwrap();
        measured
    };
    for csv in ["4,0.6\n0.6,0.25\n", "a,b\n4,0.6\n0.6,0.25\n", "# ours\n4 0.6\n0.6 0.25\n"] {
        let measured = read(csv).unwrap();
        assert_eq!(measured[0].scale, Some(vec![2.0, 0.5]));
        assert_eq!(measured[0].correlation.as_ref().unwrap().data(), [1.0, 0.6, 0.6, 1.0]);
    }
    for (csv, found) in [
        ("1,0\n0,1\n0,0\n", "a matrix of 3 by 2, and `y` has 2 measurements"),
        ("1,0.5\n0.4,1\n", "0.4 stands here, and 0.5 across the diagonal"),
        ("1,0.5\n0.5,-1\n", "the variance -1 is not positive"),
        ("1,1\n1,1\n", "not positive definite"),
        ("1,2\n2,1\n", "would have the correlation 2"),
        ("1,x\n2,1\n", "x"),
    ] {
        let error = read(csv).unwrap_err();
        assert!(error.contains(found) && error.contains("c.csv"), "{csv}: {error}");
    }
}

#[test]
fn columns_that_nothing_reads_are_named() {
    let unused = |csv: &str| {
        let folder = folder_with("unused", "y.csv", csv);
        let mut study = one(&edit(BASE, "[design]", "[outputs.recovered]\nnoise = { sd = 1 }\n[design]"));
        study.measurements = MeasurementSource::File(folder.join("y.csv"));
        let warnings = unused_columns(&study).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        warnings.iter().map(|warning| warning.rsplit_once("y.csv: ").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(unused("t,infected\n1,3\n"), Vec::<String>::new());
    assert_eq!(
        unused("t,infected,infected_raw,note\n1,3,4,a\n"),
        ["columns `infected_raw`, `note` not used: neither an output nor a condition of the study"]
    );
    assert_eq!(unused("t,infected,sd\n1,3,0.1\n").len(), 1);
    assert!(unused("t,infected,sd\n1,3,0.1\n")[0].starts_with("column `sd` not used: the study gives the sd itself"));
    assert!(unused("t,output,value,infected\n1,infected,3,3\n")[0].starts_with("column `infected` not used"));
}

#[test]
fn wrong_measurements_are_refused_with_their_line() {
    let refused = |csv: &str| measured("refused", BASE, csv).unwrap_err();
    assert!(refused("infected\n3\n").contains("there is no column `t`"));
    assert!(
        refused("t,infcted\n1,3\n").contains("there is no column `infected` among `t`, `infcted`; rename `infcted`")
    );
    assert_eq!(
        refused("t,infected\n1,3\n15,3\n"),
        "y.csv, line 3, column `t`: 15 lies outside the range [1, 14]; \
         remove the row, or widen the condition's range and train the surrogate there"
    );
    assert!(refused("t,infected\n1,x\n").contains("line 2, column `infected`: `x` is not a number"));
    assert!(refused("t,infected\n1,3\n2,-1\n").starts_with("y.csv, line 3, column `infected`: -1 "));
    for missing in ["nan", "NA"] {
        let message = refused(&format!("t,infected\n1,{missing}\n"));
        assert!(message.contains("line 2, column `infected`") && message.contains("leave the cell empty"), "{message}");
    }
    let normal = edit(BASE, "noise = { sd = \"half-normal(0.5)\" }", "noise = { family = \"normal\", sd = 1e-3 }");
    // Its square is a number, but not that of its distance in sds.
    let far = measured("far", &normal, "t,infected\n1,3\n2,3\n3,1e152\n").unwrap_err();
    assert!(far.starts_with("y.csv, line 4, column `infected`: 1e152 is too large: "), "{far}");
    let two = edit(BASE, "[design]", "[outputs.recovered]\nnoise = { sd = 1 }\n[design]");
    assert_eq!(
        measured("misspelt", &two, "t,infected,recoverd\n1,3,4\n").unwrap_err(),
        "y.csv: column `recoverd` is no output, but `recovered` is one and has no column; \
         rename the column to `recovered`, or remove it if it is something else"
    );
    assert!(refused("t,infected\n1,\n").contains("no output has a measured value"));
    assert!(refused("t,infected\n").contains("no row below it"));
    assert!(
        refused("t,output,value\n1,infcted,3\n")
            .contains("line 2, column `output`: there is no output `infcted`; the study has infected")
    );
    assert!(refused("t,value\n1,3\n").contains("there is no column `output`"));
    let column = edit(FORMULA, "noise = { sd = 0.1 }", "noise = { sd = \"column\" }");
    assert!(measured("column", &column, "y\n1\n").unwrap_err().contains("there is no column `sd`"));
    assert!(
        measured("column", &column, "y,sd\n1,0\n").unwrap_err().contains("line 2, column `sd`: a standard deviation")
    );
    let none = read_measurements(&one(FORMULA)).unwrap_err().to_string();
    assert!(none.starts_with("measurements: the study names no file"), "{none}");
}

/// What a user may have mistyped: pieces of valid studies put in the wrong place.
const PIECES: [&str; 16] = [
    "\"",
    "[",
    "]",
    "{",
    "}",
    "=",
    ".",
    "\n",
    "-1",
    "inf",
    "1e400",
    "[sweep]\n",
    "\"normal(0, 1)\"",
    "true",
    "µ",
    "1979-05-27",
];

/// The studies of `examples/`, one for each way to couple a simulator.
const EXAMPLES: [(&str, &str); 5] = [
    ("shell", include_str!("../../../../examples/shell/study.toml")),
    ("python", include_str!("../../../../examples/python/study.toml")),
    ("table", include_str!("../../../../examples/table/study.toml")),
    ("umbridge", include_str!("../../../../examples/umbridge/study.toml")),
    ("function", include_str!("../../../../examples/function/study.toml")),
];

/// The text with pieces put in: each where, for how many bytes, and which.
fn mutated(text: &str, edits: &[(u32, usize, usize)]) -> String {
    let mut text = text.to_owned();
    for &(place, removed, piece) in edits {
        let start = text.floor_char_boundary(place as usize % (text.len() + 1));
        let end = text.floor_char_boundary((start + removed).min(text.len()));
        text.replace_range(start..end.max(start), PIECES[piece]);
    }
    text
}

/// A Python file that gives names in every way that a look at its lines sees, and mentions others.
const MODEL: &str = "\
import subprocess
from elsewhere import (
    imported,  # run
    other as renamed,
)
def simulate(beta, gamma):
    \"\"\"Does not run.\"\"\"
    return subprocess.run(model=beta)
assigned = lambda omega: omega
one, two = simulate, simulate
class Callable: pass
if True:
    def below(omega): pass
";

#[test]
fn a_function_of_a_python_file_is_found_or_refused_with_a_repair() {
    let folder = folder_with("python", "model.py", MODEL);
    fs::write(folder.join("model.txt"), "").unwrap();
    let study = |keys: &str| edit(FORMULA, "builtin = \"logistic\"", keys);
    for name in ["simulate", "imported", "renamed", "assigned", "one", "two", "Callable", "below"] {
        let text = study(&format!("python = \"model.py:{name}\""));
        let read = parse(&text, "test.toml", &folder).unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(read[0].study.simulator.name(), format!("model.py:{name}"));
    }
    for (keys, found, repair) in [
        ("python = \"model.py\"", "no function is named", "python = \"model.py:run\""),
        ("python = \"run\"", "no function is named", "python = \"model.py:run\""),
        ("python = \":run\"", "no function is named", "python = \"model.py:run\""),
        ("python = \"model:simulate\"", "model is no Python file", "write python = \"model.py:simulate\""),
        ("python = \"model.txt:simulate\"", "model.txt is no Python file", "ends in .py"),
        ("python = \"modle.py:simulate\"", "modle.py", "folder of the study file"),
        ("python = \"model.py:Callable.run\"", "`Callable.run` is no name of a function", "by itself"),
        ("python = \"model.py:\"", "`` is no name of a function", "by itself"),
        ("python = \"model.py:run\"", "model.py has no function run", "known are simulate, Callable"),
        ("python = \"model.py:simluate\"", "model.py has no function simluate", "did you mean \"simulate\"?"),
        (
            "python = \"model.py:simulate\"\ninterpreter = \"no/python\"",
            "there is no program no/python",
            "venv/bin/python",
        ),
        ("python = \"model.py:simulate\"\ninterpreter = \"no-python\"", "there is no program no-python", "search path"),
        ("python = \"model.py:simulate\"\nkeep = \"all\"", "only a simulator by command has it", "remove it"),
        ("builtin = \"logistic\"\ninterpreter = \"python3\"", "only a simulator by python has it", "add python"),
    ] {
        let problems = parse(&study(keys), "test.toml", &folder).expect_err(keys);
        let fits = |problem: &Problem| {
            let help = problem.help.as_deref().unwrap_or_default();
            problem.message.contains(found) && help.contains(repair)
        };
        assert!(problems.problems.iter().any(fits), "{keys}: {problems}");
    }
    fs::write(folder.join("empty.py"), "").unwrap();
    let problems = parse(&study("python = \"empty.py:run\""), "test.toml", &folder).unwrap_err();
    assert!(problems.to_string().contains("write `def run(...):` in it"), "{problems}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_same_function_is_known_by_its_file_wherever_the_study_lies() {
    let folder = folder_with("python-parts", "model.py", "def run(omega): return omega\n");
    fs::create_dir_all(folder.join("studies")).unwrap();
    let parts = |path: &str, within: &str| {
        let text = edit(FORMULA, "builtin = \"logistic\"", &format!("python = \"{path}:run\""));
        let read = parse(&text, "test.toml", &folder.join(within)).unwrap_or_else(|problems| panic!("{problems}"));
        read[0].study.simulator.fingerprint_parts()
    };
    let before = parts("model.py", "");
    assert_eq!(before, parts("../model.py", "studies"));
    assert_eq!(before, crate::simulate::python_parts(&folder.join("model.py"), "run"));
    fs::write(folder.join("model.py"), "def run(omega): return 2 * omega\n").unwrap();
    assert_ne!(before, parts("model.py", ""));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_coordinate_without_a_range_is_refused() {
    let (_, text) = EXAMPLES[3];
    for range in ["[]", "[0.1]", "[inf]", "[1, 0.1]", "1"] {
        let text = text.replace("over = { t = [0.1, 1] }", &format!("over = {{ t = {range} }}"));
        let problems = refused(&text);
        assert!(problems.iter().any(|(line, _)| line.starts_with("over")), "{range}: {problems:?}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z\\[\\]=\"{}.,0-9 \n]{0,200}") {
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(problems) = read(&text) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn any_mutation_is_read_or_refused(
        study in 0..shipped().len(),
        edits in proptest::collection::vec((any::<u32>(), 0..12_usize, 0..PIECES.len()), 1..4),
    ) {
        let (_, files) = shipped()[study];
        if let Err(problems) = parse(&mutated(files[0].1, &edits), "study.toml", &studies().join("paper")) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }

    #[test]
    fn any_mutation_of_an_example_is_read_or_refused(
        example in 0..EXAMPLES.len(),
        edits in proptest::collection::vec((any::<u32>(), 0..12_usize, 0..PIECES.len()), 1..4),
    ) {
        let (folder, text) = EXAMPLES[example];
        let folder = studies().join("../examples").join(folder);
        if let Err(problems) = parse(&mutated(text, &edits), "study.toml", &folder) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }
}

#[test]
fn a_series_of_unknown_length_has_no_number_of_terms_to_be_warned_of() {
    let text = "[simulator]\ntable = \"missing.csv\"\n[unknowns.x]\nrange = [0, 1]\n[outputs.y]\nover = { t = [0, 1] }\n\
                series = \"coordinate\"\n[design]\nruns = 4\n[surrogate]\nkind = \"pce\"\ndegree = 9\n[measurements]\nnoise = { sd = 1 }\n";
    let about_terms = |study: &Study| study.notes.iter().any(|note| note.message.contains("terms"));
    assert!(!about_terms(&one(text)));
    let known = text.replace("series =", "at = [0, 0.5, 1]\nseries =");
    assert!(about_terms(&one(&known)), "55 terms for 12 values");
}

#[test]
fn scores_of_components_have_one_error_everywhere() {
    let text = "[simulator]\ntable = \"missing.csv\"\n[unknowns.x]\nrange = [0, 1]\n[outputs.y]\nover = { t = [0, 1] }\n\
                [design]\nruns = 40\n[surrogate]\nkind = \"pce\"\ndegree = 2\nsigma_a_degree = 1\n[measurements]\nnoise = { sd = 1 }\n";
    let problems = refused(text);
    assert!(problems[0].1.message.contains("scores of principal components"), "{problems:?}");
    let by_value = text.replace("over = { t = [0, 1] }", "over = { t = [0, 1] }\nseries = \"coordinate\"");
    assert!(matches!(one(&by_value).outputs[0].surrogate.kind, SurrogateKind::VaryingError { degree: 1, .. }));
    // A formula gives values.
    let formula = text.replace(
        "kind = \"pce\"\ndegree = 2",
        "kind = \"formula\"\nformula = \"a * x * t\"\nparameters = { a = \"normal(0, 1)\" }",
    );
    assert!(matches!(one(&formula).outputs[0].surrogate.kind, SurrogateKind::VaryingError { degree: 1, .. }));
    let unused = text.replace("sigma_a_degree = 1", "sigma_a_coefficients = \"normal(0, 1)\"");
    assert!(one(&unused).notes.iter().any(|note| note.message.contains("does not depend on the inputs")));
    // Learned for nothing, unless it is carried.
    let left_out = |text: &str| one(text).notes.iter().any(|note| note.message.contains("not carried into the answer"));
    let carried = format!("{by_value}[infer]\npropagate = [\"coefficients\", \"sigma-a\"]\n");
    assert!(left_out(&by_value) && !left_out(&carried) && !left_out(&unused));
}
