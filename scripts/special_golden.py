"""Print the golden numbers of special.rs and prior.rs, by 50-digit arithmetic (pip install mpmath)."""

from mpmath import (
    erfc, erfinv, exp, findroot, gammainc, hyp2f1, inf, linspace, log, log1p, loggamma, mp, mpf, npdf, nstr, pi, quad, sqrt,
)

mp.dps = 50


def show(value):
    return nstr(value, 17, min_fixed=-3, max_fixed=6)


def cdf(z):
    """Phi(z)."""
    return erfc(-mpf(z) / sqrt(mpf(2))) / 2


print("normal: z, Phi, ln Phi, phi / Phi")
for z in [-20.3, -8.1, -5.1, -4.9, -1.7, -0.3, 0.7, 3.2, 9.0]:
    log_cdf = log(cdf(z)) if z < 0 else log1p(-cdf(-z))
    print(f"({z}, {show(cdf(z))}, {show(log_cdf)}, {show(npdf(mpf(z)) / cdf(z))}),")
for z in [-40.0, -1e3]:
    log_cdf = log(cdf(z))
    print(f"({z}, {show(log_cdf)}, {show(exp(-mpf(z) ** 2 / 2 - log(2 * pi) / 2 - log_cdf))}),")

print("normal quantile: p, z")
for p in [1e-300, 1e-20, 1e-6, 0.03, 0.3, 0.4999]:
    start = -sqrt(-2 * log(mpf(p))) if p < 0.1 else -sqrt(2) * erfinv(1 - 2 * mpf(p))
    print(f"({p}, {show(findroot(lambda z: log(cdf(z)) - log(mpf(p)), start))}),")

print("log gamma: x, value")
for x in [1e-3, 0.3, 0.99, 1.5, 2.01, 33.3, 1e4]:
    print(f"({x}, {show(loggamma(mpf(x)))}),")

print("gamma tails: a, x, lower, upper")
for a, x in [(0.1, 0.05), (0.5, 2.5), (5.5, 0.055), (20, 40), (200, 100), (1000, 968.375)]:
    if a < 500:
        lower = gammainc(mpf(a), 0, mpf(x), regularized=True)
        upper = gammainc(mpf(a), mpf(x), regularized=True)
    else:
        lower = quad(lambda t: exp((a - 1) * log(t) - t - loggamma(mpf(a))), linspace(mpf(600), x, 20))
        upper = 1 - lower
    print(f"({a}, {x}, {show(lower)}, {show(upper)}),")


def beta_lower(a, b, x):
    a, b, x = mpf(a), mpf(b), mpf(x)
    front = exp(log(x) * a + log1p(-x) * b + loggamma(a + b) - loggamma(a) - loggamma(b)) / a
    return front * hyp2f1(a + b, 1, a + 1, x)


print("beta tails: a, b, x, lower, upper")
for a, b, x in [
    (0.5, 0.5, 0.125), (2, 0.5, 0.875), (5, 30, 0.25), (15, 0.5, 0.75), (100, 200, 0.125), (1000, 1000, 0.4375), (0.1, 0.2, 1e-8),
]:
    print(f"({a}, {b}, {x}, {show(beta_lower(a, b, x))}, {show(beta_lower(b, a, 1 - mpf(x)))}),")

print("quantiles of a standard normal between 5 and 6: p, z")
for p in [1e-6, 0.1, 0.5, 0.9, 0.999]:
    tail = cdf(-5) - mpf(p) * (cdf(-5) - cdf(-6))
    print(f"({p}, {show(findroot(lambda z: cdf(-z) / tail - 1, (mpf('5.0000001'), mpf('5.9')), solver='anderson'))}),")

print("normal(0, 1000) between 1 and 1.001: mass, lower quartile")
lower, upper = mpf(1.0), mpf(1.001)
mass = cdf(upper / 1000) - cdf(lower / 1000)
quartile = cdf(lower / 1000) + mass / 4
print(show(mass), show(findroot(lambda z: (cdf(z / 1000) - quartile) / mass, (lower, upper), solver="anderson")))


def moments(density, points):
    total = quad(density, points)
    mean = quad(lambda x: x * density(x), points) / total
    variance = quad(lambda x: (x - mean) ** 2 * density(x), points) / total
    return f"{show(mean)}, {show(sqrt(variance))}"


print("mean and sd of a normal between 5 and 6, of normal(2, 1) above 0, of a normal above -8")
print(moments(npdf, [5, 5.5, 6]))
print(moments(lambda x: npdf(x, 2, 1), [0, 2, 4, inf]))
print(moments(npdf, [-8, -4, -2, 0, 2, 4, 8, 16, 40]))
print("of gamma(1/2, 1) between 0.1 and 2, and below 2")
print(moments(lambda x: x ** mpf(-0.5) * exp(-x), [mpf(0.1), 0.5, 1, 2]))
print(moments(lambda x: x ** mpf(-0.5) * exp(-x), [0, 0.5, 1, 2]))
print("of beta(2, 2) below 0.3, of t(3) above -1000, of log-normal(0, 1) below 3")
print(moments(lambda x: x * (1 - x), [0, mpf(0.3)]))
print(moments(lambda x: (1 + x * x / 3) ** -2, [-1000, -100, -10, -1, 0, 1, 10, 100, 1000, 10**5, inf]))
print(moments(lambda x: exp(-log(x) ** 2 / 2) / x if x > 0 else mpf(0), [0, 0.01, 0.1, 0.5, 1, 2, 3]))
