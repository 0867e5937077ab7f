"""The reference cases: exact answers, and the data of each Stan program as an expert would prepare them."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.polynomial import legendre

from measures import Exact

DATA = Path(__file__).resolve().parents[2] / "crates/twostep/tests/data"
METHODS = {"point": "Point", "e-log-lik": "E-Log-Lik", "e-lik": "E-Lik", "e-post": "E-Post"}
STEPS = ["t-step", *METHODS]
UNKNOWNS = {
    "logistic": ["omega", "sigma_i"],
    "pce": ["omega", "sigma_i"],
    "sir": ["beta", "gamma", "sigma_i"],
}

# The Stan programs of each case and step, the plainest first and the best last. What is after the colon is done to the data.
FORMS: dict[str, dict[str, list[str]]] = {
    "logistic": {
        "t-step": ["t_logistic"],
        "point": ["i_logistic_loop", "i_logistic_reduced"],
        "e-log-lik": ["i_logistic_loop", "i_logistic_reduced"],
        "e-lik": ["i_logistic_loop", "i_logistic_reduced"],
        "e-post": ["i_logistic_loop", "i_logistic_reduced"],
    },
    "pce": {
        "t-step": ["t_linear_plain", "t_linear_rotated", "t_linear_marginal"],
        "point": ["i_pce_loop", "i_pce_reduced"],
        "e-log-lik": ["i_pce_loop", "i_pce_reduced", "i_pce_averaged"],
        "e-lik": ["i_pce_loop", "i_pce_reduced"],
        "e-post": ["i_pce_loop", "i_pce_reduced"],
    },
    "sir": {
        "t-step": ["t_linear_plain", "t_linear_rotated", "t_linear_marginal"],
        "point": ["i_sir_loop", "i_sir_polynomial"],
        "e-log-lik": ["i_sir_loop", "i_sir_matrix", "i_sir_polynomial", "i_sir_polynomial:averaged"],
        "e-lik": ["i_sir_loop", "i_sir_matrix", "i_sir_polynomial"],
        "e-post": ["i_sir_loop", "i_sir_polynomial"],
    },
}


def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open() as file:
        rows = list(csv.reader(file))
    return {name: np.array([float(row[j]) for row in rows[1:]]) for j, name in enumerate(rows[0])}


def _leg(x: np.ndarray, degree: int) -> np.ndarray:
    """Legendre polynomials of degrees 0 to `degree` at x (columns)."""
    return legendre.legvander(np.atleast_1d(x), degree)


class Case:
    def __init__(self, name: str) -> None:
        folder = DATA / name
        self.name = name
        self.train = _columns(folder / "train.csv")
        self.measured = _columns(folder / "measurements.csv")
        draws = _columns(folder / "t_draws.csv")
        self.weight = draws.pop("weight")
        self.parameters = list(draws)
        draws.pop("sigma_a")
        self.draws = np.stack(list(draws.values()), axis=1)
        self._reference = json.loads((folder / "reference.json").read_text())["i_step"]["theta=c"]["methods"]
        self._t_reference = json.loads((folder / "t_reference.json").read_text())["exact"]

    @property
    def n_draws(self) -> int:
        return len(self.weight)

    def unknowns(self, step: str) -> list[str]:
        return self.parameters if step == "t-step" else UNKNOWNS[self.name]

    def stan_names(self, step: str) -> list[str]:
        """The unknowns as Stan calls them."""
        if step != "t-step":
            return UNKNOWNS[self.name]
        coefficients = [f"c.{j + 1}" for j in range(len(self.parameters) - 1)]
        return [*coefficients, "sigma_a"] if self.name != "logistic" else self.parameters

    def exact(self, step: str) -> Exact:
        entry = self._t_reference if step == "t-step" else self._reference[METHODS[step]]
        keys = ("mean", "sd", "q05", "q95")
        return {name: tuple(entry[name][key] for key in keys) for name in self.unknowns(step)}

    def data(self, step: str, form: str, member: int | None = None) -> dict[str, Any]:
        """Data of a Stan program; `member` is the T-draw of one fit of E-Post."""
        if step == "t-step":
            return self._t_data(form)
        point = step == "point"
        weight = np.ones(1) if point or member is not None else self.weight
        draws = self.draws if member is None else self.draws[member : member + 1]
        if point:
            draws = (self.weight @ self.draws)[None, :]
        return {
            "weight": weight.tolist(),
            "S": len(draws),
            "e_log_lik": int(step == "e-log-lik"),
            **getattr(self, f"_{self.name}_data")(form, draws, weight),
        }

    def _t_data(self, form: str) -> dict[str, Any]:
        if self.name == "logistic":
            return {"n": len(self.train["y"]), "omega": self.train["w"].tolist(), "y": self.train["y"].tolist()}
        if self.name == "pce":
            basis, y = _leg(self.train["w"], 5), self.train["y"]
        else:
            degrees = self._degrees()
            parts = [_leg(self.train[f"{d}_scaled"], 4)[:, degrees[:, j]] for j, d in enumerate(["beta", "gamma", "t"])]
            basis, y = np.prod(parts, axis=0), np.log(self.train["y"])
        n, k = basis.shape
        if form == "t_linear_plain":
            return {"n": n, "k": k, "B": basis.tolist(), "y": y.tolist()}
        u, s, vt = np.linalg.svd(basis, full_matrices=False)
        z = u.T @ y
        rest = float(np.sum((y - u @ z) ** 2))
        return {"n": n, "k": k, "s": s.tolist(), "V": vt.T.tolist(), "z": z.tolist(), "rest": rest}

    def _replicates(self) -> dict[str, Any]:
        y = self.measured["y"]
        return {"n": len(y), "mean_y": float(y.mean()), "scatter": float(np.sum((y - y.mean()) ** 2))}

    def _logistic_data(self, form: str, draws: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
        curve = {name: draws[:, j].tolist() for j, name in enumerate(["alpha", "beta", "gamma", "delta"])}
        y = self.measured["y"].tolist()
        return {**curve, **({"n": len(y), "y": y} if form.endswith("loop") else self._replicates())}

    def _pce_data(self, form: str, draws: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
        y = self.measured["y"].tolist()
        if form.endswith("loop"):
            return {"n": len(y), "y": y, "d": 5, "C": draws.tolist()}
        if form.endswith("averaged"):
            mean = weight @ draws
            covariance = (draws - mean).T @ ((draws - mean) * weight[:, None])
            return {**self._replicates(), "d": 5, "c": mean.tolist(), "covariance": covariance.tolist()}
        return {**self._replicates(), "d": 5, "C": draws.tolist()}

    def _degrees(self) -> np.ndarray:
        """Degrees in beta, gamma and t of each coefficient, from its name."""
        return np.array([[int(d) for d in name[2:-1].split(",")] for name in self.parameters[:-1]])

    def _sir_data(self, form: str, draws: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
        degrees, log_y = self._degrees(), np.log(self.measured["y"])
        times = _leg(self.measured["t_scaled"], 4)[:, degrees[:, 2]]
        if not form.startswith("i_sir_polynomial"):
            return {
                "n": len(log_y),
                "log_y": log_y.tolist(),
                "k": len(degrees),
                "T": times.tolist(),
                "beta_degree": (degrees[:, 0] + 1).tolist(),
                "gamma_degree": (degrees[:, 1] + 1).tolist(),
                "C": draws.tolist(),
            }
        terms, rows = self._squares(draws, degrees, times, log_y)
        out = {"n": len(log_y), "m": len(terms), "Q": rows.tolist()}
        if form.endswith(":averaged"):
            out |= {"Q": (weight @ rows)[None, :].tolist(), "S": 1, "weight": [1.0]}
        return out | {"beta_degree": [b + 1 for b, _ in terms], "gamma_degree": [g + 1 for _, g in terms]}

    @staticmethod
    def _squares(
        draws: np.ndarray, degrees: np.ndarray, times: np.ndarray, log_y: np.ndarray
    ) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The residual sum of squares of each draw as a Legendre series of total degree 8: it is fitted at Gauss nodes, exactly."""
        terms = [(b, g) for b, g in product(range(9), repeat=2) if b + g <= 8]
        nodes, weights = legendre.leggauss(9)
        values = _leg(nodes, 8)
        rows = np.zeros((len(draws), len(terms)))
        for i, j in product(range(9), repeat=2):
            q = values[i, degrees[:, 0]] * values[j, degrees[:, 1]]
            square = np.sum(((times * q) @ draws.T - log_y[:, None]) ** 2, axis=0)
            for m, (b, g) in enumerate(terms):
                scale = (2 * b + 1) * (2 * g + 1) / 4
                rows[:, m] += scale * weights[i] * weights[j] * values[i, b] * values[j, g] * square
        return terms, rows
