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

from ..numerics.gaussian import Gaussian, Sites, add_covariance
from ..numerics.size_classes import SMALLEST_DATA, fill_rows, size_class
from ..terms.base import Terms, Units, replaced
from ..terms.columns import TableColumns
from ..terms.group import Group, codes_of
from ..terms.kernel_term import KernelTerm
from ..terms.reading import as_terms
from ..terms.smooth import Area, Smooth
from ..terms.table import Table
from ..terms.times import Trend
from . import elimination, joined, level_space
from .additive_posterior import AdditivePosterior
from .base import Conditioned, Layout, Prior, Workspace
from .chained import ChainedWorkspace, chained_posterior
from .level_space import Block, Blocks, block_of, residual_of
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

    @property
    def chooses_inducing(self) -> bool:
        """Whether inducing inputs of a term are chosen from the data."""
        return any(
            getattr(term, "inducing_count", None) and _is_sparse(term) for own in self.latents for term in own.terms
        )

    def with_chosen_inducing(self, guessed: "Additive", x: np.ndarray) -> "Additive":
        """The prior with inducing inputs that are chosen with the kernels of another one, from encoded rows.

        Only those that are not given are chosen again.
        """

        def chosen(term: Any, other: Any, place: slice) -> Any:
            if not _is_sparse(term):
                return term
            found = other.with_chosen(x[:, place])
            return replaced(term, points=found.points, used=found.used)

        latents = tuple(
            Terms(tuple(map(chosen, terms.terms, other.terms, places)))
            for terms, other, places in zip(self.latents, guessed.latents, self.places, strict=True)
        )
        return eqx.tree_at(lambda p: p.latents, self, latents)

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
    def joined(self) -> tuple[tuple[int, ...], ...]:
        """For every latent the terms that are conditioned as one function of time, if there is no chain."""
        return tuple(() if self.chained else joined.joined_terms(terms) for terms in self.latents)

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
            f"{largest.label}, with {largest.count} weights: {_remedy(largest)}, or use fewer levels or distinct "
            "values there, as by rounding its columns"
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
        sparse = [term for term in weights if _is_sparse(term)]
        weights = [term for term in weights if not _is_sparse(term)]
        kinds = ((apart, how), (sparse, "weights of inducing inputs"), (weights, "weights"))
        parts = [f"{labels(terms)}: {kind}" for terms, kind in kinds if terms]
        return "; ".join(parts) + (" (exact for these inputs)" if sparse else " (exact)")

    def memory(self, x: np.ndarray) -> float:
        every = [term for terms in self.latents for term in terms.terms]
        weights = float(sum(term.count for term in every if not self._is_apart(term)))
        eliminated = float(sum(term.count for term in every if isinstance(term, Group) and self._is_apart(term)))
        inducing = float(sum(term.count for term in every if _is_sparse(term)))
        needed = 8.0 * (10.0 * x.size + 4.5 * x.shape[0] * inducing + 6.0 * weights**2 + 5.0 * eliminated * weights)
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
        means, found = [], []
        for terms, rows, together in zip(self.latents, x, self.joined, strict=True):
            total, own_weights = jnp.zeros(count), []
            for number, (term, own) in enumerate(zip(terms.terms, rows, strict=True)):
                total = total + term.mean(own)
                if number not in together:
                    own_weights += term.weights(own)
                    continue
                if number == together[0]:
                    own_weights.append(joined.at_data(*joined.chosen(together, terms.terms, rows)))
                smooth: Any = term
                own_weights += smooth.line_weights(own[2], own[1])
            means.append(total)
            found.append(own_weights)
        blocks = [block_of(weights, latent) for latent, own in enumerate(found) for weights in own]
        eliminated, rest = self.parted(blocks)
        within = elimination.levels_within(eliminated)
        return AdditiveWorkspace(Blocks(jnp.stack(means, axis=1), eliminated, rest, within), residual_of(found, count))

    def parted(self, blocks: list[Block]) -> tuple[tuple[tuple[Block, ...], ...], tuple[Block, ...]]:
        """The blocks of groups that are eliminated, from the inside out, and all others."""

        def is_of(block: Block, name: str) -> bool:
            return block.root is None and block.codes is not None and block.over == name

        groups = tuple(tuple(block for block in blocks if is_of(block, name)) for name in self.eliminated)
        own = {id(block) for group in groups for block in group}
        return groups, tuple(block for block in blocks if id(block) not in own)

    def _prepare_chain(self, inputs: Any, rows: Any) -> ChainedWorkspace:
        inner = self.chain().prepare(inputs)
        mean, found = jnp.zeros(inner.mean.shape[0]), []
        for number, (term, own) in enumerate(zip(self.latents[0].terms, rows, strict=True)):
            if number in self.chained:
                smooth: Any = term
                found += smooth.chain_weights(inner.times)
            else:
                mean = mean + term.mean(own)
                found += term.weights(own)
        blocks = tuple(block_of(weights, 0) for weights in found)
        columns = level_space.matrix_of(blocks, mean.shape[0])
        flat = tuple(map(bool, level_space.flats(blocks)))
        residual = residual_of([found], mean.shape[0])
        return ChainedWorkspace(inner=inner, mean=mean[:, None], columns=columns, residual=residual, flat_weights=flat)

    def condition(self, workspace: Any, sites: Sites) -> Any:
        if self.chained:
            return chained_posterior(self, workspace, sites)
        solved = elimination.solve(workspace.blocks, sites)
        conditioned = workspace.conditioned(solved)
        return AdditivePosterior(
            workspace.marginals_of_f(conditioned.marginals),
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


def _remedy(term: Any) -> str:
    """What to do about a term with too many weights."""
    if not isinstance(term, KernelTerm) or isinstance(term, Area):
        return "use a term that can be eliminated (a Group, or a Trend over time)"
    if term.is_sparse:
        return "use fewer inducing inputs there"
    by = [] if term.by is None else [f"by={term.by!r}"]
    sparse = f"Smooth({', '.join([*map(repr, term.columns), *by])}, inducing=200)"
    if isinstance(term, Smooth):
        return f"make it sparse, as {sparse}"
    # Only models with one latent, and terms without `by`, have a chain in time.
    return f"only a model with one latent has a chain in time, of terms without `by`: use a sparse term, as {sparse}"


def _is_sparse(term: Any) -> bool:
    return isinstance(term, KernelTerm) and term.is_sparse


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
    residual: Float[Array, "N D D"] | None
    """The covariance of what sparse terms leave of f given their weights."""

    def __init__(self, blocks: Blocks, residual: Any):
        self.blocks, self.residual = blocks, residual

    @property
    def mean(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The prior mean of every row, (N, D)."""
        return self.blocks.mean

    @property
    def is_known(self) -> bool:
        return self.residual is None and not self.blocks.rest and not self.blocks.eliminated

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(elimination.solve(self.blocks, sites))

    def conditioned(self, solved: elimination.Solved) -> Conditioned:
        """q(f) at the data, from the posterior of the weights."""
        blocks = self.blocks
        mean = blocks.mean + level_space.f_of(blocks, solved.weights, solved.own_means)
        distance = elimination.distance(blocks, solved.weights, solved.own_means)
        marginals = Gaussian(mean, elimination.covariances(blocks, solved))
        return Conditioned(marginals, distance, solved.log_det, solved.proper, self.residual, solved.rounding)

    def residual_covariance(self):
        return self.residual

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        return add_covariance(marginals, self.residual)

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        return elimination.log_normaliser(self.blocks, sites)
