"""What a study returns: tables, draws and predictions, against the files and the JSON of the command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd
import pytest
from studies import decay, outbreak, small

import twostep as ts

EPS = float(np.finfo(float).eps)


pytestmark = pytest.mark.filterwarnings("ignore::twostep.StudyWarning")


@pytest.fixture(autouse=True)
def quiet() -> None:
    ts.show_progress(False)


@pytest.fixture(scope="module")
def study() -> ts.Study:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outbreak()


@pytest.fixture(scope="module")
def fit(study: ts.Study) -> ts.Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return study.train()


@pytest.fixture(scope="module")
def post(study: ts.Study) -> ts.Inference:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return study.infer()


def test_a_fit_knows_runs_parameters_and_draws(fit: ts.Fit) -> None:
    assert len(fit.training) == 20 and list(fit.training.columns) == ["run", "rate", "t", "level"]
    names, draws = fit.draws.names, fit.draws.matrix
    assert draws.shape == (len(names), 150) and names[-1] == "sigma_a"
    # Weights sum to one, up to rounding of as many terms.
    assert abs(fit.draws.weights.sum() - 1) <= 150 * EPS
    summary = fit.summary().set_index("parameter")
    assert list(summary.index) == names
    # The summary is of the exact T-posterior: means of the draws lie within 5 standard errors.
    error = 5 * draws.std(axis=1) / math.sqrt(draws.shape[1])
    assert np.all(np.abs(draws.mean(axis=1) - summary["mean"].to_numpy()) <= error + 1e-12)
    report = fit.report.iloc[0]
    assert report["method"] == "exact" and report["runs"] == 20 and report["divergences"] == 0
    assert math.isnan(report["k_hat"]) and math.isnan(report["effective"])


@pytest.mark.parametrize("method", ["laplace", "pathfinder"])
def test_a_normal_approximation_tells_how_good_it_is(
    method: str, make_study: Callable[..., ts.Study], tmp_path: Path
) -> None:
    formula = ts.Formula("a + b * tanh(c * omega)", {"a": "normal(0, 1)", "b": "normal(1, 1)", "c": "normal(5, 1, lower=0)"})
    # Without noise the formula could be exact, and the density would have no mode: it grows without end as sigma_a falls.
    simulator = ts.Builtin("logistic", sigma_s=0.05)
    study = make_study(simulator, surrogate=formula, train=ts.Train(method=method, draws=200))
    fit = study.train()
    study.to_toml(tmp_path / "study.toml")
    assert np.array_equal(ts.Study.from_toml(tmp_path / "study.toml").train().draws.matrix, fit.draws.matrix)
    report = fit.report.iloc[0]
    assert report["method"] == method
    # A tail that nothing can be fitted to is infinite, and there are no more draws than were asked for.
    assert report["k_hat"] >= 0 and 1 <= report["effective"] <= 200
    assert any("k-hat" in warning for warning in report["warnings"]) == (report["k_hat"] > 0.7)


def test_left_out_runs_are_on_the_output_s_own_scale(fit: ts.Fit) -> None:
    loo = fit.loo
    merged = loo.merge(fit.training, on="run", suffixes=("", "_trained"))
    np.testing.assert_allclose(merged["value"], merged["level"], rtol=8 * EPS)
    # Log-normal predictions: the ends are as far from the median as a normal's, on the logarithm.
    low, high = np.log(loo["q05"]), np.log(loo["q95"])
    sd = (high - low) / (2 * NormalDist().inv_cdf(0.95))
    mean = np.exp((high + low) / 2 + sd**2 / 2)
    np.testing.assert_allclose(loo["mean"], mean, rtol=1e-12)
    assert (loo["inside"] == loo["value"].between(loo["q05"], loo["q95"])).all()
    assert loo.attrs["q2"] == {"level": fit.q2["level"]} and fit.q2["level"] > 0.9
    residual = np.log(loo["value"]) - (high + low) / 2
    centred = np.log(loo["value"]) - np.log(loo["value"]).mean()
    assert abs(1 - (residual**2).sum() / (centred**2).sum() - fit.q2["level"]) < 1e-12


def features(names: list[str], rate: Any, t: Any) -> Any:
    """Legendre polynomials of total degree two in scaled inputs, orthonormal: a row a point, a column a coefficient."""
    u, v = 2 * (rate - 0.2) / 1.3 - 1, 2 * t / 4 - 1
    legendre = [np.ones_like, lambda x: x, lambda x: (3 * x**2 - 1) / 2]
    columns = []
    for name in names[:-1]:
        a, b = (int(degree) for degree in name[2:-1].split(","))
        columns.append(legendre[a](u) * legendre[b](v) * math.sqrt((2 * a + 1) * (2 * b + 1)))
    return np.stack(columns, axis=-1)


def test_predictions_of_a_fit_are_those_of_its_draws(fit: ts.Fit) -> None:
    points = pd.DataFrame({"rate": [0.4, 1.1], "t": [1.0, 3.0]})
    found = fit.predict(points)
    names, draws = fit.draws.names, fit.draws.matrix
    eta = features(names, points["rate"].to_numpy(), points["t"].to_numpy()) @ draws[:-1]
    # Some ten terms, none of which is above twenty.
    tolerance = 256 * EPS
    np.testing.assert_allclose(found["mean"], np.exp(eta).mean(axis=1), rtol=tolerance)
    np.testing.assert_allclose(found["sd"], np.exp(eta).std(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found["run_mean"], np.exp(eta + draws[-1] ** 2 / 2).mean(axis=1), rtol=tolerance)
    for end, p in (("run_q05", 0.05), ("run_q95", 0.95)):
        z = (np.log(found[end].to_numpy())[:, None] - eta) / draws[-1]
        below = np.vectorize(NormalDist().cdf)(z).mean(axis=1)
        np.testing.assert_allclose(below, p, rtol=1e-9)
    assert (found["run_q95"] - found["run_q05"] > found["q95"] - found["q05"]).all()
    single = fit.predict({"rate": 0.4, "t": 1.0})
    assert len(single) == 1 and single["mean"][0] == found["mean"][0]


def test_an_error_that_depends_on_the_inputs_is_that_of_its_draws() -> None:
    fit = outbreak(surrogate=ts.PCE(degree=2, sigma_a_degree=1, standardise=False)).train()
    names, draws = fit.draws.names, fit.draws.matrix
    assert names[6:] == ["a[0,1]", "a[1,0]", "sigma_a"]
    assert fit.report.iloc[0]["method"].startswith("exact-given-")
    rate, t = np.array([0.4, 1.1]), np.array([1.0, 3.0])
    found = fit.predict(pd.DataFrame({"rate": rate, "t": t}))
    eta = features(names[:7], rate, t) @ draws[:6]
    u, v = 2 * (rate - 0.2) / 1.3 - 1, 2 * t / 4 - 1
    sd = draws[-1] * np.exp(math.sqrt(3) * (np.outer(v, draws[6]) + np.outer(u, draws[7])))
    # Some ten terms, none of which is above twenty.
    np.testing.assert_allclose(found["run_mean"], np.exp(eta + sd**2 / 2).mean(axis=1), rtol=256 * EPS)
    for end, p in (("run_q05", 0.05), ("run_q95", 0.95)):
        z = (np.log(found[end].to_numpy())[:, None] - eta) / sd
        np.testing.assert_allclose(np.vectorize(NormalDist().cdf)(z).mean(axis=1), p, rtol=1e-9)


def test_points_that_were_not_trained_are_refused(fit: ts.Fit) -> None:
    with pytest.raises(ts.InvalidError, match="row 1, `rate`: 2 lies outside"):
        fit.predict({"rate": [2.0], "t": [1.0]})
    assert np.isfinite(fit.predict({"rate": [2.0], "t": [1.0]}, extrapolate=True)["mean"]).all()
    with pytest.raises(ts.InvalidError, match="no column `t`"):
        fit.predict({"rate": [0.5]})


def test_sensitivities_are_shares(fit: ts.Fit) -> None:
    found = fit.sensitivity().set_index("input")
    assert list(found.index) == ["rate", "t"]
    assert ((found["first"] >= 0) & (found["first"] <= found["total"]) & (found["total"] <= 1)).all()
    # Two inputs: what one does by itself and what the other has in total make up everything.
    assert abs(found["first"]["rate"] + found["total"]["t"] - 1) < 1e-12


def test_an_inference_is_like_a_dict(post: ts.Inference) -> None:
    assert list(post) == post.keys() == ["e-lik", "point"] and len(post) == 2 and "e-lik" in post and "e-post" not in post
    assert post.method == "e-lik"
    with pytest.raises(KeyError, match="e-post; there are e-lik, point"):
        post["e-post"]


def test_summary_equals_the_files_of_the_command(tmp_path: Path) -> None:
    for make, name in ((small, "small"), (outbreak, "outbreak")):
        study = make(name=name, folder=tmp_path / f"{name}.twostep")
        summary = study.infer().summary()
        written = pd.read_csv(tmp_path / f"{name}.twostep" / "summary.csv", float_precision="round_trip")
        columns = ["method", "unknown", "engine", "mean", "sd", "q05", "q25", "q50", "q75", "q95"]
        columns += ["mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat", "quadrature_error"]
        ours = summary.rename(columns={"quantity": "unknown"})[columns]
        # Every digit: numbers are written so that they are read back the same.
        for column in columns:
            pd.testing.assert_series_equal(ours[column], written[column], check_dtype=False, check_exact=True)


def test_answers_equal_those_of_the_shell(tmp_path: Path) -> None:
    study = small()
    study.to_toml(tmp_path / "small.toml")
    answer = study.infer()
    shell = subprocess.run(
        [sys.executable, "-m", "twostep", "run", str(tmp_path / "small.toml"), "--json", "--quiet"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    methods = json.loads(shell.stdout)["settings"][0]["methods"]
    for row in answer.summary().to_dict("records"):
        found = methods[row["method"]]["unknowns"][row["quantity"]]
        assert (row["mean"], row["sd"], row["q05"], row["q95"]) == tuple(found[k] for k in ("mean", "sd", "q05", "q95"))
    assert [answer.log_evidence["e-lik"]] == [methods["e-lik"]["diagnostics"]["log_evidence"]]


def test_draws_are_those_that_were_summarised(post: ts.Inference) -> None:
    draws = post.draws("e-lik")
    assert list(draws.columns) == ["rate", "sigma_i", "half_life"] and draws.index.names == ["chain", "draw"]
    assert len(draws) == 400
    np.testing.assert_allclose(draws["half_life"], np.log(2) / draws["rate"], rtol=8 * EPS)
    # Independent draws of a posterior whose mean is known: within 5 standard errors.
    error = 5 * post.answer["sd"]["rate"] / math.sqrt(400)
    assert abs(draws["rate"].mean() - post.answer["mean"]["rate"]) <= error
    pd.testing.assert_frame_equal(post.draws(), draws)
    t_draws = post.t_draws("e-lik")
    assert t_draws is not None and t_draws.shape == (400,) and 0 <= t_draws.min() and t_draws.max() < 150
    assert post.t_draws("point") is None


def test_densities_have_unit_area(post: ts.Inference) -> None:
    curve = post.density("rate")
    area = np.trapezoid(curve["density"], curve["rate"]) if hasattr(np, "trapezoid") else np.trapz(curve["density"], curve["rate"])
    # Six digits are kept of each point, and lines between them where the eye sees none missing.
    assert abs(area - 1) < 0.01
    with pytest.raises(ts.InvalidError, match="choose from rate, sigma_i, half_life"):
        post.density("nothing")


def test_components_make_up_the_mixtures() -> None:
    # By quadrature, and in closed form, where the surrogate is a line and the prior a whole normal.
    line = {
        "unknowns": {"omega": ts.Unknown((-1, 1), prior="normal(0, 0.5)", truncate=False)},
        "surrogate": ts.PCE(degree=1),
    }
    for changed, engine in (({}, "grid"), (line, "exact")):
        post = small(**changed).infer()
        assert set(post.summary()["engine"]) == {engine}
        summary = post.summary().set_index("method")
        for method in ("e-lik", "e-post"):
            parts = post.components(method)
            assert len(parts) == 200 and parts.attrs["exact"]
            weight = parts["weight"]
            assert abs(weight.sum() - 1) < 200 * 4 * EPS
            mean = (weight * parts["mean[omega]"]).sum()
            second = (weight * (parts["sd[omega]"] ** 2 + (parts["mean[omega]"] - mean) ** 2)).sum()
            # The stated error of the grid, in sds, of which the exact engine has none but rounding.
            error = summary["quadrature_error"].fillna(0.0)[method] + 1e-6
            sd = summary["sd"][method]
            assert abs(mean - summary["mean"][method]) <= error * sd
            assert abs(math.sqrt(second) - sd) <= error * sd
        lik = post.components("e-lik")
        joint = np.log((lik["alpha"] * np.exp(lik["log_evidence"])).sum())
        assert abs(joint - post.log_evidence["e-lik"]) < 1e-9
        pd.testing.assert_series_equal(post.components("e-post")["weight"], lik["alpha"], check_names=False, rtol=1e-12)
        with pytest.raises(ts.InvalidError, match="is no mixture"):
            post.components("point")


def test_components_of_draws_are_near_those_of_the_grid() -> None:
    grid, sampled = small().infer(), small(infer=ts.Infer(methods=["e-lik", "e-post"], engine="smc", draws=4000)).infer()
    exact = grid.components("e-post")
    for method in ("e-lik", "e-post"):
        rough = sampled.components(method)
        assert not rough.attrs["exact"]
        # Correlated particles, some of which stand for each component: a tenth of an sd, on average over the T-draws.
        off = (rough["mean[omega]"] - exact["mean[omega]"]).abs() / exact["sd[omega]"]
        assert off.mean() < 0.1, method
        relative = rough["log_evidence"] - exact["log_evidence"]
        assert (relative - relative.mean()).abs().mean() < 0.1, method


def test_predictions_are_those_of_draws_with_their_t_draws(fit: ts.Fit, post: ts.Inference) -> None:
    found = post.predict({"t": [0.5, 3.0]})
    assert list(found["output"]) == ["level", "level"] and (found["measured_q95"] > found["q95"]).all()
    names, t_draws = fit.draws.names, fit.draws.matrix
    rate, own = post.draws()["rate"].to_numpy(), post.t_draws()
    by_point = post.predict({"t": [0.5, 3.0]}, method="point")
    point_rate = post.draws("point")["rate"].to_numpy()
    for i, t in enumerate([0.5, 3.0]):
        eta = (features(names, rate, np.full_like(rate, t)) * t_draws[:-1, own].T).sum(axis=1)
        # Sums of 400 terms of six products each.
        assert abs(found["mean"][i] - np.exp(eta).mean()) <= 400 * 16 * EPS * found["mean"][i]
        eta = features(names, point_rate, np.full_like(point_rate, t)) @ t_draws[:-1].mean(axis=1)
        assert abs(by_point["mean"][i] - np.exp(eta).mean()) <= 400 * 16 * EPS * found["mean"][i]
    with pytest.raises(ts.InvalidError, match="lies outside"):
        post.predict({"t": [9.0]})
    with pytest.raises(ts.InvalidError, match="is missing"):
        post.predict()


def test_budgets_sum_to_one(post: ts.Inference) -> None:
    budget = post.budget()
    assert (budget[["noise", "approximation", "epistemic"]].sum(axis=1) - 1).abs().max() < 1e-9
    point = post.budget("point")
    assert set(point["method"]) == {"point"} and (point["epistemic"] == 0).all()
    with pytest.raises(ts.InvalidError, match="no answer by e-post"):
        post.budget("e-post")


def test_what_is_said_is_what_the_report_says(study: ts.Study, post: ts.Inference) -> None:
    page = study.report()._content
    for sentence in post.words:
        assert sentence.split(",")[0] in page
    assert post.trust and any("Quadrature" in sentence for sentence in post.trust)


def test_results_do_not_change_with_the_study() -> None:
    study = small()
    both = study.infer(methods=["e-lik", "point"])
    before = both.summary()
    one = study.infer(methods=["point"])
    assert list(one) == ["point"]
    pd.testing.assert_frame_equal(both.summary(), before)
    assert len(both.draws("e-lik")) == 500


def test_options_replace_the_study_s_or_leave_it() -> None:
    study = small()
    with pytest.raises(ts.StudyError, match="poin"):
        study.infer(methods=["poin"])
    with pytest.raises(ts.InvalidError, match="no option metods"):
        study.infer(metods=["point"])
    assert len(study.infer(draws=120).draws()) == 120
    assert "draws = 120" in study.to_toml()


def test_warnings_are_told_once() -> None:
    study = small(surrogate=ts.PCE(degree=1))
    with pytest.warns(ts.StudyWarning, match="predicted badly"):
        fit = study.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert study.train().warnings == fit.warnings != []


def test_other_measurements_leave_the_study_as_it_is() -> None:
    study = small()
    own = study.infer(methods=["point"])
    other = study.infer(measurements={"y": [-0.5, -0.52]})
    assert other.answer["mean"]["omega"] < 0 < own.answer["mean"]["omega"]
    assert study.status()["fresh"].all()
    pd.testing.assert_frame_equal(study.infer().summary(), own.summary())


def test_a_sweep_has_settings() -> None:
    study = small(sweep={"design.runs": [6, 10]})
    post = study.infer(methods=["e-lik", "point"])
    assert post.settings == [{"design.runs": 6}, {"design.runs": 10}]
    summary = post.summary()
    assert list(summary["design.runs"]) == [6, 6, 10, 10]
    chosen = post.at(**{"design.runs": 10})
    assert chosen.settings == post[1].settings == [{"design.runs": 10}]
    alone = small().infer(methods=["e-lik", "point"])
    pd.testing.assert_frame_equal(chosen.summary().drop(columns="design.runs"), alone.summary())
    assert alone.settings == [] and "design.runs" not in alone.summary()
    with pytest.raises(ts.InvalidError, match="of one setting"):
        post.draws()
    with pytest.raises(ts.InvalidError, match="no setting has design.runs = 7"):
        post.at(**{"design.runs": 7})
    with pytest.raises(ts.InvalidError, match="does not sweep over seed"):
        post.at(seed=7)
    fit = study.train()
    assert len(fit) == 2 and set(fit.training.groupby("design.runs").size()) == {6, 10} and len(fit[0].training) == 6


def test_calibration_says_what_its_files_say(tmp_path: Path) -> None:
    study = small(folder=tmp_path / "small.twostep")
    cost = study.calibration_cost()
    assert cost["t_trials"][0] == 100
    cal = study.calibrate(t_trials=12, i_trials=2)
    written = json.loads((tmp_path / "small.twostep" / "calibration.json").read_text())["settings"][0]
    assert (written["t_trials"], written["i_trials"]) == (12, 2)
    for row in cal.summary().to_dict("records"):
        found = written["methods"][row["method"]]["unknowns"][0]
        assert row["log_gamma"] == found["log_gamma"] and row["trials"] == 24
        assert row["coverage_90"] == [c["share"] for c in found["coverage"] if c["level"] == 0.9][0]
        assert row["verdict"] == found["verdict"]
    assert set(cal.verdict) == {"e-lik", "e-post", "point", "e-log-lik"}
    for method, text in cal.verdict.items():
        assert text.startswith(" ".join(written["methods"][method]["verdict"]["sentences"]))
    trials = cal.trials
    assert len(trials) == 4 * 24 and trials["t_trial"].max() == 12 and trials["failed"].isna().all()
    own = trials[trials["method"] == "e-lik"]
    inside = ((own["below"] >= 0.05) & (own["below"] <= 0.95)).mean()
    assert abs(inside - cal.summary().set_index("method")["coverage_90"]["e-lik"]) < 1e-12
    ecdf = cal.ecdf("e-lik", "omega")
    expected = [(own["pit"] <= z).mean() - z for z in ecdf["z"]]
    # Where PITs are no multiples of 0.01.
    np.testing.assert_allclose(ecdf["difference"], expected, atol=4 * EPS)
    assert (ecdf["lower"] <= 0).all() and (ecdf["upper"] >= 0).all()
    with pytest.raises(ts.InvalidError, match="e-lik of omega"):
        cal.ecdf("e-lik", "nothing")


def test_stages_of_the_command_are_there() -> None:
    study = outbreak()
    plan = study.check()
    assert plan["runs"][0] == 20 and plan["answer"][0] == "e-lik" and plan["measurements"][0] == {"level": 5}
    assert len(study.pending_runs()) == 20 and not study.status()["fresh"].any()
    post = study.run()
    assert study.status()["fresh"].all() and len(study.pending_runs()) == 0
    assert (study.folder / "report.html").exists() and (study.folder / "e-lik.nc").exists()
    assert "e-lik" in post
    enough = study.enough()
    assert enough.verdict in ("enough", "more", "cannot tell") and enough.advice
    assert enough.summary()["runs"].max() == 20
    assert any(enough.advice.split(":")[0] in sentence for sentence in study.infer().trust)
    verified = study.verify(3)
    assert verified.verdict in ("agrees", "too sure", "too careful") and len(verified.values) == 3
    assert not study.status()["fresh"].any()
    with pytest.raises(ts.InvalidError, match="0 runs verify nothing"):
        study.verify(0)


def test_runs_made_elsewhere_are_brought_in() -> None:
    study = outbreak()
    pending = study.pending_runs()
    assert list(pending.columns) == ["rate", "t", "level"] and pending["level"].isna().all()
    pending["level"] = [decay(rate, t) for rate, t in zip(pending["rate"], pending["t"])]
    assert study.import_runs(pending) == {"new": 20, "known": 0, "pending": 0, "failed": 0}
    assert study.import_runs(pending)["known"] == 20
    study.infer()
    verify = study.verification_runs(2)
    verify["level"] = [decay(rate, t) for rate, t in zip(verify["rate"], verify["t"])]
    assert len(study.verify(results=verify).values) == 2


def test_figures_are_written(tmp_path: Path, study: ts.Study, post: ts.Inference) -> None:
    assert "densities" in study.figure_names()
    files = study.figures(tmp_path, only=["densities"], width="8.5cm", format="svg")
    assert sorted(file.name for file in files) == ["densities.csv", "densities.svg"]
    assert b'width="321' in files[0].read_bytes()[:400] or b"321" in files[0].read_bytes()[:400]
    for wrong, match in (({"only": "nothing"}, "choose from"), ({"width": 3}, "between 40"), ({"format": "pdf"}, "no pdf")):
        with pytest.raises(ts.InvalidError, match=match):
            study.figures(tmp_path, **wrong)


def test_the_report_can_be_kept_elsewhere(tmp_path: Path, study: ts.Study, post: ts.Inference) -> None:
    report = study.report(tmp_path / "deep" / "page.html")
    assert report.path == tmp_path / "deep" / "page.html" and report.path.read_text().startswith("<!")


def test_threads_do_not_change_a_digit(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); import twostep as ts; ts.show_progress(False)\n"
        "ts.set_threads(int(sys.argv[1])); from studies import small\n"
        "post = small().infer(); import hashlib\n"
        "state = hashlib.sha256(post.draws().to_numpy().tobytes())\n"
        "state.update(post.components('e-lik').to_numpy().tobytes()); print(state.hexdigest())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script, threads, str(Path(__file__).parent)],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(found) == 1


def test_log_densities_are_normalised_and_zero_outside() -> None:
    study = small()
    post = study.infer()
    omega = np.linspace(-1, 1, 4001)
    for method in post:
        density = np.exp(post.log_density({"omega": omega}, method))
        area = density.sum() * (omega[1] - omega[0])
        # A smooth density on a fine grid; its ends count whole, and the evidence is known to the grid's own error.
        assert abs(area - 1) < 1e-3 + (density[0] + density[-1]) * (omega[1] - omega[0]), method
        curve = post.density("omega", method)
        inside = curve["density"] > 0.05 * curve["density"].max()
        found = np.exp(post.log_density({"omega": curve["omega"][inside]}, method))
        np.testing.assert_allclose(found, curve["density"][inside], rtol=0.02)
    assert post.log_density({"omega": 1.5})[0] == -math.inf


def test_surrogate_and_posterior_are_served() -> None:
    import urllib.request

    study = small()
    post = study.infer()
    with study.serve() as server:
        assert server.inputs == server.parameters == ["omega"] and server.outputs == ["y"]

        def ask(model: str) -> float:
            body = json.dumps({"name": model, "input": [[0.2]], "config": {}}).encode()
            asked = urllib.request.Request(f"{server.url}/Evaluate", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as reply:
                return float(json.loads(reply.read())["output"][0][0])

        assert abs(ask("forward") - study.train().predict({"omega": 0.2})["mean"][0]) < 1e-12
        assert abs(ask("posterior") - post.log_density({"omega": 0.2})[0]) < 1e-12
        url = server.url
    with pytest.raises(OSError):
        urllib.request.urlopen(f"{url}/Info", timeout=5)
    with pytest.raises(ts.InvalidError, match="no answer by e-like"):
        study.serve(method="e-like")


def test_columns_that_nobody_reads_are_mentioned() -> None:
    measured = ts.Measurements({"y": [0.5], "Y_old": [0.4]}, noise=ts.Normal(sd=0.1))
    with pytest.warns(ts.StudyWarning, match="Y_old"):
        small(measurements=measured)


def test_measurements_that_cannot_be_used_are_refused_before_any_run() -> None:
    calls: list[float] = []

    def simulate(rate: float, t: float) -> float:
        calls.append(rate)
        return decay(rate, t)

    study = outbreak(simulator=simulate, measurements=ts.Measurements({"t": [1.0], "lvl": [2.0]}, noise=ts.LogNormal(sd=0.1)))
    with pytest.raises(ts.InvalidError, match="level"):
        study.infer()
    assert not calls


def tanks(**options: Any) -> ts.Study:
    """Two fillings of one tank that empties, whose level is read from a scale that is fixed too high."""
    times = np.array([0.2, 0.8, 1.5, 2.5, 4.0])
    level = {name: filling * np.exp(-0.4 * times) + 0.03 for name, filling in (("first", 1.0), ("second", 1.4))}
    table = {
        "experiment": np.repeat(list(level), len(times)),
        "t": np.tile(times, 2),
        "level": np.concatenate(list(level.values())),
    }
    return ts.Study(
        simulator=ts.Function(lambda k, filling, t: {"level": filling * math.exp(-k * t)}),
        unknowns={"k": ts.Unknown((0.1, 1)), "filling": ts.Unknown((0.5, 2), per="experiment")},
        conditions={"t": (0, 5)},
        outputs={"level": ts.Output(offset=ts.Normal(0, 0.05))},
        design=ts.Sobol(40),
        surrogate=ts.PCE(degree=4),
        train=ts.Train(draws=50),
        measurements=ts.Measurements(table, experiments=["first", "second"], **options),
        derived={"double": "2 * filling"},
    )


def test_experiments_have_unknowns_of_their_own() -> None:
    study = tanks(noise=ts.Normal(sd=0.02))
    post = study.infer(["point"])
    names = ["k", "filling[first]", "filling[second]", "offset", "double[first]", "double[second]"]
    summary = post.summary().set_index("quantity")
    assert list(summary.index) == names
    # The truth, within three posterior sds; the offset's is that of the simulator, which has none.
    for name, truth in zip(names, [0.4, 1.0, 1.4, 0.03, 2.0, 2.8]):
        assert abs(summary["mean"][name] - truth) < 3 * summary["sd"][name]
    at = {"t": [1.0, 1.0], "experiment": ["first", "second"]}
    predicted = post.predict(at)
    assert list(predicted.experiment) == ["first", "second"] and predicted["mean"][1] > predicted["mean"][0] + 0.1


def test_a_covariance_is_a_matrix_or_a_file(tmp_path: Path) -> None:
    correlation = np.kron(np.eye(2), 0.5 ** np.abs(np.subtract.outer(range(5), range(5))))
    np.savetxt(tmp_path / "c.csv", 4e-4 * correlation, delimiter=",")
    answers = [
        tanks(noise=ts.Normal(covariance=covariance)).infer(["point"]).summary()
        for covariance in (4e-4 * correlation, pd.DataFrame(4e-4 * correlation), tmp_path / "c.csv")
    ]
    # Written with eighteen digits, and with all.
    for other in answers[1:]:
        np.testing.assert_allclose(answers[0]["mean"], other["mean"], rtol=1e-6)
    independent = tanks(noise=ts.Normal(sd=0.02)).infer(["point"]).summary()
    assert abs(answers[0]["sd"] / independent["sd"] - 1).max() > 0.05
    with pytest.raises(ts.InvalidError, match="not positive definite"):
        tanks(noise=ts.Normal(covariance=np.ones((10, 10)) * 4e-4)).infer(["point"])
