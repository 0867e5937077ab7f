"""UM-Bridge models that behave as models do, on a loopback port: `umbridge_server.py PORT`."""

import sys
import time

import numpy as np
import umbridge
from umbridge import um


class Function(umbridge.Model):
    """`function` of the input vectors and the configuration."""

    def __init__(self, name, inputs, outputs, function):
        super().__init__(name)
        self.inputs, self.outputs, self.function = inputs, outputs, function

    def get_input_sizes(self, config):
        return self.inputs

    def get_output_sizes(self, config):
        return self.outputs

    def __call__(self, parameters, config):
        return self.function(parameters, config)

    def supports_evaluate(self):
        return True


def fail(parameters, config):
    raise ValueError("the depth is negative")


def slow(parameters, config):
    time.sleep(config["seconds"])
    return parameters


def scaled(parameters, config):
    return [[config.get("scale", 1.0) * sum(x) for x in parameters], [parameters[0][0] ** t for t in range(4)]]


MODELS = [
    Function("scaled", [2, 1], [2, 4], scaled),
    Function("numpy", [2], [1], lambda x, c: [[np.float64(x[0][0]) + x[0][1]]]),
    Function("fail", [1], [1], fail),
    Function("nan", [1], [1], lambda x, c: [[float("nan")]]),
    Function("inf", [1], [1], lambda x, c: [[-float("inf")]]),
    Function("gaps", [1], [3], lambda x, c: [[x[0][0], float("nan"), float("inf")]]),
    Function("short", [1], [2], lambda x, c: [[1.0]]),
    Function("flat", [1], [1], lambda x, c: [1.0]),
    Function("slow", [1], [1], slow),
]

if __name__ == "__main__":
    run_app = um.web.run_app
    # The library would listen to every network.
    um.web.run_app = lambda app, port: run_app(app, host="127.0.0.1", port=port, print=None)
    umbridge.serve_models(MODELS, port=int(sys.argv[1]), max_workers=4)
