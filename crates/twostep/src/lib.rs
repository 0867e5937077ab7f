//! Infer the inputs of an expensive simulator from measurements, through a surrogate trained on few simulator runs, without
//! pretending that the surrogate is exact.

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
pub mod run;
pub mod simulate;
pub mod special;
pub mod store;
pub mod stream;
pub mod study;
pub mod surrogate;
pub mod table;
pub mod train;

pub use error::{Error, Result};
