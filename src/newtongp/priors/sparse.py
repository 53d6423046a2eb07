"""The sparse Gaussian process: f through its values u at M inducing inputs, conditioned in the space of u.

f = g + e with g = μ(x) + K(x, Z) K_ZZ⁻¹ (u − μ(Z)), and e independent of u (`sec:sparse-gp`). Sites act on
g alone, so no M × M matrix is stored per row. With T the whitening of K_ZZ (TᵀT = K_ZZ⁻¹) the values
v = T(u − μ(Z)) have prior N(0, I), and g − μ = Ψv for the features Ψ = K(x, Z)Tᵀ: `weight_space.py` does the rest, for
sites of any sign. Directions in which K_ZZ is zero up to rounding are left out of T. This gives a valid sparse GP with
slightly fewer inducing variables, so no jitter is needed.
"""

from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, on_host, to_host
from ..kernels import Independent, Kernel, diagonals, gram, grams, latent_kernels, num_latents
from ..kernels import inducing as inducing_inputs
from ..kernels.multilatent import over_latents, stacked
from ..means import as_mean
from ..numerics import linalg
from ..numerics.gaussian import Gaussian, Sites, add_covariance
from ..numerics.size_classes import data_size_class, fill_rows
from ..parameters.constraints import Real, learned
from ..validation.arguments import whole
from . import weight_space
from .base import Conditioned, Layout, Posterior, Prior, Workspace, at_inputs, draws_of, jointly_at_inputs, over_pairs
from .by_name import read_kernel


