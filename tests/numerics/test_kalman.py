"""Filters and smoothers against dense matrices in NumPy, for sites and noises of every kind: arrays alone."""

import functools
import itertools
from fractions import Fraction
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import block_diag

from newtongp.numerics import kalman
from newtongp.numerics.kalman import chain as chain_room
from newtongp.numerics.kalman import loops

T = 7


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


class Layout(NamedTuple):
    """Sizes of the blocks, which states each latent is the sum of, and whether H is given step by step instead."""

    sizes: tuple[int, ...]
    selection: tuple[tuple[int, ...], ...]
    weighted: bool = False

    @property
    def dimension(self):
        return sum(self.sizes)

    @property
    def latents(self):
        return len(self.selection)


LAYOUTS = {
    "one state": Layout((1,), ((0,),)),
    "one block": Layout((2,), ((0,),)),
    "a sum of blocks": Layout((1, 2), ((0, 1),)),
    "two latents": Layout((1, 2), ((0,), (1,))),
    "latents that share a state": Layout((1, 1), ((0, 1), (1,))),
    "three latents": Layout((1, 1, 1), ((0,), (1,), (2,))),
    "weights": Layout((2,), ((), ()), weighted=True),
    "one latent with weights": Layout((2,), ((),), weighted=True),
    "large": Layout((1, 4, 4), ((0, 1), (5,))),
}
assert LAYOUTS["large"].dimension > chain_room._LARGEST_UNROLLED


class Blocks(NamedTuple):
    """A chain as arrays, in order of time: one (T, b, b) a block, P₀ as one (b, b) a block, and H (T, D, d)."""

    transition: tuple[np.ndarray, ...]
    noise: tuple[np.ndarray, ...]
    initial: tuple[np.ndarray, ...]
    rows: np.ndarray


def random_chain(rng, layout, noise="full", length=T):
    """A random chain. Its noise is of full rank, of rank one, zero here and there, or zero everywhere."""
    transition, noises, initial = [], [], []
    for size in layout.sizes:
        steps = 0.8 * np.eye(size) + 0.3 * rng.normal(size=(length, size, size)) / np.sqrt(size)
        root = 0.6 * rng.normal(size=(length, size, 1 if noise == "rank one" else size))
        spread = root @ np.swapaxes(root, 1, 2)
        if noise == "none":
            spread[:] = 0.0
        # The first position is where the chain starts; the others here repeat the one before them.
        for still in [0, 3, 4] if noise == "repeated" else [0]:
            steps[still], spread[still] = np.eye(size), 0.0
        first = rng.normal(size=(size, size))
        transition.append(steps)
        noises.append(spread)
        initial.append(first @ first.T + 0.1 * np.eye(size))
    rows = np.zeros((length, layout.latents, layout.dimension))
    for j, chosen in enumerate(layout.selection):
        rows[:, j, list(chosen)] = 1.0
    if layout.weighted:
        rows = rng.normal(size=rows.shape)
    return Blocks(tuple(transition), tuple(noises), tuple(initial), rows)


def make(layout, form, blocks, pieces=1):
    """The chain in the order of the loops, filled up to a multiple of the pieces by positions that repeat the last.

    The form of its small matrices is "unrolled", unless it is too large for that, or "arrays".
    """

    def lay(array, last):
        return fill_up(array, last, pieces)

    with mock.patch.object(chain_room, "_LARGEST_UNROLLED", {"unrolled": 8, "arrays": 0}[form]):
        return kalman.make_chain(
            tuple(lay(block, np.eye(block.shape[-1])) for block in blocks.transition),
            tuple(lay(block, np.zeros(block.shape[1:])) for block in blocks.noise),
            blocks.initial,
            layout.selection,
            lay(blocks.rows, blocks.rows[-1]) if layout.weighted else None,
            pieces,
        )


def fill_up(array, last, pieces):
    """One entry a position in order of time → in the order of the loops, with as many more as the pieces need."""
    fill = jnp.broadcast_to(last, (-array.shape[0] % pieces, *array.shape[1:]))
    return kalman.from_time(jnp.concatenate([array, fill]), pieces)


