//! Whether probability integral transforms are uniform: ECDF, envelopes, log-gamma, and a test that respects T-trials.
