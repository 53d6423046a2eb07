"""Wrong hyperparameters and wrong inputs say what is wrong and what to do."""

import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import kernels
from newtongp.kernels.base import check_rows


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.RBF(lengthscale=-1.0), "lengthscale must be greater than 0"),
        (lambda: kernels.RBF(lengthscale=[1.0, 0.0]), "lengthscale must be greater than 0"),
        (lambda: kernels.Matern32(variance=0.0), "variance must be greater than 0"),
        (lambda: kernels.Matern52(variance=[1.0, 2.0]), "variance must be a single number"),
        (lambda: kernels.Matern12(lengthscale=np.ones((2, 2))), r"lengthscale .* shape \(2, 2\)"),
        (lambda: kernels.RationalQuadratic(alpha=0.0), "alpha must be greater than 0"),
        (lambda: kernels.Periodic(period="week"), "period must be a number, got 'week'"),
        (lambda: kernels.Periodic(period=[1.0, 2.0]), "period must be a single number"),
        (lambda: kernels.Cosine(period=np.nan), "period must be finite"),
        (lambda: kernels.Linear(centre=np.inf), "centre must be finite"),
        (lambda: kernels.Constant(-0.1), "variance must be greater than 0"),
        (lambda: kernels.White(None), "variance must be"),
        (lambda: -1.0 * kernels.RBF(), "scale must be greater than 0"),
        (lambda: np.ones(3) * kernels.RBF(), r"scale must be a single number, got an array of shape \(3,\)"),
        (lambda: kernels.RBF() + "noise", "variance must be a number, got 'noise'"),
        (lambda: kernels.RBF().on(), "one or more column numbers"),
        (lambda: kernels.RBF().on(-1), r"got \(-1,\)"),
        (lambda: kernels.RBF().on([0, 1]), r"write `kernel.on\(0, 2\)`"),
    ],
)
def test_wrong_hyperparameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (kernels.RBF([1.0, 2.0]), r"lengthscale has length 2, but x has 3 column\(s\)"),
        (kernels.Matern72([1.0]), r"lengthscale has length 1, but x has 3 column\(s\)"),
        (kernels.Linear([1.0, 2.0]), "variance has length 2, but x has 3"),
        (kernels.Linear(centre=[1.0, 2.0]), "centre has length 2, but x has 3"),
        (kernels.Cosine(), r"Cosine works on one column of x, but x has 3: .*on\(0\)"),
        (kernels.RBF().on(0, 3), "uses column 3 of x, but x has 3"),
        (kernels.RBF([1.0, 2.0, 3.0]).on(0, 1), "lengthscale has length 3, but x has 2"),
        (kernels.RBF() + 2.0 * kernels.Cosine(), "Cosine works on one column"),
        (kernels.RBF() * kernels.Matern32([1.0, 2.0]), "lengthscale has length 2"),
    ],
)
def test_inputs_with_the_wrong_number_of_columns(kernel, message):
    with pytest.raises(ValueError, match=message):
        kernel.check_inputs(3)
    with pytest.raises(ValueError, match=message):
        kernels.gram(kernel, jnp.zeros((2, 3)), jnp.zeros((2, 3)))
    with pytest.raises(ValueError, match=message):
        kernels.diagonal(kernel, jnp.zeros((2, 3)))


@pytest.mark.parametrize("kernel", [kernels.RBF([1.0, 2.0, 3.0]), kernels.Cosine().on(2), kernels.Linear()])
def test_inputs_that_fit_are_accepted(kernel):
    kernel.check_inputs(3)
    assert kernels.gram(kernel, jnp.zeros((2, 3)), jnp.zeros((4, 3))).shape == (2, 4)


def test_shapes_of_inputs():
    with pytest.raises(ValueError, match=r"got \(5,\): write `x\[:, None\]`"):
        check_rows(kernels.RBF(), jnp.zeros(5))
    with pytest.raises(ValueError, match="different numbers of columns: 1 and 3"):
        check_rows(kernels.RBF(), jnp.zeros((5, 1)), jnp.zeros((5, 3)))
