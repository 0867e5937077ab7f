"""Studies and results in notebooks: tables and sentences as HTML, readable on light and on dark ground."""

from __future__ import annotations

import html
import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ._compare import Comparison
    from ._results import Calibration, Enough, Fit, Inference, Verification

# Colours of notebooks are inherited; what is set here is seen on white and on black.
_TONES = {"plain": "#8a8a8a", "good": "#0a8f6a", "caution": "#d98f00", "bad": "#d5382f"}
_CELL = "text-align:left;padding:2px 10px;vertical-align:top"
# Settings of a sweep that are shown.
_SETTINGS = 12


def counted(n: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def escaped(value: Any) -> str:
    """Text of the user, which may be anything."""
    return html.escape(str(value), quote=True)


def number(value: Any, scale: float = math.nan) -> str:
    """A number with as many digits as an interval of this width makes sense of, or four."""
    if not isinstance(value, float):
        return escaped(value)
    if not math.isfinite(value):
        return "–"
    if math.isfinite(scale) and scale > 0:
        decimals = min(max(2 - math.floor(math.log10(scale)), 0), 8)
        return f"{value:.{decimals}f}" if abs(value) < 1e7 else f"{value:.4g}"
    return f"{value:.4g}"


def interval(line: Mapping[Hashable, Any]) -> str:
    """Mean and 90 % interval of a line of a summary."""
    width = line["q95"] - line["q05"]
    low, mean, high = (number(line[name], width) for name in ("q05", "mean", "q95"))
    return f"{mean} [{low}, {high}]"


def quantity(line: Mapping[Hashable, Any]) -> str:
    """The same with the name."""
    return f"{line['quantity']} {interval(line)}"


def table(header: list[str], rows: list[list[str]], strong: int = -1) -> str:
    """A table; cells are HTML already."""
    head = "".join(f'<th style="{_CELL};font-weight:600">{escaped(name)}</th>' for name in header)
    body = ""
    for place, row in enumerate(rows):
        weight = ";font-weight:600" if place == strong else ""
        body += "<tr>" + "".join(f'<td style="{_CELL}{weight}">{cell}</td>' for cell in row) + "</tr>"
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def frame(data: pd.DataFrame) -> str:
    """A table of numbers."""
    rows = [[number(cell) for cell in row] for row in data.itertuples(index=False)]
    return table([str(name) for name in data.columns], rows)


def sentences(said: list[tuple[str, str]]) -> str:
    """Sentences with a mark of their tone."""
    items = ""
    for tone, text in said:
        mark = f'<span style="color:{_TONES[tone]};font-weight:700" title="{tone}">&#9632;</span>'
        items += f'<div style="margin:2px 0">{mark} {escaped(text)}</div>'
    return f"<div>{items}</div>"


def block(title: str, *parts: str) -> str:
    """A titled block."""
    return f'<div style="max-width:60em"><div style="font-weight:700;margin:4px 0">{escaped(title)}</div>{"".join(parts)}</div>'


def study(name: str, asked: list[tuple[str, str]], stages: list[tuple[str, bool, str]]) -> str:
    """What is asked, and which stages are finished."""
    rows = [[escaped(what), escaped(text)] for what, text in asked]
    states = []
    for stage, fresh, reason in stages:
        tone, state = ("good", "fresh") if fresh else ("caution", "stale")
        states.append([escaped(stage), f'<span style="color:{_TONES[tone]}">{state}</span>', escaped(reason)])
    return block(f"Study {name}", table(["", "what is asked"], rows), table(["stage", "state", "reason"], states))


def fit_line(report: pd.DataFrame) -> str:
    """A fit in a line."""
    parts = [
        f"{row['output']}: {row['method']} from {counted(row['runs'], 'run')}, Q2 {number(row['q2'])}"
        for row in report.to_dict("records")
    ]
    return f"Fit({'; '.join(parts)})"


def fit(result: Fit) -> str:
    """How each output was trained."""
    report = result.report.drop(columns=["warnings", "rows"])
    return block("Surrogate", frame(report.head(_SETTINGS)), warnings(result.warnings))


def warnings(found: list[str]) -> str:
    """Warnings as sentences."""
    return sentences([("caution", text) for text in found])


def inference(result: Inference) -> str:
    """Means and intervals by method, and how far to trust them."""
    summary = result.summary()
    keys = list(result.settings[0]) if result.settings else []
    quantities = list(dict.fromkeys(summary["quantity"]))
    strong = -1
    rows: list[list[str]] = []
    for group, own in summary.groupby([*keys, "method"], sort=False):
        label = list(group) if isinstance(group, tuple) else [group]
        if label[-1] == result.method and strong < 0 and not keys:
            strong = len(rows)
        cells = {}
        for line in own.to_dict("records"):
            cells[line["quantity"]] = interval(line)
        rows.append([number(part) for part in label] + [cells.get(name, "–") for name in quantities])
    parts = [table([*keys, "method", *quantities], rows[: _SETTINGS * len(result)], strong)]
    parts.append('<div style="opacity:0.75;margin:2px 0">mean [5 %, 95 %]; the leading method is bold</div>')
    if len(result.settings) <= 1:
        parts.append(sentences(result._trust()))
    return block("Answer", *parts)


def calibration(result: Calibration) -> str:
    """Verdicts, and coverage by method and unknown."""
    tones = {"calibrated": "good", "undecided": "caution"}
    columns = [*(result.settings[0] if result.settings else []), "method", "unknown", "coverage_50", "coverage_90"]
    summary = result.summary()
    shown = summary[[name for name in [*columns, "width_90", "t_trial_p_value", "verdict"] if name in summary]]
    parts = [frame(shown.head(4 * _SETTINGS))]
    if len(result) == 1:
        kinds = result.kind
        parts.append(sentences([(tones.get(kinds[m], "bad"), text) for m, text in result.verdict.items()]))
    return block("Calibration", *parts)


def enough(result: Enough) -> str:
    """The verdict with its numbers."""
    parts = [frame(result.summary())]
    if len(result) == 1:
        tone = {"enough": "good", "more": "caution"}.get(result.verdict, "plain")
        parts.append(sentences([(tone, f"{result.verdict}: {result.advice}")]))
    return block("Were the runs enough?", *parts)


def verification(result: Verification) -> str:
    """The verdict with its numbers."""
    tone = "good" if result.verdict == "agrees" else "caution"
    return block("Verification", frame(result.values.head(40)), sentences([(tone, f"{result.verdict}: {result.advice}")]))


def comparison(result: Comparison) -> str:
    """Evidences and Bayes factors with what they say."""
    said = [("plain", text) for text in result.verdict.values()] + [("caution", text) for text in result.warnings]
    return block("Comparison", frame(result.summary()), sentences(said + [("plain", text) for text in result.notes]))


def page(content: str, height: int) -> str:
    """A whole page within another."""
    style = "width:100%;border:1px solid #8a8a8a55;border-radius:4px;background:#fff"
    # Its scripts run apart from the notebook's.
    return (
        f'<iframe srcdoc="{html.escape(content, quote=True)}" sandbox="allow-scripts allow-popups allow-downloads" '
        f'style="{style}" height="{height}"></iframe>'
    )
