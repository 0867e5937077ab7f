//! Two-step simulation-based calibration (the paper's Algorithm 1): whether the intervals of a study hold the truth as often as
//! they say.

pub mod enough;
mod spec;
mod trial;
pub mod uniformity;

pub use spec::{CalibrateSpec, Truth};
pub use trial::{Evidence, Ranked, Trial};
