"""Studies of the same measurements against each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from studies import small

import twostep as ts


def answer(sd: float) -> ts.Inference:
    return small(measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=sd))).infer()


def test_bayes_factors_are_those_of_the_evidences() -> None:
    narrow, wide = answer(0.1), answer(1.0)
    found = ts.compare({"narrow": narrow, "wide": wide})
    table = found.summary()
    assert sorted(set(table["method"])) == ["e-lik", "point"] and list(found.verdict) == ["e-lik", "point"]
    for method, of_method in table.groupby("method"):
        by_study = of_method.set_index("study")
        logs = by_study["log_evidence"]
        assert [logs["narrow"], logs["wide"]] == [post.log_evidence[method] for post in (narrow, wide)]
        assert by_study["log_bayes_factor"]["narrow"] == 0 and by_study["log_bayes_factor"]["wide"] == logs["wide"] - logs["narrow"]
        np.testing.assert_allclose(by_study["log_bayes_factor_error"]["wide"], np.hypot(*by_study["log_evidence_error"]), rtol=1e-15)
        np.testing.assert_allclose(by_study["probability"], np.exp(logs) / np.exp(logs).sum(), rtol=1e-12)
        assert found.verdict[str(method)].split("favour ")[1].startswith("narrow over wide")
    assert "priors" in found.notes[0] and "narrow" in repr(found) and "<table" in found._repr_html_()
    # Answers without names are called after their studies.
    assert list(ts.compare([narrow, wide]).summary()["study"][:2]) == ["study (1)", "study (2)"]


def test_the_shell_has_the_same_numbers(tmp_path: Path) -> None:
    posts = {}
    for name, sd in (("narrow", 0.1), ("wide", 1.0)):
        study = small(measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=sd)))
        study.to_toml(tmp_path / f"{name}.toml")
        subprocess.run([sys.executable, "-m", "twostep", "run", f"{name}.toml", "--quiet"], cwd=tmp_path, check=True, timeout=300)
        posts[f"{name}.toml"] = study.infer()
    command = [sys.executable, "-m", "twostep", "compare", "narrow.toml", "wide.toml", "--json"]
    shell = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300)
    rows = [{"method": m["method"], **study} for m in json.loads(shell.stdout)["methods"] for study in m["studies"]]
    assert ts.compare(posts).summary().to_dict("records") == rows


def test_what_cannot_be_compared_is_refused() -> None:
    one = answer(0.1)
    with pytest.raises(ts.InvalidError, match="nothing to be compared with"):
        ts.compare([one])
    other = small(measurements=ts.Measurements({"y": [0.55, 0.6, 0.59]}, noise=ts.Normal(sd=0.1))).infer()
    with pytest.raises(ts.InvalidError, match="measurement 3 of `y` is 0.59"):
        ts.compare({"one": one, "other": other})
    with pytest.raises(ts.InvalidError, match=r"study\.infer\(\)"):
        ts.compare([one, "other"])  # type: ignore[list-item]
