"""A batch reactor, A -> B -> C with a side reaction 2 A -> D, cooled through its wall: three series of forty times from seven parameters.

Called as `reactor.py params.json results.csv`. Where the reactor becomes too hot its protection ends the batch, and the run with it.
"""

import json
import math
import sys

GAS = 8.314e-3  # kJ/mol/K
TIMES = [0.25 * (i + 1) for i in range(40)]  # hours
STEPS = 50  # of Runge and Kutta, from one time to the next
TRIP = 357.65  # K


def slopes(state, p):
    a, b, temperature = state

    def rate(k, energy):
        return k * math.exp(-energy / GAS * (1 / temperature - 1 / 350))

    first, second = rate(p["k1"], p["e1"]), rate(p["k2"], p["e2"])
    cooling = p["cooling"] * (temperature - 330)
    return -first * a - p["k3"] * a * a, first * a - second * b, p["heat"] * first * a - cooling


def step(state, h, p):
    def moved(k, h):
        return tuple(x + h * d for x, d in zip(state, k))

    k1 = slopes(state, p)
    k2 = slopes(moved(k1, h / 2), p)
    k3 = slopes(moved(k2, h / 2), p)
    k4 = slopes(moved(k3, h), p)
    return tuple(x + h / 6 * (a + 2 * b + 2 * c + d) for x, a, b, c, d in zip(state, k1, k2, k3, k4))


def main(params, results):
    with open(params) as file:
        p = json.load(file)
    state, rows = (2.0, 0.0, 340.0), []
    for t in TIMES:
        for _ in range(STEPS):
            state = step(state, 0.25 / STEPS, p)
            if state[2] > TRIP:
                sys.exit(f"tripped before t = {t} h: {state[2]:.2f} K")
        rows.append((t, *state))
    with open(results, "w") as file:
        file.write("t,a,b,temperature\n")
        file.writelines(",".join(map(repr, row)) + "\n" for row in rows)


main(*sys.argv[1:3])
