"""The discretised processes against arithmetic with 200 digits, for steps from 1e-9 to 1e3 lengthscales.

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
MATERNS = (kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.Matern72)

# In lengthscales: every size, and both sides of where one formula takes over from another.
STEPS = np.sort(np.concatenate([np.logspace(-9, 3, 25), np.linspace(0.2, 2.0, 19), [1.5 - 1e-9, 1.5 + 1e-9]]))
ENDS = LENGTHSCALE * STEPS


@pytest.fixture(autouse=True)
def many_digits():
    with decimal.localcontext(decimal.Context(prec=200)):
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


def number(value):
    """A fraction as a decimal."""
    value = Fraction(value)
    return Decimal(value.numerator) / Decimal(value.denominator)


@functools.cache
def impulse_responses(order):
    """The polynomials p_i with gⁱ(s) = p_i(s) exp(−s), where g = s^(order−1) exp(−s)/(order−1)! answers a unit of noise."""
    polynomials = [[Fraction(0)] * (order - 1) + [Fraction(1, math.factorial(order - 1))]]
    for _ in range(order - 1):
        last = polynomials[-1]
        slope = [k * c for k, c in enumerate(last)][1:] + [Fraction(0)]
        polynomials.append([a - b for a, b in zip(slope, last, strict=True)])
    return polynomials


@functools.cache
def matern(order):
    """A, Q and P of (f, f′, f″, …) in units of the kernel, with unit variance, as functions of h in lengthscales."""
    responses = impulse_responses(order)
    density = Fraction(2 ** (2 * order - 1), math.comb(2 * order - 2, order - 1))

    def integral(power, s):
        """∫ uᵏ exp(−2u) du from 0 to s; to infinity for None."""
        whole = number(Fraction(math.factorial(power), 2 ** (power + 1)))
        if s is None:
            return whole
        return whole * (1 - (-2 * s).exp() * sum((2 * s) ** j / math.factorial(j) for j in range(power + 1)))

    def spread(s):
        powers = [integral(k, s) for k in range(2 * order - 1)]

        def entry(p, q):
            return sum(
                number(density * a * b) * powers[k + m] for k, a in enumerate(p) for m, b in enumerate(q) if a * b
            )

        return np.array([[entry(p, q) for q in responses] for p in responses])

    def move(s):
        # (f, f′, …) is a polynomial of degree order − 1 times exp(−s): f(s) = Σ_k s^k exp(−s)/k! · Σ_j C(k, j) f^(j)(0).
        rows = []
        coefficients = [[Fraction(math.comb(k, j), math.factorial(k)) for k in range(order)] for j in range(order)]
        for _ in range(order):
            values = [sum(number(c) * s**k for k, c in enumerate(p)) for p in coefficients]
            rows.append([value * (-s).exp() for value in values])
            slopes = [[k * c for k, c in enumerate(p)][1:] + [Fraction(0)] for p in coefficients]
            coefficients = [
                [a - b for a, b in zip(d, p, strict=True)] for d, p in zip(slopes, coefficients, strict=True)
            ]
        return np.array(rows)

    return move, spread, spread(None)


def matern_at(order, end):
    move, spread, covariance = matern(order)
    s = Decimal(2 * order - 1).sqrt() * Decimal(end) / Decimal(LENGTHSCALE)
    variance = Decimal(VARIANCE)
    return move(s), variance * spread(s), variance * covariance


def rbf_at(order, end):
    """A by a Taylor series and squarings, and P − A P Aᵀ."""
    drift, noise = rbf_chain(order)
    b = [Decimal(float(each)) for each in noise]
    couplings = [Decimal(float(each)) for each in np.diag(drift, 1)]
    # Made again from its numbers, because F + Fᵀ + b bᵀ = 0 has to hold for every digit.
    exact = np.array(
        [
            [-b[i] * b[j] if i > j else -(b[i] ** 2) / 2 if i == j else Decimal(0) for j in range(order)]
            for i in range(order)
        ]
    )
    for i, coupling in enumerate(couplings):
        exact[i, i + 1] += coupling
        exact[i + 1, i] -= coupling
    step = Decimal(end) / Decimal(LENGTHSCALE)
    halvings = max(0, math.ceil(math.log2(float(step)) + 4))
    exact = exact * (step / 2**halvings)
    term = total = identity = np.array([[Decimal(int(i == j)) for j in range(order)] for i in range(order)])
    for k in range(1, 120):
        term = term.dot(exact) / k
        total = total + term
    for _ in range(halvings):
        total = total.dot(total)
    variance = Decimal(VARIANCE)
    return total, variance * (identity - total.dot(total.T)), variance * identity


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_matern(order):
    transition, noise, covariance = discretise(MATERNS[order - 1](LENGTHSCALE, VARIANCE), ENDS)
    a, q, p = (floats(each) for each in zip(*(matern_at(order, end) for end in ENDS), strict=True))
    print(
        "matern",
        order,
        "A",
        np.abs(transition - a).max(),
        "Q",
        error_of_noise(noise, q),
        "P",
        np.abs(covariance - p).max(),
    )
    np.testing.assert_allclose(transition, a, rtol=0, atol=1e-14)
    np.testing.assert_allclose(covariance, p, rtol=1e-15)
    assert error_of_noise(noise, q) < 1e-13


@pytest.mark.parametrize("order", RBF_ORDERS)
def test_rbf(order):
    transition, noise, _ = discretise(kernels.RBF(LENGTHSCALE, VARIANCE, order), ENDS)
    a, q, _ = (floats(each) for each in zip(*(rbf_at(order, end) for end in ENDS), strict=True))
    print("rbf", order, "A", np.abs(transition - a).max(), "Q", error_of_noise(noise, q))
    np.testing.assert_allclose(transition, a, rtol=0, atol=1e-13)
    assert error_of_noise(noise, q) < 1e-11
