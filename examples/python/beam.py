"""A simulator as a Python program: deflection of a cantilever beam, inputs and results as JSON.

Called as `python3 beam.py PARAMS RESULTS`.
"""

import json
import sys

with open(sys.argv[1]) as file:
    x = json.load(file)

inertia = x["width"] * x["height"] ** 3 / 12  # m^4
deflection = x["load"] * x["length"] ** 3 / (3 * x["modulus"] * 1e9 * inertia)  # m

with open(sys.argv[2], "w") as file:
    json.dump({"deflection": 1000 * deflection, "stress": x["load"] * x["length"] * x["height"] / 2 / inertia / 1e6}, file)
