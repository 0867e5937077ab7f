// T-step of a surrogate that is linear in its coefficients, which are integrated out: B = U diag(s) V', z = U'y. NUTS samples sigma_a
// alone; the coefficients are drawn from their normal distribution given it.
data {
  int<lower=1> n;
  int<lower=1> k;
  vector<lower=0>[k] s;
  matrix[k, k] V;
  vector[k] z;
  real<lower=0> rest;        // y'y - z'z
}
transformed data {
  vector[k] s2 = square(s);
  vector[k] z2 = square(z);
}
parameters {
  real<lower=0> sigma_a;
}
model {
  real v = square(sigma_a);
  vector[k] total = 25 * s2 + v;
  sigma_a ~ exponential(1);
  target += -0.5 * (sum(log(total)) + sum(z2 ./ total)) - (n - k) * log(sigma_a) - 0.5 * rest / v;
}
generated quantities {
  vector[k] c;
  {
    real v = square(sigma_a);
    vector[k] precision = s2 / v + 0.04;
    c = V * to_vector(normal_rng((s .* z / v) ./ precision, inv_sqrt(precision)));
  }
}
