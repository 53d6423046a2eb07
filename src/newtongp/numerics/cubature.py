"""Integration rules: nodes and weights for the standard normal in any small dimension.

The rule determines the smoother: with the point rule, posterior linearisation is the extended Kalman smoother; with
unscented rules, the unscented one; with Gauss-Hermite rules, the Gauss-Hermite one.
"""

import abc
import functools
import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..validation.arguments import whole
from ..validation.numbers import parameter
from . import known, small
from .gaussian import Gaussian

_MAX_NODES = 200_000


class Cubature(eqx.Module):
    """A rule E[h(f)] ≈ Σ wₛ h(m + L zₛ), for f ~ N(m, LLᵀ)."""

    @abc.abstractmethod
    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes (S, dimension) and weights (S,) for the standard normal."""

    def root(self, covariance: Float[Array, "D D"]) -> Float[Array, "D D"]:
        """The L with LLᵀ = C that maps the nodes to a Gaussian; lower triangular by default."""
        return small.small_root(covariance)


class GaussHermite(Cubature):
    """The product Gauss-Hermite rule, exact for polynomials of degree 2·order − 1 in each latent.

    >>> nodes, weights = GaussHermite(3).rule(1)
    >>> round(float(weights @ nodes[:, 0] ** 4), 12)
    3.0
    """

    order: int = eqx.field(static=True, default=20)

    def __check_init__(self):
        whole(self.order, "order", 1, 1000, such_as=20)

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        if self.order**dimension > _MAX_NODES:
            raise ValueError(
                f"GaussHermite({self.order}) in {dimension} dimensions needs {self.order**dimension} nodes: "
                "use Unscented(5), SphericalRule(3), QuasiRandom(1024), or a lower order"
            )
        with np.errstate(all="ignore"):
            points, weights = np.polynomial.hermite_e.hermegauss(self.order)
        if not (np.all(np.isfinite(points)) and np.all(np.isfinite(weights))):
            raise ValueError(f"Gauss-Hermite nodes overflow at order {self.order}: use an order of at most 250")
        weights = weights / weights.sum()
        nodes = np.array(list(itertools.product(points, repeat=dimension)))
        products = np.array(list(itertools.product(weights, repeat=dimension))).prod(axis=1)
        return nodes.reshape(-1, dimension), products


class Adaptive(Cubature):
    """Nodes for one latent that follow the density: the default for power EP, and for VI without log-concavity.

    The nodes are spread over the Gaussian and graded towards the peak of p(y | f), however narrow that is, and the
    error falls exponentially with their number. Latents that enter linearly are integrated without nodes. Integrands
    without a density, such as moments of y, use equidistant nodes.

    >>> nodes, weights = Adaptive(40).rule(1)
    >>> round(float(weights @ nodes[:, 0] ** 4), 8)
    3.0
    """

    count: int = eqx.field(static=True, default=40)

    def __check_init__(self):
        whole(self.count, "count", 16, 10_000, such_as=40)

    @property
    def reach(self) -> float:
        """The number of standard deviations covered on each side, which grows with the number of nodes."""
        return min(5.0 + self.count / 20.0, 9.0)

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        if dimension != 1:
            raise ValueError(
                f"Adaptive({self.count}) is a rule for likelihoods with one latent that needs nodes, but there are "
                f"{dimension}: leave cubature out, or use GaussHermite(8), Unscented(5) or QuasiRandom(1024)"
            )
        nodes = np.linspace(-self.reach, self.reach, self.count)
        weights = np.exp(-0.5 * nodes**2)
        return nodes[:, None], weights / weights.sum()


class Unscented(Cubature):
    """Unscented (sigma-point) rules: 2D points of order 3, or 2D² + 1 points of order 5.

    Order 3 has nodes ±√(D + κ) eᵢ, and one at zero unless κ = 0. Order 5 is the rule of McNamee and Stenger; some of
    its weights are negative for D > 4.

    >>> Unscented(5).rule(6)[0].shape
    (73, 6)
    """

    order: int = eqx.field(static=True, default=5)
    kappa: float = eqx.field(static=True, default=0.0)

    def __check_init__(self):
        if self.order not in (3, 5):
            raise ValueError(f"order must be 3 or 5, got {self.order!r}: write Unscented(5) for the more accurate one")
        parameter(self.kappa, "kappa")
        if self.order == 5 and self.kappa != 0.0:
            raise ValueError(f"kappa belongs to the rule of order 3: leave it out, got {self.kappa!r}")

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        axes = np.eye(dimension)
        if self.order == 3:
            spread = dimension + self.kappa
            if spread <= 0:
                limit = f"greater than -{dimension} for {dimension} latent(s)"
                raise ValueError(f"kappa must be {limit}, got {self.kappa!r}: leave it out")
            nodes = np.sqrt(spread) * np.concatenate([axes, -axes])
            weights = np.full(2 * dimension, 0.5 / spread)
            if self.kappa == 0.0:
                return nodes, weights
            return np.concatenate([np.zeros((1, dimension)), nodes]), np.append(self.kappa / spread, weights)
        pairs = [
            sign_i * axes[i] + sign_j * axes[j]
            for i, j in itertools.combinations(range(dimension), 2)
            for sign_i, sign_j in itertools.product((1.0, -1.0), repeat=2)
        ]
        nodes = np.sqrt(3.0) * np.concatenate(
            [np.zeros((1, dimension)), axes, -axes, np.reshape(pairs, (-1, dimension))]
        )
        weights = np.concatenate(
            [
                [1.0 + (dimension**2 - 7.0 * dimension) / 18.0],
                np.full(2 * dimension, (4.0 - dimension) / 18.0),
                np.full(len(pairs), 1.0 / 36.0),
            ]
        )
        return nodes, weights


class QuasiRandom(Cubature):
    """Nodes of equal weight at points of a Sobol sequence, with their mirror images: exact up to degree 3.

    Its error falls with the number of nodes faster than that of random draws, in any dimension, and no weight is
    negative. Use it for densities of many latents, which unscented rules sample too sparsely.

    >>> QuasiRandom(256).rule(8)[0].shape
    (256, 8)
    """

    count: int = eqx.field(static=True, default=1024)

    def __check_init__(self):
        whole(self.count, "count", 4, 2**20, such_as=1024)
        if self.count & (self.count - 1):
            raise ValueError(f"count must be a power of 2, got {self.count!r}: use {2 ** int(self.count).bit_length()}")

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        if self.count < 4 * dimension:
            raise ValueError(f"QuasiRandom({self.count}) has too few nodes for {dimension} latents: use more")
        return _sobol_nodes(self.count, dimension), np.full(self.count, 1.0 / self.count)


@functools.lru_cache(maxsize=8)
def _sobol_nodes(count: int, dimension: int) -> np.ndarray:
    # Imported here because it takes longer than everything else in this module.
    from scipy.special import ndtri
    from scipy.stats import qmc

    uniform = qmc.Sobol(dimension, rng=np.random.default_rng(0)).random(count // 2)
    half = ndtri(uniform)
    nodes = np.concatenate([half, -half])
    values, vectors = known.eigen_given(nodes.T @ nodes / count)
    return nodes @ (vectors / np.sqrt(values)) @ vectors.T


class SphericalRule(Cubature):
    """Nodes on a few spheres, each turned by a rotation of its own: exact up to degree 5, with positive weights.

    On each sphere there are the ends of the axes and some of the corners of a cube: an orthogonal array of strength 5,
    of about D² to 10 D² corners. The radii are those of a Gauss rule for the length of a standard normal vector, and
    `copies` is how many spheres of each radius there are. Unlike the unscented rule of the same degree, it is accurate
    where the integrand is far from a polynomial.

    >>> nodes, weights = SphericalRule(3).rule(9)
    >>> nodes.shape, bool(np.min(weights) > 0.0), round(float(weights @ (nodes[:, 0] * nodes[:, 5]) ** 2), 12)
    ((438, 9), True, 1.0)
    """

    radii: int = eqx.field(static=True, default=3)
    copies: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        whole(self.radii, "radii", 2, 50, such_as=3)
        whole(self.copies, "copies", 1, 1000)

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        return _spherical_rule(self.radii, self.copies, dimension)


@functools.lru_cache(maxsize=8)
def _spherical_rule(radii: int, copies: int, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    corners, axes = orthogonal_array(dimension) / np.sqrt(dimension), np.eye(dimension)
    on_sphere = np.concatenate([corners, axes, -axes])
    if (count := radii * copies * len(on_sphere)) > _MAX_NODES:
        raise ValueError(
            f"SphericalRule({radii}, {copies}) in {dimension} dimensions needs {count} nodes: use QuasiRandom(1024)"
        )
    shares = np.repeat([dimension / len(corners), 1.0 / dimension], [len(corners), 2 * dimension]) / (dimension + 2.0)
    # Imported here because it takes longer than everything else in this module.
    from scipy.special import roots_genlaguerre

    squares, weights = roots_genlaguerre(radii, 0.5 * dimension - 1.0)
    rng = np.random.default_rng(0)
    nodes = [
        np.sqrt(2.0 * square) * on_sphere @ known.rotation_given(rng.normal(size=(dimension, dimension)))
        for square in np.tile(squares, copies)
    ]
    return np.concatenate(nodes), np.tile(np.outer(weights / weights.sum(), shares).ravel() / copies, copies)


def orthogonal_array(dimension: int) -> np.ndarray:
    """Some of the corners ±1 of a cube, in which every five coordinates take all combinations of signs equally often.

    >>> orthogonal_array(6).shape
    (32, 6)
    """
    size, columns = 0, None
    while columns is None:
        size += 1
        columns = _independent_columns(dimension, size)
    # Coordinate j of corner r has the sign of the parity of the bits that r and column j have in common.
    common = np.arange(2**size)[:, None] & np.array(columns)[None, :]
    parity = np.bitwise_xor.reduce(common[:, :, None] >> np.arange(size), axis=2) & 1
    return 1.0 - 2.0 * parity


def _independent_columns(count: int, size: int) -> list[int] | None:
    """That many vectors of `size` bits of which any five are linearly independent, the first there are; or None."""
    columns: list[int] = []
    sums_of_three: set[int] = set()
    # All have the highest bit, so that an even number of them never adds up to one of them.
    for vector in range(2 ** (size - 1), 2**size):
        if vector in sums_of_three:
            continue
        sums_of_three |= {vector} | {vector ^ one ^ other for one, other in itertools.combinations(columns, 2)}
        columns.append(vector)
        if len(columns) == count:
            return columns
    return None


class PointRule(Cubature):
    """One node at the mean: turns VI into Newton, and posterior linearisation into Taylor.

    >>> PointRule().rule(2)[1]
    array([1.])
    """

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((1, dimension)), np.ones(1)


class PartwiseRule(Cubature):
    """One rule for some of the latents, and another for the rest given the first.

    >>> PartwiseRule((1,), GaussHermite(20), Unscented(3)).rule(2)[0].shape
    (40, 2)
    """

    first: tuple[int, ...] = eqx.field(static=True)
    first_rule: Cubature
    rest_rule: Cubature

    def __check_init__(self):
        if len(set(self.first)) != len(self.first) or any(latent < 0 for latent in self.first):
            raise ValueError(f"first must be different latents, counted from 0, got {self.first!r}")
        check_cubature(self.first_rule)
        check_cubature(self.rest_rule)

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        order = self._order(dimension)
        first_nodes, first_weights = self.first_rule.rule(len(self.first))
        rest_nodes, rest_weights = self.rest_rule.rule(dimension - len(self.first))
        nodes = np.empty((len(first_weights) * len(rest_weights), dimension))
        nodes[:, order[: len(self.first)]] = np.repeat(first_nodes, len(rest_weights), axis=0)
        nodes[:, order[len(self.first) :]] = np.tile(rest_nodes, (len(first_weights), 1))
        return nodes, np.outer(first_weights, rest_weights).ravel()

    def root(self, covariance: Float[Array, "D D"]) -> Float[Array, "D D"]:
        """An L such that the first latents depend only on their own part of z."""
        order = np.asarray(self._order(covariance.shape[0]))
        position = np.argsort(order)
        return small.small_root(covariance[order][:, order])[position][:, position]

    def _order(self, dimension: int) -> list[int]:
        return [*self.first, *(k for k in range(dimension) if k not in self.first)]


_PRODUCT_ORDERS = {1: 20, 2: 20, 3: 8, 4: 5}


def default_cubature(dimension: int) -> Cubature:
    """The default rule, for likelihoods without a closed form.

    Up to four latents, product Gauss-Hermite rules with 20 nodes per latent for one or two, 8 for three and 5 for four;
    above, the unscented rule of order 5. Some of its weights are negative, so averages of positive numbers may be too.
    `Unscented(3)` has no negative weights but is much less accurate; `QuasiRandom(1024)` has none, but many nodes.
    """
    return GaussHermite(_PRODUCT_ORDERS[dimension]) if dimension in _PRODUCT_ORDERS else Unscented(5)


def nodes_and_weights(
    cubature: Cubature, gaussian: Gaussian
) -> tuple[Float[Array, "S D"], Float[Array, " S"], Float[Array, "S D"], Float[Array, "D D"]]:
    """Nodes for this Gaussian, weights, the corresponding standard nodes, and the root L."""
    standard, weights = cubature.rule(gaussian.mean.shape[-1])
    root = cubature.root(gaussian.covariance)
    nodes = gaussian.mean[None, :] + jnp.asarray(standard) @ root.T
    return nodes, jnp.asarray(weights), jnp.asarray(standard), root


def is_point(cubature: Cubature, dimension: int) -> bool:
    """Whether all nodes are at the mean."""
    return not np.any(cubature.rule(dimension)[0])


def resolution(cubature: Cubature, dimension: int) -> float:
    """The variance of a uniform distribution between two neighbouring nodes, in units of the Gaussian's."""
    first = np.unique(np.round(cubature.rule(dimension)[0][:, 0], 12))
    return float(np.min(np.diff(first)) ** 2 / 12.0) if first.size > 1 else 1.0


def has_negative_weights(cubature: Cubature, dimension: int) -> bool:
    """Whether averages of PSD matrices over this rule may fail to be PSD."""
    return bool(np.any(cubature.rule(dimension)[1] < 0.0))


def check_cubature(value) -> None:
    """Raise ValueError unless `value` is a rule, or None for the default one."""
    if value is not None and not isinstance(value, Cubature):
        raise ValueError(f"cubature must be a rule such as GaussHermite(20) or Unscented(5), got {value!r}")