def random_sites(rng, latents, kind, length=T):
    """Λ (T, D, D) and τ (T, D)."""
    root = rng.normal(size=(length, latents, latents))
    precision = root @ np.swapaxes(root, 1, 2)
    linear = rng.normal(size=(length, latents))
    if kind == "zero":
        precision[:], linear[:] = 0.0, 0.0
    if kind == "missing":
        precision[::2], linear[::2] = 0.0, 0.0
    if kind == "singular":
        precision = root[:, :, :1] @ np.swapaxes(root[:, :, :1], 1, 2)
    if kind == "equal eigenvalues":
        precision = np.abs(root[:, :1, :1]) * np.eye(latents)
    if kind == "indefinite":
        precision = precision - rng.uniform(0.0, 0.4, (length, 1, 1)) * np.eye(latents)
    return precision, linear


class Dense(NamedTuple):
    """The same from one big matrix: the posterior of all latents and of all states."""

    mean: np.ndarray
    covariance: np.ndarray
    weights: np.ndarray
    log_det: float
    proper: bool
    margin: float
    """The smallest eigenvalue of I + K½ΛK½."""
    state_mean: np.ndarray
    state_covariance: np.ndarray

    def blocks(self, latents):
        """The D × D blocks on the diagonal of the covariance, (T, D, D)."""
        count = self.mean.size // latents
        split = self.covariance.reshape(count, latents, count, latents)
        return np.stack([split[t, :, t] for t in range(count)])

    def state_blocks(self, size):
        count = self.state_mean.size // size
        split = self.state_covariance.reshape(count, size, count, size)
        return np.stack([split[t, :, t] for t in range(count)])


def prior_covariance(blocks):
    """Cov of all states, (T·d, T·d), from x = M (x₀, ε₁, …, ε_T)."""
    length, _, size = blocks.rows.shape
    spread = block_diag(*blocks.initial)
    joint = np.zeros((length, size, length, size))
    for t in range(length):
        step = block_diag(*[block[t] for block in blocks.transition])
        for s in range(t):
            joint[t, :, s] = step @ joint[t - 1, :, s]
            joint[s, :, t] = joint[t, :, s].T
        spread = step @ spread @ step.T + block_diag(*[block[t] for block in blocks.noise])
        joint[t, :, t] = spread
    return joint.reshape(length * size, length * size)


