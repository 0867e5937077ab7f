"""Our side: the benchmark program `peers`, a process of its own for every answer."""

from __future__ import annotations

import json
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import measures
from cases import Case

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(1, 6)
# A fifth of the error that counts as right, and one I-draw for each T-draw.
ROUGH_GRID = "grid:1000:0.01"
# CPU seconds after which no further seed is tried.
ENOUGH = 15.0


@cache
def program() -> str:
    """Builds the benchmark and returns its place."""
    command = ["cargo", "bench", "--workspace", "--bench", "peers", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return next(m["executable"] for m in found if m.get("executable") and m["target"]["name"] == "peers")


def run(case: str, step: str, engine: str, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """The answer, and the draws of chains (4 x draws x unknowns) where there are any."""
    with tempfile.NamedTemporaryFile() as file:
        command = [program(), case, step, engine, str(seed), file.name]
        answer = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        text = Path(file.name).read_text()
    rows = np.array([[float(v) for v in line.split()] for line in text.splitlines()])
    return answer, rows[:, 2:].reshape(4, -1, rows.shape[1] - 2) if rows.size else np.empty((0, 0, 0))


def measure(case: Case, step: str, engine: str) -> dict[str, Any]:
    """Median CPU time over the seeds, and the largest error of any."""
    exact = case.exact(step)
    answers: list[tuple[dict[str, Any], np.ndarray]] = []
    for seed in SEEDS:
        if sum(answer["cpu_s"] for answer, _ in answers) < ENOUGH:
            answers.append(run(case.name, step, engine, seed))

    def error(answer: dict[str, Any]) -> float:
        found = {u["name"]: [u["mean"], u["sd"], u["q05"], u["q95"]] for u in answer["unknowns"]}
        return measures.error(np.array([found[name] for name in exact]).T, exact)

    first = answers[0][0]
    out = {
        "case": case.name,
        "step": step,
        "asked": engine,
        "engine": f"{first['engine']}, 0.01 sd" if engine == ROUGH_GRID else first["engine"],
        "cpu_s": median(answer["cpu_s"] for answer, _ in answers),
        "evaluations": first["evaluations"],
        "error": max(error(answer) for answer, _ in answers),
        "right": sum(error(answer) <= measures.RIGHT for answer, _ in answers),
        "seeds": len(answers),
        "warnings": first["warnings"],
    }
    if answers[0][1].size:
        worst = [measures.worst(draws) for _, draws in answers]
        out |= {"ess": median(ess for ess, _ in worst), "r_hat": max(r_hat for _, r_hat in worst)}
    return out