class SparseGP(Prior):
    """A Gaussian process prior through M inducing inputs, for inputs of any dimension (`sec:sparse-gp`).

    `kernel` is a kernel, or `kernels.Independent([k1, k2, ...])` for several latents, or a name (see `GP`); `mean` is a
    number or a mean function, zero by default. `inducing` is an array of inducing inputs (M, P), a list of such arrays,
    one per latent, or a number: then that many are chosen from the data, by `selection="greedy"` (repeatedly the row
    whose f has the largest conditional variance, for each latent's own kernel) or `"kmeans"` (cluster centres, the same
    for all latents), with `seed`. A step costs O(N M² D² + (M D)³) for N rows and D latents.

    `storage="full"` keeps one site per row, N (D + D²) numbers; `storage="tied"` keeps only their product as a function
    of the inducing variables, (M D)² numbers however many rows there are. Most methods give the same result; power EP
    then removes the N-th part of the product for every row (stochastic power EP), and methods that keep a state per row
    cannot be used.

    The posterior has `.inducing`, the inducing inputs of every latent, and `.rank`, the number of directions of K(Z, Z)
    that exceed rounding and are used: inducing inputs may coincide, or be far closer than a lengthscale.

    >>> import numpy as np
    >>> import newtongp as ng
    >>> x = np.linspace(0.0, 10.0, 200)
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(x)))
    >>> model = ng.Model(SparseGP(ng.kernels.Matern32(lengthscale=2.0), inducing=20), ng.likelihoods.Poisson())
    >>> result = ng.infer(model, x, y)
    >>> result.status.name, result.posterior.inducing[0].shape, result.posterior.rank.tolist()
    ('CONVERGED', (20, 1), [20])
    """

    kernel: Kernel | Independent
    mean: Any
    by_name: bool = eqx.field(static=True)
    count: int | None = eqx.field(static=True)
    selection: str = eqx.field(static=True)
    seed: int = eqx.field(static=True)
    storage: str = eqx.field(static=True)
    inducing: tuple[Any, ...] | None = learned(Real(), by_default=False)
    """One array for all latents, or one per latent; None if they are chosen from the data."""

    def __init__(
        self,
        kernel: Kernel | Independent | str,
        inducing: Any,
        mean: Any = None,
        selection: str = "greedy",
        seed: int = 0,
        storage: str = "full",
    ):
        read, mean, self.by_name = read_kernel(kernel, mean)
        if selection not in inducing_inputs.SELECTIONS:
            raise ValueError(f'selection must be "greedy" or "kmeans", got {selection!r}')
        self.storage = inducing_inputs.as_storage(storage)
        self.kernel = read
        self.count = inducing_inputs.read_count(inducing) if inducing_inputs.is_number(inducing) else None
        self.inducing = None if self.count is not None else inducing_inputs.read_inducing(inducing, num_latents(read))
        self.mean = as_mean(mean, num_latents(read))
        self.selection = selection
        self.seed = whole(seed, "seed", 0)

    @property
    def num_latents(self) -> int:
        return num_latents(self.kernel)

    def check_inputs(self, x: np.ndarray) -> None:
        self.kernel.check_inputs(x.shape[1])
        self.kernel.check_values(x)
        if self.inducing is None:
            return
        if self.inducing[0].shape[1] != x.shape[1]:
            raise ValueError(
                f"inducing has {self.inducing[0].shape[1]} column(s), but x has {x.shape[1]}: inducing inputs are "
                "inputs like those in x, with the same columns"
            )
        for kernel, inputs in zip(latent_kernels(self.kernel), self.inducing_for(None), strict=True):
            try:
                kernel.check_values(np.asarray(inputs))
            except ValueError as error:
                raise ValueError(f"inducing inputs are inputs like those in x: {error}") from None

    def with_inducing(self, inducing: tuple[Any, ...]) -> "SparseGP":
        """The same prior with these inducing inputs, one array for all latents or one per latent."""
        shared = all(inputs is inducing[0] for inputs in inducing)
        return SparseGP(
            self.kernel, inducing[0] if shared else list(inducing), self.mean, self.selection, self.seed, self.storage
        )

    def size_class(self, rows: int) -> int:
        return data_size_class(rows, self.num_latents)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        if self.storage == "tied":
            raise ValueError(
                'this needs the sites of single rows, which storage="tied" does not keep: use storage="full"'
            )
        sample = self.new_sample()
        if sample is not None:
            sample.see(x)
        return Layout(SparseInputs(fill_rows(x, size), self.inducing_for(sample)), None)

    def new_sample(self) -> inducing_inputs.Sample | None:
        """An empty sample of the data, from which inducing inputs are chosen; None if they were given."""
        return None if self.count is None else inducing_inputs.Sample(self.seed)

    def inducing_for(self, sample: inducing_inputs.Sample | None) -> tuple[Any, ...]:
        """The inducing inputs of every latent, as given or chosen from a sample of the data."""
        kernels = latent_kernels(self.kernel)
        if self.inducing is not None:
            return self.inducing if len(self.inducing) > 1 else self.inducing * len(kernels)
        assert self.count is not None and sample is not None
        return inducing_inputs.choose(kernels, sample.rows, self.count, self.selection, self.seed)

    def refresh_inputs(self, inputs: "SparseInputs") -> "SparseInputs":
        return inputs if self.inducing is None else SparseInputs(inputs.x, self.inducing_for(None))

    memory_remedy: ClassVar[str] = "use fewer inducing inputs, or batches of rows with batch_size="

    def memory(self, x: np.ndarray) -> float:
        # Features of all rows, and covariances of all inducing variables.
        inducing = self.inducing
        count = max(map(len, inducing)) if inducing is not None else min(self.count or 1, x.shape[0])
        weights = self.num_latents * float(count)
        return 8.0 * (4.5 * x.shape[0] * weights + 6.0 * weights**2)

    def prepare(self, x: "SparseInputs") -> "SparseWorkspace":
        projection = Projection.to(self.kernel, x.inducing)

        def of_rows(_, inputs):
            features, residual_covariance = projection.at(self.kernel, inputs)
            return jnp.swapaxes(features, 0, 1), residual_covariance

        numbers = self.num_latents * projection.size
        features, residual_covariance = weight_space.map_over_rows(of_rows, None, jnp.asarray(x.x), numbers=numbers)
        return SparseWorkspace(self.mean.means(x.x), jnp.swapaxes(features, 0, 1), residual_covariance, projection)

    def condition(self, workspace: "SparseWorkspace", sites: Sites) -> "SparsePosterior":
        solved = workspace.solve(sites)
        conditioned = workspace.conditioned(solved)
        return SparsePosterior(
            workspace.marginals_of_f(conditioned.marginals),
            conditioned.log_normaliser(sites),
            self,
            workspace.projection,
            solved.mean,
            solved.half,
        )