def dense_answer(blocks, precision, linear):
    length, latents, size = blocks.rows.shape
    states = prior_covariance(blocks)
    observe = np.zeros((length, latents, length, size))
    sites = np.zeros((length, latents, length, latents))
    for t in range(length):
        observe[t, :, t], sites[t, :, t] = blocks.rows[t], precision[t]
    observe = observe.reshape(length * latents, length * size)
    sites = sites.reshape(length * latents, length * latents)
    gram = observe @ states @ observe.T
    matrix = np.eye(len(gram)) + sites @ gram
    weights = np.linalg.solve(matrix, linear.reshape(-1))
    values, vectors = np.linalg.eigh(gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    margin = float(np.min(np.linalg.eigvalsh(np.eye(len(gram)) + root.T @ sites @ root)))
    across = states @ observe.T
    return Dense(
        gram @ weights,
        gram @ np.linalg.inv(matrix),
        weights,
        float(np.linalg.slogdet(matrix)[1]),
        margin > 0.0,
        margin,
        across @ weights,
        states - across @ np.linalg.solve(matrix, sites @ across.T),
    )


def draw_problem(rng, layout, kind, noise, length=T):
    """A chain and sites; indefinite ones are drawn again until the posterior is proper, with something to spare."""
    for _ in range(200):
        blocks = random_chain(rng, layout, noise, length)
        precision, linear = random_sites(rng, layout.latents, kind, length)
        wanted = dense_answer(blocks, precision, linear)
        if wanted.margin > 0.05:
            return blocks, precision, linear, wanted
    raise AssertionError("no proper posterior was found")


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def condition(layout, form, pieces, blocks, precision, linear):
    """The posterior marginals and states, in order of time."""
    nothing = jnp.zeros(layout.latents), jnp.zeros((layout.latents, layout.latents))
    sites = fill_up(precision, nothing[1], pieces), fill_up(linear, nothing[0], pieces)
    smoothed, states, *_ = kalman.marginals_and_states(make(layout, form, blocks, pieces), *sites)

    def in_time(leaf):
        return kalman.to_time(leaf, pieces)[: linear.shape[0]] if leaf.ndim else leaf

    return jax.tree.map(in_time, (smoothed, states))


def assert_marginals(found, wanted, latents, tolerance=1e-10):
    scale = max(1.0, float(np.max(np.abs(wanted.covariance))))
    np.testing.assert_allclose(np.ravel(found.mean), wanted.mean, atol=tolerance * scale)
    np.testing.assert_allclose(found.covariance, wanted.blocks(latents), atol=tolerance * scale)
    np.testing.assert_allclose(np.ravel(found.weights), wanted.weights, atol=tolerance * scale)
    assert float(found.log_det) == pytest.approx(wanted.log_det, abs=tolerance * scale)
    assert bool(found.proper) is wanted.proper


KINDS = ["psd", "zero", "missing", "singular", "equal eigenvalues", "indefinite"]
NOISES = ["full", "rank one", "repeated", "none"]


def layouts_and_forms(*everyday):
    """All layouts in all their forms; those that are not for every day are slow."""
    pairs = [(name, form) for name in LAYOUTS for form in ("unrolled", "arrays")]
    pairs.remove(("large", "unrolled"))
    marks = {pair: [pytest.mark.slow] * (pair not in everyday) for pair in pairs}
    return pytest.mark.parametrize(("name", "form"), [pytest.param(*pair, marks=marks[pair]) for pair in pairs])


@pytest.mark.cases(quick=["one block-unrolled"], others="thorough")
@layouts_and_forms(("one block", "unrolled"), ("two latents", "unrolled"), ("three latents", "arrays"))
def test_marginals_are_those_of_the_dense_matrix(name, form):
    layout = LAYOUTS[name]
    rng = np.random.default_rng(3)
    for kind, noise in itertools.product(KINDS, NOISES):
        blocks, precision, linear, wanted = draw_problem(rng, layout, kind, noise)
        found, _ = condition(layout, form, 1, blocks, precision, linear)
        assert_marginals(found, wanted, layout.latents)


@pytest.mark.cases(thorough=["long sums"], slow=["matrix products"])
@pytest.mark.parametrize(("sizes", "pieces"), [((9,), 1), ((1, 8), 64)], ids=["matrix products", "long sums"])
def test_what_no_single_kernel_can_do_is_done_by_plain_loops(sizes, pieces):
    layout = Layout(sizes, ((0,),))
    blocks, precision, linear, wanted = draw_problem(np.random.default_rng(3), layout, "psd", "full")
    assert not make(layout, "arrays", blocks, pieces).is_whole
    found, _ = condition(layout, "arrays", pieces, blocks, precision, linear)
    assert_marginals(found, wanted, 1)


@pytest.mark.cases(slow=["two latents-unrolled"])
@pytest.mark.parametrize(("name", "form"), [("one block", "unrolled"), ("two latents", "unrolled")])
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    noise=st.sampled_from(NOISES),
    size=st.floats(-3.0, 2.0),
    wide=st.floats(-3.0, 3.0),
)
def test_marginals_of_any_chain(name, form, seed, kind, noise, size, wide):
    """Sites of any size, on states that are wide or narrow: the same but for the units."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(seed)
    blocks, precision, linear, wanted = draw_problem(rng, layout, kind, noise)
    unit = 10.0**wide
    stretched = blocks._replace(
        noise=tuple(unit**2 * block for block in blocks.noise),
        initial=tuple(unit**2 * block for block in blocks.initial),
    )
    scale = 10.0**size if kind != "indefinite" else 1.0
    wanted = dense_answer(blocks, scale * precision, scale * linear)
    found, _ = condition(layout, form, 1, stretched, scale * precision / unit**2, scale * linear / unit)
    in_units = found._replace(
        mean=found.mean / unit, covariance=found.covariance / unit**2, weights=found.weights * unit
    )
    assert_marginals(in_units, wanted, layout.latents, 1e-8)


PIECES = [
    ("one block", "unrolled", 4),
    ("two latents", "unrolled", 16),
    *(
        pytest.param(name, form, pieces, marks=pytest.mark.slow)
        for name, form in (
            ("one state", "unrolled"),
            ("one block", "arrays"),
            ("two latents", "arrays"),
            ("weights", "arrays"),
        )
        for pieces in (2, 3, 16)
    ),
]


@pytest.mark.cases(slow=["one block-unrolled-4"], others="thorough")
@pytest.mark.parametrize(("name", "form", "pieces"), PIECES)
def test_pieces_change_nothing(name, form, pieces):
    layout = LAYOUTS[name]
    rng = np.random.default_rng(4)
    for kind, noise in itertools.product(KINDS, NOISES):
        blocks, precision, linear, wanted = draw_problem(rng, layout, kind, noise)
        found, states = condition(layout, form, pieces, blocks, precision, linear)
        assert_marginals(found, wanted, layout.latents)
        _, whole = condition(layout, form, 1, blocks, precision, linear)
        for one, other in zip(states, whole, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-9 * max(1.0, np.max(np.abs(other))))


DRAWS = 4000


def normaliser_of_matrices(blocks, precision, linear):
    """½ (τᵀm − log det(I + ΛK)), in JAX and from one big matrix, for one latent."""
    length = len(blocks.rows)
    spread, joint = jax.scipy.linalg.block_diag(*blocks.initial), {}
    for t in range(length):
        step = jax.scipy.linalg.block_diag(*[block[t] for block in blocks.transition])
        for s in range(t):
            joint[t, s] = step @ joint[t - 1, s]
            joint[s, t] = joint[t, s].T
        noise = jax.scipy.linalg.block_diag(*[block[t] for block in blocks.noise])
        joint[t, t] = spread = step @ spread @ step.T + noise
    every = range(length)
    gram = jnp.array([[blocks.rows[t, 0] @ joint[t, s] @ blocks.rows[s, 0] for s in every] for t in every])
    matrix = jnp.eye(length) + precision[:, 0] * gram
    mean = gram @ jnp.linalg.solve(matrix, linear[:, 0])
    return 0.5 * (linear[:, 0] @ mean - jnp.linalg.slogdet(matrix)[1])


@pytest.mark.cases(quick=["arrays-1"], slow=["unrolled-1"], others="thorough")
@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("form", ["unrolled", "arrays"])
def test_derivatives_of_the_log_normaliser_are_those_of_the_dense_matrix(form, pieces):
    layout = LAYOUTS["a sum of blocks"]
    blocks, precision, linear, _ = draw_problem(np.random.default_rng(5), layout, "psd", "full")

    def value(matrices, precision, linear):
        sites = fill_up(precision, jnp.zeros((1, 1)), pieces), fill_up(linear, jnp.zeros(1), pieces)
        given = blocks._replace(transition=matrices[0], noise=matrices[1], initial=matrices[2])
        return kalman.log_normaliser(make(layout, form, given, pieces), *sites)

    def wanted(matrices, precision, linear):
        given = blocks._replace(transition=matrices[0], noise=matrices[1], initial=matrices[2])
        return normaliser_of_matrices(given, precision, linear)

    arguments = (blocks.transition, blocks.noise, blocks.initial), precision, linear
    arguments = jax.tree.map(jnp.asarray, arguments)
    found = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2)))(*arguments)
    right = jax.jit(jax.value_and_grad(wanted, argnums=(0, 1, 2)))(*arguments)

    # Derivatives in symmetric matrices are compared as symmetric ones.
    def symmetric(gradients):
        (transition, noise, initial), *rest = gradients
        halves = jax.tree.map(lambda matrix: 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2)), (noise, initial))
        return transition, *halves, *rest

    assert float(found[0]) == pytest.approx(float(right[0]), abs=1e-12)
    for a, b in zip(jax.tree.leaves(symmetric(found[1])), jax.tree.leaves(symmetric(right[1])), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)


@functools.partial(jax.jit, static_argnums=(0, 1))
def everything(layout, form, blocks, precision, linear, chosen):
    """What else can be asked of a chain of one piece: states, joint covariance, predictions and draws."""
    chain = make(layout, form, blocks)
    forward = kalman.forward(chain, precision, linear)
    mean, covariance, _ = kalman.smoothed_states(chain, precision, linear)
    joint = kalman.joint_covariance(forward, covariance, blocks.rows, chosen)
    predictions = kalman.predicted(chain, precision, linear)
    return (mean, covariance), joint, predictions, kalman.draw_paths(forward, jax.random.key(1), DRAWS)


@pytest.mark.cases(slow=["one block-unrolled"], others="thorough")
@layouts_and_forms(("one block", "unrolled"), ("two latents", "unrolled"))
def test_states_joint_covariances_predictions_and_draws(name, form):
    layout = LAYOUTS[name]
    latents, size = layout.latents, layout.dimension
    rng = np.random.default_rng(5)
    chosen = np.array([5, 2, 2, 6, 0])
    for kind, noise in [("psd", "full"), ("singular", "repeated"), ("indefinite", "full"), ("indefinite", "none")]:
        blocks, precision, linear, wanted = draw_problem(rng, layout, kind, noise)
        states, joint, predictions, draws = everything(layout, form, blocks, precision, linear, chosen)
        np.testing.assert_allclose(np.ravel(states[0]), wanted.state_mean, atol=1e-9)
        np.testing.assert_allclose(states[1], wanted.state_blocks(size), atol=1e-9)
        every = wanted.covariance.reshape(T, latents, T, latents)
        np.testing.assert_allclose(joint, every[chosen][:, :, chosen], atol=1e-9)
        for t in range(T):
            earlier = np.where(np.arange(T) < t, 1.0, 0.0)
            before = dense_answer(blocks, earlier[:, None, None] * precision, earlier[:, None] * linear)
            np.testing.assert_allclose(predictions[0][t], before.mean.reshape(T, latents)[t], atol=1e-9)
            np.testing.assert_allclose(predictions[1][t], before.blocks(latents)[t], atol=1e-9)
        paths = np.asarray(draws).reshape(T * size, DRAWS)
        spread = np.sqrt(np.diag(wanted.state_covariance))
        mean_off = np.abs(paths.mean(axis=1) - wanted.state_mean)
        assert np.all(mean_off < 5.0 * spread / np.sqrt(DRAWS) + 1e-9)
        covariance_off = np.abs(np.cov(paths) - wanted.state_covariance)
        assert np.all(covariance_off < 5.0 * np.sqrt(2.0 / DRAWS) * np.outer(spread, spread) + 1e-9)


# Whether a posterior is a distribution ------------------------------------------------------------


@pytest.mark.cases(
    slow=["two latents-unrolled"],
    quick=[
        "one block-unrolled",
    ],
    others="thorough",
)
@layouts_and_forms(("one block", "unrolled"), ("two latents", "unrolled"), ("large", "arrays"))
def test_a_posterior_is_called_proper_exactly_when_it_is(name, form):
    """Random indefinite sites: the flag is that of I + K½ΛK½, which NumPy's eigenvalues decide."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(6)
    outcomes, crossings = [], 0
    for _ in range(200):
        blocks = random_chain(rng, layout, rng.choice(NOISES))
        root = rng.normal(size=(T, layout.latents, layout.latents))
        precision = root + np.swapaxes(root, 1, 2) + rng.uniform(0.0, 3.0) * np.eye(layout.latents)
        linear = np.zeros((T, layout.latents))
        wanted = dense_answer(blocks, precision, linear)
        if abs(wanted.margin) < 1e-6:
            continue
        found, states = condition(layout, form, 1, blocks, precision, linear)
        assert bool(found.proper) is wanted.proper
        outcomes.append(wanted.proper)
        crossings += wanted.proper and np.min(np.linalg.eigvalsh(states.covariance)) < -1e-6
    assert 20 < sum(outcomes) < len(outcomes) - 20
    # Some posteriors are proper although the filter went through covariances that are not.
    assert crossings > 0


