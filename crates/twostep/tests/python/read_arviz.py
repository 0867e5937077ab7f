"""Opens the netCDF files in a folder with ArviZ and netCDF4 and checks them against expected.json, which tests/arviz.rs writes."""

import json
import pathlib
import sys
import warnings

import matplotlib

matplotlib.use("Agg")
import arviz as az
import matplotlib.pyplot as plt
import netCDF4
import numpy as np
from scipy.stats import norm

# Groups that the schema of ArviZ 0.23 does not know, and diagnostics of chains that are short on purpose.
warnings.simplefilter("ignore")
EPS = np.finfo(float).eps
# ArviZ sums autocovariances by Fourier transform, twostep directly: as in the golden test of the diagnostics.
ROUNDING = 1e-9


def attribute(dataset, name):
    return dataset.attrs[name]


def check_answer(folder, expected):
    path = folder / expected["file"]
    chains, draws = expected["chains"], expected["draws"]
    idata = az.from_netcdf(path)
    other = az.from_netcdf(path, engine="netcdf4")
    assert set(idata.groups()) == set(other.groups())
    for group in idata.groups():
        assert idata[group].equals(other[group]), group
        attrs = idata[group].attrs
        assert attrs["inference_library"] == "twostep", attrs
        for key in ["method", "engine", "study", "study_hash"]:
            assert attrs[key] == expected[key], (key, attrs[key])
        assert attrs["inference_library_version"] and attrs["created_at"].endswith("+00:00")
        for name, coordinate in idata[group].coords.items():
            assert coordinate.dtype == np.int64, (group, name, coordinate.dtype)

    posterior = idata.posterior
    names = [unknown["name"] for unknown in expected["unknowns"]]
    assert list(posterior.data_vars) == names, list(posterior.data_vars)
    for name in names:
        assert posterior[name].dims == ("chain", "draw") and posterior[name].dtype == np.float64
        assert posterior[name].shape == (chains, draws)
    assert posterior[names[0]].attrs["units"] == "m"

    summary = az.summary(idata, round_to="none")
    # Every comparison below with a Monte Carlo error: a false alarm in 10,000 seeds.
    z = norm.isf(1e-4 / (2 * 2 * len(names)))
    for unknown in expected["unknowns"]:
        name = unknown["name"]
        assert posterior[name].attrs["long_name"] == unknown["long_name"]
        for key, ours in unknown["summary"].items():
            if chains == 1 and key == "r_hat":
                continue
            theirs = summary.loc[name, key]
            assert abs(theirs - ours) <= ROUNDING * abs(ours), (name, key, theirs, ours)
        # Moments that the engine knows, exactly from a grid, against those of the draws.
        exact = unknown["exact"]
        error = (exact["quadrature_error"] or 0.0) * exact["sd"]
        mcse = np.hypot(summary.loc[name, "mcse_mean"], exact["mcse_mean"] or 0.0)
        assert abs(summary.loc[name, "mean"] - exact["mean"]) <= z * mcse + error, (name, "mean")
        mcse = np.hypot(summary.loc[name, "mcse_sd"], exact["mcse_sd"] or 0.0)
        assert abs(summary.loc[name, "sd"] - exact["sd"]) <= z * mcse + error, (name, "sd")
        # The curve is a density with that mean: trapezoids between points that are right to six digits, straight lines to
        # 5e-4 of the highest, and tails of 5e-4 cut off.
        x, density = np.array(exact["curve"]).T
        width = x[-1] - x[0]
        assert abs(np.trapezoid(density, x) - 1) <= 5e-4 * density.max() * width + 1e-5
        slack = 5e-4 * density.max() * width * width + 2 * 5e-4 * width + 4 * error
        assert abs(np.trapezoid(x * density, x) - exact["mean"]) <= slack, (name, "curve")

    if expected["has_transitions"]:
        stats = idata.sample_stats
        assert stats.diverging.dtype == bool and int(stats.diverging.sum()) == expected["divergences"]
        for name in ["tree_depth", "n_steps"]:
            assert stats[name].dtype == np.int64 and (stats[name] >= 0).all()
        for name in ["lp", "energy", "acceptance_rate", "step_size"]:
            assert stats[name].dtype == np.float64 and stats[name].shape == (chains, draws)
        assert (stats.energy > -stats.lp).all(), "kinetic energy is positive"
        assert np.isfinite(az.bfmi(idata)).all()

    observed, likelihood, predicted = idata.observed_data, idata.log_likelihood, idata.posterior_predictive
    for output, n in [("h", 12), ("level", 2)]:
        assert observed[output].dims == (f"obs_{output}",) and observed[output].shape == (n,)
        for group in [likelihood, predicted]:
            assert group[output].dims == ("chain", "draw", f"obs_{output}"), group[output].dims
            assert np.isfinite(group[output]).all()
    assert np.allclose(idata.constant_data["h_t"], [0.4 * (k % 6) for k in range(12)], rtol=2 * EPS)
    step = int(likelihood.draw[1] - likelihood.draw[0])
    assert (step > 1) == ("thinned" in likelihood.attrs)
    # Predictions by the same pairs: what is measured lies among them.
    middle = predicted["h"].median(("chain", "draw"))
    assert np.corrcoef(middle, observed["h"])[0, 1] > 0.5

    if expected["has_own_t_draws"] and not expected["has_transitions"]:
        # The log density is prior plus log-likelihoods: uniform unknowns on unit intervals, a half-normal sd.
        kept = idata.sel(draw=likelihood.draw)
        sd = kept.posterior["sigma_i_h"]
        prior = np.log(2.0) + norm.logpdf(sd, scale=0.5)
        parts = [likelihood["h"], likelihood["level"]]
        total = prior + sum(part.sum(part.dims[-1]) for part in parts)
        size = abs(prior) + sum(abs(part).sum(part.dims[-1]) for part in parts)
        # Residuals of the surrogate, which two orders of summation round apart, enter squared over the sd.
        slack = 1e4 * EPS * (1 + size) / np.minimum(sd, 0.1) ** 2
        assert (abs(kept.sample_stats.lp - total) <= slack).all(), float(abs(kept.sample_stats.lp - total).max())

    prior = idata.prior
    assert list(prior.data_vars) == names and prior.sizes["chain"] == 1
    n = prior.sizes["draw"]
    assert n == min(chains * draws, 4000)
    for name in names[:2]:
        values = prior[name].values
        assert values.min() >= 0 and values.max() <= 1
        assert abs(values.mean() - 0.5) <= z * np.sqrt(1 / 12 / n), name
    assert np.array_equal(prior["twice"], 2 * prior[names[1]])

    for output in ["h", "level"]:
        assert np.isfinite(az.loo(idata, var_name=output).elpd_loo)
    az.plot_ppc(idata, num_pp_samples=20)
    az.plot_trace(idata)
    az.plot_dist_comparison(idata, var_names=names[:1])
    plt.close("all")

    with netCDF4.Dataset(path) as file:
        assert set(file.groups) == set(idata.groups())
        for group in file.groups.values():
            for dimension in group.dimensions:
                assert group[dimension].dtype == np.int64
        for name in names:
            read = file["posterior"][name]
            assert read.dimensions == ("chain", "draw")
            assert np.array_equal(read[:], posterior[name].values)


