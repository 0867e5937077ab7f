// I-step of the SIR study with the measurements summed beforehand: the residual sum of squares of T-draw s is a polynomial of total
// degree 8 in the unknowns, row s of Q. With the rows averaged (S = 1) it is E-Log-Lik; with one row it is Point or a member of E-Post.
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
  int<lower=1> S;
  int<lower=1> m;
  matrix[S, m] Q;
  array[m] int beta_degree;          // plus one
  array[m] int gamma_degree;         // plus one
  vector[S] weight;
  int<lower=0, upper=1> e_log_lik;   // 0: log of the mean likelihood; 1: mean of the log-likelihood
}
transformed data {
  vector[S] log_weight = log(weight);
}
parameters {
  real<lower=1, upper=3> beta;
  real<lower=0.1, upper=0.9> gamma;
  real<lower=0> sigma_i;
}
model {
  vector[S] r = Q * (legendre(beta - 2, 8)[beta_degree] .* legendre((gamma - 0.5) / 0.4, 8)[gamma_degree]);
  real v = square(sigma_i);
  target += -n * log(sigma_i);
  if (e_log_lik) target += -0.5 / v * dot_product(weight, r);
  else target += log_sum_exp(log_weight - (0.5 / v) * r);
  beta ~ normal(2, 0.5);
  gamma ~ normal(0.5, 0.25);
  sigma_i ~ normal(0, 0.5);
}