def test_two_negative_sites_may_not_hide_each_other():
    """Both flip the sign of det(I + ΛK), which is positive again in the end."""
    layout = LAYOUTS["one block"]
    blocks = random_chain(np.random.default_rng(7), layout, "full")
    blocks.transition[0][3] = 0.0
    precision = np.zeros((T, 1, 1))
    precision[1] = precision[5] = -100.0
    wanted = dense_answer(blocks, precision, np.zeros((T, 1)))
    assert not wanted.proper and np.linalg.eigvalsh(wanted.covariance)[1] < 0.0
    found, _ = condition(layout, "unrolled", 1, blocks, precision, np.zeros((T, 1)))
    assert not found.proper


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_sites_that_are_not_finite_make_no_posterior(bad):
    layout = LAYOUTS["one block"]
    blocks = random_chain(np.random.default_rng(8), layout)
    precision, linear = random_sites(np.random.default_rng(8), 1, "psd")
    precision[2] = bad
    assert not condition(layout, "unrolled", 1, blocks, precision, linear)[0].proper


# Very precise sites --------------------------------------------------------------------------------


def exact_posterior(blocks, precision, linear):
    """Mean and variance of every latent, in rational numbers."""
    length, latents, size = blocks.rows.shape
    states = _rational(np.zeros((length, size, length, size)))
    spread = _rational(block_diag(*blocks.initial))
    for t in range(length):
        step = _rational(block_diag(*[block[t] for block in blocks.transition]))
        for s in range(t):
            states[t, :, s] = step.dot(states[t - 1, :, s])
            states[s, :, t] = states[t, :, s].T
        spread = step.dot(spread).dot(step.T) + _rational(block_diag(*[block[t] for block in blocks.noise]))
        states[t, :, t] = spread
    observe = _rational(block_diag(*blocks.rows))
    gram = observe.dot(states.reshape(length * size, -1)).dot(observe.T)
    matrix = _rational(np.eye(length * latents)) + _rational(block_diag(*precision)).dot(gram)
    inverse = _inverse(matrix)
    mean = gram.dot(inverse.dot(_rational(linear.reshape(-1))))
    return mean.astype(float), np.diagonal(gram.dot(inverse)).astype(float)


