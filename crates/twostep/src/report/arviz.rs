//! Results in the groups that ArviZ knows, and as netCDF-4 files of them: `METHOD.nc` for each I-posterior, `calibration_METHOD.nc`
//! for each calibration.

use super::words;
use crate::calibrate::Trial;
use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{Derived, IPosterior, Measured, Prepared};
use crate::mcmc::nuts::Transition;
use crate::run::{At, Calibration, Findings, Project, VERSION, log_likelihoods, predicted};
use crate::store::Files;
use crate::stream::Stream;
use crate::study::{Stage, Study};
use netcdf_writer::{DimensionId, NcAttrValue, NcFileBuilder, NcWriteFormat, NcWriteOptions, NcWriteType};

/// Most draws from the prior.
const PRIOR_DRAWS: usize = 4000;

/// Most bytes of a group that has a value for each draw and measurement.
const MOST_BYTES: usize = 8_000_000;

/// Most draws of such a group for each chain: predictions of more show nothing else, and leave-one-out needs no more.
const MOST_DRAWS: usize = 1000;

/// What says that a file is ours.
const LIBRARY: &str = "twostep";

/// A group: its dimensions with their coordinates, and its variables.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// What it was made by and of.
    pub attributes: Attributes,
    /// Name and coordinate of each dimension.
    pub dimensions: Vec<(String, Vec<i64>)>,
    /// Its variables.
    pub variables: Vec<Variable>,
}

/// A variable of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// A legal name: letters, digits and underscores.
    pub name: String,
    /// Its dimensions, the last of which moves fastest.
    pub dimensions: Vec<String>,
    /// Its values.
    pub values: Values,
    /// The name that the study has for it, and its unit.
    pub attributes: Attributes,
    /// Whether it is a coordinate of the others.
    pub is_coordinate: bool,
}

/// Values of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Numbers.
    Reals(Vec<f64>),
    /// Whole numbers.
    Counts(Vec<i64>),
    /// Yes or no.
    Flags(Vec<bool>),
}

