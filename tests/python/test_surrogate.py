"""Surrogates that are Python functions."""

import itertools
import signal
import time

import numpy as np
import pandas as pd
import pytest
import twostep as ts

RNG = np.random.default_rng(1)
A, B = RNG.normal(0.5, 0.02, 60), RNG.normal(1.0, 0.05, 60)
DRAWS = ts.Draws({"a": A, "b": B})


def line(x, draws):
    return draws["a"] + x[:, :1] * draws["b"]


def line_gradient(x, draws, weights):
    return (weights * draws["b"]).sum(axis=1, keepdims=True)


def make(surrogate, *, methods=("e-lik", "e-post"), engine=None, **sections):
    return ts.Study(
        simulator=ts.Builtin("logistic"),
        unknowns={"omega": (-1, 1)},
        design=ts.Sobol(8),
        surrogate=surrogate,
        measurements=ts.Measurements(pd.DataFrame({"y": [0.7, 0.72]}), noise=ts.Normal(sd=0.05)),
        infer=ts.Infer(methods=list(methods), engine=engine),
        **sections,
    )


def run(study, until="infer"):
    return study._work(lambda host: study._project.run(host, until))[0]


def summaries(result):
    return {method: result.summary(method) for method in result.methods()[1]}


def test_a_function_gives_what_the_built_in_surrogate_gives():
    own = summaries(run(make(ts.PythonSurrogate(line, draws=DRAWS, sigma_a=0.05))))
    # The orthonormal polynomial of degree one is sqrt(3) omega.
    same = ts.Draws({"c[0]": A, "c[1]": B / np.sqrt(3), "sigma_a": np.full(60, 0.05)})
    built_in = make(ts.PCE(degree=1, standardise=False), engine="grid", train=ts.Train(import_=same))
    for method, expected in summaries(run(built_in)).items():
        found, expected = own[method]["unknowns"][0], expected["unknowns"][0]
        error = (found["quadrature_error"] + expected["quadrature_error"]) * expected["sd"]
        assert abs(found["mean"] - expected["mean"]) <= error
        assert abs(found["q05"] - expected["q05"]) <= error


def test_draws_may_come_from_training_or_by_import():
    def train(x, y, rng, n_draws):
        slope, intercept = np.polyfit(x[:, 0], y, 1)
        return {"a": rng.normal(intercept, 0.02, n_draws), "b": rng.normal(slope, 0.05, n_draws), "sigma_a": np.full(n_draws, 0.1)}

    study = make(ts.PythonSurrogate(line, train=train), train=ts.Train(draws=80))
    result = run(study)
    assert result.reports()[0]["method"] == "function"
    names, draws, _ = result.t_draws()
    assert names == ["a", "b", "sigma_a"] and draws.shape == (3, 80)
    # The same seed, the same draws: a second study agrees bit for bit.
    again = make(ts.PythonSurrogate(line, train=train), train=ts.Train(draws=80))
    assert np.array_equal(run(again).t_draws()[1], draws)
    brought = make(ts.PythonSurrogate(line), train=ts.Train(import_=DRAWS))
    assert run(brought).reports()[0]["method"] == "imported"


def test_arrays_reach_the_function_as_arrays():
    seen = {}

    def predict(x, draws):
        seen.update({name: (array.shape, array.flags.writeable) for name, array in draws.items()})
        assert x.shape[1] == 1
        return np.einsum("nk,skl,sl->ns", np.hstack([np.ones_like(x), x]), draws["w"], draws["v"])

    w = RNG.normal(size=(5, 2, 3))
    run(make(ts.PythonSurrogate(predict, draws={"w": w, "v": RNG.normal(size=(5, 3))}, sigma_a=np.full(5, 0.1))), "train")
    assert seen == {"w": ((5, 2, 3), False), "v": ((5, 3), False)}


def test_any_order_in_memory_is_right():
    def study(order):
        return make(ts.PythonSurrogate(lambda x, draws: np.asarray(line(x, draws), order=order), draws=DRAWS, sigma_a=0.05))

    rows, columns = run(study("C")), run(study("F"))
    assert rows.reports() == columns.reports()
    assert summaries(rows) == summaries(columns)


