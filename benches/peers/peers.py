"""Stan and twostep on the same data: runs both, keeps what was measured and writes the table; README.md says what is measured and how."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import measures
import ours_side
import stan_side
import table
from cases import FORMS, STEPS, Case

RESULTS = Path(__file__).parent / "results"
STANDARD = {"chains": 4, "warmup": 1000, "draws": 1000}
# Draws of each chain of the runs that are tried until one is right.
LENGTHS = [1000, 4000, 16000]
# R-hat up to which a longer run is worth while: above it the chains are in different modes and stay there.
MIXED = 1.05


def keep(name: str, result: dict[str, Any]) -> dict[str, Any]:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def kept(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def begin(case: Case, step: str) -> dict[str, float]:
    return {name: values[0] for name, values in case.exact(step).items()}


class Stan:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.limit, self.members, self.quick = arguments.limit, arguments.members, arguments.quick

    def gradient(self, case: Case, step: str, form: str) -> float:
        """CPU seconds of one gradient, from a short run of one chain from where the posterior is."""
        data, names = case.data(step, form), case.stan_names(step)
        start = None if step == "t-step" else begin(case, step)
        draws = 20
        while True:
            run = stan_side.sample(form, data, names, chains=1, warmup=draws, draws=draws, start=start)
            # CPU time comes in hundredths of a second.
            if run.cpu_s > 0.3 or draws > 3000:
                return run.s_per_gradient
            draws *= 4

    def row(self, case: Case, step: str, form: str, best: dict[str, Any] | None) -> dict[str, Any]:
        """One density by one program. `best` is what the best program of the same density took: where this one would take too long, its
        gradients are counted there and only their price is measured here."""
        out: dict[str, Any] = {"case": case.name, "step": step, "form": form}
        if best is not None:
            price = self.gradient(case, step, form)
            if price * best["gradients"] > self.limit:
                until = best["gradients_until_right"]
                return out | {
                    "s_per_gradient": price,
                    "gradients": best["gradients"],
                    "cpu_s": price * best["gradients"],
                    "gradients_until_right": until,
                    "cpu_s_until_right": None if until is None else price * until,
                    "extrapolated": True,
                    **{key: best[key] for key in ("error", "r_hat", "draws")},
                }
        data, names, exact = case.data(step, form), case.stan_names(step), case.exact(step)
        for length in LENGTHS[:1] if self.quick else LENGTHS:
            run = stan_side.sample(form, data, names, **{**STANDARD, "draws": length})
            ess, r_hat = measures.worst(run.draws)
            n = measures.right_after(run.draws, exact)
            if length == STANDARD["draws"]:
                out |= {
                    "cpu_s": run.cpu_s,
                    "elapsed_s": run.elapsed_s,
                    "gradients": run.all_gradients,
                    "s_per_gradient": run.s_per_gradient,
                    "r_hat": r_hat,
                    "ess": ess,
                    "divergences": run.divergences,
                    "extrapolated": False,
                }
            until = None if n is None else run.gradients_until(n)
            out |= {
                "draws": length if n is None else n,
                "error": measures.error(measures.statistics(run.draws.reshape(-1, len(names))), exact),
                "gradients_until_right": until,
                "cpu_s_until_right": None if until is None else run.s_per_gradient * until,
            }
            longer = run.cpu_s * 4
            if n is not None or r_hat > MIXED or longer > self.limit:
                break
        if step != "t-step":
            # Both samplers from the same place of the same density, so that effective draws can be compared.
            run = stan_side.sample(form, data, names, **STANDARD, start=begin(case, step))
            ess, r_hat = measures.worst(run.draws)
            out["nuts"] = {"cpu_s": run.cpu_s, "gradients": run.all_gradients, "ess": ess, "r_hat": r_hat}
        return out

    def e_post(self, case: Case, form: str) -> dict[str, Any]:
        """A sample of the fits of E-Post, one for each T-draw, at the paper's length."""
        names, exact = case.stan_names("e-post"), case.exact("e-post")
        members = np.random.default_rng(1).permutation(case.n_draws)[: self.members]
        runs, bad = [], 0
        for member in members:
            data = case.data("e-post", form, int(member))
            runs.append(stan_side.sample(form, data, names, chains=4, warmup=1000, draws=250, seed=1 + int(member)))
            bad += measures.worst(runs[-1].draws)[1] > MIXED
        scale = case.n_draws / len(runs)
        gradients, cpu = sum(r.all_gradients for r in runs), sum(r.cpu_s for r in runs)
        out = {
            "case": case.name,
            "step": "e-post",
            "form": form,
            "members": len(runs),
            "bad_members": int(bad),
            "cpu_s": cpu * scale,
            "elapsed_s": sum(r.elapsed_s for r in runs) * scale,
            "gradients": gradients * scale,
            "s_per_gradient": cpu / gradients,
            "extrapolated": len(runs) < case.n_draws,
        }
        if len(runs) == case.n_draws:
            draws = np.concatenate([r.draws.reshape(-1, len(names)) for r in runs])
            out["error"] = measures.error(measures.statistics(draws), exact)
        return out

    def calibration(self) -> float:
        """CPU seconds of a fixed piece of Stan's work, by which times of two runs of this program are compared."""
        case = Case("sir")
        form = "i_sir_polynomial"
        data, names = case.data("e-lik", form), case.stan_names("e-lik")
        run = stan_side.sample(form, data, names, chains=1, warmup=200, draws=200, start=begin(case, "e-lik"))
        return run.s_per_gradient


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": str(info.count("processor\t:") or "?"),
        "instructions": ", ".join(i for i in ("avx2", "fma", "avx512f") if i in flags) or platform.machine(),
        "rust": rustc,
        "g++": compiler,
        **stan_side.versions(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benches/peers/run", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--quick", action="store_true", help="standard lengths only and four members of E-Post, to try it")
    parser.add_argument("--members", type=int, default=20, help="fits of E-Post that Stan makes, of 1000 (default 20)")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds of the longest run of Stan (default 60)")
    parser.add_argument("--missing", action="store_true", help="run only what no earlier run has left")
    parser.add_argument("--ours", action="store_true", help="take Stan's times from an earlier run, scaled by a calibration")
    parser.add_argument("--table", action="store_true", help="run nothing, write the table anew")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.members, arguments.limit = min(arguments.members, 4), min(arguments.limit, 10.0)
    plan = [(case, step) for case in arguments.cases for step in arguments.steps]
    if not arguments.table:
        ours_side.program()
        measured = stan_measured(arguments, plan)
        ours_measured(plan, only_missing=arguments.missing and not measured)
    table.write(RESULTS)


