"""Coordinates of the inducing variables that stay fixed while hyperparameters change."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..inference.minibatch.belief import Product
from ..kernels import gram, latent_kernels
from ..numerics import linalg, small
from ..priors.markov import MarkovGP
from ..priors.markov_process import process_of
from ..priors.sparse import Projection, SparseGP
from ..priors.sparse_chain import ChainProjection

SMALL = 1e-3
"""ε: eigenvalues of a correlation matrix below this are small."""


class Coordinates(eqx.Module):
    """Between whitened values v and z = μ(Z) + S (C + ε)^(½) v, for K(Z, Z) = SCS with C of unit diagonal.

    u = μ(Z) + S C^(½) v. In directions in which C is not small, z ≈ u, which the data determine whatever the
    hyperparameters are. In directions in which C is small, the map from u to v would amplify without limit, and z is
    proportional to v instead.
    """

    means: Float[Array, "D M"]
    to_z: Float[Array, "D M M"]
    to_v: Float[Array, "D M M"]

    def product_of_v(self, product: Product) -> Product:
        """From a product as a function of z to the same as a function of v."""
        return _substituted(_moved(product, -self.means), self.to_z)

    def product_of_z(self, product: Product) -> Product:
        """From a product as a function of v to the same as a function of z."""
        return _moved(_substituted(product, self.to_v), self.means)


def _moved(product: Product, by: Float[Array, "D M"]) -> Product:
    """A product as a function of a, rewritten as a function of a + `by`."""
    return Product(product.linear + (product.precision @ by.reshape(-1)).reshape(by.shape), product.precision)


def _substituted(product: Product, matrices: Float[Array, "D M M"]) -> Product:
    """A product as a function of a, where a = `matrices` b, rewritten as a function of b."""
    latents, size = product.linear.shape
    linear = jnp.einsum("dai,da->di", matrices, product.linear)
    precision = product.precision.reshape(latents, size, latents, size)
    precision = jnp.einsum("dai,daej->diej", matrices, jnp.einsum("daeb,ebj->daej", precision, matrices))
    return Product(linear, small.symmetrise(precision.reshape(latents * size, latents * size)))


def whitened(prior: SparseGP) -> tuple[Projection, Coordinates]:
    """The projection on the inducing inputs, and its coordinates."""
    inducing = prior.inducing_for(None)
    size = max(inputs.shape[0] for inputs in inducing)
    whitening, columns = [], []
    for latent, (kernel, inputs) in enumerate(zip(latent_kernels(prior.kernel), inducing, strict=True)):
        matrix = gram(kernel, inputs, inputs)
        squares = jnp.diagonal(matrix)
        scales = jnp.sqrt(jnp.where(squares > 0.0, squares, 1.0))
        inverse = jnp.where(squares > 0.0, 1.0 / scales, 0.0)
        inverse_root, root, inverse_of_root = roots(inverse[:, None] * matrix * inverse[None, :])
        whitening.append(inverse_root * inverse[None, :])
        # Latents with fewer inducing inputs are padded with zeros, as in their features.
        rest = (0, size - inputs.shape[0])
        columns.append(
            (
                jnp.pad(prior.mean.means(inputs)[:, latent], rest),
                jnp.pad(scales[:, None] * root, (rest, rest)),
                jnp.pad(inverse_of_root / scales[None, :], (rest, rest)),
            )
        )
    return Projection(inducing, tuple(whitening)), Coordinates(*map(jnp.stack, zip(*columns, strict=True)))


class ChainCoordinates(eqx.Module):
    """Between x = (s, w) of every interval of a sparse chain and y = (s, A s + (L + √ε S) w), plus the prior means.

    S are prior standard deviations. In directions in which L is not small, y has the states at both ends of the
    interval, and in others it is proportional to w, as for `Coordinates`.
    """

    means: Float[Array, "T E"]
    to_y: Float[Array, "T E E"]
    to_x: Float[Array, "T E E"]

    def product_of_v(self, product: Product) -> Product:
        """From a product as a function of y to the same as a function of x."""
        linear = product.linear - jnp.einsum("tij,tj->ti", product.precision, self.means)
        return _of_intervals(Product(linear, product.precision), self.to_y)

    def product_of_z(self, product: Product) -> Product:
        """From a product as a function of x to the same as a function of y."""
        moved = _of_intervals(product, self.to_x)
        return Product(moved.linear + jnp.einsum("tij,tj->ti", moved.precision, self.means), moved.precision)


def _of_intervals(product: Product, matrices: Float[Array, "T E E"]) -> Product:
    """Factors as functions of a, where a = `matrices` b, rewritten as functions of b."""
    linear = jnp.einsum("tai,ta->ti", matrices, product.linear)
    precision = jnp.einsum("tai,taj->tij", matrices, jnp.einsum("tab,tbj->taj", product.precision, matrices))
    return Product(linear, small.symmetrise(precision))


def _of_chain(prior: MarkovGP) -> tuple[ChainProjection, ChainCoordinates]:
    times, process = jnp.asarray(prior.inducing), process_of(prior.kernel)
    projection = ChainProjection.to(prior.kernel, times)
    step, states = projection.chain.step, process.dimension
    right = jnp.concatenate([times, times[-1:]])
    variances = jnp.diagonal(jax.vmap(process.covariance)(right), axis1=1, axis2=2)
    sizes = jnp.sqrt(jnp.where(variances > 0.0, variances, 1.0))
    widened = step[:, :, states:] + jnp.sqrt(SMALL) * sizes[:, :, None] * jnp.eye(states)[None]
    inverse = jax.vmap(lambda matrix: small.small_solve_lower(matrix, jnp.eye(states)))(widened)
    identity = jnp.broadcast_to(jnp.eye(states)[None], widened.shape)
    nothing, moved = jnp.zeros_like(identity), step[:, :, :states]
    pulled = -jnp.einsum("tij,tjk->tik", inverse, moved)

    def whole(top, below):
        return jnp.concatenate([jnp.concatenate(top, axis=2), jnp.concatenate(below, axis=2)], axis=1)

    # The mean of a latent is that of its first state.
    first = [states[0] for states in process.selection]
    means = jnp.zeros((right.shape[0], states)).at[:, jnp.asarray(first)].set(prior.mean.means(right[:, None]))
    before = jnp.concatenate([jnp.zeros_like(means[:1]), means[:-1]])
    coordinates = ChainCoordinates(
        jnp.concatenate([before, means], axis=1),
        whole([identity, nothing], [moved, widened]),
        whole([identity, nothing], [pulled, inverse]),
    )
    return projection, coordinates


def coordinates_of(prior: SparseGP | MarkovGP) -> tuple[Any, Coordinates | ChainCoordinates]:
    """The projection on the inducing variables, and the coordinates that stay fixed."""
    return whitened(prior) if isinstance(prior, SparseGP) else _of_chain(prior)


@jax.custom_jvp
def roots(matrix: Float[Array, "M M"]) -> tuple[Any, Any, Any]:
    """C^(−½), (C + ε)^(½) and (C + ε)^(−½); the first is zero in directions in which C is at rounding level."""
    weights, vectors = _spectrum(matrix)
    return _of_eigenvalues(weights, vectors)


def _spectrum(matrix: Float[Array, "M M"]) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    """The inverse square roots of the eigenvalues, and the eigenvectors as rows; zero for those that are left out."""
    rows = linalg.whitening(matrix)
    weights = jnp.sqrt(jnp.sum(rows**2, axis=1))
    return weights, rows / jnp.where(weights > 0.0, weights, 1.0)[:, None]


def _widened_roots(weights: Float[Array, " M"]) -> Float[Array, " M"]:
    """√(λ + ε)."""
    positive = weights > 0.0
    return jnp.sqrt(jnp.where(positive, 1.0 / jnp.where(positive, weights, 1.0) ** 2, 0.0) + SMALL)


def _of_eigenvalues(weights: Float[Array, " M"], vectors: Float[Array, "M M"]) -> tuple[Any, Any, Any]:
    roots, small = _widened_roots(weights), jnp.sqrt(SMALL)
    identity = jnp.eye(weights.shape[0])
    return (
        vectors.T @ (weights[:, None] * vectors),
        small * identity + vectors.T @ ((roots - small)[:, None] * vectors),
        identity / small + vectors.T @ ((1.0 / roots - 1.0 / small)[:, None] * vectors),
    )


@roots.defjvp
def _roots_jvp(primals, tangents):
    # Divided differences of functions of λ, without differences of eigenvalues, which may be equal.
    (matrix,), (change,) = primals, tangents
    weights, vectors = _spectrum(matrix)
    inner = vectors @ change @ vectors.T

    def moved(ratios):
        return vectors.T @ (ratios * inner) @ vectors

    sums, products = weights[:, None] + weights[None, :], weights[:, None] * weights[None, :]
    roots = _widened_roots(weights)
    of_roots = 1.0 / (roots[:, None] + roots[None, :])
    slopes = (
        moved(-(products**2) / jnp.where(sums > 0.0, sums, 1.0)),
        moved(of_roots),
        moved(-of_roots / (roots[:, None] * roots[None, :])),
    )
    return _of_eigenvalues(weights, vectors), slopes
