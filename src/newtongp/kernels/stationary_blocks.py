"""The state space forms of the Matern kernels, which are exact, and of the RBF kernel, which is an approximation.

Time is measured in the kernel's own unit, so that every state is of order one and all tables are constants. Computed as
P − A P Aᵀ, the noise covariance would lose its digits for small steps, where its entries are as small as a high power
of the step. Here the error relative to √(Q_ii Q_jj) is near rounding for every step.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.small import outer
from .statespace import Block, horner

_T = TypeVar("_T")


def _table(make: Callable[[int], _T]) -> Callable[[int], _T]:
    """Compute the constants of an order once, and return copies.

    JAX caches NumPy constants by identity, in the precision of their first use: an array that was compiled
    into a function in double precision cannot be used in single precision later.
    """
    cached = functools.cache(make)

    @functools.wraps(make)
    def copied(order: int) -> _T:
        return jax.tree.map(np.copy, cached(order))

    return copied


# Matern ---------------------------------------------------------------------------------------


class MaternBlock(Block):
    """The Matern process with nu = size − 1/2: x = (f, f′/rate, f″/rate², …), with rate = √(2 nu)/lengthscale.

    With s the step times the rate, A = exp(−s) Σ_k Nᵏ sᵏ/k! and Q = G(2s) P + exp(−2s) R(s), where N is nilpotent,
    R a polynomial and G the regularised incomplete gamma function of order 2 size − 1.
    """

    lengthscale: Any
    variance: Any
    order: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.order

    def covariance(self, time):
        return self.variance * _matern_table(self.order).covariance

    def transition(self, start, end):
        return _matern_transition(self.order, self._step(start, end))

    def noise(self, start, end):
        return self.variance * _matern_noise(self.order, self._step(start, end))

    def _step(self, start, end):
        # Beyond the bound the correlation is zero; this keeps powers of the step finite.
        return jnp.minimum(math.sqrt(2 * self.order - 1) / self.lengthscale * (end - start), 1000.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern_transition(order: int, s):
    return jnp.exp(-s) * horner(s, _matern_table(order).transition)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern_noise(order: int, s):
    table, gamma = _matern_table(order), _incomplete_gamma(2 * order - 1, 2.0 * s)
    if order == 1:
        return gamma * table.covariance
    return gamma * table.covariance + jnp.exp(-2.0 * s) * s * horner(s, table.noise)


# Automatic differentiation of Horner's scheme would sum over the entries of a matrix for every power.


@_matern_transition.defjvp
def _matern_transition_derivative(order, primals, tangents):
    (s,), (tangent,) = primals, tangents
    return _matern_transition(order, s), _polynomial(jnp.exp(-s) * tangent, s, _matern_table(order).decay)


@_matern_noise.defjvp
def _matern_noise_derivative(order, primals, tangents):
    (s,), (tangent,) = primals, tangents
    return _matern_noise(order, s), _polynomial(jnp.exp(-2.0 * s) * tangent, s, _matern_table(order).growth)


def _polynomial(factor, x, coefficients: Sequence[np.ndarray]):
    """factor · Σ_k coefficients[k] xᵏ, as the product of a vector and a table."""
    powers = itertools.accumulate([x] * (len(coefficients) - 1), operator.mul, initial=factor)
    return jnp.tensordot(jnp.stack(list(powers)), np.stack(coefficients), 1)


class _MaternTable(NamedTuple):
    """Coefficients of powers of s.

    Attributes:
        covariance: P.
        transition: Nᵏ/k!, of exp(s) A.
        decay: Of exp(s) dA/ds.
        noise: Of R, from the first power on (it has no constant).
        growth: Of exp(2s) dQ/ds.
    """

    covariance: np.ndarray
    transition: list[np.ndarray]
    decay: list[np.ndarray]
    noise: list[np.ndarray]
    growth: list[np.ndarray]


@_table
def _matern_table(order: int) -> _MaternTable:
    # In fractions, because entries of R that cancel have to be exactly zero.
    drift = np.array([[Fraction(int(j == i + 1)) for j in range(order)] for i in range(order)])
    drift[-1] = [Fraction(-math.comb(order, j)) for j in range(order)]  # (d/ds + 1)^order f = white noise
    nilpotent = drift + _identity(order)
    powers = [_identity(order)]
    for k in range(1, order):
        powers.append(powers[-1].dot(nilpotent) / k)
    covariance = _matern_covariance(order)
    # The white noise enters the last entry: its density is such that f has unit variance.
    entrance = 0 * covariance
    entrance[-1, -1] = Fraction(2 ** (2 * order - 1), math.comb(2 * order - 2, order - 1))
    noise, growth = [], []
    for k in range(2 * order - 1):
        pairs = [(i, k - i) for i in range(order) if 0 <= k - i < order]
        carried, growing = (
            sum((powers[i].dot(matrix).dot(powers[j].T) for i, j in pairs), 0 * covariance)
            for matrix in (covariance, entrance)
        )
        noise.append(covariance * Fraction(2**k, math.factorial(k)) - carried)
        growth.append(growing)
    decay = [drift.dot(power) for power in powers]
    series = (powers, decay, noise[1:], growth)
    return _MaternTable(_floats(covariance), *([_floats(matrix) for matrix in matrices] for matrices in series))


def _matern_covariance(order: int) -> np.ndarray:
    """Cov(f⁽ⁱ⁾, f⁽ʲ⁾) = (−1)ʲ k⁽ⁱ⁺ʲ⁾(0), for k = exp(−s) Σ_m c_m sᵐ with unit variance."""
    p = order - 1
    c = [Fraction(math.comb(p, m) * 2**m * math.factorial(2 * p - m), math.factorial(2 * p)) for m in range(order)]

    def derivative(n: int) -> Fraction:
        return sum((c[m] * math.perm(n, m) * (-1) ** (n - m) for m in range(min(n, p) + 1)), Fraction(0))

    return np.array([[(-1) ** j * derivative(i + j) for j in range(order)] for i in range(order)])


def _identity(size: int) -> np.ndarray:
    return np.array([[Fraction(int(i == j)) for j in range(size)] for i in range(size)])


def _floats(matrix: np.ndarray) -> np.ndarray:
    return matrix.astype(np.float64)


def _incomplete_gamma(order: int, x):
    """1 − exp(−x) Σ_{k<order} xᵏ/k!, with a small relative error for small x too."""
    if order == 1:
        return -jnp.expm1(-x)
    decay, bound = jnp.exp(-x), (order - 1) / 2
    # The remainder of the series of exp(x), until its terms are negligible.
    small = decay * x**order * horner(x, [1.0 / math.factorial(order + k) for k in range(_terms(order, bound))])
    large = 1.0 - decay * horner(x, [1.0 / math.factorial(k) for k in range(order)])
    return jnp.where(x < bound, small, large)


def _terms(order: int, x: float) -> int:
    """The number of terms xᵏ order!/(order + k)!, from k = 0, that exceed rounding."""
    return next(k for k in itertools.count() if x**k / math.perm(order + k, k) < 1e-17)


# RBF ------------------------------------------------------------------------------------------

# With unit lengthscale and variance, x is the orthonormal basis made from f, f′, f″, …, so that P = I, and the exact
# kernel is the infinite chain dx_i/dt = √(i+1) x_(i+1) − √i x_(i−1). The table truncates it after `order` states: the
# couplings of neighbours, and the noise b that enters the last states. Both were chosen to minimise the largest error
# of the covariance over all lags, which a test measures. Every choice of numbers is a valid process.
_RBF_CHAINS = {
    2: ((1.25415239,), (1.94643619,)),
    3: ((1.03859891, 2.10352992), (2.55257691,)),
    4: ((1.02429, 2.00011022, 5.60784174), (1.16412275, -3.15265332, 0.94242931)),
    5: ((1.00161473, 1.61223764, 4.29084773, 4.40598152), (2.62575808, -3.07427317, -0.7722779)),
    6: ((1.0001981, 1.42735841, 2.55586933, 5.83369279, 4.9774232), (4.14084576, -1.70766672, -1.37675329)),
    7: (
        (1.0000322, 1.4159325, 1.79200501, 4.17564695, 5.36545461, 5.8273083),
        (5.0868214, -0.04253892, -1.00187361),
    ),
    8: (
        (1.00000668, 1.41452622, 1.74044417, 2.19898567, 6.53052135, 5.26536484, 5.35369482),
        (5.60224144, 0.55047229, 0.18787884),
    ),
}
RBF_ORDERS = tuple(_RBF_CHAINS)

# Up to this step, in lengthscales, power series have more digits than the exponentials and P − A P Aᵀ, for every order.
_SHORT = 1.5


class RBFBlock(Block):
    """An approximation of the RBF process by `order` states, of which the first is f and the second f′ · lengthscale.

    Steps that are short for the chain use power series, longer ones its exponentials and P − A P Aᵀ.
    """

    lengthscale: Any
    variance: Any
    order: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.order

    def covariance(self, time):
        return self.variance * np.eye(self.order)

    def transition(self, start, end):
        return _rbf_transition(self.order, self._step(start, end))

    def noise(self, start, end):
        return self.variance * _rbf_noise(self.order, self._step(start, end))

    def _step(self, start, end):
        return jnp.minimum((end - start) / self.lengthscale, 100.0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _rbf_transition(order: int, s):
    table = _rbf_table(order)
    series = jnp.tensordot(_powers(s, table), table.series, 1)
    decay, angle = jnp.exp(-s * table.damping), s * table.frequency
    modes = jnp.concatenate([decay * jnp.cos(angle), decay * jnp.sin(angle)])
    return jnp.where(s < _SHORT, series, jnp.tensordot(modes, table.modes, 1))


@_rbf_transition.defjvp
def _rbf_transition_derivative(order, primals, tangents):
    (s,), (tangent,) = primals, tangents
    drift, _ = rbf_chain(order)
    transition = _rbf_transition(order, s)
    return transition, drift @ (tangent * transition)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _rbf_noise(order: int, s):
    table = _rbf_table(order)
    responses = jnp.tensordot(_powers(s, table), table.responses, 1)
    series = jnp.minimum(s, _SHORT) * (responses @ responses.T)
    transition = _rbf_transition(order, s)
    return jnp.where(s < _SHORT, series, np.eye(order) - transition @ transition.T)


@_rbf_noise.defjvp
def _rbf_noise_derivative(order, primals, tangents):
    (s,), (tangent,) = primals, tangents
    _, b = rbf_chain(order)
    response = _rbf_transition(order, s) @ b
    return _rbf_noise(order, s), tangent * outer(response, response)


def _powers(s, table: "_RBFTable"):
    return jnp.minimum(s, _SHORT) ** np.arange(len(table.series))


class _RBFTable(NamedTuple):
    """Constants of one order.

    Attributes:
        series: Fᵏ/k!, the Taylor series of A.
        responses: √w_m u_mᵏ Fᵏb/k!, the series of the response v to a unit of noise at every Gauss-Legendre node u_m,
            so that Q = ∫₀ˢ v vᵀ is a sum over nodes.
        damping, frequency: −Re and Im of the eigenvalues λ of F, one of each conjugate pair.
        modes: The coefficients in A of the real parts of exp(λ s), and then of the imaginary parts.
    """

    series: np.ndarray
    responses: np.ndarray
    damping: np.ndarray
    frequency: np.ndarray
    modes: np.ndarray


@_table
def rbf_chain(order: int) -> tuple[np.ndarray, np.ndarray]:
    """F and b of dx = F x dt + b dβ, the approximation with unit lengthscale: F + Fᵀ + b bᵀ = 0, hence P = I."""
    couplings, noise = _RBF_CHAINS[order]
    b = np.concatenate([np.zeros(order - len(noise)), noise])
    lower = np.tril(np.outer(b, b), -1) + np.diag(couplings, -1)
    return np.diag(couplings, 1) - lower - np.diag(0.5 * b**2), b


@_table
def _rbf_table(order: int) -> _RBFTable:
    drift, b = rbf_chain(order)
    series = [np.eye(order)]
    for k in range(1, 40):
        series.append(drift @ series[-1] / k)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    nodes, weights = 0.5 * (nodes + 1.0), 0.5 * weights
    poles = np.roots(np.poly(drift))
    upper = np.imag(poles) >= 0.0
    return _RBFTable(
        series=np.stack(series),
        responses=np.stack([np.outer(power @ b, np.sqrt(weights) * nodes**k) for k, power in enumerate(series)]),
        damping=-np.real(poles)[upper],
        frequency=np.imag(poles)[upper],
        modes=_modes(drift, poles)[:, upper].reshape(-1, order, order),
    )


def _modes(drift: np.ndarray, poles: np.ndarray) -> np.ndarray:
    """exp(F s) = Σ exp(λ s) Z_λ, with Z_λ = ∏ (F − μ)/(λ − μ) over the other eigenvalues μ; twice that for a pair."""
    projections = []
    for k, pole in enumerate(poles):
        projection = np.eye(len(drift)) * (1.0 if np.imag(pole) == 0.0 else 2.0)
        for other in np.delete(poles, k):
            projection = projection @ (drift - other * np.eye(len(drift))) / (pole - other)
        projections.append(projection)
    return np.stack([np.real(projections), -np.imag(projections)])
