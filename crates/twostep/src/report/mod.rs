//! What finished results show: figures, the report, files for other programs. Nothing is computed that changes a result.

pub mod answer;
pub mod arviz;
pub mod calibration;
pub mod figure;
mod html;
mod look;
pub mod methods;
mod page;
pub mod paper;
mod pieces;
mod png;
mod scale;
pub mod surrogate;
mod svg;
mod sweep;
mod text;
pub mod words;

pub use look::{Style, style};
pub use png::png;
pub use svg::file as svg;

use crate::error::{Error, Result};
use crate::infer::propagation::Method;
use crate::infer::{self, Budget, FEW_T_DRAWS, IPosterior};
use crate::monitor::Monitor;
use crate::run::{Calibration, Enough, Findings, Project, VERSION};
use crate::store::{FIGURES, Files, Folder};
use crate::stream::Stream;
use crate::study::digest;
use figure::Figure;
use rayon::prelude::*;
use std::path::PathBuf;

/// Changing what is shown changes this, so that reports of before are made again.
const FORMAT: &str = "twostep report 1";

/// Width of figures in files unless asked for another, in millimetres: that of a page's text.
pub const WIDTH: f64 = 170.0;

/// Pixels of an SVG for each millimetre.
const PIXELS: f64 = 96.0 / 25.4;

/// Dots of a PNG for each pixel of its SVG: 300 to the inch.
const DOTS: f64 = 300.0 / 96.0;

/// What is shown of one setting.
pub struct SettingReport {
    /// What its stages left.
    pub findings: Findings,
    /// Figures of answer and surrogate.
    pub figures: Vec<Figure>,
    /// What the variance of each answer is made of, or why that is not known.
    pub budgets: Vec<std::result::Result<Budget, String>>,
    /// Measurements inside the 90 % intervals in which the answer expects them, and all of them.
    pub inside: Option<[usize; 2]>,
    /// Whether the runs were enough, where that was asked.
    pub enough: Option<Enough>,
}

impl SettingReport {
    fn new(project: &Project, index: usize) -> Result<Self> {
        let findings = project.findings(index)?;
        let budgets = budgets(&findings)?;
        let known: Vec<&Budget> = budgets.iter().flatten().collect();
        let checks = answer::checks(&findings);
        let mut figures = answer::figures(&findings, &known, &checks);
        figures.extend(surrogate::figures(&findings)?);
        Ok(Self { figures, budgets, inside: answer::inside(&checks), enough: project.kept_enough(index)?, findings })
    }

    /// The surrogate's part of the variance of each quantity of the answer: approximation error and epistemic uncertainty.
    fn surrogate_shares(&self) -> Vec<(String, f64)> {
        surrogate_shares(&self.findings, &self.budgets)
    }
}

/// What the variance of each answer is made of, or why that is not known; empty where the I-step is not finished.
///
/// # Errors
/// None that finished results have.
pub fn budgets(findings: &Findings) -> Result<Vec<std::result::Result<Budget, String>>> {
    let Some(prepared) = findings.prepared()? else { return Ok(Vec::new()) };
    let stream = Stream::root(findings.study.seed).named("report").named("budget");
    let of_answer = |answer| infer::budget(&prepared, &findings.study.infer, answer, stream);
    Ok(findings.answers.iter().map(of_answer).collect())
}

fn surrogate_shares(findings: &Findings, budgets: &[std::result::Result<Budget, String>]) -> Vec<(String, f64)> {
    // A method that denies the surrogate's uncertainty has no share of it, and one that rests on few T-draws does not know it.
    let carries = |answer: &IPosterior| {
        let is_mixture = Method::named(&answer.method).is_some_and(Method::is_mixture);
        is_mixture && answer.diagnostics.effective_t_draws.is_none_or(|effective| effective >= FEW_T_DRAWS)
    };
    let (Some(Ok(budget)), true) = (budgets.first(), findings.answers.first().is_some_and(carries)) else {
        return Vec::new();
    };
    let share = |q: &crate::infer::VarianceShares| (q.name.clone(), q.approximation.share + q.epistemic.share);
    budget.quantities.iter().filter(|q| q.are_known()).map(share).collect()
}

/// How far the answer of a setting can be trusted, as the report says it, by its [`budgets`]; `enough` and `calibration` where they are
/// known.
pub fn trust(
    findings: &Findings,
    budgets: &[std::result::Result<Budget, String>],
    enough: Option<&Enough>,
    calibration: Option<&Calibration>,
) -> Vec<words::Sentence> {
    let evidence = words::Evidence {
        surrogate_shares: &surrogate_shares(findings, budgets),
        inside: answer::inside(&answer::checks(findings)),
        enough,
        calibration: calibration.map_or(&[], |calibration| &calibration.methods),
    };
    words::trust(findings, evidence)
}

