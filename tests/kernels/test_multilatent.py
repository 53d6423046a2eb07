"""One kernel or several: the same functions answer for both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import kernels

FIRST, SECOND = kernels.RBF(0.8), kernels.Matern32(2.0, 0.5)
gram, diagonal = jax.jit(kernels.gram), jax.jit(kernels.diagonal)
grams, diagonals = jax.jit(kernels.grams), jax.jit(kernels.diagonals)


@pytest.mark.slow
def test_several_latents(rng):
    x1, x2 = jnp.asarray(rng.normal(size=(4, 2))), jnp.asarray(rng.normal(size=(3, 2)))
    both = kernels.Independent([FIRST, SECOND])
    assert both.num_latents == kernels.num_latents(both) == 2
    assert both.kernels == kernels.latent_kernels(both) == (FIRST, SECOND)
    assert grams(both, x1, x2).shape == (2, 4, 3)
    for index, kernel in enumerate((FIRST, SECOND)):
        np.testing.assert_allclose(grams(both, x1, x2)[index], gram(kernel, x1, x2), rtol=1e-14)
        np.testing.assert_allclose(diagonals(both, x1)[index], diagonal(kernel, x1), rtol=1e-14)


def test_one_latent(rng):
    x = jnp.asarray(rng.normal(size=(4, 2)))
    assert kernels.num_latents(FIRST) == 1
    assert kernels.latent_kernels(FIRST) == (FIRST,)
    np.testing.assert_allclose(grams(FIRST, x, x)[0], gram(FIRST, x, x), rtol=1e-14)
    assert diagonals(FIRST, x).shape == (1, 4)


def test_the_container_is_no_kernel_and_learns():
    both = kernels.Independent([FIRST, SECOND])
    assert not isinstance(both, kernels.Kernel)
    zero, one = jnp.zeros((1, 1)), jnp.ones((1, 1))
    gradient = jax.jit(jax.grad(lambda kernel: jnp.sum(kernels.grams(kernel, zero, one))))(both)
    assert all(float(leaf) > 0.0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.Independent([]), "must not be empty: give one kernel per latent"),
        (lambda: kernels.Independent([FIRST, 2.0]), "element 1 is 2.0: give one"),
        (lambda: kernels.Independent([kernels.Independent([FIRST])]), "element 0 is Independent"),
        (lambda: kernels.Independent(FIRST), r"got RBF.*write `Independent\(\[kernel, kernel\]\)`"),
        (lambda: kernels.Independent(3), "got 3"),
        (lambda: kernels.num_latents("rbf"), "expected a kernel, or .*got 'rbf'"),
        (lambda: kernels.grams([FIRST], jnp.zeros((1, 1)), jnp.zeros((1, 1))), "expected a kernel"),
    ],
)
def test_wrong_kernels(make, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        make()


def test_check_inputs_names_the_latent():
    both = kernels.Independent([FIRST, kernels.RBF([1.0, 2.0])])
    both.check_inputs(2)
    with pytest.raises(ValueError, match="kernel of latent 1: lengthscale has length 2, but x has 3"):
        both.check_inputs(3)
