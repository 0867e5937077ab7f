"""Print the golden numbers of mcmc/diagnostics.rs and mcmc/psis.rs, from ArviZ 0.23 (pip install "arviz==0.23.*").

The data come from the same linear congruential generator as in those tests, by the same double-precision operations in
the same order, so that both sides see the same bits (ratios for PSIS: up to the last digit of the logarithm).
"""

import math

import arviz
import numpy
from arviz.stats.diagnostics import _mcse_quantile


class Uniforms:
    """53 high bits of the 64-bit generator with Knuth's MMIX constants."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) / 2.0**53

    def bell(self):
        """Irwin-Hall: mean 0, variance 1."""
        total = 0.0
        for _ in range(12):
            total += self.next()
        return total - 6.0


def autoregressive(phi, n_chains, length, seed):
    uniforms = Uniforms(seed)
    chains = []
    for _ in range(n_chains):
        x, chain = uniforms.bell(), []
        for _ in range(length):
            x = phi * x + uniforms.bell()
            chain.append(x)
        chains.append(chain)
    return chains


def heavy(n_chains, length, seed):
    uniforms = Uniforms(seed)
    chains = []
    for _ in range(n_chains):
        chain = []
        for _ in range(length):
            numerator = 2.0 * uniforms.next() - 1.0
            chain.append(numerator / uniforms.next())
        chains.append(chain)
    return chains


def stuck():
    chains = autoregressive(0.5, 4, 250, 4)
    chains[3][50:] = [1.5] * 200
    return chains


def diagnostics(name, chains):
    data = numpy.array(chains)
    values = {
        "r_hat": arviz.rhat(data, method="rank"),
        "ess_bulk": arviz.ess(data, method="bulk"),
        "ess_tail": arviz.ess(data, method="tail"),
        "ess_mean": arviz.ess(data, method="mean"),
        "ess_sd": arviz.ess(data, method="sd"),
        "ess_quantile(0.3)": arviz.ess(data, method="quantile", prob=0.3),
        "mcse_mean": arviz.mcse(data, method="mean"),
        "mcse_sd": arviz.mcse(data, method="sd"),
        "mcse_quantile(0.3)": _mcse_quantile(data, 0.3),
        "e_bfmi(chain 0)": arviz.bfmi(data[:1])[0],
    }
    print(name)
    for key, value in values.items():
        print(f"    {float(value)!r}, // {key}")


def smoothing(name, ratios):
    log_weights, k_hat = arviz.psislw(numpy.array(ratios))
    log_weights = numpy.asarray(log_weights)
    print(name)
    print(f"    k_hat {float(k_hat)!r}")
    print(f"    log weights 0, 1 and largest {[float(w) for w in (*log_weights[:2], log_weights.max())]!r}")
    print(f"    sum of squared weights {float(numpy.sum(numpy.exp(2 * log_weights)))!r}")


if __name__ == "__main__":
    print("arviz", arviz.__version__)
    diagnostics("sluggish", autoregressive(0.9, 4, 250, 1))
    diagnostics("antithetic", autoregressive(-0.5, 4, 250, 2))
    diagnostics("heavy", heavy(4, 251, 3))
    diagnostics("stuck", stuck())
    for shape, seed in [(0.3, 5), (0.7, 6), (1.5, 7)]:
        uniforms = Uniforms(seed)
        smoothing(f"shape {shape}", [-shape * math.log(uniforms.next()) for _ in range(500)])
    uniforms = Uniforms(8)
    smoothing("bounded", [-0.5 * uniforms.bell() ** 2 for _ in range(30)])
