"""A million counts, irregularly spaced and partly missing: the figures of docs/time.md.

    python docs/scripts/million.py

Prints what was measured on this machine: steps, seconds with and without compilation, memory, and how often the
predictive intervals hold.
"""

import resource
import time

import numpy as np

import newtongp as ng

ROWS, MISSING, PREDICTIONS = 1_000_000, 0.05, 10_000
LENGTHSCALE = 2.0


def main() -> None:
    """Simulate, infer, predict, and say what it took."""
    rng = np.random.default_rng(0)
    t = np.cumsum(rng.gamma(0.5, 0.2, size=ROWS))
    log_rate = 0.8 * np.sin(0.37 * t) + 0.6 * np.sin(0.113 * t + 1.0)
    counts = rng.poisson(np.exp(log_rate)).astype(float)
    counts[rng.random(ROWS) < MISSING] = np.nan
    model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(lengthscale=LENGTHSCALE)), ng.likelihoods.Poisson())

    start = time.perf_counter()
    result = ng.infer(model, t, counts)
    first = time.perf_counter() - start
    print(
        f"{ROWS} rows, {np.isnan(counts).mean():.1%} missing, "
        f"gaps up to {np.diff(t).max() / LENGTHSCALE:.2f} lengthscales"
    )
    print(f"{result}; {first:.1f} s with compilation")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory so far {peak:.0f} MB")

    start = time.perf_counter()
    again = ng.infer(model, t, counts)
    print(f"again: {time.perf_counter() - start:.2f} s for {again.steps} steps")

    x_new = np.sort(rng.uniform(t[0], t[-1], PREDICTIONS))
    truth = 0.8 * np.sin(0.37 * x_new) + 0.6 * np.sin(0.113 * x_new + 1.0)
    y_new = rng.poisson(np.exp(truth))
    start = time.perf_counter()
    prediction = result.predict(x_new)
    low, high = prediction.quantile([0.025, 0.975])
    seconds = time.perf_counter() - start
    inside = np.mean((y_new >= low) & (y_new <= high))
    spread = prediction.latent.variance[:, 0] ** 0.5
    latent = np.mean(np.abs(prediction.latent.mean[:, 0] - truth) <= 1.96 * spread)
    print(f"{PREDICTIONS} predictions with 95 % intervals: {seconds:.1f} s with compilation")
    print(f"new counts inside their interval: {inside:.1%}; true log rates inside theirs: {latent:.1%}")
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
