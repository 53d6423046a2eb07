"""State space forms: which blocks a kernel has, steps of every length, products, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng
from newtongp import kernels
from newtongp.kernels.stationary_blocks import RBF_ORDERS, MaternBlock, RBFBlock, rbf_chain


def between(blocks, start, end):
    """A, Q and P of every block."""
    return [(block.transition(start, end), block.noise(start, end), block.covariance(end)) for block in blocks]


@jax.jit
def implied(kernel, start, end):
    """k(start, end), start ≤ end, from the blocks and from the kernel."""

    def one(s, t):
        blocks = [block.transition(s, t) @ block.covariance(s) for block in kernel.blocks()]
        return sum(block[0, 0] for block in blocks), kernel.evaluate(s[None], t[None])

    return jax.vmap(one)(start, end)


@given(
    hyperparameters=st.tuples(*[st.floats(0.05, 20.0)] * 4),
    start=st.floats(-1e3, 1e3),
    gap=st.floats(0.0, 1e3),
)
def test_a_composition_has_the_covariance_of_the_kernel(hyperparameters, start, gap):
    a, b, c, d = hyperparameters
    kernel = kernels.Matern52(a, b) * kernels.Cosine(c) + kernels.Matern32(d) * (kernels.Matern12(a) + 0.5)
    found, expected = implied(kernel, np.array([start]), np.array([start + gap]))
    # The dense cosine rounds the quotient of the distance by the period.
    assert abs(float(found[0] - expected[0])) <= 1e-12 * (b + 1.5) * (1.0 + gap / c)


EVERY_LENGTH = {
    "Matern12": kernels.Matern12(0.7, 1.3),
    "Matern32": kernels.Matern32(0.7, 1.3),
    "Matern52": kernels.Matern52(0.7, 1.3),
    "Matern72": kernels.Matern72(0.7, 1.3),
    "RBF": kernels.RBF(0.7, 1.3),
    "Cosine": kernels.Cosine(0.9, 1.3),
    "Periodic": kernels.Periodic(1.7, 1.4, 0.8, harmonics=2),
    "White": kernels.White(0.6),
    "Matern x Matern": kernels.Matern32(0.7, 1.3) * kernels.Matern52(0.4, 0.6),
    "Linear x Matern": kernels.Linear(0.5, 0.3) * kernels.Matern32(0.7),
}


@pytest.mark.parametrize("kernel", EVERY_LENGTH.values(), ids=EVERY_LENGTH.keys())
def test_values_and_derivatives_are_finite_for_every_step(kernel):
    @jax.jit
    def totals(kernel, gaps):
        def total(kernel, gap):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(between(kernel.blocks(), 0.2, 0.2 + gap)))

        return jax.vmap(jax.value_and_grad(total), in_axes=(None, 0))(kernel, gaps)

    found = totals(kernel, np.array([0.0, 1e-300, 1e-12, 1e-3, 1.0, 1e6, 1e12, 1e100]))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found))


def test_products_keep_their_digits_for_every_step():
    # The product of Matern-1/2 with itself is one with half the lengthscale, which is known to every digit.
    (product,) = (kernels.Matern12(1.4, 2.0) * kernels.Matern12(1.4, 0.65)).blocks()
    (known,) = kernels.Matern12(0.7, 1.3).blocks()
    ends = 10.0 ** np.arange(-12.0, 7.0, 0.5)
    found, expected = (
        jax.jit(jax.vmap(lambda end, block=block: between([block], 0.0, end)))(ends)[0] for block in (product, known)
    )
    for left, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-14)


def test_oscillations_lose_no_digits_over_long_gaps():
    (block,) = kernels.Cosine(period=0.75).blocks()
    long, short = jax.jit(jax.vmap(lambda gap: block.transition(0.0, gap)))(np.array([0.75 * 2.0**40 + 0.125, 0.125]))
    np.testing.assert_allclose(long, short, atol=1e-15)


def test_the_derivative_in_the_period_is_right_at_whole_periods():
    # The quotients 3 * 0.7 / 0.7 and so on round to whole numbers where the remainders do not.
    gaps = np.array([0.7 * k for k in range(1, 40)])

    def sine(period):
        (block,) = kernels.Cosine(period).blocks()
        return jax.vmap(lambda gap: block.transition(0.0, gap)[0, 1])(gaps)

    np.testing.assert_allclose(jax.jit(jax.jacfwd(sine))(0.7), -2.0 * np.pi * gaps / 0.49, rtol=1e-12)


# RBF ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", RBF_ORDERS)
def test_rbf_is_a_stationary_process_with_unit_covariance(order):
    drift, b = rbf_chain(order)
    np.testing.assert_allclose(drift + drift.T, -np.outer(b, b), atol=1e-15)
    assert np.linalg.eigvals(drift).real.max() < -0.9
    lags = np.array([1e-3, 0.3, 1.4, 1.6, 5.0])
    found = jax.jit(jax.vmap(lambda lag: RBFBlock(1.0, 1.0, order).transition(0.0, lag)))(lags)
    np.testing.assert_allclose(found, [scipy.linalg.expm(drift * lag) for lag in lags], atol=1e-12)


def test_the_second_state_of_rbf_is_the_derivative():
    drift, _ = rbf_chain(6)
    np.testing.assert_array_equal(drift[0, 2:], np.zeros(4))
    assert drift[0, 1] == pytest.approx(1.0, abs=3e-4)


def test_rbf_has_the_variance_of_the_kernel():
    assert implied(kernels.RBF(0.7, 1.3), np.zeros(1), np.zeros(1))[0][0] == 1.3


# A block from its equation --------------------------------------------------------------------


@pytest.mark.slow
def test_derivatives_of_linear_sde():
    def linear(lengthscale):
        rate = jnp.sqrt(3.0) / lengthscale
        drift = rate * jnp.array([[0.0, 1.0], [-1.0, -2.0]])
        return kernels.LinearSDE(drift, rate * jnp.diag(jnp.array([0.0, 4.0])), jnp.eye(2))

    def total(make):
        def value(lengthscale, gap):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(between([make(lengthscale)], 0.0, gap)))

        return jax.jit(jax.vmap(jax.grad(value), (None, 0)))

    gaps = np.array([0.0, 1e-6, 0.3, 5.0, 1e4])
    found, expected = total(linear)(0.7, gaps), total(lambda lengthscale: MaternBlock(lengthscale, 1.0, 2))(0.7, gaps)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones(2), np.eye(2), np.eye(2)), r"drift must be a square matrix, got shape \(2,\)"),
        ((-np.eye(2), np.ones((2, 3)), np.eye(2)), r"diffusion must be a square matrix, got shape \(2, 3\)"),
        ((-np.eye(2), 2.0 * np.eye(2), np.eye(3)), "must have the same shape"),
        ((-np.eye(2), np.eye(2), np.eye(2)), r"stationary must solve .* up to 1: use scipy"),
        ((-np.eye(2) * np.nan, np.eye(2), np.eye(2)), "drift must be finite"),
    ],
)
def test_wrong_equations(arguments, message):
    with pytest.raises(ValueError, match=message):
        kernels.LinearSDE(*arguments)


# Structure ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (kernels.Matern72(), (4,)),
        (kernels.RBF(order=5), (5,)),
        (kernels.Periodic(harmonics=3), (1, 2, 2, 2)),
        (kernels.Periodic(harmonics=2) * kernels.Matern32(), (2, 4, 4)),
        ((kernels.Matern12() + kernels.Cosine()) * (kernels.Matern32() + 1.0), (2, 1, 4, 2)),
        (2.0 * kernels.Linear() + kernels.Constant(), (2, 1)),
        (kernels.Matern32() * kernels.Matern52() * kernels.Cosine(), (12,)),
        (kernels.Matern32().on(0).on(0), (2,)),
    ],
)
def test_sizes_of_blocks(kernel, sizes):
    blocks = kernel.blocks()
    assert tuple(block.size for block in blocks) == sizes
    assert all(np.shape(block.covariance(0.3)) == (block.size, block.size) for block in blocks)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (kernels.RationalQuadratic(), "RationalQuadratic has no state space form: use it with `GP`"),
        (kernels.Matern32() + kernels.RationalQuadratic(), "RationalQuadratic has no state space form"),
        (2.0 * kernels.RationalQuadratic() * kernels.Matern32(), "RationalQuadratic has no state space form"),
        (kernels.Matern32().on(1), r"the kernel uses \(1,\)"),
        (kernels.Matern32().on(0, 0), r"the kernel uses \(0, 0\)"),
        (kernels.Matern32([1.0, 2.0]), "lengthscale has length 2, but x has 1"),
        (kernels.RBF([1.0, 2.0]), "lengthscale has length 2, but x has 1"),
        (kernels.Linear([1.0, 2.0]), "variance has length 2, but x has 1"),
    ],
)
def test_kernels_without_a_state_space_form(kernel, message):
    with pytest.raises(ValueError, match=message):
        kernel.blocks()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.Periodic(harmonics=-1), "harmonics must be an integer from 0 to 1000, got -1"),
        (lambda: kernels.Periodic(harmonics=2.0), "harmonics must be an integer from 0 to 1000, got 2.0"),
        (lambda: kernels.Periodic(harmonics=True), "harmonics must be an integer"),
        (lambda: kernels.RBF(order=1), "order must be an integer from 2 to 8, got 1"),
        (lambda: kernels.RBF(order=9), "order must be an integer from 2 to 8, got 9"),
        (lambda: kernels.Brownian(origin=np.nan), "origin must be finite"),
        (lambda: kernels.IntegratedBrownian(variance=-1.0), "variance must be greater than 0"),
    ],
)
def test_wrong_choices(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Random walks ---------------------------------------------------------------------------------


def test_random_walks_are_what_they_say(rng):
    t = np.sort(rng.uniform(-1.0, 3.0, size=7))
    m = np.minimum(t[:, None], t[None, :]) + 1.0
    gram = kernels.gram(kernels.Brownian(0.5, -1.0), t[:, None], t[:, None])
    np.testing.assert_allclose(gram, 0.5 * m, rtol=1e-13)
    gram = kernels.gram(kernels.IntegratedBrownian(0.5, -1.0), t[:, None], t[:, None])
    np.testing.assert_allclose(gram, 0.5 * (m**3 / 3 + np.abs(t[:, None] - t[None, :]) * m**2 / 2), rtol=1e-12)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda kernel: kernel,
        lambda kernel: kernels.Matern32() + kernel,
        lambda kernel: 2.0 * (kernel * kernels.Matern32()),
        lambda kernel: kernels.Matern32() + kernel.on(0),
    ],
    ids=["alone", "sum", "scaled product", "active"],
)
@pytest.mark.parametrize("kind", [kernels.Brownian, kernels.IntegratedBrownian, kernels.IntegratedMatern12])
def test_random_walks_need_inputs_after_their_origin(kind, wrap):
    kernel = wrap(kind(origin=2.0))
    kernel.check_values(np.array([[2.0], [5.0]]))
    message = rf"{kind.__name__} starts at its origin, 2, but x has the value 1.5: .*`{kind.__name__}\(origin=-1\)`"
    with pytest.raises(ValueError, match=message):
        kernel.check_values(np.array([[3.0], [1.5], [-1.0]]))


def test_values_are_checked_in_the_columns_a_kernel_sees():
    x = np.array([[-1.0, 0.5], [-2.0, 0.7]])
    kernels.Brownian().on(1).check_values(x)
    with pytest.raises(ValueError, match="the value -1"):
        kernels.Brownian().on(0).check_values(x)
    with pytest.raises(ValueError, match="kernel of latent 1: Brownian starts at its origin"):
        kernels.Independent([kernels.Matern32(), kernels.Brownian()]).check_values(x[:, :1])


@pytest.mark.parametrize("prior", [ng.GP, ng.MarkovGP, lambda kernel: ng.SparseGP(kernel, 2)])
def test_no_prior_takes_inputs_before_the_origin(prior):
    prior = prior(kernels.Matern32() + kernels.Brownian(origin=1.0))
    prior.check_inputs(np.array([[1.0], [3.0]]))
    with pytest.raises(ValueError, match=r"Brownian starts at its origin, 1, but x has the value 0\.5"):
        prior.check_inputs(np.array([[2.0], [0.5]]))


def test_no_inducing_input_precedes_the_origin():
    prior = ng.SparseGP(kernels.Brownian(), inducing=[-1.0, 1.0])
    with pytest.raises(ValueError, match=r"inducing inputs are inputs like those in x: .* the value -1"):
        prior.check_inputs(np.array([[1.0], [3.0]]))


@pytest.mark.parametrize("kernel", [kernels.Brownian(), kernels.IntegratedBrownian()])
def test_random_walks_work_on_one_column(kernel):
    with pytest.raises(ValueError, match=r"works on one column of x, but x has 2: .*on\(0\)"):
        kernel.check_inputs(2)
