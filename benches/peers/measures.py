"""What is measured of draws: errors in sds of the exact answer, effective draws, R-hat, and when an answer is right."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

# Largest error of mean, sd, 5 % and 95 % quantile of an unknown, in its exact sds, of an answer that counts as right.
RIGHT = 0.05

Exact = dict[str, tuple[float, float, float, float]]


def statistics(values: np.ndarray) -> np.ndarray:
    """Mean, sd, 5 % and 95 % quantile over the first axis."""
    return np.stack([values.mean(0), values.std(0, ddof=1), *np.quantile(values, [0.05, 0.95], axis=0)])


def error(found: np.ndarray, exact: Exact) -> float:
    """Largest error of `found` (4 statistics x unknowns) in sds."""
    reference = np.array(list(exact.values())).T
    return float(np.max(np.abs(found - reference) / reference[1]))


def _autocovariance(x: np.ndarray) -> np.ndarray:
    """Autocovariances of each chain (rows) at all lags."""
    n = x.shape[1]
    centred = x - x.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * n, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :n] / n


def _split(x: np.ndarray) -> np.ndarray:
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _ranked(x: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks over all chains; ties share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    score = np.array([NormalDist().inv_cdf(p) for p in (mean_rank - 0.375) / (x.size + 0.25)])
    return score[inverse.reshape(x.shape)]


def _r_hat(x: np.ndarray) -> float:
    n = x.shape[1]
    within = x.var(1, ddof=1).mean()
    between = n * x.mean(1).var(ddof=1)
    return float(np.sqrt((n - 1) / n + between / within / n)) if within > 0 else float("inf")


def r_hat(chains: np.ndarray) -> float:
    """Rank-normalised split R-hat [Vehtari 2021] of one unknown, chains x draws."""
    x = _split(chains)
    return max(_r_hat(_ranked(x)), _r_hat(_ranked(np.abs(x - np.median(x)))))


def ess_bulk(chains: np.ndarray) -> float:
    """Rank-normalised effective draws [Vehtari 2021] of one unknown, chains x draws."""
    x = _ranked(_split(chains))
    m, n = x.shape
    covariance = _autocovariance(x)
    within = covariance[:, 0].mean() * n / (n - 1)
    total = within * (n - 1) / n + x.mean(1).var(ddof=1)
    if total == 0:
        return float("nan")
    rho = 1 - (within - covariance.mean(0) * n / (n - 1)) / total
    rho[0] = 1
    # Sums of neighbouring pairs are positive and fall [Geyer 1992].
    pairs = rho[: n // 2 * 2].reshape(-1, 2).sum(1)
    last = int(np.argmax(pairs < 0)) if np.any(pairs < 0) else len(pairs)
    pairs = np.minimum.accumulate(pairs[: max(last, 1)])
    time = -1 + 2 * pairs.sum()
    return float(m * n / max(time, 1 / np.log10(m * n)))


def worst(draws: np.ndarray) -> tuple[float, float]:
    """Smallest bulk ESS and largest R-hat over the unknowns of chains x draws x unknowns."""
    unknowns = range(draws.shape[2])
    return min(ess_bulk(draws[:, :, d]) for d in unknowns), max(r_hat(draws[:, :, d]) for d in unknowns)


def right_after(draws: np.ndarray, exact: Exact) -> int | None:
    """Draws of each chain after which the answer is right and stays so to the end of the run (chains x draws x unknowns), which it must
    for the last fifth at least."""
    n = draws.shape[1]
    lengths = sorted({int(round(n * 1.05**-k)) for k in range(200)} & set(range(20, n + 1)))
    found = None
    for length in reversed(lengths):
        if error(statistics(draws[:, :length].reshape(-1, draws.shape[2])), exact) > RIGHT:
            break
        found = length
    return found if found is not None and found <= 0.8 * n else None
