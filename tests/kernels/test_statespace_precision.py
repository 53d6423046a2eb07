"""The discretised processes against arithmetic with 130 digits, for steps from 1e-9 to 1e3 lengthscales.

Errors of a noise covariance are relative to √(Q_ii Q_jj): its entries are powers of the step, some of them tiny.
"""

import decimal
import functools
import math
from decimal import Decimal
from fractions import Fraction

import jax
import numpy as np
import pytest

from newtongp import kernels
from newtongp.kernels.stationary_blocks import RBF_ORDERS, rbf_chain

LENGTHSCALE, VARIANCE = 0.8, 1.7

# In lengthscales: every size, and both sides of where one formula takes over from another.
STEPS = np.sort(np.concatenate([np.logspace(-9, 3, 19), np.linspace(0.2, 2.0, 10), [1.5 - 1e-9, 1.5 + 1e-9]]))
ENDS = LENGTHSCALE * STEPS


@pytest.fixture(autouse=True)
def many_digits():
    with decimal.localcontext(decimal.Context(prec=130)):
        yield


@jax.jit
def discretise(kernel, ends):
    """A, Q and P of the only block, for steps from 0."""
    (block,) = kernel.blocks()
    transition, noise = jax.vmap(block.transition, (None, 0)), jax.vmap(block.noise, (None, 0))
    return transition(0.0, ends), noise(0.0, ends), jax.vmap(block.covariance)(ends)


def floats(matrices):
    return np.array(matrices, dtype=object).astype(float)


def error_of_noise(noise, exact):
    scale = np.sqrt(np.einsum("...ii->...i", exact))
    return np.max(np.abs(noise - exact) / (scale[..., :, None] * scale[..., None, :]))


# Exact forms ----------------------------------------------------------------------------------


def number(fraction):
    return Decimal(fraction.numerator) / Decimal(fraction.denominator)


def derivatives(polynomial):
    """The polynomials p_i with gⁱ(s) = p_i(s) exp(−s), for g = p_0(s) exp(−s): as many as p_0 has coefficients."""
    found = [polynomial]
    for _ in polynomial[1:]:
        last = found[-1]
        slope = [*(k * each for k, each in enumerate(last) if k), Fraction(0)]
        found.append([a - b for a, b in zip(slope, last, strict=True)])
    return found


@functools.cache
def integral_to_infinity(power):
    """∫ uᵏ exp(−2u) du."""
    return Fraction(math.factorial(power), 2 ** (power + 1))


def matern_at(order, end):
    """A, Q and P of (f, f′, …) in units of the kernel: f answers white noise of density q with s^n exp(−s)/n!."""
    s = Decimal(2 * order - 1).sqrt() * Decimal(end) / Decimal(LENGTHSCALE)
    monomials = [[Fraction(int(j == k), math.factorial(k)) for j in range(order)] for k in range(order)]
    # From (f, f′, …) at zero: f(s) = exp(−s) Σ_k sᵏ/k! Σ_j C(k, j) f⁽ʲ⁾(0), because exp(s) f is a polynomial.
    columns = [
        derivatives([sum(math.comb(k, j) * monomials[k][m] for k in range(order)) for m in range(order)])
        for j in range(order)
    ]
    transition = [
        [(-s).exp() * sum(number(c) * s**m for m, c in enumerate(column[i])) for column in columns]
        for i in range(order)
    ]
    responses = derivatives(monomials[-1])
    density = Fraction(2 ** (2 * order - 1), math.comb(2 * order - 2, order - 1))

    def covariance(weight):
        """∫ q gⁱ gʲ, with weight(k) in place of uᵏ exp(−2u)."""
        weights = [weight(k) for k in range(2 * order - 1)]
        return [
            [
                sum(number(density * a * b) * weights[k + m] for k, a in enumerate(p) for m, b in enumerate(q))
                for q in responses
            ]
            for p in responses
        ]

    def until_now(k):
        rest = (-2 * s).exp() * sum((2 * s) ** j / math.factorial(j) for j in range(k + 1))
        return number(integral_to_infinity(k)) * (1 - rest)

    variance = Decimal(VARIANCE)
    noise, stationary = covariance(until_now), covariance(lambda k: number(integral_to_infinity(k)))
    return np.array(transition), variance * np.array(noise), variance * np.array(stationary)


