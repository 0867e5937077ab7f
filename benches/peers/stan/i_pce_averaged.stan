// E-Log-Lik of the PCE study with the T-draws averaged beforehand: only the mean and covariance of the coefficients matter.
functions {
  // Legendre polynomials of degrees 0 to d at x.
  vector legendre(real x, int d) {
    vector[d + 1] p;
    p[1] = 1;
    p[2] = x;
    for (j in 2:d) p[j + 1] = ((2 * j - 1) * x * p[j] - (j - 1) * p[j - 1]) / j;
    return p;
  }
}
data {
  int<lower=1> n;
  real mean_y;
  real<lower=0> scatter;             // sum of (y - mean_y)^2
  int<lower=1> d;
  vector[d + 1] c;
  matrix[d + 1, d + 1] covariance;
}
parameters {
  real<lower=-1, upper=1> omega;
  real<lower=0, upper=0.05> sigma_i;
}
model {
  vector[d + 1] p = legendre(omega, d);
  target += -n * log(sigma_i)
            - 0.5 * (scatter + n * (square(mean_y - dot_product(c, p)) + quad_form(covariance, p))) / square(sigma_i);
  omega ~ normal(0, 0.5);
}
