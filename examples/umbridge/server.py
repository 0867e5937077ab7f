"""A simulator behind a UM-Bridge server: the height of a thrown ball. Needs `pip install umbridge`.

Usage: python3 server.py [PORT]
"""

import sys

import umbridge


class Ball(umbridge.Model):
    def __init__(self):
        super().__init__("ball")

    def get_input_sizes(self, config):
        return [2]  # speed, gravity

    def get_output_sizes(self, config):
        return [10]  # heights after 0.1, 0.2, ..., 1.0 s

    def __call__(self, parameters, config):
        speed, gravity = parameters[0]
        times = [0.1 * (i + 1) for i in range(10)]
        return [[speed * t - gravity * t**2 / 2 for t in times]]

    def supports_evaluate(self):
        return True


if __name__ == "__main__":
    umbridge.serve_models([Ball()], int(sys.argv[1]) if len(sys.argv) > 1 else 4242)
