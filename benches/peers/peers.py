"""Stan and twostep on the same data: runs both, keeps what was measured and writes the table; README.md says what is measured and how."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
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
        self.limit, self.members = arguments.limit, arguments.members
        self.seeds, self.lengths = (1, LENGTHS[:1]) if arguments.quick else (arguments.seeds, LENGTHS)

    def price(self, case: Case, step: str, form: str) -> float:
        """CPU seconds of one gradient, from a short run of one chain from where the posterior is."""
        data, names = case.data(step, form), case.stan_names(step)
        draws = 20
        while True:
            run = stan_side.sample(form, data, names, chains=1, warmup=draws, draws=draws, start=begin(case, step))
            # CPU time comes in hundredths of a second.
            if run.cpu_s > 0.3 or draws > 3000:
                return run.s_per_gradient
            draws *= 4

    def extrapolated(self, case: Case, step: str, form: str, best: dict[str, Any]) -> dict[str, Any]:
        """Another program of a density: it takes the gradients of the best one at a price of its own."""
        price = self.price(case, step, form)
        factor = price / best["s_per_gradient"]
        scaled = {key: best[key] and best[key] * factor for key in ("cpu_s", "longest_s", "cpu_s_until_right")}
        return {**best, "form": form, "s_per_gradient": price, "extrapolated": True, **scaled, "nuts": None}

    def until_right(self, case: Case, step: str, form: str, seed: int) -> dict[str, Any]:
        """Runs of growing length until one is right, or a longer one would not help or take too long."""
        data, names, exact = case.data(step, form), case.stan_names(step), case.exact(step)
        out: dict[str, Any] = {}
        for length in self.lengths:
            run = stan_side.sample(form, data, names, **{**STANDARD, "draws": length}, seed=seed)
            ess, r_hat = measures.worst(run.draws)
            n = measures.right_after(run.draws, exact)
            if length == STANDARD["draws"]:
                out = {"cpu_s": run.cpu_s, "elapsed_s": run.elapsed_s, "gradients": run.all_gradients, "r_hat": r_hat, "ess": ess}
            out |= {
                "draws": length,
                "longest_s": run.cpu_s,
                "error": measures.error(measures.statistics(run.draws.reshape(-1, len(names))), exact),
                "until_right_s": None if n is None else run.s_per_gradient * run.gradients_until(n),
            }
            if n is not None or r_hat > MIXED or run.cpu_s * 4 > self.limit:
                break
        return out

    def row(self, case: Case, step: str, form: str) -> dict[str, Any]:
        """One density by its best program."""
        runs: list[dict[str, Any]] = []
        for seed in range(1, self.seeds + 1):
            if sum(run["longest_s"] for run in runs) < self.limit / 2:
                runs.append(self.until_right(case, step, form, seed))
        right = [run["until_right_s"] for run in runs if run["until_right_s"] is not None]
        # A seed that did not come right takes longer than those that did.
        usual = sorted(right)[(len(runs) - 1) // 2] if 2 * len(right) > len(runs) else None
        worst = max(runs, key=lambda run: run["error"])
        out = {
            "case": case.name,
            "step": step,
            "form": form,
            "cpu_s": median(run["cpu_s"] for run in runs),
            "longest_s": median(run["longest_s"] for run in runs),
            "cpu_s_until_right": usual,
            "right": len(right),
            "seeds": len(runs),
            "s_per_gradient": sum(run["cpu_s"] for run in runs) / sum(run["gradients"] for run in runs),
            "r_hat": max(run["r_hat"] for run in runs),
            "error": worst["error"],
            "draws": worst["draws"],
            "extrapolated": False,
            "runs": runs,
            "nuts": None,
        }
        if step != "t-step":
            # Both samplers from the same place of the same density, so that effective draws can be compared.
            data, names, nuts = case.data(step, form), case.stan_names(step), []
            for seed in range(1, len(runs) + 1):
                run = stan_side.sample(form, data, names, **STANDARD, seed=seed, start=begin(case, step))
                nuts.append((run.cpu_s, *measures.worst(run.draws)))
            cpu, ess, r_hat = np.array(nuts).T
            out["nuts"] = {"cpu_s": float(np.median(cpu)), "ess": float(np.median(ess)), "r_hat": float(r_hat.max())}
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
        run = stan_side.sample(form, data, names, chains=1, warmup=200, draws=5000, start=begin(case, "e-lik"))
        return run.s_per_gradient


def jax_measured(sampler: str, step: str) -> dict[str, Any]:
    """NUTS of another package, installed at its first use, in a process of its own."""
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "jax", sampler], check=True)
    command = [sys.executable, here / "jax_side.py", sampler, step]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


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
    parser.add_argument("--quick", action="store_true", help="one seed, standard length and four members of E-Post, to try it")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of Stan where a run is short (default 3)")
    parser.add_argument("--members", type=int, default=20, help="fits of E-Post that Stan makes, of 1000 (default 20)")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds of the longest run of Stan (default 60)")
    parser.add_argument("--missing", action="store_true", help="run only what no earlier run has left")
    parser.add_argument("--ours", action="store_true", help="take Stan's times from an earlier run, scaled by a calibration")
    parser.add_argument("--numpyro", action="store_true", help="also NUTS of NumPyro, on two densities of SIR")
    parser.add_argument("--nutpie", action="store_true", help="also NUTS of nutpie, on two densities of SIR")
    parser.add_argument("--table", action="store_true", help="run nothing, write the table anew")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.members = min(arguments.members, 4)
    plan = [(case, step) for case in arguments.cases for step in arguments.steps]
    if not arguments.table:
        ours_side.program()
        measured = stan_measured(arguments, plan)
        ours_measured(plan, only_missing=arguments.missing and not measured)
    table.write(RESULTS)


def stan_measured(arguments: argparse.Namespace, plan: list[tuple[str, str]]) -> bool:
    """Stan's side of the plan; whether anything was run."""
    stan, ran = Stan(arguments), False
    calibration, earlier = stan.calibration(), kept("run")
    if arguments.ours:
        if earlier is None:
            raise SystemExit("no earlier results of Stan; run once without --ours")
        keep("run", earlier | {"scale": calibration / earlier["calibration"]})
        return False
    if not arguments.missing or earlier is None:
        keep("run", {"machine": machine(), "calibration": calibration, "scale": 1.0})
    for name, step in plan:
        case, best = Case(name), None
        for form in reversed(FORMS[name][step]):
            file = f"stan-{name}-{step}-{form.replace(':', '-')}"
            result = kept(file) if arguments.missing else None
            if result is None:
                print(f"Stan: {name} {step} {form}", flush=True)
                if step == "e-post":
                    result = stan.e_post(case, form)
                elif step == "t-step" or best is None:
                    # Programs of the T-step differ in their parameters, so that the gradients of one do not count for another.
                    result = stan.row(case, step, form)
                else:
                    result = stan.extrapolated(case, step, form, best)
                keep(file, result)
                ran = True
            best = best or result
    for sampler in [name for name in ("numpyro", "nutpie") if getattr(arguments, name)]:
        for step in [step for name, step in plan if name == "sir" and step in ("point", "e-lik")]:
            file = f"other-{sampler}-{step}"
            if not arguments.missing or kept(file) is None:
                print(f"{sampler}: sir {step}", flush=True)
                keep(file, jax_measured(sampler, step))
    return ran


def ours_measured(plan: list[tuple[str, str]], only_missing: bool) -> None:
    for name, step in plan:
        engines = ["auto", "nuts"] if step == "t-step" else ["grid", ours_side.ROUGH_GRID, "smc", "nuts"]
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
