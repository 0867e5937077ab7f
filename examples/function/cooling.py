"""A simulator as a Python function: how a hot drink cools, its surroundings growing warmer meanwhile.

Needs nothing but Python; with NumPy or SciPy it would look the same.
"""


def run(rate, surroundings, hot):
    """Temperatures of the drink each five minutes, by Heun's method."""
    drink, room, step = hot, surroundings, 0.25  # degrees, degrees, minutes
    times, temperatures = [], []
    for i in range(1, 241):
        slope = -rate * (drink - room)
        ahead = -rate * (drink + step * slope - (room - 0.02 * step * slope))
        drink, room = drink + step * (slope + ahead) / 2, room - 0.02 * step * (slope + ahead) / 2
        if i % 20 == 0:
            times.append(i * step)
            temperatures.append(drink)
    return {"temperature": temperatures, "t": times}