def test_weights_count():
    weighted = ts.Draws({"a": [0.5, 0.5, 9.0], "b": [1.0, 2.0, 9.0]}, weights=[3, 1, 0])
    twice = ts.Draws({"a": [0.5] * 4, "b": [1.0, 1.0, 1.0, 2.0]})
    found, expected = (
        summaries(run(make(ts.PythonSurrogate(line, draws=draws))))["e-post"]["unknowns"][0] for draws in (weighted, twice)
    )
    assert abs(found["mean"] - expected["mean"]) <= (found["quadrature_error"] + expected["quadrature_error"]) * expected["sd"]


@pytest.mark.parametrize(("gradient", "warned"), [(line_gradient, False), (None, True)])
def test_nuts_takes_a_gradient_or_differences_with_a_warning(gradient, warned):
    study = make(
        ts.PythonSurrogate(line, gradient=gradient, draws=DRAWS.select(slice(8)), sigma_a=0.05),
        methods=["e-lik"],
        engine="nuts",
    )
    found = summaries(run(study))["e-lik"]
    assert any("NUTS used differences" in warning for warning in found["warnings"]) is warned
    exact = summaries(run(make(ts.PythonSurrogate(line, draws=DRAWS.select(slice(8)), sigma_a=0.05))))["e-lik"]
    # One comparison at alpha = 1e-5 is 4.4 standard errors, 5 for one that is estimated.
    (found,), (exact,) = found["unknowns"], exact["unknowns"]
    assert abs(found["mean"] - exact["mean"]) < 5 * found["mcse_mean"] + exact["quadrature_error"] * exact["sd"]


def test_four_unknowns_without_a_gradient_are_sampled():
    names = ["u", "v", "w", "z"]
    study = ts.Study(
        simulator=lambda u, v, w, z: u + v + w + z,
        unknowns={name: ts.Unknown((-3, 3), prior="normal(0, 1)") for name in names},
        design=ts.Sobol(8),
        surrogate=ts.PythonSurrogate(lambda x, draws: x.sum(axis=1)[:, None] + draws["a"], draws={"a": [-0.01, 0.0, 0.01]}),
        measurements=ts.Measurements({"y": [2.0]}, noise=ts.Normal(sd=0.5)),
        infer=ts.Infer(methods=["e-lik"], smc=ts.Smc(runs=8, particles=128)),
    )
    study.simulate()
    found = summaries(run(study))["e-lik"]
    assert found["engine"] == "smc"
    for unknown in found["unknowns"]:
        # Conjugate but for truncation at three sds and draws of 0.01: 2 / (4 + 0.25), within 5e-3. Four comparisons at alpha = 1e-4
        # together with errors from eight runs: t with 7 degrees of freedom, 7.9.
        assert abs(unknown["mean"] - 2 / 4.25) < 7.9 * unknown["mcse_mean"] + 5e-3


def nothing(x, draws):
    raise RuntimeError("no model is loaded")


@pytest.mark.parametrize(
    ("predict", "message"),
    [
        (lambda x, draws: 1.0, r"returned an array of shape \(\); return an array of shape \(2, 3\)"),
        (lambda x, draws: np.zeros((3, 2)), r"shape \(3, 2\); return an array of shape \(2, 3\)"),
        (lambda x, draws: "no", "returned str, which is no array of numbers"),
        (lambda x, draws: np.nan * line(x, draws), "returned NaN for 3 of 3 values at x = "),
        (nothing, r"nothing raised RuntimeError: no model is loaded, at x = \(-0.333333\), \(0.333333\)"),
    ],
)
def test_mistakes_show_before_anything_runs(predict, message):
    with pytest.raises(ts.SurrogateError, match=message) as raised:
        make(ts.PythonSurrogate(predict, draws=DRAWS))
    assert isinstance(raised.value.__cause__, RuntimeError) == (predict is nothing)


def test_what_cannot_be_a_surrogate_is_refused():
    for arguments, message in [
        ((3,), "predict is int, which cannot be called"),
        ((line, lambda x, y, rng: DRAWS, None, DRAWS), "train and draws are given"),
        ((line, None, None, None, [0.1, 0.2]), "sigma_a is an array, and no draws are given"),
    ]:
        with pytest.raises(ts.InvalidError, match=message):
            ts.PythonSurrogate(*arguments)
    with pytest.raises(ts.InvalidError, match="neither draws nor a function that makes them"):
        make(ts.PythonSurrogate(line))
    with pytest.raises(ts.InvalidError, match="which a study file cannot hold"):
        make(ts.PythonSurrogate(line, draws=DRAWS)).to_toml()
    with pytest.raises(ts.StudyError, match="whose parameters have no prior"):
        make(ts.PythonSurrogate(line, draws=DRAWS), calibrate=ts.Calibrate(truth="surrogate-prior"))


