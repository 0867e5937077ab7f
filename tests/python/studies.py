"""Studies that several tests share, and what they do to processes."""

from __future__ import annotations

import contextlib
import math
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import twostep as ts


def decay(rate: float, t: float) -> float:
    """A decay that no polynomial follows exactly."""
    return 5.0 * math.exp(-rate * t + 0.05 * math.sin(3.0 * rate * t))


def small(**changed: Any) -> ts.Study:
    """One unknown, quick to do."""
    given: dict[str, Any] = {
        "simulator": ts.Builtin("logistic"),
        "unknowns": {"omega": ts.Unknown((-1, 1), prior="normal(0, 0.5)", unit="m")},
        "design": ts.Sobol(10),
        "surrogate": ts.PCE(degree=4),
        "measurements": ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=0.1)),
        "infer": ts.Infer(methods=["e-lik", "e-post", "point", "e-log-lik"], draws=500),
        "train": ts.Train(draws=200),
        "seed": 11,
    }
    return ts.Study(**{**given, **changed})


def outbreak(**changed: Any) -> ts.Study:
    """A function, a condition, an output on the logarithm, an unknown sd and a derived quantity."""
    measured = {"t": [0.5, 1.0, 2.0, 3.0, 3.5], "level": [3.6, 2.6, 1.25, 0.75, 0.5]}
    given: dict[str, Any] = {
        "simulator": decay,
        "unknowns": {"rate": ts.Unknown((0.2, 1.5), unit="1/h")},
        "conditions": {"t": ts.Condition((0, 4), unit="h")},
        "outputs": {"level": ts.Output(scale="log", unit="mg")},
        "design": ts.Sobol(20),
        "surrogate": ts.PCE(degree=2, standardise=False),
        "measurements": ts.Measurements(measured, noise=ts.LogNormal(sd="half-normal(0.3)")),
        "derived": {"half_life": "log(2) / rate"},
        "infer": ts.Infer(methods=["e-lik", "point"], draws=400),
        "train": ts.Train(draws=150),
        "seed": 7,
    }
    return ts.Study(**{**given, **changed})


@contextlib.contextmanager
def ended(process: subprocess.Popen[str], seconds: float = 120.0) -> Iterator[subprocess.Popen[str]]:
    """Ends a process after a block, whatever it came to, and before if it takes longer: by itself a ``with`` of a process waits for it."""
    late = threading.Timer(seconds, process.kill)
    late.start()
    with process:
        try:
            yield process
        finally:
            late.cancel()
            process.kill()