def check_calibration(folder, expected):
    for engine in ["h5netcdf", "netcdf4"]:
        sbc = az.from_netcdf(folder / expected["file"], engine=engine)["prior_sbc"]
        rows = np.array(expected["rows"])
        assert list(sbc.data_vars) == ["omega"] and sbc["omega"].dims == ("chain", "draw")
        assert sbc.sizes["chain"] == 1 and sbc.attrs["method"] == expected["method"]
        assert np.array_equal(sbc["omega"].values[0], rows[:, 2])
        assert np.array_equal(sbc.t_trial, rows[:, 0]) and np.array_equal(sbc.i_trial, rows[:, 1])
        assert ((sbc["omega"] >= 0) & (sbc["omega"] <= 1)).all()
    az.plot_ecdf(sbc["omega"].values.ravel(), cdf=lambda x: x, eval_points=np.linspace(0, 1, 11))
    plt.close("all")
    with netCDF4.Dataset(folder / expected["file"]) as file:
        assert set(file.groups) == {"prior_sbc"}


def main():
    folder = pathlib.Path(sys.argv[1])
    expected = json.loads((folder / "expected.json").read_text())
    for answer in expected.get("answers", []):
        check_answer(folder, answer)
    for calibration in expected.get("calibrations", []):
        check_calibration(folder, calibration)


main()
