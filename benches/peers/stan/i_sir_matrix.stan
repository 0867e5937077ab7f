// I-step of the SIR study with all T-draws in one matrix product.
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
  vector[n] log_y;
  int<lower=1> k;
  matrix[n, k] T;                    // time part of each basis term at the times of the measurements
  array[k] int beta_degree;          // plus one
  array[k] int gamma_degree;         // plus one
  int<lower=1> S;
  matrix[S, k] C;
  vector[S] weight;
  int<lower=0, upper=1> e_log_lik;   // 0: log of the mean likelihood; 1: mean of the log-likelihood
}
transformed data {
  vector[S] log_weight = log(weight);
  matrix[k, S] Ct = C';
  matrix[n, S] Y = rep_matrix(log_y, S);
}
parameters {
  real<lower=1, upper=3> beta;
  real<lower=0.1, upper=0.9> gamma;
  real<lower=0> sigma_i;
}
model {
  vector[k] q = legendre(beta - 2, 4)[beta_degree] .* legendre((gamma - 0.5) / 0.4, 4)[gamma_degree];
  vector[S] r = columns_dot_self(diag_post_multiply(T, q) * Ct - Y)';
  real v = square(sigma_i);
  target += -n * log(sigma_i);
  if (e_log_lik) target += -0.5 / v * dot_product(weight, r);
  else target += log_sum_exp(log_weight - (0.5 / v) * r);
  beta ~ normal(2, 0.5);
  gamma ~ normal(0.5, 0.25);
  sigma_i ~ normal(0, 0.5);
}
