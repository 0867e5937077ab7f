// T-step of a surrogate that is linear in its coefficients, without its correlations and its funnel: B = U diag(s) V', z = U'y,
// and the coefficients are those of least squares plus sigma_a times standard normals (but for the prior).
data {
  int<lower=1> n;
  int<lower=1> k;
  vector<lower=0>[k] s;
  matrix[k, k] V;
  vector[k] z;
  real<lower=0> rest;        // y'y - z'z
}
transformed data {
  vector[k] centre = V * (z ./ s);
  matrix[k, k] W = diag_post_multiply(V, inv(s));
}
parameters {
  vector[k] xi;
  real<lower=0> sigma_a;
}
transformed parameters {
  vector[k] c = centre + sigma_a * (W * xi);
}
model {
  xi ~ std_normal();
  c ~ normal(0, 5);
  sigma_a ~ exponential(1);
  target += -(n - k) * log(sigma_a) - 0.5 * rest / square(sigma_a);
}