class SparseInputs(NamedTuple):
    """The inputs of the data, and the inducing inputs of every latent."""

    x: Any
    inducing: tuple[Any, ...]


class Projection(eqx.Module):
    """From inputs to features: the inducing inputs of every latent, and the whitening of their covariance."""

    inducing: tuple[Any, ...]
    whitening: tuple[Any, ...]

    @classmethod
    def to(cls, kernel: Any, inducing: tuple[Any, ...]) -> "Projection":
        """The projection on these inducing inputs."""
        # One by one, because it calls LAPACK (see `numerics/small.py`).
        groups = over_latents(lambda part, z: linalg.whitening(gram(part, z, z)), kernel, inducing, one_by_one=True)
        found = {latent: each for group in groups for latent, each in zip(group.latents, group.each, strict=True)}
        return cls(inducing, tuple(found[latent] for latent in range(len(inducing))))

    @classmethod
    def with_features(cls, kernel: Any, inducing: Any, latents: int) -> tuple["Projection", Float[Array, "D M M"]]:
        """The projection on the same inducing inputs for all latents, and the features Ψ of these inputs.

        ΨΨᵀ = K(Z, Z): no direction is left out, and they are continuous in the kernel, singular or not.
        """
        every = (inducing,) * latents
        groups = over_latents(
            lambda part, z: linalg.whitening_and_root(gram(part, z, z)), kernel, every, one_by_one=True
        )
        found = {latent: each for group in groups for latent, each in zip(group.latents, group.each, strict=True)}
        whitening, roots = zip(*(found[latent] for latent in range(latents)), strict=True)
        return cls(every, whitening), jnp.stack(roots)

    @property
    def size(self) -> int:
        """The largest number of inducing inputs of any latent."""
        return max(inputs.shape[0] for inputs in self.inducing)

    @property
    def rank(self) -> Any:
        """The number of directions of each latent's K(Z, Z) that exceed rounding."""
        return jnp.stack([jnp.sum(jnp.any(whitening != 0.0, axis=1)) for whitening in self.whitening])

    def features(self, kernel: Any, x: Float[Array, "N P"]) -> Float[Array, "D N M"]:
        """Ψ = K(x, Z)Tᵀ of every latent; latents with fewer inducing inputs get columns of zeros."""

        def of_latent(part, z, whitening):
            features = gram(part, x, z) @ whitening.T
            return jnp.pad(features, ((0, 0), (0, self.size - z.shape[0])))

        return stacked(over_latents(of_latent, kernel, self.inducing, self.whitening))

    def at(self, kernel: Any, x: Float[Array, "N P"]) -> tuple[Float[Array, "D N M"], Float[Array, "N D D"]]:
        """The features, and the covariance of e, K(x, x) − ΨΨᵀ, of every row."""
        features = self.features(kernel, x)
        residual = jnp.maximum(diagonals(kernel, x) - jnp.sum(features**2, axis=2), 0.0)
        return features, jax.vmap(jnp.diag, in_axes=1)(residual)


