"""NumPyro's and nutpie's NUTS on two densities of the SIR study, E-Lik and Point, in the form of one polynomial per T-draw.

A process of its own: `python jax_side.py numpyro|nutpie e-lik|point` prints what was measured as JSON. CPU time is that of the second of two equal
runs, so that compiling does not count.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np

import measures
from cases import Case

jax.config.update("jax_enable_x64", True)
CHAINS, WARMUP, DRAWS = 4, 1000, 1000
Measured = tuple[np.ndarray, float]


def likelihood(data: dict[str, Any]) -> Callable[[Any, Any, Any], Any]:
    """Log-likelihood of beta, gamma and sigma_i."""
    q, log_weight = jnp.array(data["Q"]), jnp.log(jnp.array(data["weight"]))
    beta_degree, gamma_degree = jnp.array(data["beta_degree"]) - 1, jnp.array(data["gamma_degree"]) - 1

    def legendre(x: Any) -> Any:
        p = [jnp.ones_like(x), x]
        for j in range(2, 9):
            p.append(((2 * j - 1) * x * p[-1] - (j - 1) * p[-2]) / j)
        return jnp.stack(p)

    def log_likelihood(beta: Any, gamma: Any, sigma_i: Any) -> Any:
        r = q @ (legendre(beta - 2)[beta_degree] * legendre((gamma - 0.5) / 0.4)[gamma_degree])
        pooled = jax.scipy.special.logsumexp(log_weight - 0.5 / sigma_i**2 * r)
        return -data["n"] * jnp.log(sigma_i) + pooled

    return log_likelihood


def by_numpyro(data: dict[str, Any], start: dict[str, float]) -> Measured:
    import numpyro
    from numpyro import distributions, infer

    log_likelihood = likelihood(data)

    def model() -> None:
        beta = numpyro.sample("beta", distributions.TruncatedNormal(2, 0.5, low=1, high=3))
        gamma = numpyro.sample("gamma", distributions.TruncatedNormal(0.5, 0.25, low=0.1, high=0.9))
        sigma_i = numpyro.sample("sigma_i", distributions.HalfNormal(0.5))
        numpyro.factor("likelihood", log_likelihood(beta, gamma, sigma_i))

    kernel = infer.NUTS(model, init_strategy=infer.init_to_value(values=start))
    # Chains in step: half the time of one after the other.
    settings = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = infer.MCMC(kernel, num_warmup=WARMUP, num_samples=DRAWS, **settings)
    for seed in (1, 2):
        before = time.process_time()
        mcmc.run(jax.random.PRNGKey(seed))
        cpu = time.process_time() - before
    chains = mcmc.get_samples(group_by_chain=True)
    return np.stack([np.asarray(chains[name]) for name in start], axis=-1), cpu


def by_nutpie(data: dict[str, Any], start: dict[str, float]) -> Measured:
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    log_likelihood = likelihood(data)

    def natural(z: Any) -> tuple[Any, Any, Any]:
        return 1 + 2 * jax.nn.sigmoid(z[0]), 0.1 + 0.8 * jax.nn.sigmoid(z[1]), jnp.exp(z[2])

    def log_density(z: Any) -> Any:
        beta, gamma, sigma_i = natural(z)
        prior = -2 * (beta - 2) ** 2 - 8 * (gamma - 0.5) ** 2 - 2 * sigma_i**2
        jacobian = z[2] + jnp.sum(jax.nn.log_sigmoid(z[:2]) + jax.nn.log_sigmoid(-z[:2]))
        return prior + jacobian + log_likelihood(beta, gamma, sigma_i)

    both, jitted = jax.jit(jax.value_and_grad(log_density)), jax.jit(natural)

    def logp(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = both(z)
        return float(value), np.asarray(gradient)

    def expand(z: np.ndarray) -> dict[str, np.ndarray]:
        return {name: np.array(value, dtype=np.float64) for name, value in zip(start, jitted(z))}

    unit = (np.array([start["beta"], start["gamma"]]) - [1, 0.1]) / [2, 0.8]
    begin = np.array([*np.log(unit / (1 - unit)), np.log(start["sigma_i"])])
    model = from_pyfunc(
        3,
        lambda: logp,
        lambda *_: expand,
        [np.dtype("float64")] * 3,
        [()] * 3,
        list(start),
        make_initial_point_fn=lambda _: begin,
    )
    for seed in (1, 2):
        before = time.process_time()
        trace = nutpie.sample(model, draws=DRAWS, tune=WARMUP, chains=CHAINS, cores=1, seed=seed, progress_bar=False)
        cpu = time.process_time() - before
    return np.stack([trace.posterior[name].values for name in start], axis=-1), cpu


def main() -> None:
    sampler, step = sys.argv[1:]
    case = Case("sir")
    start = {name: values[0] for name, values in case.exact(step).items()}
    run = {"numpyro": by_numpyro, "nutpie": by_nutpie}[sampler]
    draws, cpu = run(case.data(step, "i_sir_polynomial"), start)
    ess, r_hat = measures.worst(draws)
    nuts = {"cpu_s": cpu, "ess": ess, "r_hat": r_hat}
    print(json.dumps({"case": "sir", "step": step, "form": sampler, "nuts": nuts}))


if __name__ == "__main__":
    main()
