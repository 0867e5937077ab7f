//! Two-step simulation-based calibration (the paper's Algorithm 1): whether the intervals of a study hold the truth as often as
//! they say.

pub mod uniformity;
