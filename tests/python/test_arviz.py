"""Answers as ArviZ objects of the version that is installed, without adaptation; the same as the files of the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from studies import outbreak, small

import twostep as ts

az = pytest.importorskip("arviz")
matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

pytestmark = pytest.mark.filterwarnings("ignore")
IS_OLD = int(az.__version__.split(".")[0]) < 1


@pytest.fixture(autouse=True)
def quiet() -> None:
    ts.show_progress(False)


@pytest.fixture(scope="module")
def study() -> ts.Study:
    return outbreak()


@pytest.fixture(scope="module")
def post(study: ts.Study) -> ts.Inference:
    return study.infer()


def groups(data: object) -> list[str]:
    return [name.strip("/") for name in (data.groups() if IS_OLD else data.groups) if name != "/"]  # type: ignore[attr-defined]


def test_it_is_what_the_installed_arviz_works_with(post: ts.Inference) -> None:
    data = post["e-lik"]
    if IS_OLD:
        assert isinstance(data, az.InferenceData)
    else:
        import xarray

        assert isinstance(data, xarray.DataTree)
    expected = {"posterior", "sample_stats", "log_likelihood", "posterior_predictive", "prior", "observed_data", "constant_data"}
    assert set(groups(data)) == expected
    assert post["e-lik"] is data, "it is made once"


def test_draws_are_those_of_the_answer(post: ts.Inference) -> None:
    posterior = post["e-lik"]["posterior"]
    assert dict(posterior.sizes) == {"chain": 1, "draw": 400}
    for name, column in post.draws("e-lik").items():
        np.testing.assert_array_equal(posterior[name].values.ravel(), column.to_numpy())
    assert posterior["rate"].attrs["units"] == "1/h" and posterior.attrs["inference_library"] == "twostep"
    assert posterior["rate"].values.flags.c_contiguous


def test_summary_trace_and_pair_work_without_adaptation(post: ts.Inference) -> None:
    data = post["e-lik"]
    summary = az.summary(data, round_to="none") if IS_OLD else az.summary(data, round_to="none", kind="stats")
    assert set(summary.index) == {"rate", "sigma_i", "half_life"}
    found = float(summary["mean"]["rate"])
    assert abs(found - post.draws("e-lik")["rate"].mean()) < 1e-12
    az.plot_trace(data)
    az.plot_pair(data)
    matplotlib.pyplot.close("all")


def test_leave_one_out_works(post: ts.Inference) -> None:
    assert np.isfinite(az.loo(post["e-lik"]).elpd_loo if IS_OLD else az.loo(post["e-lik"]).elpd)


def test_the_object_is_the_file(study: ts.Study, post: ts.Inference) -> None:
    study.report()
    for method in post:
        written = az.from_netcdf(str(study.folder / f"{method}.nc"))
        data = post[method]
        assert set(groups(written)) == set(groups(data))
        for group in groups(data):
            ours, theirs = data[group], written[group]
            assert set(ours.data_vars) == set(theirs.data_vars) and set(ours.coords) == set(theirs.coords)
            assert {k: str(v) for k, v in ours.attrs.items()} == {k: str(v) for k, v in theirs.attrs.items()}
            for name in [*ours.data_vars, *ours.coords]:
                assert ours[name].dims == theirs[name].dims and ours[name].dtype == theirs[name].dtype, name
                np.testing.assert_array_equal(ours[name].values, theirs[name].values)


def test_chains_and_their_statistics() -> None:
    nuts = ts.Infer(methods=["e-lik"], engine="nuts", nuts=ts.Nuts(chains=3, warmup=200, draws=100), draws=300)
    post = small(infer=nuts).infer()
    data = post["e-lik"]
    assert dict(data["posterior"].sizes) == {"chain": 3, "draw": 100}
    stats = data["sample_stats"]
    assert stats["diverging"].dtype == bool and {"lp", "energy", "tree_depth"} <= set(stats.data_vars)
    assert post.draws().index.get_level_values("chain").nunique() == 3
    if IS_OLD:
        az.plot_energy(data)
        matplotlib.pyplot.close("all")


def test_a_calibration_has_its_ranks() -> None:
    cal = small(infer=ts.Infer(methods=["e-lik"], draws=200)).calibrate(t_trials=6, i_trials=2)
    data = cal.to_arviz("e-lik")
    assert groups(data) == ["prior_sbc"]
    ranks = data["prior_sbc"]
    assert ranks["omega"].shape == (1, 12) and set(ranks.coords) == {"chain", "draw", "t_trial", "i_trial", "weight"}
    np.testing.assert_array_equal(ranks["omega"].values.ravel(), cal.trials["pit"].to_numpy())
    if not IS_OLD:
        az.plot_ecdf_pit(data, group="prior_sbc")
    with pytest.raises(KeyError, match="point; there are e-lik"):
        cal.to_arviz("point")


def test_without_arviz_it_says_how_to_get_it(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['arviz'] = None; sys.path.insert(0, sys.argv[1])\n"
        "import twostep as ts; ts.show_progress(False); from studies import small\n"
        "post = small().infer(methods=['point']); assert len(post.draws()) == 500\n"
        "try: post['point']\n"
        "except ImportError as problem: print(problem)\n"
    )
    here = str(Path(__file__).parent)
    whole = [sys.executable, "-W", "ignore", "-c", script, here]
    found = subprocess.run(whole, check=True, capture_output=True, text=True, timeout=300)
    assert 'pip install "twostep[arviz]"' in found.stdout
