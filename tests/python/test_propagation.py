"""Propagation methods that are Python functions."""

import numpy as np
import pandas as pd
import pytest
import twostep as ts


def log_sum_exp(values):
    top = values.max()
    return top if top == -np.inf else top + np.log(np.exp(values - top).sum())


def softmax(values):
    weights = np.exp(values - values.max())
    return weights / weights.sum()


OWN = {
    "e-lik": [
        ts.Propagation("own-e-lik", weights=lambda log_evidence, log_weights: log_weights + log_evidence),
        ts.Propagation("pooled-e-lik", pool=lambda l, log_weights: log_sum_exp(log_weights + l)),
    ],
    "e-post": [ts.Propagation("own-e-post", weights=lambda log_evidence, log_weights: log_weights)],
    "e-log-lik": [ts.Propagation("own-e-log-lik", pool=lambda l, log_weights: np.dot(np.exp(log_weights), l))],
}
ALL = [*OWN, *(method for methods in OWN.values() for method in methods)]
LOGISTIC = {"alpha": "normal(1, 0.1)", "beta": "normal(4, 1)"}


def make(*, linear=False, draws=60, methods=ALL, **sections):
    infer = {"engine": sections.pop("engine", None), "smc": sections.pop("smc", None), "answer": sections.pop("answer", None)}
    surrogate = ts.PCE(degree=1, sigma_a=0.05) if linear else ts.Formula("alpha / (1 + exp(-beta * omega))", LOGISTIC, sigma_a=0.05)
    return ts.Study(
        simulator=ts.Builtin("logistic"),
        unknowns={"omega": ts.Unknown((-1, 1), prior="normal(0, 0.5)", truncate=not linear)},
        design=ts.Sobol(6),
        surrogate=surrogate,
        train=ts.Train(draws=draws),
        measurements=ts.Measurements(pd.DataFrame({"y": [0.7, 0.72, 0.66]}), noise=ts.Normal(sd=0.05)),
        infer=ts.Infer(methods=list(methods), **infer),
        **sections,
    )


def run(study):
    found = study._work(lambda host: study._project.run(host, "infer"))[0]
    return {method: found.summary(method) for method in found.methods()[1]}


def agree(found, expected, errors):
    (a,), (b,) = found["unknowns"], expected["unknowns"]
    for key in ("mean", "q05", "q95"):
        assert abs(a[key] - b[key]) <= errors(a, b, key), (found["method"], key, a[key], b[key])


def test_the_methods_of_the_paper_can_be_repeated_on_the_grid():
    found = run(make())
    assert list(found) == [str(method) for method in ALL]
    for name, methods in OWN.items():
        for method in methods:
            assert found[method.name]["engine"] == "grid"
            # Both to the error that they state, in sds.
            agree(found[method.name], found[name], lambda a, b, _: (a["quadrature_error"] + b["quadrature_error"]) * b["sd"])


def test_mixtures_are_exact_where_the_problem_is_and_pools_are_not():
    found = run(make(linear=True))
    engines = {name: summary["engine"] for name, summary in found.items()}
    assert {engines[name] for name in ("e-lik", "own-e-lik", "own-e-post")} == {"exact"}
    assert {engines[name] for name in ("pooled-e-lik", "own-e-log-lik")} == {"grid"}
    # Weights are sums of the same logarithms, with a rounding each.
    agree(found["own-e-lik"], found["e-lik"], lambda a, b, _: 1e-12)
    agree(found["own-e-post"], found["e-post"], lambda a, b, _: 1e-12)
    agree(found["pooled-e-lik"], found["e-lik"], lambda a, b, _: a["quadrature_error"] * b["sd"])
    agree(found["own-e-log-lik"], found["e-log-lik"], lambda a, b, _: a["quadrature_error"] * b["sd"])


def test_samplers_know_them():
    exact = run(make(draws=10))
    few = ts.Smc(runs=8, particles=256)
    sampled = run(make(draws=10, engine="smc", smc=few, methods=[m for methods in OWN.values() for m in methods]))
    for name, methods in OWN.items():
        for method in methods:
            (a,), (b,) = sampled[method.name]["unknowns"], exact[name]["unknowns"]
            # Four comparisons at alpha = 1e-4 together: 4.1 standard errors, 6 for those of eight runs (t with 7 degrees: 7.9 / 1.3).
            assert abs(a["mean"] - b["mean"]) < 6 * a["mcse_mean"] + b["quadrature_error"] * b["sd"]
    pooled = ts.Propagation(
        "with-gradient",
        pool=lambda l, log_weights: log_sum_exp(log_weights + l),
        pool_gradient=lambda l, log_weights: softmax(log_weights + l),
    )
    (a,), (b,) = run(make(draws=10, engine="nuts", methods=[pooled]))["with-gradient"]["unknowns"], exact["e-lik"]["unknowns"]
    # One comparison at alpha = 1e-5 is 4.4 standard errors, 5 for one that is estimated.
    assert abs(a["mean"] - b["mean"]) < 5 * a["mcse_mean"] + b["quadrature_error"] * b["sd"]


