// T-step of a surrogate that is linear in its coefficients, as one writes it down: row i of B holds the basis at training input i.
data {
  int<lower=1> n;
  int<lower=1> k;
  matrix[n, k] B;
  vector[n] y;
}
parameters {
  vector[k] c;
  real<lower=0> sigma_a;
}
model {
  c ~ normal(0, 5);
  sigma_a ~ exponential(1);
  y ~ normal(B * c, sigma_a);
}
