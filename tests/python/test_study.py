"""Studies as objects: the same options, words and defaults as the study file."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import twostep as ts
from twostep import _specs, _twostep

Make = Callable[..., ts.Study]

DOCUMENT: dict[str, Any] = {
    "simulator": {"builtin": "sir"},
    "unknowns": {"beta": {"range": [1, 3]}, "gamma": {"range": [0.1, 0.9]}},
    "conditions": {"t": {"range": [1, 14]}},
    "outputs": {"infected": {}},
    "design": {"runs": 10},
    "surrogate": {"kind": "pce", "degree": 1},
    "train": {"nuts": {}},
    "measurements": {
        "noise": {"sd": 0.1},
        "synthetic": {"truth": {"beta": 2, "gamma": 0.5}, "at": {"t": [2]}, "noise": {"sd": 0.1}},
    },
    "infer": {"nuts": {}, "smc": {}, "grid": {}},
    "calibrate": {"noise": {"sd": 0.1}},
}


def known_keys(*path: str, change: dict[str, Any] | None = None) -> set[str]:
    """The keys of a section, as the library tells them to somebody who misspelt one."""
    document = copy.deepcopy(DOCUMENT)
    document.update(change or {})
    section = document
    for key in path:
        section = section[key]
    section["qqqqq"] = 1
    with pytest.raises(ts.StudyError) as refused:
        _twostep.check(_twostep.write_toml(json.dumps(document)), "study.toml", ".")
    help_text = next(p.help for p in refused.value.problems if "no key `qqqqq`" in p.message)
    assert help_text is not None
    return set(help_text.removeprefix("known are ").split(", "))


def options(*kinds: type[_specs.Spec]) -> set[str]:
    return {kind._renamed.get(f.name, f.name) for kind in kinds for f in fields(kind)}


def test_every_option_of_the_file_is_one_of_the_objects() -> None:
    simulators = (ts.Builtin, ts.Command, ts.Python, ts.Function, ts.UMBridge, ts.Table)
    assert options(*simulators) == known_keys("simulator")
    assert options(ts.Unknown) == known_keys("unknowns", "beta")
    assert options(ts.Condition) == known_keys("conditions", "t")
    assert options(ts.Output) == known_keys("outputs", "infected")
    assert options(ts.Design) == known_keys("design")
    assert options(ts.Train) == known_keys("train")
    assert options(ts.Nuts) == known_keys("train", "nuts") | known_keys("infer", "nuts")
    assert options(ts.Smc) == known_keys("infer", "smc")
    assert options(ts.GridEngine) == known_keys("infer", "grid")
    assert options(ts.Measurements) == known_keys("measurements")
    assert options(ts.Synthetic) == known_keys("measurements", "synthetic")
    assert options(ts.Infer) == known_keys("infer")
    assert options(ts.Calibrate) == known_keys("calibrate")
    assert options(ts.PCE) | {"kind"} == known_keys("surrogate")
    assert options(ts.GP) | {"kind"} == known_keys("surrogate", change={"surrogate": {"kind": "gp"}})
    assert options(ts.Auto) | {"kind"} == known_keys("surrogate", change={"surrogate": {"kind": "auto"}})
    formula = {"kind": "formula", "formula": "a + beta", "parameters": {"a": "normal(0, 1)"}}
    assert options(ts.Formula) | {"kind"} == known_keys("surrogate", change={"surrogate": formula})
    assert set(ts.Study._KEYS) == known_keys()


def test_every_distribution_is_there() -> None:
    with pytest.raises(ts.StudyError) as refused:
        _twostep.check(
            _twostep.write_toml(json.dumps({**DOCUMENT, "unknowns": {"beta": {"range": [1, 3], "prior": "nrm(0)"}}})), "a", "."
        )
    help_text = next(str(p.help) for p in refused.value.problems if "unknown distribution" in p.message)
    families = dict(re.findall(r"([a-z-]+)\(([a-z, ]+)\)", help_text))
    ours = {kind._family: ", ".join(kind._parameters) for kind in ts.Distribution.__subclasses__() if kind._parameters}
    assert ours == families
    # As noise: what only generates, too.
    noise = {kind._family for kind in ts.Distribution.__subclasses__() if kind._family not in families}
    assert noise == {"negative-binomial", "poisson", "binomial", "none"}
    families = {kind._family: set(kind._options) for kind in ts.Distribution.__subclasses__()}
    options = known_keys("measurements", "noise") - {"family", "sd", "df"}
    assert options == set().union(*families.values())
    designs = [ts.Sobol, ts.SobolScrambled, ts.Halton, ts.HaltonEnds, ts.LatinHypercube, ts.Grid, ts.Random]
    with pytest.raises(ts.StudyError) as refused:
        _twostep.check(_twostep.write_toml(json.dumps({**DOCUMENT, "design": {"method": "x", "runs": 9}})), "a", ".")
    known = next(str(p.help) for p in refused.value.problems).removeprefix("known are ").split(", ")
    assert [design(9).method for design in sorted(designs, key=lambda d: known.index(str(d(9).method)))] == known
    assert [design.__name__ for design in designs] == [
        "Sobol", "SobolScrambled", "Halton", "HaltonEnds", "LatinHypercube", "Grid", "Random",
    ]  # fmt: skip


def test_a_distribution_is_its_text() -> None:
    assert repr(ts.Normal(2, 0.5)) == "normal(2, 0.5)"
    assert repr(ts.Normal(2, 1, lower=0)) == "normal(2, 1, lower=0)"
    assert repr(ts.StudentT(4, 0, 1)) == "student-t(4, 0, 1)"
    assert repr(ts.Uniform(np.float64(0.1), np.int64(3))) == "uniform(0.1, 3)"
    assert repr(ts.LogNormal(sd=ts.HalfNormal(0.5))) == "log-normal(sd=half-normal(0.5))"
    assert ts.Gamma(2, 3) == ts.Gamma(2, 3) != ts.Gamma(2, 4) and hash(ts.Gamma(2, 3)) == hash(ts.Gamma(2, 3))


def test_distributions_out_of_place_are_refused(make_study: Make) -> None:
    with pytest.raises(ts.InvalidError, match="normal has no mean"):
        make_study(unknowns={"omega": ts.Unknown((-1, 1), prior=ts.Normal(sd=1))})
    with pytest.raises(ts.InvalidError, match="has mean, which noise has not"):
        make_study(measurements=ts.Measurements(noise=ts.Normal(0, 1)))
    with pytest.raises(ts.InvalidError, match="noise"):
        make_study(measurements=ts.Measurements(noise=ts.Gamma(2, 1)))


def test_problems_are_told_all_at_once_in_the_words_of_the_command(make_study: Make, tmp_path: Path) -> None:
    with pytest.raises(ts.StudyError) as refused:
        make_study(unknowns={"omega": ts.Unknown((1, -1), prior="nrmal(0, 1)")}, surrogate=ts.PCE(degree=-1))
    text = str(refused.value)
    assert text.startswith("3 problems in the study")
    assert "- unknowns.omega.range: 1 is not less than -1 (expected [lower, upper]); write range = [-1, 1]" in text
    assert "did you mean `normal`?" in text and isinstance(refused.value, ValueError)
    file = tmp_path / "typo.toml"
    file.write_text('[simulator]\nbuiltin = "logisitc"\n')
    with pytest.raises(ts.StudyError, match="did you mean \"logistic\"") as refused:
        ts.Study.from_toml(file)
    # Of a file, with its lines.
    assert "typo.toml:2:11" in refused.value.text


def test_warnings_are_warnings(make_study: Make) -> None:
    with pytest.warns(ts.StudyWarning, match="of the prior lies outside the range") as caught:
        make_study(unknowns={"omega": ts.Unknown((-1, 1), prior="normal(0, 1)")})
    assert len(caught) == 1


TABLE = {"t": [1.0, 2.0], "y": [0.1 + 0.2, 1 / 3]}


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        pd.DataFrame(TABLE),
        pd.DataFrame(TABLE).set_index("t"),
        pd.DataFrame(TABLE).set_index("t").y,
        xr.Dataset({"y": ("t", np.array(TABLE["y"]))}, coords={"t": TABLE["t"]}),
        xr.DataArray(np.array(TABLE["y"]), coords={"t": TABLE["t"]}, dims="t", name="y"),
        {"t": np.array(TABLE["t"]), "y": np.array(TABLE["y"])},
    ],
)
def test_tables_come_in_every_form_without_losing_a_digit(make_study: Make, table: Any, tmp_path: Path) -> None:
    study = make_study(
        lambda omega, t: omega * t,
        conditions={"t": (1, 3)},
        surrogate=ts.PCE(degree=2),
        measurements=ts.Measurements(table, noise=ts.Normal(sd=0.1)),
    )
    study.infer(["point"])
    rows = [line.split(",") for line in (study._temporary / "measurements.csv").read_text().splitlines()]
    y = rows[0].index("y")
    assert [float(row[y]) for row in rows[1:]] == TABLE["y"]


def test_what_is_no_table_is_refused(make_study: Make) -> None:
    with pytest.raises(ts.InvalidError, match="measurements.file: int is no table"):
        make_study(measurements=ts.Measurements(3, noise=ts.Normal(sd=0.1)))
    with pytest.raises(ts.InvalidError, match="equal length"):
        make_study(measurements=ts.Measurements({"y": [1], "z": [1, 2]}, noise=ts.Normal(sd=0.1)))
    with pytest.raises(ts.StudyError, match="there is no file"):
        make_study(measurements=ts.Measurements("missing.csv", noise=ts.Normal(sd=0.1)))


def test_an_empty_file_of_measurements_is_refused_by_name(make_study: Make, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    study = make_study(measurements=ts.Measurements(tmp_path / "empty.csv", noise=ts.Normal(sd=0.1)))
    with pytest.raises(ts.Error, match="empty.csv"):
        study.infer()


def test_finished_runs_come_as_a_table(make_study: Make) -> None:
    x = np.linspace(-1, 1, 9)
    study = make_study(ts.Table({"omega": x, "y": np.tanh(x)}), design=None)
    runs = study.simulate()
    assert list(runs.y) == list(np.tanh(x)) and set(runs.source) == {"table"}


def test_points_of_a_design_come_as_a_table(make_study: Make) -> None:
    study = make_study(design=ts.Design(points=pd.DataFrame({"omega": [-0.5, 0.0, 0.5]})), surrogate=ts.PCE(degree=1))
    assert list(study.simulate().omega) == [-0.5, 0.0, 0.5]


def test_the_study_file_has_what_was_given_and_no_more(make_study: Make, tmp_path: Path) -> None:
    study = make_study(ts.Builtin("logistic"), seed=7, derived={"twice": "2 * omega"})
    study.to_toml(tmp_path / "a" / "study.toml")
    document = json.loads(_twostep.read_toml((tmp_path / "a" / "study.toml").read_text(), "study.toml"))
    assert document == {
        "seed": 7,
        "simulator": {"builtin": "logistic"},
        "unknowns": {"omega": {"range": [-1, 1], "prior": "normal(0, 0.5, lower=-1, upper=1)"}},
        "design": {"method": "sobol", "runs": 12},
        "surrogate": {"kind": "pce", "degree": 5},
        "train": {"draws": 100},
        "measurements": {"file": "measurements.csv", "noise": {"family": "normal", "sd": 0.05}},
        "derived": {"twice": "2 * omega"},
    }
    assert (tmp_path / "a" / "measurements.csv").read_text() == "y\n0.62\n0.65\n0.6\n"
    # The same again is no harm; another study does not replace it unasked.
    study.to_toml(tmp_path / "a" / "study.toml")
    with pytest.raises(ts.InvalidError, match="overwrite=True"):
        make_study(ts.Builtin("logistic"), seed=8).to_toml(tmp_path / "a" / "study.toml")
    make_study(ts.Builtin("logistic"), seed=8).to_toml(tmp_path / "a" / "study.toml", overwrite=True)


def test_a_sweep_has_settings(make_study: Make) -> None:
    study = make_study(ts.Builtin("logistic"), sweep={"design.runs": [6, 12]}, surrogate=ts.PCE(degree=3))
    assert study._project.labels() == [[("design.runs", "6")], [("design.runs", "12")]]


def test_numbers_of_numpy_are_numbers(make_study: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = make_study(
            unknowns={"omega": ts.Unknown(np.array([-1.0, 1.0]))}, design=ts.Sobol(np.int64(8)), seed=np.int32(3)
        )
    assert "range = [-1.0, 1.0]" in study.to_toml()


def test_a_file_that_is_no_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(ts.InvalidError, match="cannot be read"):
        ts.Study.from_toml(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("name = \n")
    with pytest.raises(ts.Error, match="broken.toml"):
        ts.Study.from_toml(tmp_path / "broken.toml")


def test_a_full_disk_is_an_oserror(make_study: Make) -> None:
    study = make_study(folder="/dev/full/results")
    with pytest.raises(ts.Error):
        study.simulate()


def test_a_larger_design_keeps_the_runs_that_are_there(make_study: Make) -> None:
    calls = iter(range(1000))

    def counted(omega: float) -> float:
        next(calls)
        return omega

    study = make_study(counted)
    study.simulate()
    larger = study.replace(design=ts.Sobol(20))
    del study
    assert list(larger.simulate().state) == ["done"] * 20 and next(calls) == 20
    with pytest.raises(ts.InvalidError, match="a study has no desing"):
        larger.replace(desing=ts.Sobol(20))


def test_sections_can_be_read(make_study: Make) -> None:
    study = make_study(seed=5)
    assert study.seed == 5 and study.design == ts.Sobol(12) and study.unknowns["omega"].range == (-1, 1)
    assert study.conditions is None and "surrogate" in dir(study)
    with pytest.raises(AttributeError, match="has no attribute 'unknown'"):
        study.unknown


def test_a_folder_of_any_name_is_the_users(make_study: Make, tmp_path: Path) -> None:
    # Temporary folders begin like this one.
    folder = tmp_path / "twostep-mine"
    make_study(ts.Builtin("logistic"), folder=folder / "beam.twostep").train()
    make_study(ts.Builtin("logistic")).to_toml(folder / "beam.toml")
    study = ts.Study.from_toml(folder / "beam.toml")
    assert list(study.status().fresh) == [True, True, False]
    # Results of another study file would be refused.
    study.infer()


def test_studies_that_share_a_temporary_folder_have_one_name(make_study: Make) -> None:
    study = make_study(ts.Builtin("logistic"), name="mine")
    study.train()
    again = study.replace(seed=8).replace(train=ts.Train(draws=50))
    again.train()
    assert study.folder == again.folder and study._file == again._file == "mine.toml"
