//! Names of the simulators that come with the library, mapped to those simulators.

mod linear;
mod logistic;
mod sir;
mod slope;

pub use linear::Linear;
pub use logistic::Logistic;
pub use sir::Sir;
pub use slope::Slope;

use super::{Simulator, spelling_repair};
use crate::error::{Error, Result};

/// Names that [`by_name`] knows.
pub const NAMES: [&str; 4] = ["linear", "slope", "logistic", "sir"];

/// The built-in simulator of that name; an error with the nearest name otherwise.
pub fn by_name(name: &str) -> Result<Box<dyn Simulator>> {
    Ok(match name {
        "linear" => Box::new(Linear),
        "slope" => Box::new(Slope),
        "logistic" => Box::new(Logistic),
        "sir" => Box::new(Sir),
        _ => {
            let found = format!("there is no simulator \"{name}\"");
            return Err(Error::invalid("simulator.builtin", found, spelling_repair(name, &NAMES)));
        }
    })
}
