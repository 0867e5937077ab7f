//! Figures of surrogate and answer: each has content, says what is seen, and shows the numbers it is about.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use twostep::infer::{Budget, budget};
use twostep::monitor::Silent;
use twostep::report::figure::{Figure, Ink, Shape};
use twostep::report::{answer, surrogate, svg};
use twostep::run::{Findings, Project};
use twostep::store::FailedRun;
use twostep::stream::Stream;
use twostep::study::{self, Stage};

fn studies() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies")
}

/// What a shipped study leaves in a folder of this name, with some of its text replaced.
fn findings(name: &str, file: &str, changes: &[(&str, &str)], until: Stage) -> Findings {
    let path = studies().join(file);
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "{from} in {file}");
        text = text.replacen(from, to, 1);
    }
    let settings = study::parse(&text, file, path.parent().unwrap()).unwrap_or_else(|problems| panic!("{problems}"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    let project = Project::new(settings.into_iter().take(1).collect(), folder);
    project.run(until, &Silent).unwrap();
    project.findings(0).unwrap()
}

fn budgets(findings: &Findings) -> Vec<Budget> {
    let prepared = findings.prepared().unwrap().unwrap();
    let of = |answer| budget(&prepared, &findings.study.infer, answer, Stream::root(1)).ok();
    findings.answers.iter().filter_map(of).collect()
}

fn figures(findings: &Findings) -> Vec<Figure> {
    let budgets = if findings.answers.is_empty() { Vec::new() } else { budgets(findings) };
    let mut out = answer::figures(findings, &budgets.iter().collect::<Vec<_>>(), &answer::checks(findings));
    out.extend(surrogate::figures(findings).unwrap());
    out
}

/// Whether a shape has something to draw, and a text for each of its pieces or none.
fn is_sound(shape: &Shape) -> bool {
    let finite = |values: &[f64]| values.iter().all(|v| v.is_finite());
    let noted = |n: usize, notes: &[String]| notes.is_empty() || notes.len() == n;
    match shape {
        Shape::Line(p) => p.len() > 1 && p.iter().all(|p| finite(p)),
        Shape::Dots(p) => !p.is_empty() && p.iter().all(|p| finite(p)),
        Shape::Points(p, notes) => !p.is_empty() && p.iter().all(|p| finite(p)) && noted(p.len(), notes),
        Shape::Band(p) => p.len() > 1 && p.iter().all(|p| finite(p) && p[1] <= p[2]),
        Shape::Bars(p, notes) => !p.is_empty() && p.iter().all(|p| finite(p)) && noted(p.len(), notes),
        Shape::Intervals(_, p) => {
            !p.is_empty() && p.iter().all(|p| finite(&[p[0], p[1], p[3], p[5]]) && p[1] <= p[3] && p[3] <= p[5])
        }
        Shape::Rules(_, at) => !at.is_empty() && finite(at),
    }
}

fn assert_sound(all: &[Figure], expected: &[&str]) {
    let ids: Vec<&str> = all.iter().map(|figure| figure.id.as_str()).collect();
    assert_eq!(ids, expected);
    for figure in all {
        let id = &figure.id;
        assert!(figure.caption.ends_with('.') && !figure.title.is_empty(), "{id}: {}", figure.caption);
        assert!(figure.panels.iter().any(|panel| !panel.marks.is_empty()), "{id} is empty");
        let is_matrix = ["pairs", "t-posterior"].contains(&id.as_str());
        for panel in &figure.panels {
            assert!(is_matrix || !panel.marks.is_empty(), "{id} has an empty panel");
            for mark in &panel.marks {
                assert!(is_sound(&mark.shape), "{id}: {:?} {:?}", mark.series, mark.shape);
            }
        }
        figure.table().unwrap();
    }
}

const QUICK: [(&str, &str); 2] = [("runs = 40", "runs = 24"), ("draws = 1000", "draws = 200")];

#[test]
fn a_study_has_all_figures_and_none_is_empty() {
    let mut found = findings("all", "starter.toml", &QUICK, Stage::Infer);
    let reason = "<script>alert(\"1\")</script> ".repeat(20);
    found.failed = vec![FailedRun { run: 3, inputs: vec![0.1, 0.2], reason }];
    let all = figures(&found);
    assert_sound(
        &all,
        &[
            "forest",
            "densities",
            "pairs",
            "predictive-check",
            "budget",
            "weights",
            "surrogate",
            "leave-one-out",
            "t-posterior",
            "sobol",
            "design",
        ],
    );
    let marks = |id: &str| {
        all.iter().find(|f| f.id == id).unwrap().panels.iter().flat_map(|p| p.marks.clone()).collect::<Vec<_>>()
    };

    // The truth is drawn where it is known: of gamma and of what is derived from it, not of the sd.
    let rules: Vec<_> = marks("forest").into_iter().filter(|mark| mark.series.ink == Ink::Truth).collect();
    assert_eq!(rules.len(), 2);

    // Shares fill their bars.
    for panel in &all.iter().find(|f| f.id == "budget").unwrap().panels {
        let widths = panel.marks.iter().flat_map(|mark| match &mark.shape {
            Shape::Bars(bars, _) => bars.iter().map(|b| b[1] - b[0]).collect(),
            _ => Vec::new(),
        });
        let (n, sum) = (panel.y.categories.len() as f64, widths.sum::<f64>());
        assert!((sum - n).abs() < 64.0 * f64::EPSILON * n);
    }

    // Failed runs say why, and the runs after them keep their numbers.
    let design = marks("design");
    let notes = |ink: Ink| {
        let mark = design.iter().find(|mark| mark.series.ink == ink).unwrap();
        match &mark.shape {
            Shape::Points(_, notes) => notes.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert!(notes(Ink::Failed)[0].starts_with("run 3 failed: <script>") && notes(Ink::Failed)[0].len() < 300);
    assert!(notes(Ink::Data)[2].starts_with("run 4: gamma = "));
}

#[test]
fn the_slice_of_one_input_goes_by_the_runs_themselves() {
    let found = findings("slice", "paper/pce.toml", &[("draws = 1000", "draws = 200")], Stage::Train);
    let all = figures(&found);
    assert_sound(&all, &["surrogate", "leave-one-out", "t-posterior"]);
    let points = all[0].panels[0].marks.iter().find_map(|mark| match &mark.shape {
        Shape::Points(points, _) => Some(points.clone()),
        _ => None,
    });
    let set = &found.training;
    let expected: Vec<[f64; 2]> = (0..set.n_runs()).map(|run| [set.inputs[(run, 0)], set.outputs[0].1[run]]).collect();
    assert_eq!(points.unwrap(), expected);
}

#[test]
fn series_and_chains_have_their_figures() {
    let changes = [
        ("runs = 32", "runs = 30"),
        ("degree = 4", "degree = 3"),
        ("[measurements]\n", "[train]\ndraws = 60\n\n[measurements]\n"),
        (
            "[infer]\n",
            "[infer]\nengine = \"nuts\"\nmethods = [\"e-lik\", \"point\"]\nnuts = { chains = 3, warmup = 200, draws = 100 }\n",
        ),
    ];
    let found = findings("series", "sir_series.toml", &changes, Stage::Infer);
    let all = figures(&found);
    assert_sound(
        &all,
        &[
            "forest",
            "densities",
            "pairs",
            "predictive-check",
            "budget",
            "weights",
            "trace",
            "ranks",
            "surrogate",
            "leave-one-out",
            "t-posterior",
            "sobol",
            "design",
        ],
    );
    let chains = all.iter().find(|f| f.id == "trace").unwrap().panels[0].marks.len();
    assert_eq!(chains, 3);
}

#[test]
fn figures_stay_small_whatever_the_number_of_draws() {
    let mut found = findings("small", "starter.toml", &QUICK, Stage::Infer);
    for answer in &mut found.answers {
        let n = answer.draws.len();
        answer.draws = (0..100_000).map(|i| answer.draws[i % n].clone()).collect();
        answer.t_draws = answer.t_draws.as_ref().map(|own| (0..100_000).map(|i| own[i % n]).collect());
    }
    let size: usize = figures(&found).iter().map(|figure| svg(figure, 640.0).len()).sum();
    // A tenth of what a page may have.
    assert!(size < 500_000, "{size} bytes");
}
