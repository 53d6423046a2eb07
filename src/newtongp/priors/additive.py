"""Additive models: every latent is a sum of terms over the columns of a table.

All terms are weights (`level_space.py`): effects of columns, of the levels of groups, and values of smooth functions at
their distinct inputs. Large groups that are nested in each other are eliminated level by level (`elimination.py`), so
that their sizes enter the cost only linearly; the others are solved for together.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import on_host
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.size_classes import SMALLEST_DATA, fill_rows, size_class
from ..terms.base import Terms, Units
from ..terms.columns import TableColumns
from ..terms.group import Group, codes_of
from ..terms.kernel_term import KernelTerm
from ..terms.reading import as_terms
from ..terms.table import Table
from ..terms.times import Trend
from . import elimination, level_space
from .base import Conditioned, Layout, Posterior, Prior, Workspace, at_inputs, draws_of
from .chained import ChainedWorkspace, chained_posterior
from .level_space import Block, Blocks, block_of
from .markov import MarkovGP
from .nesting import largest_nest


class Additive(Prior):
    """A sum of terms for every latent, over the columns of a table.

    `terms` is a term, a sum of terms, or a mapping from the names of the likelihood's latents to sums of terms. x is
    then a table: a data frame, or a mapping of columns.

    >>> from newtongp import terms
    >>> Additive(terms.Linear("age") + terms.Group("clinic")).num_latents
    1
    """

    latents: tuple[Terms, ...]
    names: tuple[str, ...] = eqx.field(static=True)
    """The names of the latents."""
    eliminated: tuple[str, ...] = eqx.field(static=True)
    """The names of the codes of the groups that are eliminated, from the inside out, once bound to a table."""
    chained: tuple[int, ...] = eqx.field(static=True)
    """The terms of the only latent that are conditioned as a chain in time, once bound."""

    def __init__(self, terms: Any):
        given = terms if isinstance(terms, Mapping) else {"f": terms}
        if not given:
            raise ValueError("terms must not be empty: give at least one, such as terms.Linear()")
        self.latents = tuple(_named(name, value) for name, value in given.items())
        self.names = tuple(map(str, given))
        self.eliminated, self.chained = (), ()

    @property
    def num_latents(self) -> int:
        return len(self.latents)

    @property
    def is_proper(self) -> bool:
        return not any(term.is_flat for terms in self.latents for term in terms.terms)

    def bind(self, table: Table, units: tuple[Units, ...]) -> tuple["Additive", TableColumns]:
        """The prior with the sizes that a table implies, and how to encode other tables."""
        bound, encoders = [], []
        for terms, unit in zip(self.latents, units, strict=True):
            pairs = [term.bind(table, unit) for term in terms.terms]
            bound.append(Terms(tuple(term for term, _ in pairs)))
            encoders.append(tuple(encoder for _, encoder in pairs))
        prior = eqx.tree_at(
            lambda p: p.latents, Additive(dict(zip(self.names, self.latents, strict=True))), tuple(bound)
        )
        columns = TableColumns(tuple(encoders))
        return prior.structured(functools.partial(_codes_in, columns, table)), columns

    def structured(self, codes_of: Callable[[int, int], np.ndarray]) -> "Additive":
        """The prior, bound to a table, with the parts that are conditioned first: a chain in time, or nested groups.

        `codes_of` has the levels of all rows of a group, given the number of its latent and its own.
        """
        prior = Additive(dict(zip(self.names, self.latents, strict=True)))
        chained, groups = chained_terms(prior.latents), large_groups(prior.latents)
        eliminated = () if chained else tuple(groups)
        if len(eliminated) > 1:
            codes = {name: codes_of(*place) for name, (_, place) in groups.items()}
            eliminated = largest_nest({name: weights for name, (weights, _) in groups.items()}, codes)
        object.__setattr__(prior, "chained", chained)
        object.__setattr__(prior, "eliminated", eliminated)
        prior._check_weights()
        return prior

    def _check_weights(self) -> None:
        """Raise ValueError if more weights are solved for together than is practical."""
        terms = [term for terms in self.latents for term in terms.terms if not self._is_apart(term)]
        count = sum(term.count for term in terms)
        if count > _MOST_WEIGHTS:
            raise ValueError(
                f"{count} weights would be solved for together, and at most {_MOST_WEIGHTS} are practical: "
                f"most are of {self._largest_and_remedy()}"
            )

    @property
    def places(self) -> tuple[tuple[slice, ...], ...]:
        """The columns of x that belong to every term of every latent."""
        begin, found = 0, []
        for terms in self.latents:
            own = []
            for term in terms.terms:
                own.append(slice(begin, begin + term.width))
                begin += term.width
            found.append(tuple(own))
        return tuple(found)

    @property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        """The labels of all terms, by latent."""
        return tuple(tuple(term.label for term in terms.terms) for terms in self.latents)

    def check_inputs(self, x: np.ndarray) -> None:
        width = sum(term.width for terms in self.latents for term in terms.terms)
        if x.shape[1] != width:
            raise ValueError(
                f"terms are over the named columns of a table, got an array with {x.shape[1]} column(s): give a data "
                "frame, or a mapping of columns"
            )

    over_table: ClassVar[bool] = True

    @property
    def memory_remedy(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Advice that names the term with the most weights."""
        return f"most of it is for {self._largest_and_remedy()}"

    def _largest_and_remedy(self) -> str:
        every = [term for terms in self.latents for term in terms.terms]
        largest = max([term for term in every if not self._is_apart(term)] or every, key=lambda term: term.count)
        return (
            f"{largest.label}, with {largest.count} weights: use fewer levels or distinct values there, as by rounding "
            "its columns, or a term that can be eliminated (a Group, or a Trend over time)"
        )

    @property
    def structure(self) -> str:
        """How the terms are conditioned, in words, once bound to a table."""

        def labels(terms: Any) -> str:
            return ", ".join(dict.fromkeys(term.label for term in terms))

        every = [term for terms in self.latents for term in terms.terms if term.count]
        apart = [term for term in every if self._is_apart(term)]
        weights = [term for term in every if not self._is_apart(term)]
        nested = " from the inside out" if len(self.eliminated) > 1 else ""
        how = "one chain in time" if self.chained else f"eliminated level by level{nested}"
        parts = [*([f"{labels(apart)}: {how}"] if apart else []), *([f"{labels(weights)}: weights"] if weights else [])]
        return "; ".join(parts) + " (exact)"

    def memory(self, x: np.ndarray) -> float:
        every = [term for terms in self.latents for term in terms.terms]
        weights = float(sum(term.count for term in every if not self._is_apart(term)))
        eliminated = float(sum(term.count for term in every if isinstance(term, Group) and self._is_apart(term)))
        needed = 8.0 * (10.0 * x.size + 6.0 * weights**2 + 5.0 * eliminated * weights)
        if self.chained:
            chained = [self.latents[0].terms[number] for number in self.chained]
            needed += self.chain().memory(self.times_of(x)) + 8.0 * 8.0 * x.shape[0] * (weights + len(chained))
        return needed

    def _is_apart(self, term: Any) -> bool:
        """Whether a term is eliminated, so that its size enters only linearly."""
        if isinstance(term, Group):
            return ":".join(term.columns) in self.eliminated
        return any(term is self.latents[0].terms[number] for number in self.chained)

    def size_class(self, rows: int) -> int:
        return size_class(rows, SMALLEST_DATA)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        if self.chained:
            return self._chain_layout(x, size)
        rows = tuple(
            tuple(term.read_rows(x[:, place]) for term, place in zip(terms.terms, places, strict=True))
            for terms, places in zip(self.latents, self.places, strict=True)
        )
        return Layout(fill_rows(rows, size), None)

    def _chain_layout(self, x: Any, size: int | None) -> Layout:
        """Times in the order of a chain, and the rows of all other terms in the same order."""
        inner = self.chain().layout(self.times_of(x), size)
        own = [
            None if number in self.chained else term.read_rows(x[:, place])
            for number, (term, place) in enumerate(zip(self.latents[0].terms, self.places[0], strict=True))
        ]
        filled = fill_rows(own, size)
        order = inner.rows
        ordered = filled if order is None else jax.tree.map(lambda leaf: np.asarray(leaf)[order], filled)
        return Layout((inner.inputs, tuple(ordered)), order)

    def chain(self) -> MarkovGP:
        """The chain: a Markovian GP with the sum of the kernels of its terms."""
        terms: list[Any] = [self.latents[0].terms[number] for number in self.chained]
        parts = [term.covariance() for term in terms]
        return MarkovGP(parts[0] if len(parts) == 1 else functools.reduce(operator.add, parts))

    def times_of(self, x: Any) -> Any:
        """The chain's inputs, one column; walks start at their origin, and other kernels do not depend on it."""
        terms = self.latents[0].terms
        first = next((number for number in self.chained if isinstance(terms[number], Trend)), self.chained[0])
        begin = self.places[0][first].start
        return x[:, begin : begin + 1]

    def prepare(self, x: Any) -> Any:
        if self.chained:
            return self._prepare_chain(*x)
        count = jax.tree.leaves(x)[0].shape[0]
        means, blocks = [], []
        for latent, (terms, rows) in enumerate(zip(self.latents, x, strict=True)):
            total = jnp.zeros(count)
            for term, own in zip(terms.terms, rows, strict=True):
                total = total + term.mean(own)
                blocks += [block_of(weights, latent) for weights in term.weights(own)]
            means.append(total)
        eliminated, rest = self.parted(blocks)
        within = elimination.levels_within(eliminated)
        return AdditiveWorkspace(Blocks(jnp.stack(means, axis=1), eliminated, rest, within))

    def parted(self, blocks: list[Block]) -> tuple[tuple[tuple[Block, ...], ...], tuple[Block, ...]]:
        """The blocks of groups that are eliminated, from the inside out, and all others."""

        def is_of(block: Block, name: str) -> bool:
            return block.root is None and block.codes is not None and block.over == name

        groups = tuple(tuple(block for block in blocks if is_of(block, name)) for name in self.eliminated)
        own = {id(block) for group in groups for block in group}
        return groups, tuple(block for block in blocks if id(block) not in own)

    def _prepare_chain(self, inputs: Any, rows: Any) -> ChainedWorkspace:
        inner = self.chain().prepare(inputs)
        mean, blocks = jnp.zeros(inner.mean.shape[0]), []
        for number, (term, own) in enumerate(zip(self.latents[0].terms, rows, strict=True)):
            if number in self.chained:
                smooth: Any = term
                blocks += [block_of(weights, 0) for weights in smooth.chain_weights(inner.times)]
            else:
                mean = mean + term.mean(own)
                blocks += [block_of(weights, 0) for weights in term.weights(own)]
        columns = level_space.matrix_of(tuple(blocks), inner.mean.shape[0])
        flat = tuple(map(bool, level_space.flats(tuple(blocks))))
        return ChainedWorkspace(inner=inner, mean=mean[:, None], columns=columns, flat_weights=flat)

    def condition(self, workspace: Any, sites: Sites) -> Any:
        if self.chained:
            return chained_posterior(self, workspace, sites)
        solved = elimination.solve(workspace.blocks, sites)
        conditioned = workspace.conditioned(solved)
        return AdditivePosterior(
            conditioned.marginals,
            conditioned.log_normaliser(sites),
            self,
            solved.weights,
            solved.half,
            solved.own,
            workspace.blocks.within,
        )