class SparseWorkspace(Workspace):
    """Quantities that depend only on the inputs: prior mean (N, D), features (D, N, M), covariance of e (N, D, D)."""

    mean: Float[Array, "N D"]
    features: Float[Array, "D N M"]
    residual: Float[Array, "N D D"]
    projection: Projection

    def residual_covariance(self):
        return self.residual

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(self.solve(sites))

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        return weight_space.log_normaliser(self.features, self.mean, sites.linear, sites.precision)

    def conditioned(self, solved: weight_space.Solved) -> Conditioned:
        """q(g) at the data, from the posterior of the whitened inducing variables."""
        covariance = weight_space.covariances(solved.half, self.features, triangular=True)
        marginals = Gaussian(self.mean + solved.shift, covariance)
        return Conditioned(marginals, jnp.sum(solved.mean**2), solved.log_det, solved.proper, self.residual)

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        return add_covariance(marginals, self.residual)

    def solve(self, sites: Sites) -> weight_space.Solved:
        """The posterior of the whitened inducing variables."""
        return weight_space.solve(self.features, self.mean, sites)


class SparsePosterior(Posterior):
    """q(f) of a sparse GP, through its inducing variables.

    `inducing` has the inducing inputs of every latent; `predict(inducing[d])` is the posterior of f there.
    """

    marginals: Gaussian | None
    """None if the sites of single rows are not stored."""
    log_normaliser: Any
    prior: SparseGP
    projection: Projection
    whitened_mean: Any
    """E[v], (D, M)."""
    half: Any
    """(D·M, D, M): the covariance of v is its square."""

    @property
    def inducing(self) -> tuple[Any, ...]:
        """The inducing inputs of every latent."""
        return self.projection.inducing

    @property
    def rank(self) -> np.ndarray:
        """The number of directions of each latent's K(Z, Z) that exceed rounding; the others were left out."""
        return np.asarray(in_double(lambda: self.projection.rank)())

    @on_host
    def predict(self, x: Any) -> Gaussian:
        latents, size = self.whitened_mean.shape
        chunk = 4 * weight_space.block_of(latents**2 * size)
        if isinstance(x, jax.core.Tracer) or x.shape[0] <= chunk:
            return at_inputs(_predict, self, x)
        rows, pieces = np.asarray(x), []
        on_device = jax.device_put(self.without_marginals())
        for start in range(0, rows.shape[0], chunk):
            piece = rows[start : start + chunk]
            # The last piece is padded, so that one compiled program serves all.
            padded = np.concatenate([piece, np.broadcast_to(piece[-1:], (chunk - len(piece), rows.shape[1]))])
            pieces.append(to_host(_predict(on_device, padded)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: rows.shape[0]], *pieces)

    @on_host
    def joint(self, x: Any) -> Gaussian:
        return jointly_at_inputs(_joint, self, x, self.prior.num_latents)[0]

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return draws_of(self.joint(x), key, n, x.shape[0])

    def _mean(self, x, features):
        return self.prior.mean.means(x) + weight_space.times(features, jnp.asarray(self.whitened_mean))


@compiled
def _predict(posterior: SparsePosterior, x: Float[Array, "R P"]) -> Gaussian:
    features, residual_covariance = posterior.projection.at(posterior.prior.kernel, x)
    covariance = weight_space.covariances(jnp.asarray(posterior.half), features, triangular=True)
    return Gaussian(posterior._mean(x, features), covariance + residual_covariance)


@compiled
def _joint(posterior: SparsePosterior, x: Float[Array, "R P"], count: Any) -> tuple[Gaussian, None]:
    features, half = posterior.projection.features(posterior.prior.kernel, x), jnp.asarray(posterior.half)
    residual = grams(posterior.prior.kernel, x, x) - jnp.einsum("dnm,drm->dnr", features, features)
    rows = jnp.einsum("adm,dnm->nda", half, features).reshape(-1, half.shape[0])
    covariance = over_pairs(residual) + rows @ rows.T
    variances = jnp.maximum(jnp.diagonal(residual, axis1=1, axis2=2), 0.0).T.reshape(-1) + jnp.sum(rows**2, axis=1)
    covariance = jnp.where(jnp.eye(variances.shape[0]) > 0.0, variances[:, None], covariance)
    mean = posterior._mean(x, features)
    return Gaussian(mean.reshape(-1), linalg.as_covariance(covariance, count * mean.shape[1])), None
