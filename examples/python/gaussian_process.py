"""A Gaussian process of scikit-learn as the surrogate: `python gaussian_process.py`.

A cup of coffee cools down. How fast is to be learned from four readings of a thermometer; the simulator is a function that stands for
one that takes hours, so that it is run thirty times and a Gaussian process stands in for it. What the process does not know of the
simulator goes into the answer: each T-draw is a function drawn from it.
"""

import numpy as np
import pandas as pd
import twostep as ts
from scipy.spatial.distance import cdist
from scipy.stats import qmc
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

RANGES = np.array([(0.05, 0.5), (0.0, 15.0)])  # rate in 1/min, time in min
GRID = qmc.scale(qmc.Halton(2, scramble=False).random(80), *RANGES.T)  # where drawn functions are known


def simulator(rate, t):
    """Temperature of the coffee in degrees."""
    return 21 + 64 * np.exp(-rate * t)


def correlation(a, b, length):
    return np.exp(-0.5 * cdist(a / length, b / length, "sqeuclidean"))


def train(x, y, rng, n_draws=200):
    """The T-step: functions drawn from the process given the runs, as weights of its kernel at the grid."""
    kernel = ConstantKernel(400.0) * RBF(RANGES[:, 1] / 2, (1e-2, 1e3)) + WhiteKernel(1e-3, (1e-8, 1.0))
    process = GaussianProcessRegressor(kernel, normalize_y=False).fit(x, y - y.mean())
    length, nugget = process.kernel_.k1.k2.length_scale, process.kernel_.k2.noise_level
    functions = process.sample_y(GRID, n_draws, random_state=int(rng.integers(2**31)))
    weights = np.linalg.solve(correlation(GRID, GRID, length) + 1e-8 * np.eye(len(GRID)), functions).T
    everywhere = np.ones(n_draws)
    return ts.Draws(
        {
            "weights": weights,
            "mean": y.mean() * everywhere,
            "length": np.outer(everywhere, length),  # the same in every draw
            "sigma_a": np.sqrt(nugget) * everywhere,  # what the process takes for the simulator's own error
        }
    )


def predict(x, draws):
    """All drawn functions (S) at all points (N): an array (N, S)."""
    return correlation(x, GRID, draws["length"][0]) @ draws["weights"].T + draws["mean"]


def main(draws=200, trials=10):
    study = ts.Study(
        simulator=simulator,
        unknowns={"rate": ts.Unknown((0.05, 0.5), prior=ts.LogNormal(-1.6, 0.5), unit="1/min")},
        conditions={"t": (0, 15)},
        design=ts.Sobol(30),
        outputs={"temperature": ts.Output(unit="degrees")},
        surrogate=ts.PythonSurrogate(predict, train=train),
        train=ts.Train(draws=draws),
        measurements=ts.Measurements(
            pd.DataFrame({"t": [2.0, 5.0, 9.0, 14.0], "temperature": [63.9, 43.6, 31.4, 24.7]}), noise=ts.Normal(sd=1.5)
        ),
        infer=ts.Infer(methods=["e-lik", "e-post"]),
    )
    study.simulate()
    post = study.infer()
    print("The rate at which the coffee cools, in 1/min:")
    print(post.summary()[["method", "quantity", "mean", "sd", "q05", "q95"]].to_string(index=False))
    if trials:
        print(f"\nTried on {trials} surrogates with two truths each:")
        for method, verdict in study.calibrate(t_trials=trials, i_trials=2).verdict.items():
            print(f"{method}: {verdict}")
    return post


if __name__ == "__main__":
    main()
