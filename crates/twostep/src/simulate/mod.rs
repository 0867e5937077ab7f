//! Simulators, which map named inputs to named outputs, and the designs that choose where to run them.

pub mod builtin;
pub mod command;
pub mod design;
mod external;
pub mod finished;
mod function;
mod python;
mod spec;
mod umbridge;

pub(crate) use external::alike;
pub use external::{Failure, Job, Over, Reading, Wanted};
pub use function::{Function, SharedFunction, python_parts};
pub use python::{PythonFunction, PythonSpec, default_interpreter, named_interpreter};
pub use spec::{DesignSpec, OnFailure, SimulatorKind, SimulatorSpec};
pub use umbridge::{OutputAt, UmbridgeModel, UmbridgeSpec};

use crate::error::{Error, Result};
use crate::table::nearest;

/// M: one run maps values of [`inputs`](Simulator::inputs) to values of [`outputs`](Simulator::outputs).
///
/// Runs are deterministic and independent of each other; simulation noise (`sigma_s`) is added by the caller.
pub trait Simulator: Send + Sync {
    /// Names of all inputs, those with a default included.
    fn inputs(&self) -> &[&'static str];

    /// Names of the outputs.
    fn outputs(&self) -> &[&'static str];

    /// The inputs that may be left out of a study, with the value they then have.
    fn defaults(&self) -> &[(&'static str, f64)] {
        &[]
    }

    /// One run at `x`, in the order of `inputs()`; overwrites `out`, in the order of `outputs()`.
    ///
    /// An error, which leaves `out` unspecified, if a length differs, a value is not finite or lies outside the
    /// simulator's domain, or the run itself fails.
    fn run(&self, x: &[f64], out: &mut [f64]) -> Result<()>;
}

/// The built-in simulator of that name: one of [`builtin::NAMES`].
pub fn builtin(name: &str) -> Result<Box<dyn Simulator>> {
    builtin::by_name(name)
}

/// Checks what every simulator asks of its arguments: as many inputs and outputs as there are names, inputs finite.
fn check_arguments(simulator: &dyn Simulator, x: &[f64], out: &[f64]) -> Result<()> {
    let (inputs, outputs) = (simulator.inputs(), simulator.outputs());
    if x.len() != inputs.len() {
        let found = format!("{} values for {} inputs", x.len(), inputs.len());
        return Err(Error::invalid("simulator inputs", found, format!("give {}", inputs.join(", "))));
    }
    if out.len() != outputs.len() {
        let found = format!("room for {} of {} values", out.len(), outputs.len());
        return Err(Error::invalid("simulator outputs", found, format!("make room for {}", outputs.join(", "))));
    }
    match inputs.iter().zip(x).find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => {
            Err(Error::invalid(*name, format!("{value} is not a number to run at"), "give a finite value"))
        }
        None => Ok(()),
    }
}

/// What to write instead of the unknown `found`: the nearest of `known` if one is near, and in any case all of them.
pub(crate) fn spelling_repair(found: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match nearest(found, known) {
        Some(nearest) => format!("did you mean \"{nearest}\"? known are {all}"),
        None if known.is_empty() => "remove it: none is known here".to_owned(),
        None => format!("known are {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the trait promises, for every built-in simulator: names are distinct, defaults are inputs, and a run fills
    /// every output; wrong lengths and values that are not finite are errors.
    #[test]
    fn builtin_simulators_keep_the_contract() {
        for name in builtin::NAMES {
            let simulator = builtin(name).unwrap();
            let (inputs, outputs) = (simulator.inputs(), simulator.outputs());
            for names in [inputs, outputs] {
                assert!(!names.is_empty() && (1..names.len()).all(|i| !names[..i].contains(&names[i])), "{name}");
            }
            assert!(simulator.defaults().iter().all(|(default, _)| inputs.contains(default)), "{name}");

            let default = |input| simulator.defaults().iter().find(|(other, _)| *other == input);
            let x: Vec<f64> = inputs.iter().map(|&input| default(input).map_or(0.5, |(_, value)| *value)).collect();
            let mut out = vec![f64::NAN; outputs.len()];
            simulator.run(&x, &mut out).unwrap();
            assert!(out.iter().all(|y| y.is_finite()), "{name}: {out:?}");

            assert!(simulator.run(&x[1..], &mut out).is_err(), "{name}");
            assert!(simulator.run(&x, &mut out[1..]).is_err(), "{name}");
            for (i, input) in inputs.iter().enumerate() {
                let mut wrong = x.clone();
                wrong[i] = f64::NAN;
                let message = simulator.run(&wrong, &mut out).unwrap_err().to_string();
                assert!(message.starts_with(&format!("{input}: NaN")), "{name}: {message}");
            }
        }
    }

    #[test]
    fn unknown_names_are_told_the_nearest_and_all() {
        let message = |name| builtin(name).err().unwrap().to_string();
        assert_eq!(
            message("logisitc"),
            "simulator.builtin: there is no simulator \"logisitc\"; did you mean \"logistic\"? known are linear, slope, \
             logistic, sir"
        );
        assert!(message("SIR").contains("did you mean \"sir\"?"));
        assert_eq!(
            message("navier-stokes"),
            "simulator.builtin: there is no simulator \"navier-stokes\"; known are linear, slope, logistic, sir"
        );
        assert!(message("").ends_with("; known are linear, slope, logistic, sir"));
    }
}
