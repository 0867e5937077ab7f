"""What a user of `twostep serve` does from Python: `serve_client.py URL SUMMARY`."""

import json
import math
import sys

import umbridge

url, summary = sys.argv[1:]
with open(summary) as file:
    answer = json.load(file)["settings"][0]["methods"]["e-lik"]["unknowns"]["gamma"]

assert umbridge.supported_models(url) == ["forward", "posterior"]
forward, posterior = (umbridge.HTTPModel(url, name) for name in ["forward", "posterior"])
assert (forward.get_input_sizes(), forward.get_output_sizes()) == ([2], [1])
assert (posterior.get_input_sizes(), posterior.get_output_sizes()) == ([1], [1])
for model in [forward, posterior]:
    assert model.supports_evaluate() and model.supports_gradient() and model.supports_apply_jacobian()
    assert not model.supports_apply_hessian()

# Truncation h^2 and rounding eps/h balance at h = eps^(1/3); the truncation error is a third of the gap to twice the step.
h = sys.float_info.epsilon ** (1 / 3)
for model, at in [(forward, [0.1, 0.4]), (posterior, [0.1])]:
    gradient = model.gradient(0, 0, [at], [1.0])
    for d in range(len(at)):
        def value(step):
            return model([[x + step * (e == d) for e, x in enumerate(at)]])[0][0]

        near, far = ((value(k * h) - value(-k * h)) / (2 * k * h) for k in [1, 2])
        bound = abs(near - far) + 1000 * sys.float_info.epsilon * max(1, abs(value(0))) / h
        assert abs(gradient[d] - near) <= bound, (model.name, d, gradient[d], near, bound)
        unit = [float(e == d) for e in range(len(at))]
        assert model.apply_jacobian(0, 0, [at], unit) == [gradient[d]]


def refused(call, kind):
    try:
        call()
    except Exception as error:
        assert f"error of type {kind}" in str(error), error
    else:
        raise AssertionError(f"no {kind}")


refused(lambda: forward([[0.1]]), "InvalidInput")
refused(lambda: forward([[0.1, 0.2], [0.3]]), "InvalidInput")
refused(lambda: forward([[0.1, 7.0]]), "InvalidInput")
refused(lambda: posterior([[0.7]]), "InvalidInput")
refused(lambda: posterior.gradient(0, 0, [[0.1]], [1.0, 2.0]), "InvalidInput")
assert posterior([[0.7]], {"outside": -1e300}) == [[-1e300]]
assert forward([[0.1, 0.4]], {"draw": 3}) != forward([[0.1, 0.4]])


def moments(n):
    """Total, mean and sd over n midpoints of the range."""
    nodes = [-0.5 + (i + 0.5) / n for i in range(n)]
    mass = [math.exp(posterior([[x]])[0][0]) / n for x in nodes]
    mean = sum(m * x for m, x in zip(mass, nodes)) / sum(mass)
    return sum(mass), mean, math.sqrt(sum(m * (x - mean) ** 2 for m, x in zip(mass, nodes)) / sum(mass))


coarse, fine = moments(100), moments(200)
sd = answer["sd"]
for found, before, expected, scale in zip(fine, coarse, [1.0, answer["mean"], sd], [1.0, sd, sd]):
    # The engine aims at a stated error of 0.001 sd.
    bound = abs(found - before) + 1e-3 * scale
    assert abs(found - expected) <= bound, (found, expected, bound)
print("served")
