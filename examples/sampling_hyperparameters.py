"""The energy as a log density: hyperparameters sampled with NUTS (needs `pip install blackjax`)."""

import jax
import jax.numpy as jnp
import numpy as np

import newtongp as ng


def main(draws: int = 200, warmup: int = 100) -> np.ndarray:
    """Draws of the lengthscale and the standard deviation of f, one row per draw."""
    import blackjax

    rng = np.random.default_rng(1)
    x = np.linspace(0.0, 6.0, 30)
    y = rng.poisson(np.exp(1.0 + np.sin(x))).astype(float)

    def log_density(logarithms):
        """−energy, an approximation of log p(y), plus the log of a standard normal prior on the logarithms."""
        lengthscale, deviation = jnp.exp(logarithms)
        kernel = ng.kernels.Matern32(lengthscale, deviation**2)
        solution = ng.solve(ng.Model(ng.GP(kernel, mean=1.0), ng.likelihoods.Poisson()), (x, y))
        return -solution.energy - 0.5 * jnp.sum(logarithms**2)

    with jax.enable_x64(True):
        adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, max_num_doublings=5)
        begin, sample = jax.random.split(jax.random.key(0))
        (state, parameters), _ = jax.jit(adaptation.run, static_argnums=2)(begin, jnp.zeros(2), warmup)
        kernel = blackjax.nuts(log_density, **parameters)
        _, positions = jax.lax.scan(
            lambda state, key: (lambda new: (new, new.position))(kernel.step(key, state)[0]),
            state,
            jax.random.split(sample, draws),
        )
    found = np.exp(np.asarray(positions))
    low, middle, high = np.quantile(found[:, 0], [0.05, 0.5, 0.95])
    print(f"lengthscale: {middle:.2f}, between {low:.2f} and {high:.2f} with probability 90 %")
    return found


if __name__ == "__main__":
    main()
