"""An ensemble of PyTorch networks as the surrogate: `python neural_network.py`.

The same question as in gaussian_process.py. Sixteen small networks are trained at once, each held near weights of its own that were drawn
from a prior (anchored ensembles [Pearce 2020]): where runs say little, the networks disagree, and that goes into the answer. Their weights
are the T-draws, and PyTorch gives the gradient that NUTS and others take.
"""

import numpy as np
import pandas as pd
import torch
import twostep as ts

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)  # the networks are too small for more
MIDDLE, HALF = torch.tensor([0.275, 7.5]), torch.tensor([0.225, 7.5])  # of the ranges of rate (1/min) and time (min)
HIDDEN = 16
SHAPES = {"w": (HIDDEN, 2), "b": (HIDDEN,), "v": (HIDDEN,), "c": ()}


def simulator(rate, t):
    """Temperature of the coffee in degrees."""
    return 21 + 64 * np.exp(-rate * t)


def network(x, p):
    """All networks (S) at all points (N): a tensor (N, S)."""
    hidden = torch.tanh(torch.einsum("shd,nd->nsh", p["w"], (x - MIDDLE) / HALF) + p["b"])
    return 50 + 20 * (torch.einsum("sh,nsh->ns", p["v"], hidden) + p["c"])


def train(x, y, rng, members=16, steps=400):
    """The T-step: one network for each member of the ensemble."""
    points, target = torch.from_numpy(x), torch.from_numpy(y)[:, None]
    anchors = {name: torch.from_numpy(rng.normal(size=(members, *shape))) for name, shape in SHAPES.items()}
    parameters = {name: anchor.clone().requires_grad_() for name, anchor in anchors.items()}
    optimiser = torch.optim.Adam(parameters.values(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        misfit = ((network(points, parameters) - target) ** 2).sum()
        anchored = sum(((parameters[name] - anchors[name]) ** 2).sum() for name in SHAPES)
        # As if runs had an error of half a degree, beside a standard normal prior of every weight.
        (misfit / 0.5**2 + anchored).backward()
        optimiser.step()
    with torch.no_grad():
        error = (network(points, parameters) - target).std(dim=0)
    return {**{name: value.detach().numpy() for name, value in parameters.items()}, "sigma_a": error.numpy()}


def tensors(draws):
    return {name: torch.tensor(np.array(draws[name])) for name in SHAPES}


def predict(x, draws):
    """An array (N, S)."""
    with torch.no_grad():
        return network(torch.from_numpy(x), tensors(draws)).numpy()


def gradient(x, draws, weights):
    """The derivative of `sum(weights * predict(x, draws))` by x: an array (N, 2)."""
    points = torch.from_numpy(x).requires_grad_()
    (network(points, tensors(draws)) * torch.from_numpy(weights)).sum().backward()
    return points.grad.numpy()


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
