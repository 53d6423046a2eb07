"""A sparse model and its rows, for both kinds of runs in batches, and their starts."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..._runtime.devices import everywhere
from ..._runtime.double import to_host
from ...inputs.chunks import Batch, Rows
from ...methods.rule import Method
from ...model import Model
from ...numerics.gaussian import Gaussian, Sites
from ...numerics.kalman import Factors
from ...numerics.size_classes import size_class
from ...priors.markov import MarkovGP
from ...priors.sparse import Projection, SparseGP, SparsePosterior
from ...priors.sparse_chain import ChainProjection
from ...priors.sparse_chain_posterior import SparseChainPosterior
from ...results.result import History, Result
from ...results.status import Status
from ..starts import HOPELESS, START_PRECISIONS
from .batching import WHOLE_PASS, Batching
from .belief import Product
from .product import DeviceRows, Shared
from .progress import RowProgress
from .tied import Tied, factor_energy, hold_batch, propose_batch, tied_given


class Ending(NamedTuple):
    """The end of a run in batches."""

    status: Status
    energy: float
    residual: float
    steps: int
    history: list[tuple[float, float, float]]


class BatchedProblem:
    """The constants of a run over the data."""

    def __init__(self, model: Model, rows: Rows, inducing: Any, method: Method, batch_size: int | None, rng: Any):
        assert isinstance(model.prior, SparseGP | MarkovGP)
        self.model, self.prior, self.method = model, model.prior, method
        self.batching = Batching.of(rows, model.likelihood, WHOLE_PASS if batch_size is None else batch_size)
        # Compiled functions take the inducing inputs from the projection, not from the prior.
        self.shared = Shared(model.prior, to_host(_project(model.prior, inducing)), method)
        self.rng = rng

    @property
    def rows(self) -> Rows:
        return self.batching.rows

    def batches(self, shuffled: bool, bar: RowProgress) -> Iterator[tuple[Batch, DeviceRows]]:
        """One pass over the rows."""
        for batch, rows in self.batching.batches(self.rng if shuffled else None):
            yield batch, rows
            bar.saw(batch.count)

    @property
    def stored_rows(self) -> int:
        """The number of rows of arrays that store something per row: a size class."""
        return size_class(self.rows.count)

    def first_batch(self, bar: RowProgress) -> DeviceRows:
        return next(rows for _, rows in self.batches(False, bar))

    def tied(self, product: Product) -> Tied:
        """t(v) with its posterior and cavity."""
        return tied_given(self.shared, product, self.batching.observed)

    def is_hopeless(self, energy: float) -> bool:
        """Whether the energy at the prior is so high that inference cannot start there."""
        return not energy <= HOPELESS * self.rows.count

    def hold(self, bar: RowProgress) -> tuple[Product, Sites]:
        """Sites that hold f near the prior mean, with the precision of lowest energy, and their product.

        A prior that is far too wide for the likelihood puts so much mass where it overflows that rows would propose
        absurd sites.
        """
        latents, count = self.prior.num_latents, self.stored_rows
        held, whole = Sites(np.zeros((count, latents)), np.zeros((count, latents, latents))), None
        for batch, rows in self.batches(False, bar):
            product, sites = hold_batch(self.shared, rows)
            whole = add(whole, product)
            self.put_rows(batch, held, to_host(sites))
        assert whole is not None
        first = self.first_batch(bar)

        def energy(precision: float) -> float:
            tied = self.tied(whole.times(precision))
            total = float(self.rows.count / first.count * propose_batch(self.shared, first, tied).energy)
            total += float(factor_energy(self.shared, tied))
            return total if np.isfinite(total) else np.inf

        precision = min((value for value in START_PRECISIONS if value > 0.0), key=energy)
        sites = jax.tree.map(lambda leaf: jnp.asarray(precision * leaf), held)
        return whole.times(precision), everywhere(sites, self.batching.mesh)

    def put_rows(self, batch: Batch, into: Any, values: Any) -> None:
        """Write the values of a batch into arrays with one entry per row of the data."""
        inside = np.arange(self.batching.filled) < batch.count
        at = batch.index[inside]
        jax.tree.map(lambda array, value: array.__setitem__(at, np.asarray(value)[inside]), into, values)

    def _posterior(
        self, product: Product, belief: Any, log_normaliser: float, marginals: Gaussian | None
    ) -> SparsePosterior | SparseChainPosterior:
        projection: Any
        projection, product, belief = to_host((self.shared.projection, product, belief))
        if isinstance(self.prior, SparseGP):
            return SparsePosterior(marginals, log_normaliser, self.prior, projection, belief.mean, belief.half)
        factors = Factors(product.linear, product.precision)
        return SparseChainPosterior(
            marginals, log_normaliser, self.prior, projection.times, factors, belief.mean, belief.covariance
        )

    def result(
        self,
        ending: Ending,
        product: Product,
        belief: Any,
        log_normaliser: float,
        sites: Sites | None = None,
        site_marginals: Gaussian | None = None,
        marginals: Gaussian | None = None,
    ) -> Result:
        """The result of a run; without sites and marginals if none are stored."""
        columns = [np.array(column, dtype=float) for column in zip(*ending.history, strict=True)] or [np.zeros(0)] * 3
        posterior = self._posterior(product, belief, log_normaliser, marginals)
        return Result(
            model=self.model,
            method=self.method,
            data=self.rows.held,
            status=ending.status,
            energy=ending.energy,
            residual=ending.residual,
            steps=ending.steps,
            history=History(*columns),
            sites=sites,
            marginals=marginals,
            site_marginals=site_marginals,
            condition=lambda: posterior,
            columns=self.rows.columns,
        )


def add(total: Any, part: Any) -> Any:
    """Add a part to a sum over batches; None is the empty sum."""
    return part if total is None else _add(total, part)


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _project(prior: SparseGP | MarkovGP, inducing: Any) -> Projection | ChainProjection:
    if isinstance(prior, SparseGP):
        return Projection.to(prior.kernel, inducing)
    return ChainProjection.to(prior.kernel, inducing)
