// I-step of the PCE study with replicates reduced to their mean and scatter, all T-draws in one matrix product.
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
  int<lower=1> S;
  int<lower=1> d;
  matrix[S, d + 1] C;
  vector[S] weight;
  int<lower=0, upper=1> e_log_lik;   // 0: log of the mean likelihood; 1: mean of the log-likelihood
}
transformed data {
  vector[S] log_weight = log(weight);
}
parameters {
  real<lower=-1, upper=1> omega;
  real<lower=0, upper=0.05> sigma_i;
}
model {
  vector[S] r = square(mean_y - C * legendre(omega, d));
  real v = square(sigma_i);
  target += -n * log(sigma_i) - 0.5 * scatter / v;
  if (e_log_lik) target += -0.5 * n / v * dot_product(weight, r);
  else target += log_sum_exp(log_weight - (0.5 * n / v) * r);
  omega ~ normal(0, 0.5);
}
