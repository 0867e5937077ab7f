// I-step of the PCE study as the paper's code has it: one density of all measurements for each T-draw.
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
  vector[n] y;
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
  vector[d + 1] p = legendre(omega, d);
  vector[S] l;
  for (s in 1:S) l[s] = normal_lpdf(y | C[s] * p, sigma_i);
  if (e_log_lik) target += dot_product(weight, l);
  else target += log_sum_exp(log_weight + l);
  omega ~ normal(0, 0.5);
}