/// Texts by name.
pub type Attributes = Vec<(&'static str, String)>;

/// The groups of the I-posterior by the method of this name; none where the I-step has no such answer.
///
/// Groups: `posterior` (unknowns, unknown sds, derived quantities), `sample_stats`, `log_likelihood` and
/// `posterior_predictive` of each measured output, `prior`, `observed_data`, and `constant_data` with the conditions. Draws are
/// equally weighted. A log-likelihood is that of one measurement given the I-draw and its T-draw, see [`log_likelihoods`];
/// predictions are by the same pairs. Both are thinned evenly to 1000 draws of a chain and 8 MB, which their attribute
/// `thinned` and the coordinate `draw` tell.
///
/// # Errors
/// None that results of this program have.
pub fn groups(findings: &Findings, method: &str) -> Result<Vec<Group>> {
    let answer = findings.answers.iter().find(|answer| answer.method == method);
    match (findings.prepared()?, answer) {
        (Some(prepared), Some(answer)) => {
            Ok(answer_groups(findings, &prepared, &findings.study.derived_quantities()?, answer))
        }
        _ => Ok(Vec::new()),
    }
}

/// Name and content of the file of each I-posterior: see [`groups`]. The bytes are a function of the results.
///
/// # Errors
/// None that results of this program have.
pub fn files(findings: &Findings) -> Result<Files> {
    let (Some(prepared), Some(_)) = (findings.prepared()?, &findings.posterior) else { return Ok(Vec::new()) };
    let derived = findings.study.derived_quantities()?;
    let of_answer = |answer: &IPosterior| {
        let groups = answer_groups(findings, &prepared, &derived, answer);
        Ok((format!("{}.nc", answer.method), file(&groups)?))
    };
    findings.answers.iter().map(of_answer).collect()
}

/// Name and content of the file of each method that was calibrated, with the number of the setting in its name where there is a
/// sweep: see [`calibration_group`].
///
/// # Errors
/// None that results of this program have.
pub fn calibration_files(project: &Project, calibrations: &[Calibration]) -> Result<Files> {
    let mut files = Vec::new();
    for (number, (setting, calibration)) in (1..).zip(project.settings().iter().zip(calibrations)) {
        for method in &setting.study.infer.methods {
            let name = match setting.label.is_empty() {
                true => format!("calibration_{}.nc", method.name()),
                false => format!("calibration_{}_setting-{number}.nc", method.name()),
            };
            files.push((name, file(&[calibration_group(&setting.study, calibration, *method)])?));
        }
    }
    Ok(files)
}

fn answer_groups(findings: &Findings, prepared: &Prepared, derived: &[Derived], answer: &IPosterior) -> Vec<Group> {
    let study = &findings.study;
    let (chains, length) = (answer.chains.max(1), answer.draws.len() / answer.chains.max(1));
    let record = findings.records.iter().find(|(stage, _)| *stage == Stage::Infer).map(|(_, record)| record);
    let mut attributes = vec![("study", study.name.clone()), ("method", answer.method.clone())];
    attributes.push(("engine", answer.engine.clone()));
    if let Ok(evidence) = answer.evidence() {
        attributes.push(("log_evidence", evidence.log.to_string()));
        attributes.push(("log_evidence_error", evidence.error().to_string()));
    }
    attributes.extend(setting(&findings.label));
    if let Some(record) = record {
        attributes.push(("study_hash", record.fingerprint.clone()));
        attributes.extend(utc(record.finished).map(|time| ("created_at", time)));
    }
    let version = record.map_or(VERSION, |record| &record.version);
    let origin = origin(version, attributes);
    let every = Draws { chains, places: (0..length).collect() };

    let quantities = Quantities { study, parameters: &findings.parameters, derived };
    let mut groups = vec![quantities.fill(Group::new("posterior", &origin, Some(&every), &[]), &answer.draws)];
    groups.extend(sample_stats(&origin, &every, findings, prepared, answer));

    let mut names = Names::default();
    let measured: Vec<(usize, &Measured, String)> = (findings.measured.iter().enumerate())
        .filter(|(_, measured)| !measured.y.is_empty())
        .map(|(o, measured)| (o, measured, names.legal(&measured.output)))
        .collect();
    let single = measured.len() == 1;
    let mut rows_of = |name: &str| if single { "obs".to_owned() } else { names.legal(&format!("obs_{name}")) };
    let rows: Vec<(String, usize)> = measured.iter().map(|(_, m, name)| (rows_of(name), m.y.len())).collect();

    if let Some(posterior) = &findings.posterior {
        let n_values: usize = rows.iter().map(|(_, n)| n).sum();
        let kept = every.thinned(n_values);
        let thinned = IPosterior {
            draws: kept.of(&answer.draws, length),
            t_draws: answer.t_draws.as_ref().map(|own| kept.of(own, length)),
            ..answer.clone()
        };
        let mut likelihoods = Group::new("log_likelihood", &origin, Some(&kept), &rows);
        for ((o, measured, name), (row, _)) in measured.iter().zip(&rows) {
            let values = log_likelihoods(study, posterior, &findings.parameters, &thinned, *o, measured);
            likelihoods.per_draw(name, &measured.output, None, &[row], values.concat());
        }
        let mut predictions = Group::new("posterior_predictive", &origin, Some(&kept), &rows);
        for ((o, measured, name), (row, _)) in measured.iter().zip(&rows) {
            let values = predicted(study, posterior, &findings.parameters, &thinned, *o, &At::from(*measured));
            let values: Vec<f64> = values.into_iter().flat_map(|of_draw| of_draw.measured).collect();
            let unit = study.outputs[*o].unit.as_deref();
            predictions.per_draw(name, &measured.output, unit, &[row], values);
        }
        groups.extend([likelihoods, predictions]);
    }

    let prior_draws = Draws { chains: 1, places: (0..answer.draws.len().min(PRIOR_DRAWS)).collect() };
    let stream = Stream::root(study.seed).named("arviz").named("prior");
    let draw = |i: &usize| {
        let mut rng = stream.at(*i as u64).rng();
        prepared.prior().marginals().iter().map(|marginal| marginal.sample(&mut rng)).collect::<Vec<f64>>()
    };
    let drawn: Vec<Vec<f64>> = prior_draws.places.iter().map(draw).collect();
    groups.push(quantities.fill(Group::new("prior", &origin, Some(&prior_draws), &[]), &drawn));

    let mut observed = Group::new("observed_data", &origin, None, &rows);
    for ((o, measured, name), (row, _)) in measured.iter().zip(&rows) {
        let attributes = described(&measured.output, study.outputs[*o].unit.as_deref());
        observed.variable(name, &[row], Values::Reals(measured.y.clone()), attributes);
    }
    let mut constant = Group::new("constant_data", &origin, None, &rows);
    let mut names = Names::of(rows.iter().map(|(row, _)| row.clone()));
    for ((_, measured, output), (row, _)) in measured.iter().zip(&rows) {
        let own = |name: &str| if single { name.to_owned() } else { format!("{output}_{name}") };
        for (d, condition) in study.conditions.iter().enumerate().take(measured.known.cols()) {
            let attributes = described(&condition.name, condition.unit.as_deref());
            let values = Values::Reals(measured.known.col(d));
            constant.variable(&names.legal(&own(&condition.name)), &[row], values, attributes);
        }
        if let Some(sd) = &measured.scale {
            constant.variable(&names.legal(&own("sd")), &[row], Values::Reals(sd.clone()), Vec::new());
        }
    }
    groups.extend([observed, constant]);
    groups
}

fn sample_stats(
    origin: &Attributes,
    every: &Draws,
    findings: &Findings,
    prepared: &Prepared,
    answer: &IPosterior,
) -> Option<Group> {
    const DIMENSIONS: [&str; 2] = ["chain", "draw"];
    let mut group = Group::new("sample_stats", origin, Some(every), &[]);
    let text = |text: String| vec![("description", text)];
    if let Some(transitions) = &answer.transitions {
        let real = |f: fn(&Transition) -> f64| Values::Reals(transitions.iter().map(f).collect());
        let count = |f: fn(&Transition) -> u64| Values::Counts(transitions.iter().map(|t| f(t) as i64).collect());
        let density = "log density of the I-posterior on the real line, where the sampler moves";
        group.variable("lp", &DIMENSIONS, real(|t| t.log_density), text(density.to_owned()));
        group.variable("energy", &DIMENSIONS, real(|t| t.energy), Vec::new());
        group.variable("acceptance_rate", &DIMENSIONS, real(|t| t.acceptance), Vec::new());
        group.variable("step_size", &DIMENSIONS, real(|t| t.step_size), Vec::new());
        group.variable("tree_depth", &DIMENSIONS, count(|t| t.tree_depth), Vec::new());
        group.variable("n_steps", &DIMENSIONS, count(|t| t.n_steps), Vec::new());
        let diverging = Values::Flags(transitions.iter().map(|t| t.diverging).collect());
        group.variable("diverging", &DIMENSIONS, diverging, Vec::new());
        return Some(group);
    }
    let method = Method::named(&answer.method)?;
    let t_draws = answer.t_draws.as_deref();
    let lp = prepared.log_densities(&findings.study.infer, method, &answer.draws, t_draws)?;
    let of = if t_draws.is_some() { "of the draw under its own T-draw" } else { "of the I-posterior" };
    let density = format!("log density {of}, up to a constant, in the units of the unknowns");
    group.variable("lp", &DIMENSIONS, Values::Reals(lp), text(density));
    Some(group)
}

/// Group `prior_sbc` of a method that was calibrated: the place of the truth in the posterior of each unknown, between 0 and 1, one
/// draw a trial. Trials that failed are left out. `t_trial`, `i_trial` (from one) and `weight` are coordinates.
pub fn calibration_group(study: &Study, calibration: &Calibration, method: Method) -> Group {
    let trials = || calibration.trials.iter().filter(|t| t.method == method.name() && t.failed.is_none());
    let plan = &calibration.plan;
    let mut attributes = vec![("study", study.name.clone()), ("method", method.name().to_owned())];
    attributes.push(("truth", plan.truth.name().to_owned()));
    attributes.push(("study_hash", plan.fingerprint.clone()));
    attributes.extend(setting(&plan.label));
    let version = calibration.made_by.last().map_or(VERSION, |heading| &heading.version);
    let draws = Draws { chains: 1, places: (0..trials().count()).collect() };
    let mut group = Group::new("prior_sbc", &origin(version, attributes), Some(&draws), &[]);
    let numbers = |f: fn(&Trial) -> usize| Values::Counts(trials().map(|t| f(t) as i64 + 1).collect());
    group.coordinate("t_trial", "draw", numbers(|t| t.t_trial));
    group.coordinate("i_trial", "draw", numbers(|t| t.i_trial));
    group.coordinate("weight", "draw", Values::Reals(trials().map(|t| t.weight).collect()));
    let mut names = Names::of(["t_trial", "i_trial", "weight"].map(String::from).into_iter());
    let ranked: Vec<&str> =
        trials().next().map_or(Vec::new(), |t| t.ranked.iter().map(|r| r.unknown.as_str()).collect());
    for unknown in ranked {
        let of_trial = |t: &Trial| t.ranked.iter().find(|r| r.unknown == unknown).map_or(f64::NAN, |r| r.pit);
        let pits = Values::Reals(trials().map(of_trial).collect());
        group.variable(&names.legal(unknown), &["chain", "draw"], pits, described(unknown, None));
    }
    group
}

/// Unknowns, unknown sds and derived quantities.
struct Quantities<'a> {
    study: &'a Study,
    parameters: &'a [String],
    derived: &'a [Derived],
}