def test_what_nuts_cannot_do_is_refused():
    with pytest.raises(ts.StudyError, match="needs the evidence of every T-draw, which NUTS does not know"):
        make(engine="nuts", methods=OWN["e-post"])
    with pytest.raises(ts.StudyError, match="has no pool_gradient, which NUTS needs"):
        make(engine="nuts", methods=OWN["e-log-lik"])


def tempered(power):
    return ts.Propagation("tempered", weights=lambda log_evidence, log_weights: log_weights + power * log_evidence)


def test_results_are_kept_until_the_function_changes(tmp_path):
    folder = tmp_path / "results"

    def mean(method):
        study = make(methods=["e-lik", method], answer=method, folder=folder)
        found = run(study)
        return found["tempered"]["unknowns"][0]["mean"], (folder / "i_draws_tempered.csv").stat().st_mtime_ns

    first, second = mean(tempered(0.0)), mean(tempered(0.0))
    assert first == second
    third = mean(tempered(1.0))
    assert third[1] > first[1] and third[0] != first[0]


def test_calibration_tries_them(tmp_path):
    own = OWN["e-lik"][0]
    study = make(methods=["e-lik", own], draws=20, folder=tmp_path / "results", calibrate=ts.Calibrate(t_trials=3, i_trials=2))
    if not hasattr(study._project, "calibrate"):
        pytest.skip("this build has no calibration from Python")
    study._work(lambda host: study._project.calibrate(host))
    trials = pd.read_csv(tmp_path / "results" / "calibration.csv")
    pits = trials.pivot(index=["t_trial", "i_trial"], columns="method", values="pit")
    assert len(pits) == 6
    # PITs move by less than the stated error of quantiles of 1e-3 sds, or the 1e-2 that is warned of, times a density below 1 / sd.
    assert (pits["e-lik"] - pits["own-e-lik"]).abs().max() < 2e-2


def test_failures_are_raised_with_their_cause():
    calls = []

    def late(l, log_weights):
        calls.append(None)
        if len(calls) > 30:
            raise ZeroDivisionError("at last")
        return log_sum_exp(log_weights + l)

    study = make(methods=[ts.Propagation("late", pool=late)])
    with pytest.raises(ts.PropagationError, match="method late: pool raised ZeroDivisionError: at last") as raised:
        run(study)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert not study._project.status()[2][2], "nothing is kept"


def test_a_failure_in_one_study_stays_there():
    fails = []

    def flaky(log_evidence, log_weights):
        if fails:
            raise ZeroDivisionError("once")
        return log_weights + log_evidence

    methods = ["e-lik", "e-post", ts.Propagation("flaky", weights=flaky)]
    one, other = make(linear=True, methods=methods), make(linear=True, methods=methods)
    fails.append(True)
    with pytest.raises(ts.PropagationError, match="ZeroDivisionError: once"):
        run(one)
    fails.clear()
    for study in (one, other):
        found = run(study)
        # Sums of the same logarithms, with a rounding each; without a call the result would be E-Post.
        agree(found["flaky"], found["e-lik"], lambda a, b, _: 1e-12)
        assert abs(found["e-post"]["unknowns"][0]["mean"] - found["e-lik"]["unknowns"][0]["mean"]) > 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither weights nor pool is given"),
        ({"weights": tempered, "pool": tempered}, "weights and pool are given"),
        ({"weights": 3}, "weights is int, which cannot be called"),
        ({"weights": lambda z, a: 0.0}, r"returned an array of shape \(\), where one of shape \(3,\) is expected"),
        ({"weights": lambda z, a: z * np.nan}, "infinite or NaN"),
        ({"pool": lambda l, a: l}, "returned ndarray, where a number is expected"),
        ({"pool": lambda l, a: np.nan}, "returned nan, where a number or minus infinity"),
        ({"pool": lambda l, a: 0.0, "pool_gradient": lambda l, a: 0.0}, r"pool_gradient returned an array of shape \(\)"),
        ({"weights": tempered, "pool_gradient": tempered}, "pool_gradient is given without pool"),
    ],
)
def test_mistakes_show_at_once(arguments, message):
    with pytest.raises((ts.InvalidError, ts.PropagationError), match=message):
        ts.Propagation("mine", **arguments)


@pytest.mark.parametrize("name", ["e-lik", "my method", ""])
def test_names_must_fit(name):
    with pytest.raises(ts.InvalidError, match="is a method of the paper|is no name for a method"):
        make(methods=[ts.Propagation(name, weights=lambda z, a: a)])


def test_a_study_file_cannot_hold_them():
    with pytest.raises(ts.InvalidError, match="own-e-post is a Python function, which a study file cannot hold"):
        make(methods=OWN["e-post"]).to_toml()