def rbf_at(order, end):
    """A by a Taylor series and squarings, and P − A P Aᵀ."""
    drift, noise = rbf_chain(order)
    b = [Decimal(float(each)) for each in noise]
    # Made again from its numbers, because F + Fᵀ + b bᵀ = 0 has to hold for every digit.
    exact = np.array([[-b[i] * b[j] / (1 + (i == j)) * (i >= j) for j in range(order)] for i in range(order)])
    for i, coupling in enumerate(np.diag(drift, 1)):
        exact[i, i + 1] += Decimal(float(coupling))
        exact[i + 1, i] -= Decimal(float(coupling))
    step = Decimal(end) / Decimal(LENGTHSCALE)
    halvings = max(0, math.ceil(math.log2(float(step)) + 4))
    exact = exact * (step / 2**halvings)
    term = total = identity = np.array([[Decimal(int(i == j)) for j in range(order)] for i in range(order)])
    for k in range(1, 70):
        term = term.dot(exact) / k
        total = total + term
    for _ in range(halvings):
        total = total.dot(total)
    variance = Decimal(VARIANCE)
    return total, variance * (identity - total.dot(total.T)), variance * identity


def integrated_brownian_at(end):
    t, variance = Decimal(end), Decimal(VARIANCE)
    noise = variance * np.array([[t**3 / 3, t**2 / 2], [t**2 / 2, t]])
    return np.array([[Decimal(1), t], [Decimal(0), Decimal(1)]]), noise, noise


def integrated_matern12_at(end):
    """(f, slope) from the origin on, where f = 0 and the slope is stationary."""
    length, variance, one = Decimal(LENGTHSCALE), Decimal(VARIANCE), Decimal(1)
    t = Decimal(end) / length
    left = (-t).exp()
    short = one - left
    transition = np.array([[one, length * short], [Decimal(0), left]])
    cross = length * short**2
    noise = np.array([[2 * length**2 * (t - short - short**2 / 2), cross], [cross, one - left**2]])
    cross = length * short
    return transition, variance * noise, variance * np.array([[2 * length**2 * (t - short), cross], [cross, one]])


def product_at(left, right):
    """The Kronecker products, and P − A P Aᵀ."""
    (a1, q1, p1), (a2, q2, p2) = left, right
    covariance = np.kron(p1, p2)
    return np.kron(a1, a2), covariance - np.kron(p1 - q1, p2 - q2), covariance


# Comparisons ----------------------------------------------------------------------------------

(M12, M32, M52, M72) = (
    kind(LENGTHSCALE, VARIANCE) for kind in (kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.Matern72)
)

CASES = {
    "Matern12": (M12, lambda end: matern_at(1, end), 1e-15),
    "Matern32": (M32, lambda end: matern_at(2, end), 5e-15),
    "Matern52": (M52, lambda end: matern_at(3, end), 5e-15),
    "Matern72": (M72, lambda end: matern_at(4, end), 5e-15),
    "Matern32 x Matern52": (M32 * M52, lambda end: product_at(matern_at(2, end), matern_at(3, end)), 1e-14),
    "Matern72 x Matern12": (M72 * M12, lambda end: product_at(matern_at(4, end), matern_at(1, end)), 1e-14),
    "IntegratedBrownian": (kernels.IntegratedBrownian(VARIANCE), integrated_brownian_at, 1e-15),
    "IntegratedMatern12": (kernels.IntegratedMatern12(LENGTHSCALE, VARIANCE), integrated_matern12_at, 2e-15),
    "IntegratedBrownian x Matern32": (
        kernels.IntegratedBrownian(VARIANCE) * M32,
        lambda end: product_at(integrated_brownian_at(end), matern_at(2, end)),
        1e-14,
    ),
    # The longer a chain, the faster its states turn within a lengthscale, which costs digits.
    **{
        f"RBF of {order} states": (
            kernels.RBF(LENGTHSCALE, VARIANCE, order),
            functools.partial(rbf_at, order),
            1e-14 if order < 4 else 1e-12 if order < 7 else 5e-12,
        )
        for order in RBF_ORDERS
    },
}


@pytest.mark.parametrize("name", CASES)
def test_every_digit_counts_for_every_step(name):
    kernel, exactly, tolerance = CASES[name]
    transition, noise, covariance = (np.asarray(each) for each in discretise(kernel, ENDS))
    exact = [floats(each) for each in zip(*(exactly(end) for end in ENDS), strict=True)]
    np.testing.assert_allclose(transition, exact[0], rtol=tolerance, atol=tolerance)
    assert error_of_noise(noise, exact[1]) < tolerance
    assert error_of_noise(covariance, exact[2]) < tolerance