impl Quantities<'_> {
    fn fill(&self, mut group: Group, draws: &[Vec<f64>]) -> Group {
        let mut names = Names::default();
        for (d, name) in self.parameters.iter().enumerate() {
            let values: Vec<f64> = draws.iter().map(|x| x[d]).collect();
            let unit = self.study.unknown_named(name).and_then(|unknown| unknown.unit.as_deref());
            group.per_draw(&names.legal(name), name, unit, &[], values);
        }
        for Derived { name, expression } in self.derived {
            let values: Vec<f64> = draws.iter().map(|x| expression.eval_scalar(x)).collect();
            group.per_draw(&names.legal(name), name, None, &[], values);
        }
        group
    }
}

/// Which draws of each chain.
struct Draws {
    chains: usize,
    places: Vec<usize>,
}

impl Draws {
    /// Evenly fewer, where a group with so many values of each draw would be too large.
    fn thinned(&self, n_values: usize) -> Self {
        let most = MOST_BYTES / (size_of::<f64>() * self.chains * n_values.max(1));
        let step = self.places.len().div_ceil(most.clamp(1, MOST_DRAWS)).max(1);
        Self { chains: self.chains, places: self.places.iter().copied().step_by(step).collect() }
    }

    /// Those of `all`, whose chains are so long.
    fn of<T: Clone>(&self, all: &[T], length: usize) -> Vec<T> {
        let places = (0..self.chains).flat_map(|chain| self.places.iter().map(move |i| chain * length + i));
        places.map(|i| all[i].clone()).collect()
    }
}

