//! Two-step simulation-based calibration (the paper's Algorithm 1): whether the intervals of a study hold the truth as often as
//! they say.

mod campaign;
pub mod enough;
mod spec;
mod summary;
mod trial;
pub mod uniformity;
mod verdict;

pub use campaign::{I_TRIALS, Procedure, T_TRIALS, TrialSink, in_order, run};
pub use spec::{CalibrateSpec, Truth};
pub use summary::{Context, Ecdf, MethodSummary, Region, UnknownSummary, summarise};
pub use trial::{Evidence, Ranked, Trial};
pub use verdict::{Cause, Explanation, Kind, Verdict};