def stan_measured(arguments: argparse.Namespace, plan: list[tuple[str, str]]) -> bool:
    """Stan's side of the plan; whether anything was run."""
    stan, ran = Stan(arguments), False
    calibration = stan.calibration()
    earlier = kept("run")
    if arguments.ours or arguments.missing:
        if earlier is None:
            raise SystemExit("no earlier results of Stan; run once without --ours and --missing")
        keep("run", earlier | {"scale": calibration / earlier["calibration"]})
    else:
        keep("run", {"machine": machine(), "calibration": calibration, "scale": 1.0})
    if arguments.ours:
        return False
    for name, step in plan:
        case, best = Case(name), None
        for form in reversed(FORMS[name][step]):
            file = f"stan-{name}-{step}-{form.replace(':', '-')}"
            result = kept(file) if arguments.missing else None
            if result is None:
                print(f"Stan: {name} {step} {form}", flush=True)
                result = stan.e_post(case, form) if step == "e-post" else stan.row(case, step, form, best)
                keep(file, result)
                ran = True
            # T-step programs of one posterior have different parameters, so that their gradients do not count for each other.
            best = best or (None if step in ("t-step", "e-post") else result)
    return ran


def ours_measured(plan: list[tuple[str, str]], only_missing: bool) -> None:
    for name, step in plan:
        engines = ["auto", "nuts"] if step == "t-step" else ["grid", "smc", "nuts"]
        if step in ("point", "e-log-lik", "e-lik"):
            engines.append("chains")
        for engine in engines:
            file = f"ours-{name}-{step}-{engine}"
            if only_missing and kept(file) is not None:
                continue
            print(f"ours: {name} {step} {engine}", flush=True)
            keep(file, ours_side.measure(Case(name), step, engine))


if __name__ == "__main__":
    main()