/// The values of what is swept, where something is.
fn setting(label: &[(String, String)]) -> Option<(&'static str, String)> {
    (!label.is_empty()).then(|| ("setting", words::setting(label)))
}

/// The name that the study has for a variable, and its unit.
fn described(name: &str, unit: Option<&str>) -> Attributes {
    let unit = unit.map(|unit| ("units", unit.to_owned()));
    std::iter::once(("long_name", name.to_owned())).chain(unit).collect()
}

/// What every group says of where it comes from.
fn origin(version: &str, attributes: Attributes) -> Attributes {
    let library = [("inference_library", LIBRARY.to_owned()), ("inference_library_version", version.to_owned())];
    library.into_iter().chain(attributes).collect()
}

impl Group {
    fn new(name: &'static str, origin: &Attributes, draws: Option<&Draws>, rows: &[(String, usize)]) -> Self {
        let mut group = Self { name, attributes: origin.clone(), dimensions: Vec::new(), variables: Vec::new() };
        if let Some(Draws { chains, places }) = draws {
            group.dimensions.push(("chain".into(), (0..*chains as i64).collect()));
            group.dimensions.push(("draw".into(), places.iter().map(|&i| i as i64).collect()));
            if let Some(step) = places.get(1).filter(|step| **step > 1) {
                group.attributes.push(("thinned", format!("draws 0, {step}, {}, ... of each chain", 2 * step)));
            }
        }
        group.dimensions.extend(rows.iter().map(|(row, n)| (row.clone(), (0..*n as i64).collect())));
        group
    }