def _rational(array):
    return np.vectorize(Fraction, otypes=[object])(array)


def _inverse(matrix):
    """By elimination: the pivots of I + ΛK are not zero for PSD Λ."""
    size = len(matrix)
    rows = np.concatenate([matrix, _rational(np.eye(size))], axis=1)
    for i in range(size):
        rows[i] = rows[i] / rows[i, i]
        for j in range(size):
            if j != i:
                rows[j] = rows[j] - rows[j, i] * rows[i]
    return rows[:, size:]


@pytest.mark.cases(slow=["full-two latents-unrolled-1-0.0001"])
@pytest.mark.parametrize(
    ("name", "form", "pieces", "tolerance"),
    [
        # One latent: to rounding, because its own variance is never found as a small difference.
        ("one block", "unrolled", 1, 1e-13),
        ("one block", "arrays", 1, 1e-13),
        ("one block", "unrolled", 4, 1e-12),
        # Several: what is left of the prior's digits.
        ("two latents", "unrolled", 1, 1e-4),
    ],
)
@pytest.mark.parametrize("noise", ["full", "rank one"])
def test_precise_sites_keep_the_digits_of_variances(name, form, pieces, noise, tolerance):
    layout = LAYOUTS[name]
    rng = np.random.default_rng(0)
    blocks = random_chain(rng, layout, noise)
    precision, linear = random_sites(rng, layout.latents, "psd")
    size = np.where(np.arange(T) % 2 == 0, 1e10, 1.0)
    precision, linear = size[:, None, None] * precision, size[:, None] * linear
    mean, variance = exact_posterior(blocks, precision, linear)
    found, _ = condition(layout, form, pieces, blocks, precision, linear)
    assert found.proper
    np.testing.assert_allclose(np.ravel(np.diagonal(found.covariance, axis1=1, axis2=2)), variance, rtol=tolerance)
    np.testing.assert_allclose(np.ravel(found.mean), mean, atol=1e-7 if pieces > 1 else 1e-10)


