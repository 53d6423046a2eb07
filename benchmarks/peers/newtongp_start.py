"""From nothing to a posterior: what `markov.py` times from the outside."""

import sys

import numpy as np

import newtongp as ng

rows = int(sys.argv[1])
rng = np.random.default_rng(0)
t = np.cumsum(rng.gamma(2.0, 0.05, size=rows))
counts = rng.poisson(np.exp(np.sin(0.4 * t)))
model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(lengthscale=2.0)), ng.likelihoods.Poisson())
result = ng.infer(model, t, counts)
if result.status is not ng.Status.CONVERGED:
    sys.exit(f"ended with {result.status.name}")
print(float(result.posterior.marginals.mean[0, 0]))
