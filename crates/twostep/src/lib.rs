//! Infer the inputs of an expensive simulator from measurements, through a surrogate trained on few simulator runs, without
//! pretending that the surrogate is exact.
//!
//! # The road that data takes
//!
//! ```text
//! study.toml -> design -> simulate -> train (T-step) -> infer (I-step) -> calibrate (two-step SBC) -> report
//!               points    runs        TPosterior        IPosterior       Trial, MethodSummary         html, svg, nc
//! ```
//!
//! One direction, one stage after the other. Every stage is a function of its part of the study, of what came before, and of
//! a seed; [`run::Project`] skips a stage when nothing it depends on has changed.
//!
//! | The paper | Here |
//! |---|---|
//! | simulator M | [`simulate::Simulator`] |
//! | surrogate M~(omega, c) | [`surrogate::Surrogate`] |
//! | D_T = (omega_T, y_T) | [`train::TrainingSet`] |
//! | theta = (c, sigma_A), p(theta given D_T) | [`train::TPosterior`], [`draws::Draws`] |
//! | y_I | [`infer::Measured`] |
//! | u = Point, E-Post, E-Lik, E-Log-Lik | [`infer::propagation::Method`] |
//! | p(omega given y_I, u) | [`infer::IPosterior`] |
//! | Algorithm 1 | [`calibrate::run`], [`run::Project::calibrate`] |
//!
//! # Example
//!
//! ```
//! use twostep::{monitor::Silent, run::Project, study::{self, Stage}};
//!
//! let text = r#"
//! [simulator]
//! builtin = "logistic"
//! [unknowns.omega]
//! range = [-1, 1]
//! prior = "normal(0, 0.5)"
//! [design]
//! method = "halton-ends"
//! runs = 12
//! [surrogate]
//! kind = "pce"
//! degree = 5
//! [train]
//! draws = 200
//! [measurements]
//! noise = { family = "normal", sd = 0.02 }
//! synthetic = { truth = { omega = 0.1 }, replicates = 5 }
//! "#;
//! let folder = std::env::temp_dir().join(format!("twostep-doc-{}", std::process::id()));
//! let settings = study::parse(text, "study.toml", &folder).expect("a valid study");
//! let results = Project::new(settings, folder.clone()).run(Stage::Infer, &Silent)?;
//! let answer = results[0].posteriors.iter().find(|p| p.method == "e-lik").expect("e-lik is run by default");
//! let omega = &answer.unknowns[0];
//! assert!(omega.q05 < 0.1 && 0.1 < omega.q95, "{omega:?}");
//! # std::fs::remove_dir_all(folder).ok();
//! # Ok::<(), twostep::Error>(())
//! ```
//!
//! Modules may use only those that stand before them: `error`, `monitor`, `matrix`, `stream`, `special`, `kernels`, `draws`,
//! `expression`, `prior`, `table`, `mcmc`, `likelihood`, `simulate`, `surrogate`, `train`, `infer`, `calibrate`,
//! `serve`, `study`, `store`, `run`, `report`.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod draws;
pub mod error;
pub mod expression;
pub mod infer;
pub mod kernels;
pub mod likelihood;
pub mod matrix;
pub mod mcmc;
pub mod monitor;
pub mod prior;
pub mod report;
pub mod run;
pub mod serve;
pub mod simulate;
pub mod special;
pub mod store;
pub mod stream;
pub mod study;
pub mod surrogate;
pub mod table;
pub mod train;

pub use error::{Error, Result};