# Sites on several latents ---------------------------------------------------------------------------

PRECISIONS = {
    "distinct": np.diag([2.0, 0.5, -0.3]) + 0.2,
    "equal": 0.7 * np.eye(3),
    "opposite": np.diag([1.0, -1.0, 0.5]),
    "singular": np.outer([1.0, 2.0, -1.0], [1.0, 2.0, -1.0]) + np.outer([0.0, 1.0, 1.0], [0.0, 1.0, 1.0]),
}


@jax.jit
def put_together(precision, linear):
    """What scalar sites stand for: Λ = V diag(w) Vᵀ and λ = V a."""
    rotation, scalar, tilt = kalman.scalar_sites(precision, linear)
    together = jnp.einsum("tik,tk,tjk->tij", rotation, scalar, rotation)
    return together, jnp.einsum("tik,tk->ti", rotation, tilt)


@pytest.mark.cases(thorough=["distinct-3"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", PRECISIONS)
def test_scalar_sites_and_their_derivatives(kind, size):
    rng = np.random.default_rng(9)
    precision, linear = PRECISIONS[kind][None, :size, :size], rng.normal(size=(1, size))
    change = rng.normal(size=(1, size, size))
    change, linear_change = change + np.swapaxes(change, 1, 2), rng.normal(size=(1, size))
    found, derivative = jax.jit(lambda *both: jax.jvp(put_together, both, (change, linear_change)))(precision, linear)
    np.testing.assert_allclose(found[0], precision, atol=1e-14)
    np.testing.assert_allclose(found[1], linear, atol=1e-14)
    np.testing.assert_allclose(derivative[0], change, atol=1e-12)
    np.testing.assert_allclose(derivative[1], linear_change, atol=1e-12)


def test_scalar_sites_of_a_missing_row_have_a_finite_derivative():
    nothing = np.zeros((1, 2, 2)), np.zeros((1, 2))
    change = np.array([[[1.0, 0.0], [0.0, 3.0]]]), np.array([[0.5, -1.0]])
    _, derivative = jax.jvp(put_together, nothing, change)
    # Along the axes, where the eigenvectors of zero are put, it is right; elsewhere there is none.
    np.testing.assert_allclose(derivative[0], change[0])
    np.testing.assert_allclose(derivative[1], change[1])


# How chains are held and run -----------------------------------------------------------------------


def test_plain_loops_give_the_same_answer(monkeypatch):
    cleared = []
    # What others have compiled is left alone; a new function is traced anew anyway.
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    layout = LAYOUTS["one block"]
    blocks, precision, linear, wanted = draw_problem(np.random.default_rng(10), layout, "indefinite", "full")
    with kalman.plain_loops():
        assert not loops.compiles_whole()
        afresh = jax.jit(lambda *arrays: kalman.marginals(make(layout, "unrolled", arrays[0]), *arrays[1:]))
        assert_marginals(afresh(blocks, precision, linear), wanted, 1)
    assert len(cleared) == 2
    assert loops.compiles_whole() is (jax.default_backend() == "cpu" and loops._attribute_works())


def test_many_pieces_only_where_they_pay(monkeypatch):
    monkeypatch.setattr(loops, "compiles_whole", lambda: True)
    assert (
        kalman.choose_pieces(100, 2, 1) == kalman.choose_pieces(10**6, 8, 1) == kalman.choose_pieces(10**6, 2, 2) == 1
    )
    assert kalman.choose_pieces(10**6, 2, 1) == 16
    monkeypatch.setattr(loops, "compiles_whole", lambda: False)
    assert kalman.choose_pieces(3, 2, 1) == 1
    assert kalman.choose_pieces(1000, 2, 1) == 32


@pytest.mark.parametrize(("count", "pieces"), [(7, 1), (7, 2), (8, 4), (3, 16)])
def test_rows_are_found_again_after_cutting(count, pieces):
    rng = np.random.default_rng(11)
    order = rng.permutation(count)
    times = np.sort(rng.normal(size=count))
    at, rows, position = kalman.cut(times, order, pieces)
    assert at.size % pieces == 0 and np.count_nonzero(rows < 0) == at.size - count
    np.testing.assert_array_equal(rows[position], np.arange(count))
    np.testing.assert_array_equal(at[position], times[np.argsort(order)])
    in_time = kalman.to_time(at, pieces)
    assert np.all(np.diff(in_time) >= 0.0)
    np.testing.assert_array_equal(kalman.from_time(in_time, pieces), at)
    np.testing.assert_array_equal(in_time[kalman.time_of(position, at.size, pieces)], at[position])
