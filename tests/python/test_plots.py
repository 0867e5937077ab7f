"""Every plot makes axes with labels and finite data, and changes nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import outbreak, small

import twostep as ts

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::twostep.StudyWarning")


class Results:
    def __init__(self) -> None:
        ts.show_progress(False)
        study = outbreak()
        self.fit, self.post = study.train(), study.infer()
        self.cal = small().calibrate(t_trials=8, i_trials=2)
        chains = ts.Infer(methods=["e-lik"], engine="nuts", nuts=ts.Nuts(chains=2, warmup=100, draws=100), draws=200)
        self.chains = small(infer=chains).infer()
        self.sweep = small(sweep={"design.runs": [6, 10]}).calibrate(t_trials=4, i_trials=2)


@pytest.fixture(scope="module")
def results() -> Results:
    return Results()


Make = Callable[[Results, Any], Any]
PLOTS: dict[str, tuple[Make, int]] = {
    "fit": (lambda r, ax: r.fit.plot(ax=ax), 2),
    "loo": (lambda r, ax: r.fit.plot_loo(ax=ax), 1),
    "parameters": (lambda r, ax: r.fit.plot_parameters(ax=ax), 49),
    "sensitivity": (lambda r, ax: r.fit.plot_sensitivity(ax=ax), 1),
    "design": (lambda r, ax: r.fit.plot_design(ax=ax), 1),
    "densities": (lambda r, ax: r.post.plot(ax=ax), 3),
    "forest": (lambda r, ax: r.post.plot_forest(ax=ax), 3),
    "pairs": (lambda r, ax: r.post.plot_pairs(ax=ax), 4),
    "predictive": (lambda r, ax: r.post.plot_predictive(ax=ax), 1),
    "budget": (lambda r, ax: r.post.plot_budget(ax=ax), 2),
    "weights": (lambda r, ax: r.post.plot_weights(ax=ax), 1),
    "trace": (lambda r, ax: r.chains.plot_trace(ax=ax), 1),
    "ecdf": (lambda r, ax: r.cal.plot_ecdf(ax=ax), 4),
    "log-gamma": (lambda r, ax: r.cal.plot_log_gamma(ax=ax), 1),
    "coverage": (lambda r, ax: r.cal.plot_coverage(ax=ax), 1),
    "sharpness": (lambda r, ax: r.cal.plot_sharpness(ax=ax), 1),
    "sweep": (lambda r, ax: r.sweep.plot_log_gamma(ax=ax), 1),
}


def all_axes(made: Any) -> list[Any]:
    return list(np.ravel(np.asarray(made, dtype=object)))


def check(ax: Any) -> None:
    if not ax.axison:
        # Above the diagonal of a matrix.
        return
    drawn = [line.get_xydata() for line in ax.lines] + [c.get_paths() for c in ax.collections] + list(ax.patches)
    assert drawn, "nothing is drawn"
    for line in ax.lines:
        assert np.isfinite(line.get_xydata()).any()
    assert np.isfinite([*ax.get_xlim(), *ax.get_ylim()]).all()


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_has_labels_and_data(results: Results, name: str) -> None:
    make, n = PLOTS[name]
    before = dict(matplotlib.rcParams)
    made = make(results, None)
    axes = all_axes(made)
    assert len(axes) == n and (hasattr(made, "plot") if n == 1 else isinstance(made, np.ndarray))
    for ax in axes:
        check(ax)
    shown = [ax for ax in axes if ax.axison]
    # In a matrix the labels stand at its sides.
    labelled = shown if name not in ("parameters", "pairs") else shown[-1:]
    assert all(ax.get_xlabel() or [t.get_text() for t in ax.get_xticklabels()] for ax in labelled)
    assert all(ax.get_ylabel() or ax.get_yticklabels() for ax in shown if name not in ("parameters", "pairs"))
    assert dict(matplotlib.rcParams) == before, "styles of the user stay"
    figure = axes[0].figure
    figure.canvas.draw()
    page = figure.bbox
    for ax in shown:
        room = ax.get_tightbbox()
        assert room.x0 >= page.x0 - 1 and room.x1 <= page.x1 + 1 and room.y0 >= page.y0 - 1 and room.y1 <= page.y1 + 1
    for legend in figure.legends:
        room = legend.get_window_extent()
        assert room.x0 >= page.x0 - 1 and room.x1 <= page.x1 + 1, "the legend fits its page"
        assert all(room.y1 <= ax.get_tightbbox().y0 + 1 for ax in shown), "the legend covers nothing"
    plt.close(figure)


@pytest.mark.parametrize("name", ["fit", "loo", "densities", "ecdf"])
def test_axes_of_the_user_are_taken(results: Results, name: str) -> None:
    make, n = PLOTS[name]
    plt.close("all")
    figure, axes = plt.subplots(1, n)
    made = make(results, axes)
    assert set(all_axes(made)) == set(all_axes(axes)) and len(plt.get_fignums()) == 1
    for ax in all_axes(made):
        check(ax)
    with pytest.raises(ts.InvalidError, match=f"for {n} panel"):
        make(results, plt.subplots(1, n + 1)[1])
    plt.close("all")


def test_units_stand_at_the_axes(results: Results) -> None:
    labels = {ax.get_xlabel() for ax in all_axes(results.fit.plot())}
    assert labels == {"rate (1/h)", "t (h)"}
    assert all_axes(results.post.plot())[0].get_xlabel() == "rate (1/h)"
    assert results.post.plot_predictive().get_ylabel() == "level (mg)"
    plt.close("all")


def test_densities_are_the_exact_curves(results: Results) -> None:
    ax = all_axes(results.post.plot())[0]
    curve = results.post.density("rate", "e-lik").to_numpy()
    assert any(line.get_xydata().shape == curve.shape and np.allclose(line.get_xydata(), curve) for line in ax.lines)
    plt.close("all")


def test_what_there_is_not_is_not_drawn() -> None:
    post = small().infer()
    with pytest.raises(ts.InvalidError, match="one quantity only"):
        post.plot_pairs()
    with pytest.raises(ts.InvalidError, match="chains"):
        post.plot_trace()
    swept = small(sweep={"design.runs": [6, 10]}).infer()
    with pytest.raises(ts.InvalidError, match="of one setting"):
        swept.plot()
    assert all_axes(swept[0].plot())
    plt.close("all")


def test_without_matplotlib_it_says_how_to_get_it() -> None:
    script = (
        "import sys; sys.modules['matplotlib'] = None; sys.path.insert(0, sys.argv[1])\n"
        "import twostep as ts; ts.show_progress(False); from studies import small\n"
        "try: small().train().plot()\n"
        "except ImportError as problem: print(problem)\n"
    )
    here = str(Path(__file__).parent)
    whole = [sys.executable, "-W", "ignore", "-c", script, here]
    found = subprocess.run(whole, check=True, capture_output=True, text=True, timeout=300)
    assert 'pip install "twostep[plot]"' in found.stdout
