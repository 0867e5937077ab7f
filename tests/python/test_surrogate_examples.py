"""The examples of surrogates from other libraries, run as they are."""

import re
import runpy
from pathlib import Path

import numpy as np
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


def test_networks_with_a_bayesian_last_layer():
    pytest.importorskip("scipy")
    example = runpy.run_path(str(FOLDER / "bayesian_last_layer.py"))
    check(example["main"](), ["e-lik", "e-post"])
    rng = np.random.default_rng(3)
    x = rng.uniform((0.05, 0.0), (0.5, 15.0), (12, 2))
    draws = example["train"](x, example["simulator"](*x.T), rng, networks=2, n_draws=6)
    weights, h = rng.normal(size=(12, 6)), 1e-5
    for d, step in enumerate(0.225 * h * np.eye(2) * (1, 7.5 / 0.225)):
        # Central differences at steps h and 2 h of half the ranges: what they differ by is three times their truncation.
        at = [(weights * example["predict"](x + k * step, draws)).sum(1) for k in (-2, -1, 1, 2)]
        near, far = (at[2] - at[1]) / (2 * step[d]), (at[3] - at[0]) / (4 * step[d])
        # Sums of six products of some forty roundings each, of numbers of the size of a hundred degrees.
        rounding = 40 * np.finfo(float).eps * np.abs(weights).sum() * 100 / step[d]
        assert np.all(np.abs(example["gradient"](x, draws, weights)[:, d] - near) <= np.abs(near - far) + rounding)


def test_last_layers_are_drawn_from_their_posterior():
    pytest.importorskip("scipy")
    last_layer = runpy.run_path(str(FOLDER / "bayesian_last_layer.py"))["last_layer"]
    rng = np.random.default_rng(5)
    features = np.column_stack([rng.normal(size=(7, 3)), np.ones(7)])
    z = features @ [0.4, -0.3, 0.0, 0.1] + 0.3 * rng.normal(size=7)
    n = 20_000
    v, sigma = last_layer(features, z, rng, n)
    # The same posterior by inverses and determinants.
    of_sigma, moments = [], []
    grid = [(s, t) for s in np.geomspace(1e-4, 1, 200) for t in np.geomspace(0.1, 100, 30)]
    for s, t in grid:
        covariance = s**2 * np.eye(7) + t**2 * features @ features.T
        log_p = -0.5 * (np.linalg.slogdet(covariance)[1] + z @ np.linalg.solve(covariance, z))
        spread = np.linalg.inv(features.T @ features / s**2 + np.eye(4) / t**2)
        centre = spread @ features.T @ z / s**2
        of_sigma.append(log_p)
        moments.append(np.concatenate([centre, centre**2 + np.diag(spread), [s, s**2]]))
    p = np.exp(np.array(of_sigma) - max(of_sigma))
    exact = p @ np.array(moments) / p.sum()
    found = np.column_stack([v, v**2, sigma, sigma**2])
    # Ten comparisons of independent draws at alpha = 1e-4 together: z = 4.42.
    assert np.all(np.abs(found.mean(0) - exact) < 4.42 * found.std(0) / np.sqrt(n))


def test_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (FOLDER.parents[1] / "docs" / "python-surrogates.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, names)
    study = names["study"]
    post = study.infer(methods=["e-lik", names["half"], names["worst"]])
    assert list(post.summary()["method"]) == ["e-lik", "half", "worst"]
