// T-step of the four-parameter logistic curve.
data {
  int<lower=1> n;
  vector[n] omega;
  vector[n] y;
}
parameters {
  real<lower=0> alpha;
  real beta;
  real gamma;
  real delta;
  real<lower=0> sigma_a;
}
model {
  alpha ~ normal(2, 1);
  beta ~ normal(10, 10);
  gamma ~ normal(0, 1);
  delta ~ normal(-1, 1);
  sigma_a ~ exponential(1);
  y ~ normal(delta + alpha * inv_logit(beta * (omega - gamma)), sigma_a);
}
