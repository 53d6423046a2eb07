"""The interface of priors: they can be conditioned on Gaussian sites."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.double import to_host
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.known import psd_root_given
from ..numerics.size_classes import SMALLEST, data_size_class, fill_rows, first_rows, size_class
from ..validation.arguments import generator


class Conditioned(eqx.Module):
    """The part of q(f) ∝ p(f) ∏ tₙ(fₙ) that inference needs: one marginal per row and three numbers."""

    marginals: Gaussian
    distance: Float[Array, ""]
    """(m − μ)ᵀ K⁻¹ (m − μ): the squared distance of the mean from the prior mean."""
    log_det: Float[Array, ""]
    """log det(I + ΛK): how much the sites narrow the distribution."""
    proper: Bool[Array, ""]
    residual_covariance: Float[Array, "N D D"] | None = None
    """The covariance of e, if sites act on g, with f = g + e and e independent of everything else.

    Marginals are then those of g.
    """
    rounding: Float[Array, ""] | None = None
    """The rounding error of the log determinant, if it may be larger than that of a sum of as many numbers."""

    def log_normaliser(self, sites: Sites) -> Float[Array, ""]:
        """log ∫ p ∏ tₙ: the exponent at its maximum, m, and the determinant from the integration."""
        mean = self.marginals.mean
        exponent = jnp.sum(sites.linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, sites.precision, mean)
        return exponent - 0.5 * (self.distance + self.log_det)


class Layout(NamedTuple):
    """The inputs in the form that a prior needs, and the order in which it processes the rows.

    `rows[i]` is the row of the data at position i, or −1 if there is none; None means that positions are rows.
    Inference runs in the order of positions, because local updates do not depend on the order.
    """

    inputs: Any
    rows: np.ndarray | None


class Workspace(eqx.Module):
    """A prior at the data's inputs: everything that the steps of inference need.

    It does not contain the prior itself, so that one compiled loop serves all kernels.
    """

    mean: eqx.AbstractVar[Any]
    """The prior mean of every position, (N, D)."""

    @property
    def is_known(self) -> bool:
        """Whether f is its mean, with no uncertainty at all, so that sites change nothing."""
        return False

    def residual_covariance(self) -> Float[Array, "N D D"] | None:
        """The covariance of e, if sites act on g, with f = g + e."""
        return None

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        """log ∫ p ∏ tₙ, differentiable with respect to everything in the workspace; `psd` as for `marginals`."""
        return self.marginals(sites, psd).log_normaliser(sites)

    @abc.abstractmethod
    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        """Condition on sites, for one step of inference (`eq:global-update`).

        With `psd`, site precisions are expected to be PSD: if one is not, the posterior counts as improper. This makes
        the compiled program smaller.
        """

    def settled(self, sites: Sites, psd: bool = False) -> Conditioned:
        """As `marginals`, for functions that are stationary in the mean: derivatives are those at fixed marginals.

        Only the distance and the log determinant have derivatives, and only their sum is used.
        """
        found = jax.lax.stop_gradient(self.marginals(sites, psd))
        # ½(distance + log det) = λᵀm − ½mᵀΛm − log ∫ p ∏ tₙ, whose terms may be much larger than it.
        mean = found.marginals.mean
        exponent = jnp.sum(sites.linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, sites.precision, mean)
        both = 2.0 * (exponent - self.log_normaliser(sites, psd))
        moved = both - jax.lax.stop_gradient(both)
        return eqx.tree_at(lambda found: found.log_det, found, found.log_det + moved)

    def refined(self, sites: Sites) -> Gaussian | None:
        """More accurate marginals of all positions than a step of inference needs, if available.

        This depends on the values of the sites, so it is None inside a trace.
        """
        return None

    def at_rows(self, tree: Any) -> Any:
        """Convert arrays with one entry per position to one entry per row of the data."""
        return tree

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        """The marginals of f, from those of the variable that sites act on (f, unless the prior is sparse)."""
        return marginals


class Posterior(eqx.Module):
    """q(f): marginals at the data, and everything needed for prediction and sampling."""

    marginals: eqx.AbstractVar[Any]
    log_normaliser: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def predict(self, x: Any) -> Gaussian:
        """The marginals of f at new inputs (M, P)."""

    def without_marginals(self) -> "Posterior":
        """The posterior as compiled functions take it: its other arrays are of a size class."""
        return eqx.tree_at(lambda posterior: posterior.marginals, self, None, is_leaf=lambda leaf: leaf is None)

    def start_compiling(self, columns: int) -> None:
        """Start compiling predictions at inputs with this many columns; of this posterior only shapes matter."""

    @abc.abstractmethod
    def joint(self, x: Any) -> Gaussian:
        """The joint distribution of f at new inputs, latents within rows: mean (M·D,), covariance (M·D, M·D)."""

    @abc.abstractmethod
    def draw(self, key: Any, x: Any, n: int) -> Any:
        """n joint draws of f at new inputs, (n, M, D)."""


def at_inputs(function: Callable, posterior: Posterior, x: Any, smallest: int = SMALLEST) -> Any:
    """`function(posterior, x)`, which is compiled, with `x` filled up to a size class: one entry per row of x."""
    if isinstance(x, jax.core.Tracer):
        return function(posterior, x)
    inputs = numbers_of(x)
    filled = fill_rows(inputs, size_class(inputs.shape[0], smallest=smallest))
    return first_rows(to_host(function(posterior.without_marginals(), filled)), inputs.shape[0])


def numbers_of(x: Any) -> np.ndarray:
    """New inputs as an array; ValueError if it has another shape, or other entries."""
    inputs = np.asarray(x)
    if inputs.ndim != 2 or inputs.dtype.kind not in "fiub":
        raise ValueError(
            f"x must be numbers with the shape (rows, columns), got {inputs.dtype} with the shape {inputs.shape}: the "
            "methods of the result, such as result.joint(x_new), take anything that infer takes"
        )
    return inputs


def start_at_inputs(function: Any, posterior: Posterior, columns: int, smallest: int = SMALLEST) -> None:
    """Start compiling what `at_inputs` calls for few rows."""
    function.start(posterior.without_marginals(), np.zeros((size_class(1, smallest=smallest), columns)))


def over_pairs(gram: Float[Array, "D N M"]) -> Float[Array, "ND MD"]:
    """The joint matrix over (row, latent) pairs, from one matrix per independent latent."""
    latents, rows, columns = gram.shape
    if latents == 1:
        return gram[0]
    return jnp.einsum("dnm,de->ndme", gram, jnp.eye(latents)).reshape(rows * latents, columns * latents)


def jointly_at_inputs(function: Callable, posterior: Posterior, x: Any, latents: int) -> tuple[Gaussian, Any]:
    """`function(posterior, x, count)`, which is compiled, with `x` filled up to a size class.

    It returns a joint distribution, of which only the first `count` rows are wanted, and anything else by row.
    """
    if isinstance(x, jax.core.Tracer):
        return function(posterior, x, x.shape[0])
    inputs = numbers_of(x)
    count = inputs.shape[0]
    filled = fill_rows(inputs, data_size_class(count, latents))
    joint, others = to_host(function(posterior.without_marginals(), filled, np.asarray(count)))
    return first_of_joint(joint, count * latents), first_rows(others, count)


def first_of_joint(joint: Gaussian, size: int) -> Gaussian:
    """The distribution of the first `size` variables."""
    return Gaussian(joint.mean[:size], joint.covariance[:size, :size])


def draws_of(joint: Gaussian, key: Any, n: int, rows: int) -> np.ndarray:
    """n draws from a joint distribution over this number of rows, (n, M, D)."""
    draws = np.asarray(joint.mean) + centred_draws(generator(key), joint.covariance, n)
    return draws.reshape(n, rows, -1)


def centred_draws(random: np.random.Generator, covariance: Any, n: int) -> np.ndarray:
    """n draws with mean zero and any covariance, singular or not, (n, M)."""
    root = psd_root_given(covariance)
    return random.standard_normal((n, root.shape[0])) @ root.T


_FEW_DRAWS, _MANY_DRAWS = 16, 64
_LONG = 2**15
"""The number of rows above which many draws at once would take too much memory."""


def draws_by_row(function: Callable[[Any, int], Any], key: Any, n: int, length: int = 0) -> np.ndarray:
    """n draws (n, M, D) from `function(key, number)`, which returns them with rows first, (M, number, D).

    It is called with one of two numbers only, so that it is compiled for few or many draws and for no others. `length`
    is the number of rows of the data, if draws are of whole paths.
    """
    number = _FEW_DRAWS if n <= _FEW_DRAWS or length > _LONG else _MANY_DRAWS
    words = generator(key).integers(2**32, size=(-(-n // number), *jax.random.key_data(key).shape), dtype=np.uint32)
    keys = [jax.random.wrap_key_data(own, impl=jax.random.key_impl(key)) for own in words]
    blocks = [np.asarray(function(own, number)) for own in keys]
    return np.moveaxis(np.concatenate(blocks, axis=1)[:, :n], 0, 1)


class Prior(eqx.Module):
    """A Gaussian prior over functions of x, with `num_latents` of them."""

    @property
    @abc.abstractmethod
    def num_latents(self) -> int:
        """The number of latent functions."""

    @property
    def is_proper(self) -> bool:
        """Whether the prior is a distribution, so that inference can start there; False with flat effects."""
        return True

    @abc.abstractmethod
    def check_inputs(self, x: np.ndarray) -> None:
        """Raise ValueError if this prior cannot be used on these inputs."""

    def kernels_at(self, x: np.ndarray) -> list[tuple[Any, np.ndarray, bool]]:
        """Kernels with their inputs, and whether the state space form is used, for checks of custom kernels."""
        kernel = getattr(self, "kernel", None)
        return [] if kernel is None else [(kernel, x, False)]

    over_table: ClassVar[bool] = False
    """Whether x is a table with named columns, to which the prior is bound."""
    in_space: ClassVar[bool] = False
    """Whether the first column of x is the time, which may hold time stamps, and the others are a place."""
    memory_remedy: ClassVar[str] = "give fewer rows"
    """Advice if there is not enough memory."""

    def memory(self, x: np.ndarray) -> float:
        """The approximate number of bytes that inference needs at these inputs; 0 if unknown."""
        return 0.0

    def matrix_size(self, x: np.ndarray) -> float | None:
        """The number of elements of a matrix that is factorised, if a step factorises many; None if it is large."""
        return None

    def size_class(self, rows: int) -> int:
        """The number to which inference fills up this many rows with missing ones; see `numerics/size_classes.py`.

        By default, nothing is filled up.
        """
        return rows

    def layout(self, x: Any, size: int | None = None) -> Layout:
        """Where each row of the data goes, decided before anything is traced; filled up to `size` rows if given."""
        return Layout(fill_rows(x, size), None)

    def refresh_inputs(self, inputs: Any) -> Any:
        """The inputs of a layout with this prior's own values, which may have been learned, such as inducing inputs."""
        return inputs

    @abc.abstractmethod
    def prepare(self, x: Any) -> Workspace:
        """The quantities that depend only on the inputs, computed once from `layout(x).inputs`."""

    @abc.abstractmethod
    def condition(self, workspace: Any, sites: Sites) -> Posterior:
        """Condition on the final sites; the posterior contains all that prediction needs."""
