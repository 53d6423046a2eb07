"""A neural network's output as the mean of a Gaussian process, trained end to end with optax."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import newtongp as ng


class NetworkMean(ng.means.Mean):
    """E[f(x)] = network(x). A PyTree, so that derivatives reach the weights."""

    network: eqx.nn.MLP

    def evaluate(self, x):
        return self.network(x)[0]


def main(steps: int = 200) -> list[float]:
    """The energy at every step of Adam over the network's weights and the kernel's hyperparameters."""
    rng = np.random.default_rng(2)
    x = np.linspace(-3.0, 3.0, 60)[:, None]
    y = rng.poisson(np.exp(1.0 + np.tanh(2.0 * x[:, 0]) + 0.3 * np.sin(5.0 * x[:, 0]))).astype(float)
    with jax.enable_x64(True):
        network = eqx.nn.MLP(1, 1, 8, 1, activation=jnp.tanh, key=jax.random.key(0), dtype=jnp.float64)
        parameters = network, jnp.zeros(2)

        def energy(parameters):
            network, logarithms = parameters
            lengthscale, variance = jnp.exp(logarithms)
            prior = ng.GP(ng.kernels.Matern32(lengthscale, variance), mean=NetworkMean(network))
            return ng.solve(ng.Model(prior, ng.likelihoods.Poisson()), (x, y)).energy

        optimiser = optax.adam(0.02)
        state = optimiser.init(eqx.filter(parameters, eqx.is_inexact_array))

        @eqx.filter_jit
        def advance(parameters, state):
            value, slope = eqx.filter_value_and_grad(energy)(parameters)
            updates, state = optimiser.update(slope, state)
            return eqx.apply_updates(parameters, updates), state, value

        energies = []
        for _ in range(steps):
            parameters, state, value = advance(parameters, state)
            energies.append(float(value))
    print(f"energy {energies[0]:.2f} at the start, {energies[-1]:.2f} after {steps} steps")
    return energies


if __name__ == "__main__":
    main()
