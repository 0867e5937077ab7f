"""Stan's side: programs built for this machine, and runs of one chain at a time with their CPU time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import subprocess
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpstan.cache
import httpstan.models
import httpstan.services_stub
import numpy as np
import psutil
import stan

PROGRAMS = Path(__file__).parent / "stan"
# The instruction set of this machine, as ours is used by runtime dispatch.
FLAGS = ["-O3", "-std=c++14", "-march=native", "-w"]
PACKAGE = Path(httpstan.__file__).parent

# One process, so that chains follow each other and their CPU time is that of one process.
httpstan.services_stub.executor = concurrent.futures.ProcessPoolExecutor(
    1, mp_context=multiprocessing.get_context("fork"), initializer=httpstan.services_stub.init_worker
)


@dataclass
class Run:
    """Draws after warm-up (chains x draws x unknowns), gradients of the warm-up and of each draw (chains), CPU and Stan's own seconds."""

    draws: np.ndarray
    warmup_gradients: np.ndarray
    gradients: np.ndarray
    cpu_s: float
    elapsed_s: float
    divergences: int

    @property
    def all_gradients(self) -> float:
        return float(self.warmup_gradients.sum() + self.gradients.sum())

    @property
    def s_per_gradient(self) -> float:
        return self.cpu_s / self.all_gradients

    def gradients_until(self, n: int) -> float:
        """Gradients of the warm-up and of the first n draws of each chain."""
        return float(self.warmup_gradients.sum() + self.gradients[:, :n].sum())


def _source(form: str) -> str:
    return (PROGRAMS / f"{form.split(':')[0]}.stan").read_text()


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("pystan", "httpstan", "numpy")}


def _native_services() -> None:
    """Compiles the sampler, too, for this machine: it comes compiled for any, and parts that align differently do not go together."""
    finished = PACKAGE / "native.txt"
    if finished.exists():
        return
    macros = ["NDEBUG", "BOOST_DISABLE_ASSERTS", "BOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "STAN_THREADS", "_REENTRANT"]
    includes = [PACKAGE / "include", PACKAGE, sysconfig.get_path("include")]
    command = ["g++", "-fPIC", *FLAGS, *[f"-D{macro}" for macro in macros], "-D_GLIBCXX_USE_CXX11_ABI=0"]
    command += [*[f"-I{include}" for include in includes], "-c", "stan_services.cpp", "-o", "stan_services.o"]
    subprocess.run(command, cwd=PACKAGE, check=True)
    finished.write_text(" ".join(FLAGS) + "\n")


def build(form: str) -> None:
    """Compiles a program unless that was done before."""
    source = _source(form)
    name = httpstan.models.calculate_model_name(source)
    finished = httpstan.cache.model_directory(name) / "stderr.log"
    if not finished.exists():
        print(f"Stan: compiles {form}", flush=True)
        _native_services()
        messages = asyncio.run(httpstan.models.build_services_extension_module(source, FLAGS))
        httpstan.cache.dump_stanc_warnings("", name)
        httpstan.cache.dump_services_extension_module_compiler_output(messages, name)


def _worker_cpu() -> float:
    children = psutil.Process().children(recursive=True)
    return sum(sum(child.cpu_times()[:2]) for child in children)


def _elapsed(output: bytes) -> float:
    """Stan's own account of a chain: `Elapsed Time: 0.4 seconds (Warm-up)` and what follows."""
    for line in output.splitlines():
        message = json.loads(line)
        if message["topic"] == "logger" and "(Total)" in str(message["values"]):
            return float(str(message["values"][0]).split("seconds")[0].split()[-1])
    return float("nan")


def sample(
    form: str,
    data: dict[str, Any],
    names: list[str],
    *,
    chains: int = 4,
    warmup: int = 1000,
    draws: int = 1000,
    seed: int = 1,
    start: dict[str, Any] | None = None,
) -> Run:
    build(form)
    init = {} if start is None else {"init": [start] * chains}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        model = stan.build(_source(form), data=data, random_seed=seed)
        if not psutil.Process().children():
            # The worker exists from its first run on, which is not to be measured.
            model.sample(num_chains=1, num_warmup=10, num_samples=10)
        before = _worker_cpu()
        fit = model.sample(num_chains=chains, num_warmup=warmup, num_samples=draws, save_warmup=True, **init)
        cpu = _worker_cpu() - before
    rows = [*fit.sample_and_sampler_param_names, *fit.constrained_param_names]
    values = fit._draws  # rows x (warm-up and draws) x chains
    steps = values[rows.index("n_leapfrog__")].T
    diverging = values[rows.index("divergent__")][warmup:]
    return Run(
        draws=np.stack([values[rows.index(name), warmup:] for name in names], axis=-1).transpose(1, 0, 2),
        warmup_gradients=steps[:, :warmup].sum(1),
        gradients=steps[:, warmup:],
        cpu_s=cpu,
        elapsed_s=sum(_elapsed(output) for output in fit.stan_outputs),
        divergences=int(diverging.sum()),
    )
