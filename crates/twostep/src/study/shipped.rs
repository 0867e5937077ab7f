//! Names of the studies that come with the library, mapped to their files.

/// A study with the files it needs; the first file is the study itself.
pub type Shipped = (&'static str, &'static [(&'static str, &'static str)]);

/// File name and text of a file below `studies/`.
macro_rules! file {
    ($folder:literal, $name:literal) => {
        ($name, include_str!(concat!("../../../../studies/", $folder, $name)))
    };
}

/// All shipped studies by name, the starter first.
pub fn shipped() -> &'static [Shipped] {
    &[
        ("starter", &[file!("", "starter.toml")]),
        ("sir", &[file!("", "sir.toml")]),
        ("sir_series", &[file!("", "sir_series.toml")]),
        ("boarding_school", &[file!("", "boarding_school.toml"), file!("", "boarding_school.csv")]),
        ("reactor", &[file!("", "reactor.toml"), file!("", "reactor.csv"), file!("", "reactor.py")]),
        ("gp_calibration", &[file!("", "gp_calibration.toml")]),
        ("sigma_a_calibration", &[file!("", "sigma_a_calibration.toml")]),
        ("series_calibration", &[file!("", "series_calibration.toml")]),
        ("single_times_calibration", &[file!("", "single_times_calibration.toml")]),
        ("null", &[file!("", "null.toml"), file!("", "null_design.csv")]),
        ("paper/linear", &[file!("paper/", "linear.toml"), file!("paper/", "linear_design.csv")]),
        ("paper/slope", &[file!("paper/", "slope.toml"), file!("paper/", "slope_design.csv")]),
        ("paper/logistic", &[file!("paper/", "logistic.toml")]),
        ("paper/logistic_calibration", &[file!("paper/", "logistic_calibration.toml")]),
        ("paper/pce", &[file!("paper/", "pce.toml")]),
        ("paper/pce_calibration", &[file!("paper/", "pce_calibration.toml")]),
        ("paper/sir", &[file!("paper/", "sir.toml"), file!("paper/", "sir_design.csv")]),
        ("paper/times", &[file!("paper/", "times.toml")]),
        ("paper/workers", &[file!("paper/", "workers.toml")]),
    ]
}
