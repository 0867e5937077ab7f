"""What was measured as tables between the markers of docs/performance.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cases import FORMS, METHODS
from measures import RIGHT

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/performance.md"
BEGIN, END = "<!-- peers -->\n", "<!-- /peers -->\n"
STEP_NAMES = {"t-step": "T-step", **METHODS}
CASE_NAMES = {"logistic": "logistic", "pce": "PCE", "sir": "SIR"}
MIXED = 1.05

Result = dict[str, Any]
Results = dict[tuple[str, str, str], Result]


def seconds(value: float) -> str:
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if value >= limit:
            return f"{value:.{digits}f}"
    return f"{value:.2g}" if value >= 1e-3 else f"{value:.1e}"


def ratio(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.1f}"


def load(folder: Path, side: str) -> Results:
    key = "asked" if side == "ours" else "form"
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{side}-*.json"))]
    return {(r["case"], r["step"], r[key]): r for r in found}


def is_right(row: Result) -> bool:
    return bool(row["right"] == row["seeds"])


def best_of_ours(ours: Results, case: str, step: str) -> Result | None:
    """The fastest engine that is right with every seed, or the one that is least wrong."""
    rows = [r for (c, s, asked), r in ours.items() if (c, s) == (case, step) and asked != "chains"]
    right = [r for r in rows if is_right(r)]
    return min(right, key=lambda r: r["cpu_s"]) if right else min(rows, key=lambda r: r["error"], default=None)


def stan_until_right(stan: Result) -> tuple[str, float, str]:
    """The cell, the CPU seconds that are compared, and a remark."""
    mark = " (e)" if stan["extrapolated"] else ""
    if stan["step"] == "e-post":
        cost = f"{seconds(stan['cpu_s'])}{mark}"
        remark = f"chains disagree in {stan['bad_members']} of {stan['members']} members"
        if stan.get("error", 0.0) > RIGHT:
            return f"never ({cost})", stan["cpu_s"], f"{remark}; all members pooled are {stan['error']:.2g} sd off"
        return cost, stan["cpu_s"], remark
    until, off = stan["cpu_s_until_right"], f"{stan['error']:.2g} sd off"
    if until is not None:
        all_right = stan["right"] == stan["seeds"]
        return f"{seconds(until)}{mark}", until, "" if all_right else f"right with {stan['right']} of {stan['seeds']} seeds"
    some = f"; right with {stan['right']} of {stan['seeds']} seeds" if stan["right"] else ""
    if stan["r_hat"] <= MIXED:
        cell = f"more than {seconds(stan['longest_s'])}{mark}"
        return cell, stan["longest_s"], f"4 x {stan['draws']} draws are too few: {off}{some}"
    cause = "have not mixed" if stan["step"] == "t-step" else "stay in the modes where they started"
    return f"never ({seconds(stan['cpu_s'])}{mark})", stan["cpu_s"], f"its chains {cause}: {off}{some}"


def peers(stan: Results, ours: Results, scale: float) -> list[str]:
    lines = [
        "| Case | Step | Stan program | Stan's R-hat | Stan, CPU s until right | ours, CPU s until right | engine | ratio | CPU s per "
        "gradient, Stan | remark |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, steps in FORMS.items():
        for step, forms in steps.items():
            mine = best_of_ours(ours, case, step)
            for form in forms:
                row = stan.get((case, step, form))
                if row is None:
                    continue
                timed = ("cpu_s", "s_per_gradient", "longest_s", "cpu_s_until_right")
                row = row | {key: row[key] * scale for key in timed if row.get(key) is not None}
                cell, cost, remark = stan_until_right(row)
                r_hat = f"{row['r_hat']:.2f}" if "r_hat" in row else ""
                own = ["", "", ""]
                if mine and is_right(mine):
                    own = [seconds(mine["cpu_s"]), mine["engine"], ratio(cost / mine["cpu_s"])]
                elif mine:
                    own = [f"never ({seconds(mine['cpu_s'])}), {mine['error']:.2g} sd off", mine["engine"], ""]
                first = [CASE_NAMES[case], STEP_NAMES[step], f"`{form}`", r_hat, cell]
                cells = [*first, *own, f"{row['s_per_gradient']:.1e}", remark]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def nuts(stan: Results, others: Results, ours: Results, scale: float) -> list[str]:
    lines = [
        "| Case | Step | NUTS of | CPU s, ESS, R-hat | ours (nuts-rs): CPU s, ESS, R-hat | CPU s per gradient | ours | CPU s per effective "
        "draw | ours | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (case, step, asked), mine in ours.items():
        form = FORMS[case][step][-1]
        rows = [(f"Stan, `{form}`", stan.get((case, step, form)), scale)]
        rows += [(name, others.get((case, step, name.lower())), 1.0) for name in ("NumPyro", "nutpie")]
        for name, row, factor in rows:
            if asked != "chains" or row is None or not row["nuts"]:
                continue
            theirs = row["nuts"] | {"cpu_s": row["nuts"]["cpu_s"] * factor}
            sides = [f"{seconds(r['cpu_s'])}, {r['ess']:.0f}, {r['r_hat']:.2f}" for r in (theirs, mine)]
            prices = [r["cpu_s"] / r["ess"] for r in (theirs, mine)]
            bad = max(theirs["r_hat"], mine["r_hat"]) > 1.01
            last = f"{ratio(prices[0] / prices[1])}{' (chains disagree)' if bad else ''}"
            gradient = f"{row['s_per_gradient'] * factor:.1e}" if "s_per_gradient" in row else ""
            gradients = [gradient, f"{mine['cpu_s'] / mine['evaluations']:.1e}"]
            cells = [CASE_NAMES[case], STEP_NAMES[step], name, *sides, *gradients, *[f"{p:.1e}" for p in prices], last]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def engines(ours: Results) -> list[str]:
    lines = [
        "| Case | Step | engine | CPU s | evaluations | right | largest error, sd |",
        "|---|---|---|---|---|---|---|",
    ]
    for (case, step, asked), row in ours.items():
        if asked == "chains":
            continue
        evaluations = "" if row["evaluations"] is None else f"{row['evaluations']:,}"
        right = f"{row['right']} of {row['seeds']}"
        cells = [CASE_NAMES[case], STEP_NAMES[step], row["engine"], seconds(row["cpu_s"]), evaluations, right]
        lines.append(f"| {' | '.join(cells)} | {row['error']:.2g} |")
    return lines


def write(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    stan, ours, machine, scale = load(folder, "stan"), load(folder, "ours"), run["machine"], run["scale"]
    order = {case: i for i, case in enumerate(FORMS)}
    ours = dict(sorted(ours.items(), key=lambda item: (order[item[0][0]], list(STEP_NAMES).index(item[0][1]))))
    scaled = f" Stan's times are of an earlier run, times {scale:.2f} by a calibration." if abs(scale - 1) > 1e-9 else ""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores ({machine['instructions']}), one of them used; pystan {machine['pystan']}, g++ "
        f"{machine['g++']} with `-O3 -march=native`; Rust {machine['rust']}.{scaled}",
        "",
        *peers(stan, ours, scale),
        "",
        "NUTS against NUTS, 4 x (1000 + 1000), both from the exact posterior mean, where even a posterior of several modes is sampled in one:",
        "",
        *nuts(stan, load(folder, "other"), ours, scale),
        "",
        "Every engine of ours:",
        "",
        *engines(ours),
    ]
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    DOCUMENT.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after)
    print("\n".join(lines))
