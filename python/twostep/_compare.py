"""Studies of the same measurements against each other, by the evidences of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import pandas as pd

from . import _display as display
from . import _twostep
from ._errors import InvalidError
from ._results import Inference


class Comparison:
    """What the measurements say for one study against others: by each method that has an evidence in all of them."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    @property
    def verdict(self) -> dict[str, str]:
        """The best study against the next, in words, by method."""
        return {found["method"]: found["verdict"] for found in self._content["methods"]}

    @property
    def warnings(self) -> list[str]:
        """What may not be trusted or compared, and why."""
        return list(self._content["warnings"])

    @property
    def notes(self) -> list[str]:
        """What to keep in mind with any comparison."""
        return list(self._content["notes"])

    def summary(self) -> pd.DataFrame:
        """Log evidence, log Bayes factor against the best and probability (all being equally probable before) of each study.

        Errors are one standard error.
        """
        rows = [{"method": found["method"], **study} for found in self._content["methods"] for study in found["studies"]]
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Comparison({' '.join(self.verdict.values())})"

    def _repr_html_(self) -> str:
        return display.comparison(self)


def compare(answers: Union[Mapping[str, Inference], Sequence[Inference]]) -> Comparison:
    """Compares studies of the same measurements by the evidences of their answers, as ``twostep compare`` does.

    ``answers`` are what ``infer`` returned, by names of your choice; without names they are called after their studies. Of a study that
    sweeps each setting takes part.

    >>> import twostep as ts
    >>> def answer(sd):
    ...     return ts.Study(
    ...         simulator=ts.Builtin("logistic"),
    ...         unknowns={"omega": ts.Unknown((-1, 1))},
    ...         design=ts.Sobol(12),
    ...         surrogate=ts.PCE(degree=5),
    ...         measurements=ts.Measurements({"y": [0.55, 0.6, 0.58]}, noise=ts.Normal(sd=sd)),
    ...     ).infer(methods=["point"])
    >>> found = ts.compare({"narrow": answer(0.02), "wide": answer(0.5)})
    >>> found.summary()[["study", "probability"]].round(2).values.tolist()
    [['narrow', 0.99], ['wide', 0.01]]
    """
    each = list(answers.values() if isinstance(answers, Mapping) else answers)
    for answer in each:
        if not isinstance(answer, Inference):
            raise InvalidError(f"{type(answer).__name__} is no answer", "compare", "give what study.infer() returns")
    names = [str(name) for name in answers] if isinstance(answers, Mapping) else [str(answer._about["study"]) for answer in each]
    settings = []
    for number, (name, answer) in enumerate(zip(names, each), start=1):
        if names.count(name) > 1:
            name = f"{name} ({number})"
        for setting in answer._found:
            of_sweep = "".join(f", {key} = {value}" for key, value in setting.label())
            settings.append((f"{name}{of_sweep}", setting))
    return Comparison(_twostep.compare(settings))
