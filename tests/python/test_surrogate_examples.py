"""The examples of surrogates from other libraries, run as they are."""

import re
import runpy
from pathlib import Path

import pytest
import twostep as ts

FOLDER = Path(__file__).parents[2] / "examples" / "python"
# The rate of each reading by the simulator, log(64 / (temperature - 21)) / t, lies between 0.200 and 0.208.
BETWEEN = (0.19, 0.22)

pytestmark = pytest.mark.skipif(not hasattr(ts.Study, "infer"), reason="this build has no I-step from Python")


def check(post, methods):
    summary = post.summary().set_index("method")
    assert list(summary.index) == methods
    assert summary["mean"].between(*BETWEEN).all()
    assert (summary["sd"] < 0.02).all()


def test_a_gaussian_process_of_scikit_learn(capsys):
    pytest.importorskip("sklearn")
    main = runpy.run_path(str(FOLDER / "gaussian_process.py"))["main"]
    check(main(draws=60, trials=2), ["e-lik", "e-post"])
    printed = capsys.readouterr().out
    assert "The rate at which the coffee cools" in printed and "e-post: " in printed


def test_networks_of_pytorch():
    pytest.importorskip("torch")
    main = runpy.run_path(str(FOLDER / "neural_network.py"))["main"]
    check(main(), ["e-lik", "e-post"])


def test_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (FOLDER.parents[1] / "docs" / "python-surrogates.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    study = names["study"]
    post = study.infer(methods=["e-lik", names["half"], names["worst"]])
    assert list(post.summary()["method"]) == ["e-lik", "half", "worst"]
