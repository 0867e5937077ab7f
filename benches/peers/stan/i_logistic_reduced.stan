// I-step of the logistic study with replicates reduced to their mean and scatter, all T-draws at once.
data {
  int<lower=1> n;
  real mean_y;
  real<lower=0> scatter;             // sum of (y - mean_y)^2
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
  vector[S] r = square(mean_y - delta - alpha .* inv_logit(beta .* (omega - gamma)));
  real v = square(sigma_i);
  target += -n * log(sigma_i) - 0.5 * scatter / v;
  if (e_log_lik) target += -0.5 * n / v * dot_product(weight, r);
  else target += log_sum_exp(log_weight - (0.5 * n / v) * r);
  omega ~ normal(0, 0.5);
}