    /// A value for each draw, and for each row of further dimensions.
    fn per_draw(&mut self, name: &str, own: &str, unit: Option<&str>, rows: &[&str], values: Vec<f64>) {
        self.variable(name, &[&["chain", "draw"], rows].concat(), Values::Reals(values), described(own, unit));
    }

    fn coordinate(&mut self, name: &str, dimension: &str, values: Values) {
        self.variable(name, &[dimension], values, Vec::new());
        self.variables.iter_mut().last().into_iter().for_each(|variable| variable.is_coordinate = true);
    }

    fn variable<D: AsRef<str>>(&mut self, name: &str, dimensions: &[D], values: Values, attributes: Attributes) {
        let dimensions = dimensions.iter().map(|dimension| dimension.as_ref().to_owned()).collect();
        self.variables.push(Variable { name: name.to_owned(), dimensions, values, attributes, is_coordinate: false });
    }
}

/// The content of a file of groups.
fn file(groups: &[Group]) -> Result<Vec<u8>> {
    let mut builder = NcFileBuilder::new();
    for group in groups {
        write_group(&mut builder, group).map_err(broken)?;
    }
    let written = builder.to_vec(NcWriteOptions { format: NcWriteFormat::Nc4 });
    written.map(|(_, bytes)| bytes).map_err(broken)
}

fn write_group(builder: &mut NcFileBuilder, group: &Group) -> std::result::Result<(), netcdf_writer::Error> {
    for (key, value) in &group.attributes {
        builder.add_group_attribute(group.name, *key, text(value))?;
    }
    let path = |name: &str| format!("{}/{name}", group.name);
    let mut ids: Vec<(&str, DimensionId)> = Vec::new();
    for (name, coordinate) in &group.dimensions {
        let id = builder.add_dimension_path(path(name), coordinate.len() as u64)?;
        ids.push((name, id));
        write_variable(builder, path(name), &[id], coordinate, &[])?;
    }
    let coordinates: Vec<&str> = group
        .variables
        .iter()
        .filter(|variable| variable.is_coordinate)
        .map(|variable| variable.name.as_str())
        .collect();
    for Variable { name, dimensions, values, attributes, is_coordinate } in &group.variables {
        let id = |dimension: &String| ids.iter().find(|(name, _)| name == dimension).map(|(_, id)| *id);
        let dimensions: Vec<DimensionId> = dimensions.iter().filter_map(id).collect();
        let mut attributes = attributes.clone();
        if !is_coordinate && !coordinates.is_empty() {
            attributes.push(("coordinates", coordinates.join(" ")));
        }
        match values {
            Values::Reals(values) => write_variable(builder, path(name), &dimensions, values, &attributes)?,
            Values::Counts(values) => write_variable(builder, path(name), &dimensions, values, &attributes)?,
            Values::Flags(values) => {
                // How xarray keeps booleans.
                attributes.push(("dtype", "bool".to_owned()));
                let values: Vec<i8> = values.iter().map(|flag| i8::from(*flag)).collect();
                write_variable(builder, path(name), &dimensions, &values, &attributes)?;
            }
        }
    }
    Ok(())
}