def _named(name: str, value: Any) -> Terms:
    try:
        return as_terms(value)
    except ValueError as error:
        raise ValueError(f"terms of {name!r}: {error}") from None


_MANY_POINTS = 300
"""The number of distinct times from which terms with a state space form are a chain."""


def chained_terms(latents: tuple[Terms, ...]) -> tuple[int, ...]:
    """The terms of one latent that are a chain: functions of one column of time, with many distinct values.

    Nothing but their sum is conditioned on, so that all of them are one chain.
    """
    if len(latents) != 1:
        return ()
    found: dict[Any, list[int]] = {}
    for number, term in enumerate(latents[0].terms):
        if isinstance(term, KernelTerm) and term.is_chain:
            found.setdefault(term.columns, []).append(number)
    largest = max(found.values(), key=lambda numbers: _points(latents[0].terms[numbers[0]]), default=[])
    many = bool(largest) and _points(latents[0].terms[largest[0]]) >= _MANY_POINTS
    return tuple(largest) if many else ()


def _points(term: Any) -> int:
    return int(np.sum(term.used))


_MOST_WEIGHTS = 10_000
"""The largest number of weights that are solved for together: a step then takes a minute."""

_FEW_LEVELS = 32
"""Groups with fewer levels are solved for with the other weights."""


