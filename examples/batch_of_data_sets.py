"""Many data sets at once: one compiled program for a batch of series, with `jax.vmap` over `solve`."""

import jax
import numpy as np

import newtongp as ng


def main(sets: int = 50, rows: int = 40) -> np.ndarray:
    """Posterior rates of several series of counts, one row per series."""
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 6.0, rows)
    counts = rng.poisson(np.exp(1.0 + np.sin(x + rng.uniform(0.0, 6.0, (sets, 1))))).astype(float)
    model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(lengthscale=1.5), mean=1.0), ng.likelihoods.Poisson())
    with jax.enable_x64(True):
        solution = jax.jit(jax.vmap(lambda y: ng.solve(model, (x, y))))(counts)
        converged, solution = np.asarray(solution.converged), jax.tree.map(np.asarray, solution)
    print(f"{np.sum(converged)} of {sets} series converged")
    print(f"energies from {np.min(solution.energy):.1f} to {np.max(solution.energy):.1f}")
    marginals = solution.marginals
    return np.exp(marginals.mean[:, :, 0] + 0.5 * marginals.covariance[:, :, 0, 0])


if __name__ == "__main__":
    main()
