"""Networks with a Bayesian last layer as the surrogate: `python bayesian_last_layer.py`. NumPy and SciPy are all it takes.

The same question as in gaussian_process.py. A network is trained, and what its hidden units say of an input is kept as its features; the
weights of the last layer are then forgotten and learned anew, exactly: given the features they are a linear regression, whose error is
sigma_a. One network is too sure of its features, so that eight are trained from starts of their own, and each has an eighth of the T-draws.
"""

import numpy as np
import pandas as pd
import twostep as ts
from scipy.optimize import minimize

MIDDLE, HALF = np.array([0.275, 7.5]), np.array([0.225, 7.5])  # of the ranges of rate (1/min) and time (min)
HIDDEN = 16


def simulator(rate, t):
    """Temperature of the coffee in degrees."""
    return 21 + 64 * np.exp(-rate * t)


def hidden(x, w, b):
    """The hidden units of networks at all points (N): an array (..., N, HIDDEN)."""
    return np.tanh((x - MIDDLE) / HALF @ np.swapaxes(w, -1, -2) + b[..., None, :])


def features_of(x, z, rng):
    """The first layer (w, b) of a network that follows the runs, with a standard normal prior of every weight around its start."""
    start = rng.normal(size=HIDDEN * (MIDDLE.size + 2) + 1)
    u = (x - MIDDLE) / HALF

    def split(p):
        w, b, v = np.split(p[:-1], [HIDDEN * MIDDLE.size, HIDDEN * (MIDDLE.size + 1)])
        return w.reshape(HIDDEN, -1), b, v, p[-1]

    def misfit(p):
        w, b, v, c = split(p)
        h = np.tanh(u @ w.T + b)
        error = (h @ v + c - z) / 0.005  # as if runs had an error of half a percent of their sd
        back = error[:, None] / 0.005 * v * (1 - h**2)
        slope = np.concatenate([(back.T @ u).ravel(), back.sum(0), h.T @ error / 0.005, [error.sum() / 0.005]])
        return 0.5 * (error @ error + (p - start) @ (p - start)), slope + p - start

    return split(minimize(misfit, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x)[:2]


def last_layer(h, z, rng, n):
    """Exact draws of the last layer's weights and of sigma_a, given the features h (N, P) and values z.

    `z ~ N(h v, sigma_a^2)` with `v ~ N(0, tau^2)`, and log sigma_a and log tau uniform on a grid, where v is integrated out.
    """
    u, d, vt = np.linalg.svd(h, full_matrices=False)
    along = u.T @ z
    beside = max(z @ z - along @ along, 0.0)
    sigma, tau = (a.ravel() for a in np.meshgrid(np.geomspace(1e-4, 1, 200), np.geomspace(0.1, 100, 30)))
    variance = sigma[:, None] ** 2 + np.outer(tau, d) ** 2
    log_p = -0.5 * (np.log(variance) + along**2 / variance).sum(1)
    log_p -= (z.size - d.size) * np.log(sigma) + 0.5 * beside / sigma**2
    p = np.exp(log_p - log_p.max())
    of = rng.choice(p.size, size=n, p=p / p.sum())
    sigma, tau = sigma[of, None], tau[of, None]
    # Along each singular vector the weights are normal; in what the features do not tell apart they have their prior.
    precision = d**2 / sigma**2 + tau**-2
    within = d * along / sigma**2 / precision + rng.normal(size=precision.shape) / np.sqrt(precision)
    free = tau * rng.normal(size=(n, h.shape[1]))
    return within @ vt + free - free @ vt.T @ vt, sigma[:, 0]


def train(x, y, rng, networks=8, n_draws=400):
    """The T-step: features of every network, and draws of its last layer."""
    shift, factor = y.mean(), y.std()
    z, n = (y - shift) / factor, n_draws // networks
    parts = []
    for _ in range(networks):
        w, b = features_of(x, z, rng)
        v, sigma_a = last_layer(np.column_stack([hidden(x, w, b), np.ones(len(x))]), z, rng, n)
        first = np.tile(w, (n, 1, 1)), np.tile(b, (n, 1))
        parts.append((*first, factor * v[:, :-1], shift + factor * v[:, -1], factor * sigma_a))
    return ts.Draws(dict(zip(["w", "b", "v", "c", "sigma_a"], map(np.concatenate, zip(*parts)))))


def predict(x, draws):
    """An array (N, S)."""
    return np.einsum("sh,snh->ns", draws["v"], hidden(x, draws["w"], draws["b"])) + draws["c"]


def gradient(x, draws, weights):
    """The derivative of `sum(weights * predict(x, draws))` by x: an array (N, 2)."""
    slope = 1 - hidden(x, draws["w"], draws["b"]) ** 2
    return np.einsum("ns,sh,snh,shd->nd", weights, draws["v"], slope, draws["w"], optimize=True) / HALF


def main(engine="auto"):
    study = ts.Study(
        simulator=simulator,
        unknowns={"rate": ts.Unknown((0.05, 0.5), prior=ts.LogNormal(-1.6, 0.5), unit="1/min")},
        conditions={"t": (0, 15)},
        design=ts.Sobol(30),
        outputs={"temperature": ts.Output(unit="degrees")},
        surrogate=ts.PythonSurrogate(predict, train=train, gradient=gradient),
        measurements=ts.Measurements(
            pd.DataFrame({"t": [2.0, 5.0, 9.0, 14.0], "temperature": [63.9, 43.6, 31.4, 24.7]}), noise=ts.Normal(sd=1.5)
        ),
        infer=ts.Infer(methods=["e-lik", "e-post"], engine=engine),
    )
    study.simulate()
    post = study.infer()
    print("The rate at which the coffee cools, in 1/min:")
    print(post.summary()[["method", "quantity", "mean", "sd", "q05", "q95"]].to_string(index=False))
    return post


if __name__ == "__main__":
    main()