fn write_variable<T: NcWriteType>(
    builder: &mut NcFileBuilder,
    path: String,
    dimensions: &[DimensionId],
    values: &[T],
    attributes: &[(&'static str, String)],
) -> std::result::Result<(), netcdf_writer::Error> {
    let variable = builder.add_variable_path::<T>(path, dimensions)?;
    for (key, value) in attributes {
        builder.add_variable_attribute(variable, *key, text(value))?;
    }
    builder.write_variable(variable, values)
}

/// Names that are legal in netCDF, each once.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn of(taken: impl Iterator<Item = String>) -> Self {
        Self(taken.collect())
    }

    /// Letters, digits and underscores, which every reader takes. Letters beyond ASCII are those of western Europe and Greece, which
    /// have one encoding each: netCDF normalises the others, and would not find them again.
    fn legal(&mut self, name: &str) -> String {
        // netCDF allows 256 bytes, of which a number may take some.
        const LONGEST: usize = 200;
        const RESERVED: [&str; 3] = ["chain", "draw", "obs"];
        let is_kept = |c: char| {
            c.is_ascii_alphanumeric() || (('À'..='ſ').contains(&c) || ('Α'..='ω').contains(&c)) && c.is_alphabetic()
        };
        let mut legal = String::new();
        for c in name.chars().map(|c| if is_kept(c) { c } else { '_' }) {
            if legal.len() + c.len_utf8() <= LONGEST && !(c == '_' && legal.ends_with('_')) {
                legal.push(c);
            }
        }
        let legal = match legal.trim_end_matches('_') {
            "" => "unnamed",
            legal => legal,
        };
        let is_free = |name: &String| !self.0.contains(name) && !RESERVED.contains(&name.as_str());
        let mut numbered = (2..).map(|number| format!("{legal}_{number}"));
        let free = Some(legal.to_owned()).filter(is_free).or_else(|| numbered.find(is_free)).unwrap_or_default();
        self.0.push(free.clone());
        free
    }
}

/// Strings end at the first zero byte in other programs.
fn text(value: &str) -> NcAttrValue {
    NcAttrValue::Chars(value.replace('\0', "\u{fffd}"))
}

fn broken(problem: netcdf_writer::Error) -> Error {
    Error::failed("ArviZ file", problem.to_string(), "report this as a bug")
}

/// A time as ISO 8601; none for zero.
fn utc(seconds: u64) -> Option<String> {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last of its year; 719468 days from 1 March of year 0 to 1970.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    (seconds > 0).then(|| format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_and_unlike() {
        let mut names = Names::default();
        let long = "x".repeat(300);
        let made: Vec<String> =
            ["beta", "sigma_i[infected]", "a/b", "a b", "🦀", "β", "Ω \u{2126}", "draw", "", &long, &long]
                .map(|name| names.legal(name))
                .to_vec();
        let expected = ["beta", "sigma_i_infected", "a_b", "a_b_2", "unnamed", "β", "Ω", "draw_2", "unnamed_2"];
        assert_eq!(made[..9], expected);
        assert_eq!((made[9].len(), made[10].len()), (200, 202));
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // As `date -u -d @SECONDS` has them.
        for (seconds, expected) in [
            (1, "1970-01-01T00:00:01+00:00"),
            (951_827_696, "2000-02-29T12:34:56+00:00"),
            (4_107_542_399, "2100-02-28T23:59:59+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00+00:00"),
        ] {
            assert_eq!(utc(seconds).as_deref(), Some(expected));
        }
        assert_eq!(utc(0), None);
    }

    #[test]
    fn many_measurements_leave_fewer_draws() {
        let every = Draws { chains: 4, places: (0..2000).collect() };
        assert_eq!(every.thinned(1).places.len(), MOST_DRAWS);
        let few = every.thinned(100_000);
        assert!(few.places.len() * few.chains * 100_000 * size_of::<f64>() <= MOST_BYTES && few.places[0] == 0);
        let all: Vec<usize> = (0..8000).collect();
        assert_eq!(few.of(&all, 2000)[few.places.len()], 2000);
    }
}
