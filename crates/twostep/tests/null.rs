//! Every measurement model in the exact null: data of both steps from the priors, where the ranks that E-Lik gives to omega and to what is
//! unknown of the noise are uniform by theorem.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;

use twostep::calibrate::uniformity::{BINS, bin, log_gamma};
use twostep::monitor::Silent;
use twostep::run::Project;
use twostep::study;

/// T-trials of one I-trial each, so that all are independent; a third of them where a trial is dear.
///
/// Measurements that scatter a quarter more than the noise says then fail wherever the sd is unknown. Where it is known omega alone tells of them:
/// its log-gamma falls to -7 to -16, which is below the limit for few of these models.
const TRIALS: usize = 600;

/// A family to measure with: its study's `noise`, and the cells of its eight measurements.
struct Model {
    name: &'static str,
    /// Whether the surrogate models the logarithm.
    log: bool,
    /// The output where omega and t are zero, on the surrogate's scale, of which everything else has a tenth or so.
    level: f64,
    noise: &'static str,
    /// Whether the error of the surrogate is carried.
    carried: bool,
    /// Whether values reduce to sums of squares.
    reduces: bool,
    /// Unknowns that are ranked beside omega.
    unknown: &'static [&'static str],
    /// Bounds are what counts of the values: whether a value is measured there follows from the study.
    cells: [&'static str; 8],
    /// Header and cells of a column besides.
    column: Option<(&'static str, [f64; 8])>,
}

const VALUES: [&str; 8] = ["1"; 8];

/// Detection limits that half of the values lie beyond, and a saturation.
const LOW: [&str; 8] = ["<3", "1", "<2.5", "<3", "1", ">4", "1", "<3.5"];

const SDS: [f64; 8] = [0.2, 0.4, 0.3, 0.6, 0.3, 0.2, 0.9, 0.4];

fn models() -> Vec<Model> {
    let plain = Model {
        name: "",
        log: false,
        level: 3.0,
        noise: "",
        carried: false,
        reduces: false,
        unknown: &[],
        cells: VALUES,
        column: None,
    };
    let sigma: &[&str] = &["sigma_i"];
    vec![
        Model { name: "normal", reduces: true, carried: true, noise: "{ sd = 0.3 }", ..plain },
        Model {
            name: "normal, sd unknown",
            reduces: true,
            carried: true,
            noise: "{ sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            ..plain
        },
        Model {
            name: "sds of a column",
            reduces: true,
            carried: true,
            noise: "{ sd = \"column\" }",
            column: Some(("sd", SDS)),
            ..plain
        },
        Model {
            name: "a multiple of a column's sds",
            reduces: true,
            carried: true,
            noise: "{ sd = \"column\", multiplier = \"log-normal(0, 0.5)\" }",
            unknown: &["multiplier"],
            column: Some(("sd", SDS)),
            ..plain
        },
        Model { name: "relative", carried: true, noise: "{ sd = 0.1, relative = 0.1 }", ..plain },
        Model {
            name: "relative, sd unknown",
            noise: "{ sd = \"half-normal(0.5)\", relative = 0.1 }",
            unknown: sigma,
            ..plain
        },
        Model {
            name: "relative, sds of a column",
            noise: "{ sd = \"column\", relative = 0.1 }",
            column: Some(("sd", SDS)),
            ..plain
        },
        Model {
            name: "relative, unknown",
            noise: "{ sd = 0.1, relative = \"half-normal(0.1)\" }",
            unknown: &["relative"],
            ..plain
        },
        Model { name: "student-t", noise: "{ family = \"student-t\", df = 4, sd = 0.3 }", ..plain },
        Model {
            name: "student-t, sd unknown",
            noise: "{ family = \"student-t\", df = 4, sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            ..plain
        },
        Model {
            name: "log-normal, sd unknown",
            reduces: true,
            carried: true,
            log: true,
            noise: "{ family = \"log-normal\", sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            ..plain
        },
        Model {
            name: "normal around a surrogate of the logarithm",
            log: true,
            level: 1.0,
            noise: "{ family = \"normal\", sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            ..plain
        },
        Model {
            name: "log-normal around a surrogate of the output",
            noise: "{ family = \"log-normal\", sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            ..plain
        },
        Model { name: "poisson", carried: true, log: true, noise: "{ family = \"poisson\" }", ..plain },
        Model {
            name: "poisson around a surrogate of the output",
            level: 20.0,
            noise: "{ family = \"poisson\" }",
            ..plain
        },
        Model {
            name: "negative-binomial, inverse_phi unknown",
            log: true,
            noise: "{ family = \"negative-binomial\", inverse_phi = \"exponential(5)\" }",
            unknown: &["inverse_phi"],
            ..plain
        },
        Model {
            name: "negative-binomial, phi unknown",
            log: true,
            noise: "{ family = \"negative-binomial\", phi = \"log-normal(1.5, 0.7)\" }",
            unknown: &["phi"],
            ..plain
        },
        Model { name: "binomial", level: 0.5, noise: "{ family = \"binomial\", trials = 20 }", ..plain },
        Model {
            name: "binomial, trials of a column",
            level: 0.5,
            noise: "{ family = \"binomial\", trials = \"column\" }",
            column: Some(("trials", [5.0, 40.0, 20.0, 7.0, 12.0, 30.0, 9.0, 25.0])),
            ..plain
        },
        Model { name: "censored normal", noise: "{ sd = \"half-normal(0.5)\" }", unknown: sigma, cells: LOW, ..plain },
        Model {
            name: "censored student-t",
            noise: "{ family = \"student-t\", df = 4, sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            cells: LOW,
            ..plain
        },
        Model {
            name: "censored relative",
            noise: "{ relative = \"half-normal(0.1)\" }",
            unknown: &["relative"],
            cells: LOW,
            ..plain
        },
        Model {
            name: "censored log-normal",
            log: true,
            level: 1.0,
            noise: "{ family = \"log-normal\", sd = \"half-normal(0.5)\" }",
            unknown: sigma,
            cells: LOW,
            ..plain
        },
        Model {
            name: "censored negative-binomial",
            log: true,
            level: 1.0,
            noise: "{ family = \"negative-binomial\", inverse_phi = 0.2 }",
            cells: ["<3", "1", "<2", "<3", "1", ">4", "1", "<4"],
            ..plain
        },
        Model {
            name: "censored binomial",
            level: 0.5,
            noise: "{ family = \"binomial\", trials = 20 }",
            cells: ["<10", "1", "<11", "<9", "1", ">12", "1", "<10"],
            ..plain
        },
    ]
}

/// A folder of one test alone, removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("twostep-null-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Model {
    /// The study: a surrogate of one coefficient, whose T-posterior enters as quadrature nodes.
    fn study(&self) -> String {
        let size = if self.log { 1.0 } else { self.level / 3.0 };
        let (level, slope) = (self.level, 0.2 * size);
        let scale = if self.log { "log" } else { "linear" };
        let (centre, spread, sigma_a) = (0.6 * size, 0.2 * size, 0.1 * size);
        format!(
            r#"
name = "null"
seed = 5
[simulator]
table = "runs.csv"
[unknowns.omega]
range = [-1, 1]
prior = "normal(0, 0.7)"
[conditions.t]
range = [-1, 1]
[outputs.y]
scale = "{scale}"
[surrogate]
kind = "formula"
formula = "{level} + c * omega + {slope} * t"
sigma_a = {sigma_a}
[surrogate.parameters]
c = "normal({centre}, {spread})"
[train]
method = "nodes"
draws = 17
[measurements]
file = "measurements.csv"
noise = {noise}
[infer]
methods = ["e-lik"]
propagate = {propagate}
engine = "{engine}"
smc = {{ runs = 2, particles = 128 }}
[calibrate]
truth = "surrogate-prior"
t_trials = {trials}
i_trials = 1
"#,
            noise = self.noise,
            // A grid in omega and the noise would take longer still.
            engine = if self.is_dear() && !self.carried { "smc" } else { "grid" },
            trials = self.trials(),
            propagate = if self.carried { r#"["coefficients", "sigma-a"]"# } else { r#"["coefficients"]"# },
        )
    }

    /// Densities one by one, with two unknowns, or with an integral over the error of the surrogate at each point.
    fn is_dear(&self) -> bool {
        !self.reduces && (self.carried || !self.unknown.is_empty())
    }

    fn trials(&self) -> usize {
        if self.is_dear() { TRIALS / 3 } else { TRIALS }
    }

    /// PITs of omega, and of what else is unknown.
    fn pits(&self, test: &str) -> Vec<(String, Vec<f64>)> {
        let place = Place::new(test);
        std::fs::write(place.0.join("runs.csv"), "omega,t,y\n-0.8,0,1\n0.5,-0.5,1\n0.9,0.5,1\n").unwrap();
        let header = self.column.map_or(String::new(), |(name, _)| format!(",{name}"));
        let mut file = format!("t,y{header}\n");
        for (i, cell) in self.cells.iter().enumerate() {
            let own = self.column.map_or(String::new(), |(_, values)| format!(",{}", values[i]));
            // Four points, two values at each of which share an error of the surrogate.
            file += &format!("{},{cell}{own}\n", [-0.9, -0.2, 0.4, 1.0][i % 4]);
        }
        std::fs::write(place.0.join("measurements.csv"), file).unwrap();
        let settings = study::parse(&self.study(), "study.toml", &place.0).unwrap_or_else(|e| panic!("{e}"));
        let calibrations = Project::new(settings, place.0.join("results")).calibrate(&Silent).unwrap();
        let trials = &calibrations[0].trials;
        assert!(trials.iter().all(|trial| trial.failed.is_none()), "{}: {:?}", self.name, trials[0].failed);
        let mut names = vec!["omega".to_owned()];
        names.extend(self.unknown.iter().map(|&name| name.to_owned()));
        let pits = |name: String| {
            let ranked = trials.iter().flat_map(|trial| trial.ranked.iter().filter(|ranked| ranked.unknown == name));
            let pits: Vec<f64> = ranked.map(|ranked| ranked.pit).collect();
            assert_eq!(pits.len(), self.trials(), "{}: {name}", self.name);
            (name, pits)
        };
        names.into_iter().map(pits).collect()
    }
}

/// What log-gamma is below with probability 1e-3 at most in any of so many comparisons: each of the ends of its bins is with g at most.
fn limit(comparisons: usize) -> f64 {
    (1e-3 / comparisons as f64 / (BINS - 1) as f64).ln()
}

/// A line that is known to a thousandth, and counts of it: Poisson, as the inferring noise says, or with other noise.
fn counts(generator: &str) -> f64 {
    let place = Place::new(&generator.len().to_string());
    let text = format!(
        r#"
name = "counts"
seed = 5
[simulator]
builtin = "linear"
[constants]
a = 20
b = 8
[unknowns.omega]
range = [-1, 1]
prior = "normal(0, 0.7)"
[design]
runs = 20
[surrogate]
kind = "pce"
degree = 1
sigma_a = 0.01
[train]
draws = 20
[measurements]
noise = {{ family = "poisson" }}
[measurements.synthetic]
truth = {{ omega = 0 }}
replicates = 8
[infer]
methods = ["e-lik"]
engine = "grid"
[calibrate]
t_trials = {TRIALS}
i_trials = 1
noise = {generator}
"#
    );
    let settings = study::parse(&text, "study.toml", &place.0).unwrap_or_else(|e| panic!("{e}"));
    let calibrations = Project::new(settings, place.0.join("results")).calibrate(&Silent).unwrap();
    let ranked = calibrations[0].trials.iter().flat_map(|trial| &trial.ranked);
    let bins: Vec<usize> = ranked.map(|ranked| bin(ranked.pit)).collect();
    assert_eq!(bins.len(), TRIALS);
    log_gamma(&bins, BINS)
}

/// The campaign sees it when measurements scatter half as much again as the noise says: variance m + m^2 / 16 where the mean is 20.
#[test]
fn wrong_noise_does_not_pass() {
    let limit = limit(2);
    let found = ["{ family = \"poisson\" }", "{ family = \"negative-binomial\", phi = 16 }"].map(counts);
    assert!(found[0] >= limit && found[1] < limit, "{found:?} {limit}");
}

#[test]
fn every_measurement_model_passes() {
    let models = models();
    let comparisons: usize = models.iter().map(|model| 1 + model.unknown.len()).sum();
    let limit = limit(comparisons);
    let mut wrong = Vec::new();
    for (i, model) in models.iter().enumerate() {
        for (unknown, pits) in model.pits(&i.to_string()) {
            let bins: Vec<usize> = pits.into_iter().map(bin).collect();
            let found = log_gamma(&bins, BINS);
            if found < limit {
                wrong.push(format!("{}: {unknown} has a log-gamma of {found:.1}", model.name));
            }
        }
    }
    assert!(wrong.is_empty(), "below {limit:.1}: {wrong:#?}");
}

/// Two experiments with an unknown of their own, one that they share, an offset, and noise with a covariance that is known but for a factor.
#[test]
fn experiments_offsets_and_covariances_pass() {
    let place = Place::new("experiments");
    let text = format!(
        r#"
name = "null"
seed = 5
[simulator]
table = "runs.csv"
[unknowns.omega]
range = [-1, 1]
prior = "normal(0, 0.7)"
[unknowns.own]
range = [-1, 1]
prior = "normal(0, 0.7)"
per = "experiment"
[conditions.t]
range = [-1, 1]
[outputs.y]
offset = "normal(0, 0.3)"
[surrogate]
kind = "formula"
formula = "3 + c * omega * t + own"
sigma_a = 0.1
[surrogate.parameters]
c = "normal(1, 0.3)"
[train]
method = "nodes"
draws = 17
[measurements]
file = "measurements.csv"
experiments = ["north", "south"]
noise = {{ covariance = "covariance.csv", multiplier = "log-normal(0, 0.5)" }}
[infer]
methods = ["e-lik"]
engine = "smc"
smc = {{ runs = 2, particles = 128 }}
[calibrate]
truth = "surrogate-prior"
t_trials = {TRIALS}
i_trials = 1
"#
    );
    std::fs::write(place.0.join("runs.csv"), "omega,own,t,y\n-0.8,0,1,1\n0.5,0.3,-0.5,1\n0.9,-0.4,0.5,1\n").unwrap();
    let rows = [("north", -0.9), ("south", 0.4), ("north", 0.1), ("north", 0.9), ("south", -1.0), ("south", 1.0)];
    let cells = rows.map(|(experiment, t)| format!("{experiment},{t},1\n")).concat();
    std::fs::write(place.0.join("measurements.csv"), format!("experiment,t,y\n{cells}")).unwrap();
    let covariance = |(i, j): (usize, usize)| match (rows[i].0 == rows[j].0, i == j) {
        (_, true) => 0.09,
        (true, false) => 0.06,
        (false, _) => 0.0,
    };
    let line = |i: usize| (0..6).map(|j| covariance((i, j)).to_string()).collect::<Vec<_>>().join(",") + "\n";
    std::fs::write(place.0.join("covariance.csv"), (0..6).map(line).collect::<String>()).unwrap();
    let settings = study::parse(&text, "study.toml", &place.0).unwrap_or_else(|e| panic!("{e}"));
    let calibrations = Project::new(settings, place.0.join("results")).calibrate(&Silent).unwrap();
    let names = ["omega", "own[north]", "own[south]", "offset", "multiplier"];
    for name in names {
        let ranked = calibrations[0].trials.iter().flat_map(|trial| &trial.ranked).filter(|r| r.unknown == name);
        let bins: Vec<usize> = ranked.map(|ranked| bin(ranked.pit)).collect();
        assert_eq!(bins.len(), TRIALS, "{name}");
        let found = log_gamma(&bins, BINS);
        assert!(found >= limit(names.len()), "{name}: {found}");
    }
}