/// The figure of a setting that has this name; none where its results have no such figure.
///
/// # Errors
/// None that finished results have.
pub fn figure(findings: &Findings, id: &str) -> Result<Option<Figure>> {
    let budgets = match id {
        "budget" | "weights" => budgets(findings)?,
        _ => Vec::new(),
    };
    let checks = if id == "predictive-check" { answer::checks(findings) } else { Vec::new() };
    let is_asked = |figure: &Figure| figure.id == id;
    let of_answer = answer::figures(findings, &budgets.iter().flatten().collect::<Vec<_>>(), &checks);
    match of_answer.into_iter().find(is_asked) {
        Some(figure) => Ok(Some(figure)),
        None => Ok(surrogate::figures(findings)?.into_iter().find(is_asked)),
    }
}

/// Everything that a project's results show.
pub struct Report<'a> {
    project: &'a Project,
    /// Its settings, as far as they have runs.
    pub settings: Vec<SettingReport>,
    /// Figures of all settings of a sweep.
    pub overview: Vec<Figure>,
    /// Calibrations of its settings; empty where there are none.
    pub calibrations: Vec<Calibration>,
    /// Why trials that were done cannot be shown, where that is so.
    pub calibration_problem: Option<String>,
    /// Figures of them.
    pub calibration_figures: Vec<Figure>,
}

impl<'a> Report<'a> {
    /// From what is finished.
    ///
    /// # Errors
    /// Results that cannot be read, nothing finished at all, or an interruption.
    pub fn new(project: &'a Project, monitor: &dyn Monitor) -> Result<Self> {
        let (calibrations, calibration_problem) = match project.calibrations() {
            Ok(calibrations) => (calibrations.unwrap_or_default(), None),
            // A calibration that cannot be shown does not take the answer with it.
            Err(problem) => (Vec::new(), Some(problem.to_string())),
        };
        let all = 0..project.settings().len();
        let mut with_runs: Vec<usize> = all.filter(|&index| project.has_runs(index)).collect();
        if with_runs.is_empty() && calibrations.is_empty() {
            // Says what is missing.
            with_runs = vec![0];
        }
        let made: Vec<SettingReport> = with_runs
            .par_iter()
            .map(|&index| match monitor.proceed() {
                true => SettingReport::new(project, index),
                false => Err(Error::Interrupted),
            })
            .collect::<Result<_>>()?;
        let overview = if project.settings().len() > 1 { sweep::figures(&made) } else { Vec::new() };
        let calibration_figures = calibration::figures(project, &calibrations)?;
        Ok(Self { project, settings: made, overview, calibrations, calibration_problem, calibration_figures })
    }

    /// The calibration of the setting of this number among those that have runs.
    fn calibration(&self, index: usize) -> Option<&Calibration> {
        let label = &self.settings[index].findings.label;
        self.calibrations.iter().find(|calibration| calibration.plan.label == *label)
    }

    /// All figures, each with the folder of the results that it shows.
    pub fn figures(&self) -> Vec<(PathBuf, &Figure)> {
        let root = self.project.folder();
        let of_project =
            self.overview.iter().chain(&self.calibration_figures).map(|figure| (root.to_path_buf(), figure));
        let of_setting = |setting: &'_ SettingReport| -> Vec<(PathBuf, usize)> {
            (0..setting.figures.len()).map(|i| (setting.findings.folder.clone(), i)).collect()
        };
        let of_settings = self
            .settings
            .iter()
            .flat_map(|setting| of_setting(setting).into_iter().map(|(folder, i)| (folder, &setting.figures[i])));
        of_project.chain(of_settings).collect()
    }

    /// The page.
    ///
    /// # Errors
    /// None that a report of this program has.
    pub fn html(&self) -> Result<String> {
        page::page(self)
    }

    /// Writes the page, the figures and the files for other programs beside the results; gives the page's place.
    ///
    /// # Errors
    /// A stage that was finished for an earlier state of the study only: nothing takes the place of what shows it. A folder that
    /// cannot be used.
    pub fn write(&self) -> Result<PathBuf> {
        if let Some((stage, why)) = self.settings.iter().find_map(|setting| setting.findings.outdated()) {
            return Err(Error::failed(
                "report",
                format!("the {} stage is not finished for this study as it is: {why}", stage.name()),
                "`twostep run STUDY` does it; what shows the earlier results stays",
            ));
        }
        let root = self.project.folder();
        let mut folders: Vec<(PathBuf, Files)> = vec![(root.to_path_buf(), Vec::new())];
        let mut put = |folder: &PathBuf, files: Files| match folders.iter_mut().find(|f| f.0 == *folder) {
            Some((_, own)) => own.extend(files),
            None => folders.push((folder.clone(), files)),
        };
        put(&root.to_path_buf(), vec![("report.html".into(), self.html()?.into_bytes())]);
        for (i, setting) in self.settings.iter().enumerate() {
            let text = methods::methods(&setting.findings, self.calibration(i));
            put(&setting.findings.folder, vec![("methods.md".into(), text.into_bytes())]);
            put(&setting.findings.folder, arviz::files(&setting.findings)?);
        }
        put(&root.to_path_buf(), arviz::calibration_files(self.project, &self.calibrations)?);
        let drawn: Vec<(PathBuf, Files)> = self
            .figures()
            .into_par_iter()
            .map(|(folder, figure)| Ok((folder.clone(), drawn(figure, &folder.join(FIGURES))?)))
            .collect::<Result<_>>()?;
        for (folder, files) in drawn {
            let named = files.into_iter().map(|(name, content)| (format!("{FIGURES}/{name}"), content));
            put(&folder, named.collect());
        }
        let shown: Vec<_> = folders.into_iter().map(|(folder, files)| (Folder::new(folder), files)).collect();
        self.project.show(&shown, &fingerprint(self.project)?)?;
        Ok(root.join("report.html"))
    }
}