def large_groups(latents: tuple[Terms, ...]) -> dict[str, tuple[int, tuple[int, int]]]:
    """The names of the codes of groups that may be eliminated: the number of weights over them, and the first term."""
    found: dict[str, tuple[int, tuple[int, int]]] = {}
    for latent, terms in enumerate(latents):
        for number, term in enumerate(terms.terms):
            if isinstance(term, Group) and term.levels >= _FEW_LEVELS:
                name = ":".join(term.columns)
                weights, place = found.get(name, (0, (latent, number)))
                found[name] = weights + term.levels * term.size, place
    return found


def _codes_in(columns: TableColumns, table: Table, latent: int, number: int) -> np.ndarray:
    encoder: Any = columns.encoders[latent][number]
    return codes_of(encoder.columns, encoder.levels, table)[0]


class AdditiveWorkspace(Workspace):
    """The blocks of all terms at the data."""

    blocks: Blocks

    def __init__(self, blocks: Blocks):
        self.blocks = blocks

    @property
    def mean(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The prior mean of every row, (N, D)."""
        return self.blocks.mean

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(elimination.solve(self.blocks, sites))

    def conditioned(self, solved: elimination.Solved) -> Conditioned:
        """q(f) at the data, from the posterior of the weights."""
        blocks = self.blocks
        mean = blocks.mean + level_space.f_of(blocks, solved.weights, solved.own_means)
        distance = elimination.distance(blocks, solved.weights, solved.own_means)
        marginals = Gaussian(mean, elimination.covariances(blocks, solved))
        return Conditioned(marginals, distance, solved.log_det, solved.proper, rounding=solved.rounding)

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        return elimination.log_normaliser(self.blocks, sites)


class AdditivePosterior(Posterior):
    """q(f) of a sum of terms, through their weights.

    `terms` gives the posterior of chosen terms. All are conditional on the hyperparameters.
    """

    marginals: Gaussian
    log_normaliser: Any
    prior: Additive
    weights: Any
    """The means of all weights but the eliminated ones, in units of their prior."""
    half: Any
    """H: the covariance of these weights is HᵀH."""
    own: tuple[elimination.Own, ...]
    """The eliminated weights, from the inside out."""
    within: Any
    """The levels of outer groups in which those of inner ones sit."""

    @on_host
    def predict(self, x: Any) -> Gaussian:
        return at_inputs(_predict, self, x)

    @on_host
    def joint(self, x: Any) -> Gaussian:
        return _joint(self.without_marginals(), x, self.everything)

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return draws_of(_joint(self.without_marginals(), x, self.everything), key, n, x.shape[0])

    @on_host
    def of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The posterior of a weighted sum of terms at rows: `chosen` has one number per term of every latent."""
        rows = np.asarray(x)
        chosen = tuple(tuple(map(float, own)) for own in chosen)
        return at_inputs(lambda posterior, x: _of_terms(posterior, x, chosen), self, rows)

    @on_host
    def joint_of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The joint distribution of a weighted sum of terms at rows."""
        return _joint(self.without_marginals(), x, chosen)

    @property
    def everything(self) -> tuple[tuple[float, ...], ...]:
        """The choice of all terms."""
        return tuple(tuple(1.0 for _ in terms.terms) for terms in self.prior.latents)


class _NewRows:
    """Rows at new inputs: what the weights contribute, and what is left of the prior."""

    def __init__(self, posterior: AdditivePosterior, x: Any, chosen: Any):
        prior, count = posterior.prior, x.shape[0]
        means, blocks, self.left = [], [], []
        for latent, (terms, places) in enumerate(zip(prior.latents, prior.places, strict=True)):
            mean, left = jnp.zeros(count), jnp.zeros(count)
            for term, place, factor in zip(terms.terms, places, chosen[latent], strict=True):
                mean = mean + factor * term.new_mean(x[:, place])
                for weights in term.new_weights(x[:, place]):
                    if weights.residual is not None:
                        left = left + factor**2 * weights.residual
                    blocks.append(block_of(weights._replace(columns=factor * weights.columns), latent))
            means.append(mean)
            self.left.append(left)
        self.blocks = Blocks(jnp.stack(means, axis=1), *prior.parted(blocks), posterior.within)
        self.solved = elimination.Solved(
            posterior.weights, posterior.half, posterior.own, jnp.zeros(()), jnp.asarray(True), jnp.zeros(())
        )

    @property
    def mean(self) -> Float[Array, "M D"]:
        return self.blocks.mean + level_space.f_of(self.blocks, self.solved.weights, self.solved.own_means)


def _of_terms_now(posterior: AdditivePosterior, x: Any, chosen: Any) -> Gaussian:
    rows = _NewRows(posterior, x, chosen)
    covariance = elimination.covariances(rows.blocks, rows.solved, is_nested=False)
    left = jax.vmap(jnp.diag)(jnp.stack(rows.left, axis=1))
    return Gaussian(rows.mean, covariance + left)


@compiled
def _of_terms(posterior: AdditivePosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    return _of_terms_now(posterior, x, chosen)


@compiled
def _predict(posterior: AdditivePosterior, x: Float[Array, "M C"]) -> Gaussian:
    return _of_terms_now(posterior, x, posterior.everything)


@compiled
def _joint(posterior: AdditivePosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    rows = _NewRows(posterior, x, chosen)
    prior, mean = posterior.prior, rows.mean
    count, latents = mean.shape
    covariance = elimination.joint_covariance(rows.blocks, rows.solved)
    for latent, (terms, places) in enumerate(zip(prior.latents, prior.places, strict=True)):
        left = sum(
            factor**2 * term.new_covariance(x[:, place])
            for term, place, factor in zip(terms.terms, places, chosen[latent], strict=True)
        )
        pick = jnp.zeros((latents, latents)).at[latent, latent].set(1.0)
        spread = jnp.einsum("mn,de->mdne", jnp.broadcast_to(left, (count, count)), pick)
        covariance = covariance + spread.reshape(count * latents, count * latents)
    return Gaussian(mean.reshape(-1), covariance)
