"""Studies that several tests use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

import twostep as ts

# Figures are made without a screen.
os.environ.setdefault("MPLBACKEND", "Agg")


def logistic(omega: float) -> float:
    """The simulator of the paper's case study 2."""
    return 1.0 / (1.0 + math.exp(-5.0 * omega))


@pytest.fixture(autouse=True)
def quiet() -> None:
    ts.show_progress(False)


@pytest.fixture
def make_study() -> Callable[..., ts.Study]:
    """A study of one unknown, of the logistic function unless told otherwise."""

    def make(simulator: Any = logistic, **given: Any) -> ts.Study:
        sections: dict[str, Any] = dict(
            unknowns={"omega": ts.Unknown((-1, 1), prior=ts.Normal(0, 0.5, lower=-1, upper=1))},
            design=ts.Sobol(12),
            surrogate=ts.PCE(degree=5),
            train=ts.Train(draws=100),
            measurements=ts.Measurements({"y": [0.62, 0.65, 0.6]}, noise=ts.Normal(sd=0.05)),
        )
        return ts.Study(simulator, **{**sections, **given})

    return make