/// A figure's files of the usual width, SVG, PNG and CSV; the PNG that lies in `folder` where its SVG is the same.
fn drawn(figure: &Figure, folder: &std::path::Path) -> Result<Files> {
    let svg = svg::file(figure, WIDTH * PIXELS);
    let [svg_name, png_name, csv_name] = ["svg", "png", "csv"].map(|format| format!("{}.{format}", figure.id));
    let is_same = std::fs::read(folder.join(&svg_name)).is_ok_and(|before| before == svg.as_bytes());
    // Of the usual width: its first number says so. `twostep figures` writes others here.
    let width = (WIDTH * PIXELS * DOTS).ceil() as u32;
    let is_usual = |image: &Vec<u8>| image.get(16..20) == Some(&width.to_be_bytes());
    let kept = std::fs::read(folder.join(&png_name)).ok().filter(|image| is_same && is_usual(image));
    let image = kept.map_or_else(|| png(&svg, DOTS), Ok)?;
    Ok(vec![(svg_name, svg.into_bytes()), (png_name, image), (csv_name, figure.table()?.to_csv()?)])
}

/// A figure's file, `width` millimetres wide.
///
/// # Errors
/// An image too large to hold in memory.
pub fn draw(figure: &Figure, width: f64, format: Format) -> Result<Vec<u8>> {
    let svg = svg::file(figure, width * PIXELS);
    match format {
        Format::Svg => Ok(svg.into_bytes()),
        Format::Png => png(&svg, DOTS),
    }
}

/// Kinds of figure files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Scalable.
    Svg,
    /// An image of 300 dots to the inch.
    Png,
}

impl Format {
    /// How names of such files end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }
}

/// Makes the report where it does not show the results as they are; gives its place.
///
/// # Errors
/// Those of [`Report::new`] and [`Report::write`].
pub fn keep(project: &Project, monitor: &dyn Monitor) -> Result<PathBuf> {
    let fingerprint = fingerprint(project)?;
    for index in (0..project.settings().len()).filter(|&index| project.has_runs(index)) {
        let folder = project.setting_folder(index);
        if !folder.is_shown(&fingerprint)? {
            return Report::new(project, monitor)?.write();
        }
    }
    match Folder::new(project.folder().to_path_buf()).is_shown(&fingerprint)? {
        true => Ok(project.folder().join("report.html")),
        false => Report::new(project, monitor)?.write(),
    }
}

/// Hash of everything that a report shows.
fn fingerprint(project: &Project) -> Result<String> {
    let mut parts = vec![FORMAT.to_owned(), VERSION.to_owned()];
    let file = |path: PathBuf| std::fs::read_to_string(path).map_or(String::new(), |text| digest(&text));
    for (index, setting) in project.settings().iter().enumerate() {
        let study = &setting.study;
        let methods: Vec<&str> = study.infer.methods.iter().map(|method| method.name()).collect();
        let folder = project.setting_folder(index);
        parts.extend([study.source().to_owned(), format!("{:?}", setting.label), methods.join(" ")]);
        parts.extend(folder.records()?.into_iter().map(|record| record.fingerprint));
        parts.push(file(folder.path().join("enough.json")));
    }
    parts.push(file(project.folder().join("calibration.json")));
    Ok(digest(&parts.join("\n")))
}