def test_the_shell_refuses_a_python_surrogate(tmp_path):
    text = make(ts.PCE(degree=1)).to_toml().replace('kind = "pce"\ndegree = 1', 'kind = "python"')
    text = text.replace("degree = 1\n", "").replace('kind = "pce"', 'kind = "python"')
    file = tmp_path / "study.toml"
    file.write_text(text)
    with pytest.raises(ts.StudyError, match="no Python function is there to be called"):
        ts.Study.from_toml(file)


def test_a_failure_on_the_way_is_raised_and_nothing_is_kept():
    calls = []

    def predict(x, draws):
        calls.append(None)
        if len(calls) > 40:
            raise ZeroDivisionError("at last")
        return line(x, draws)

    study = make(ts.PythonSurrogate(predict, draws=DRAWS))
    with pytest.raises(ts.SurrogateError, match="predict raised ZeroDivisionError: at last") as raised:
        run(study)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    stages = {stage: fresh for _, stage, fresh, _ in study._project.status()}
    assert stages == {"simulate": True, "train": True, "infer": False}


def test_a_failed_training_is_raised():
    def train(x, y, rng):
        raise ValueError("singular")

    with pytest.raises(ts.SurrogateError, match="train raised ValueError: singular; it was given 8 training points"):
        run(make(ts.PythonSurrogate(line, train=train)))
    with pytest.raises(ts.SurrogateError, match="returned list; return ts.Draws"):
        run(make(ts.PythonSurrogate(line, train=lambda x, y, rng: [1.0])))


def test_a_changed_function_or_draw_is_stale(tmp_path):
    def slope(factor):
        return lambda x, draws: draws["a"] + factor * x[:, :1] * draws["b"]

    folder = tmp_path / "results"

    def stale(surrogate):
        study = make(surrogate, folder=folder)
        before = {stage: fresh for _, stage, fresh, _ in study._project.status()}
        run(study)
        return not before["train"]

    assert stale(ts.PythonSurrogate(slope(1.0), draws=DRAWS))
    assert not stale(ts.PythonSurrogate(slope(1.0), draws=DRAWS))
    assert stale(ts.PythonSurrogate(slope(1.1), draws=DRAWS))
    assert stale(ts.PythonSurrogate(slope(1.1), draws=DRAWS.select(slice(50))))


def test_ctrl_c_stops_while_the_function_is_called():
    calls = itertools.count()

    def slow(x, draws):
        number = next(calls)
        if number == 20:
            signal.raise_signal(signal.SIGINT)
        # Longer than it takes to be heard.
        time.sleep(0.1 if number >= 20 else 0.0)
        return line(x, draws)

    study = make(ts.PythonSurrogate(slow, draws=DRAWS))
    with pytest.raises(KeyboardInterrupt):
        run(study)


def test_outputs_have_surrogates_of_their_own():
    def both(x):
        return ts.PythonSurrogate(lambda points, draws: draws["a"] + x * points[:, :1], draws={"a": [0.0, 0.01]}, sigma_a=0.1)

    study = ts.Study(
        simulator=lambda omega: {"first": omega, "second": 2 * omega},
        unknowns={"omega": (-1, 1)},
        design=ts.Sobol(4),
        outputs={"first": ts.Output(surrogate=both(1)), "second": ts.Output(surrogate=both(2))},
        measurements=ts.Measurements({"first": [0.5], "second": [1.0]}, noise=ts.Normal(sd=0.05)),
        infer=ts.Infer(methods=["e-lik"]),
    )
    study.simulate()
    result = run(study)
    assert result.t_draws()[0] == ["first.a", "first.sigma_a", "second.a", "second.sigma_a"]
    (omega,) = summaries(result)["e-lik"]["unknowns"]
    # Both measurements say 0.5, up to draws of 0.01.
    assert abs(omega["mean"] - 0.5) < 0.01
