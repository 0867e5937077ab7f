"""Draws: in from arrays, tables, ArviZ and Stan, and out again."""

import numpy as np
import pandas as pd
import pytest
import twostep as ts

RNG = np.random.default_rng(1)
A, W = RNG.normal(size=6), RNG.normal(size=(6, 2, 3))


def draws() -> ts.Draws:
    return ts.Draws({"a": A, "w": W})


def test_arrays_have_a_name_for_each_number():
    made = draws()
    assert made.n_draws == 6
    assert list(made) == ["a", "w"]
    assert made.names == ["a", "w[0,0]", "w[0,1]", "w[0,2]", "w[1,0]", "w[1,1]", "w[1,2]"]
    assert np.array_equal(made["w[1,2]"], W[:, 1, 2])
    assert made.matrix.shape == (7, 6)
    assert np.array_equal(made.matrix[5], W[:, 1, 1])
    with pytest.raises(KeyError):
        made["w[2,0]"]


def test_tables_bring_the_same_draws_back(tmp_path):
    made = ts.Draws(draws(), weights=[1, 2, 3, 4, 5, 5])
    file = tmp_path / "draws.csv"
    made.to_csv(file)
    assert ts.Draws.from_csv(file) == made
    assert ts.Draws.from_frame(made.to_frame()) == made
    # In any order of the columns.
    shuffled = made.to_frame()[["w[1,2]", "weight", "a", "w[0,1]", "w[0,0]", "w[1,0]", "w[1,1]", "w[0,2]"]]
    assert ts.Draws.from_frame(shuffled)["w"].tolist() == W.tolist()
    assert made.weights.tolist() == [w / 20 for w in (1, 2, 3, 4, 5, 5)]
    assert made.select([0, 3]).weights.tolist() == [0.2, 0.8]


def test_families_with_gaps_are_single_numbers():
    # The terms of a polynomial of total degree one.
    names = ["c[0,0]", "c[0,1]", "c[1,0]", "sigma_a"]
    made = ts.Draws.from_arrays(np.arange(8.0).reshape(2, 4), names)
    assert list(made) == names and made.names == names


def test_arviz_stacks_chains():
    az = pytest.importorskip("arviz")
    chains = {"a": A.reshape(2, 3), "w": W.reshape(2, 3, 2, 3)}
    recent = int(az.__version__.split(".")[0]) >= 1
    data = az.from_dict({"posterior": chains}) if recent else az.from_dict(chains)
    assert ts.Draws.from_arviz(data) == draws()
    assert list(ts.Draws.from_arviz(data, var_names=["w"])) == ["w"]
    assert ts.Draws.from_arviz(ts.Draws.from_arviz(data).to_arviz()) == draws()
    with pytest.raises(ts.InvalidError, match="there is no b"):
        ts.Draws.from_arviz(data, var_names=["b"])
    with pytest.raises(ts.InvalidError, match="ArviZ has no weights"):
        ts.Draws(draws(), weights=np.ones(6)).to_arviz()


STAN = """\
# stan_version_major = 2
# method = sample (Default)
#   sample
#     num_samples = 3
#     num_warmup = 4
#     save_warmup = {saved}
#     thin = 2
lp__,accept_stat__,stepsize__,a,w.1,w.2
{warmup}# Adaptation terminated
# Step size = 0.8
-1,0.9,0.8,{a},2,3
-1,0.9,0.8,5,6,7
#
#  Elapsed Time: 0.1 seconds (Warm-up)
"""


@pytest.mark.parametrize("saved", ["0 (Default)", "true"])
def test_stan_files_are_read_without_warmup(tmp_path, saved):
    warmup = "" if saved.startswith("0") else "-9,0,1,9,9,9\n-9,0,1,9,9,9\n"
    files = [tmp_path / f"chain-{k}.csv" for k in (1, 2)]
    for k, file in enumerate(files):
        file.write_text(STAN.format(saved=saved, warmup=warmup, a=k))
    made = ts.Draws.from_stan_csv(files)
    assert made["a"].tolist() == [0, 5, 1, 5]
    assert made["w"].tolist() == [[2, 3], [6, 7]] * 2
    assert ts.Draws.from_stan_csv(files[0]).n_draws == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ts.Draws({}), "there are no parameters"),
        (lambda: ts.Draws({"a": 1.0}), "a is a single number"),
        (lambda: ts.Draws({"a": [1.0], "b": [1.0, 2.0]}), "numbers of draws differ: 1 of a, 2 of b"),
        (lambda: ts.Draws({"a": [1.0, np.nan]}), "a is not finite in draw 1"),
        (lambda: ts.Draws({"a": ["x"]}), "a has values that are no numbers"),
        (lambda: ts.Draws({"a": [1.0, 2.0]}, weights=[1.0]), "weights of shape"),
        (lambda: ts.Draws({"a": [1.0, 2.0]}, weights=[-1.0, 2.0]), "a weight is negative"),
        (lambda: ts.Draws({"w": [[1.0]], "w[0]": [1.0]}), r"w\[0\] comes twice"),
        (lambda: ts.Draws.from_csv("nowhere.csv"), "cannot be read"),
        (lambda: ts.Draws.from_arviz(3), "int has no group posterior"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ts.InvalidError, match=message):
        make()


def test_stan_files_that_are_none_are_refused(tmp_path):
    file = tmp_path / "cut.csv"
    file.write_text("lp__,a\n-1,2\n-1\n")
    with pytest.raises(ts.InvalidError, match="cut off"):
        ts.Draws.from_stan_csv(file)


def test_draws_stand_for_the_t_step_of_a_built_in_surrogate(tmp_path):
    draws = ts.Draws({"c[0]": [0.5, 0.6], "c[1]": [1.0, 1.1], "sigma_a": [0.1, 0.1]})
    study = ts.Study(
        simulator=ts.Builtin("logistic"),
        unknowns={"omega": (-1, 1)},
        design=ts.Sobol(4),
        surrogate=ts.PCE(degree=1, standardise=False),
        train=ts.Train(import_=draws),
        measurements=ts.Measurements(pd.DataFrame({"y": [0.7]}), noise=ts.Normal(sd=0.1)),
    )
    study.to_toml(tmp_path / "study.toml")
    assert ts.Draws.from_csv(tmp_path / "train.csv") == draws
