// I-step of the logistic study as the paper's code has it: one density of all measurements for each T-draw.
data {
  int<lower=1> n;
  vector[n] y;
  int<lower=1> S;
  vector[S] alpha;
  vector[S] beta;
  vector[S] gamma;
  vector[S] delta;
  vector[S] weight;
  int<lower=0, upper=1> e_log_lik;   // 0: log of the mean likelihood; 1: mean of the log-likelihood
}
transformed data {
  vector[S] log_weight = log(weight);
}
parameters {
  real<lower=-1, upper=1> omega;
  real<lower=0.005, upper=0.05> sigma_i;
}
model {
  vector[S] l;
  for (s in 1:S) {
    l[s] = normal_lpdf(y | delta[s] + alpha[s] * inv_logit(beta[s] * (omega - gamma[s])), sigma_i);
  }
  if (e_log_lik) target += dot_product(weight, l);
  else target += log_sum_exp(log_weight + l);
  omega ~ normal(0, 0.5);
}
