"""What a summary says about the terms of an additive model."""

from typing import Any, NamedTuple

import numpy as np

from ..prediction.terms import Entry, entries_of, moments, rows_of_data
from ..priors.additive import Additive
from ..results.result import Result
from ..terms.group import Group, GroupEncoder
from ..terms.kernel_term import KernelTerm
from ..terms.linear import Linear
from ..validation.text import number, shown
from .effects import all_effects

_ROWS = 500
"""The number of rows at which terms are compared."""
_APART = 2.0
"""Terms with standard deviations of this many times that of the latent are determined only together."""


class TermSummary(NamedTuple):
    """Effects and terms of a model as plain numbers, and notes about them; all empty for other models."""

    effects: list[dict[str, Any]]
    terms: list[dict[str, Any]]
    notes: list[str]


def summarise_terms(result: Result, checks: bool) -> TermSummary:
    """The effects of a model of terms and, with `checks`, how much every term contributes."""
    if not isinstance(result.model.prior, Additive) or result.data is None or result.sites is None:
        return TermSummary([], [], [])
    effects = [
        {name: _plain(value) for name, value in {**effect._asdict(), "z": effect.z}.items()}
        for effect in all_effects(result)
    ]
    if not checks:
        return TermSummary(effects, [], [])
    entries, x = entries_of(result), rows_of_data(result, "summary")
    x = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), _ROWS)).astype(int))]
    found = [moments(result, x, entry.latent, [entry]) for entry in entries]
    terms = [
        {"name": entry.name, "size": _size(entry), "spread": float(np.std(mean)), "sd": float(np.median(sd))}
        for entry, (mean, sd) in zip(entries, found, strict=True)
    ]
    notes = [note for latent in range(result.model.prior.num_latents) for note in _together(result, x, latent, terms)]
    return TermSummary(effects, terms, notes)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else float(value) if np.isfinite(value) else None


def _size(entry: Entry) -> str:
    """The number of a term's coefficients, levels or inputs, in words."""
    term = entry.term
    if isinstance(term, Linear):
        return _counted(term.size, "coefficient")
    if isinstance(term, Group):
        assert isinstance(entry.encoder, GroupEncoder)
        each = f" × {term.size}" if term.size > 1 else ""
        return f"{_counted(len(entry.encoder.levels), 'level')}{each}"
    if isinstance(term, KernelTerm):
        return _counted(int(np.sum(term.used)), "inducing input" if term.is_sparse else "input")
    return "known"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _together(result: Result, x: np.ndarray, latent: int, terms: list[dict[str, Any]]) -> list[str]:
    """A note about terms whose sum is determined far better than each of them."""
    entries = [entry for entry in entries_of(result) if entry.latent == latent]
    whole = float(np.median(moments(result, x, latent, entries)[1]))
    names = {entry.name for entry in entries}
    loose = [term for term in terms if term["name"] in names and term["sd"] > _APART * whole]
    if len(loose) < 2:
        return []
    *first, last = [term["name"] for term in loose]
    deviations = ", ".join(number(term["sd"]) for term in loose)
    return [
        f"{', '.join(first)} and {last} are determined only together, such as a constant that any of them can have: "
        f"their standard deviations are {deviations}, but that of the latent is {number(whole)}. Plots draw curves "
        "centred; result.terms(only=[...], sum=True) has sums."
    ]


EFFECTS = ("effect", "estimate", "std. error", "z", "95 % interval")
TERMS = ("term", "size", "spread over rows", "std. dev.")


def effect_cells(entry: dict[str, Any]) -> list[str]:
    """The line of an effect in the table of a summary."""
    interval = "" if entry["lower"] is None else f"{shown(entry['lower'])} to {shown(entry['upper'], 'inf')}"
    numbers = [shown(entry[name], "") for name in ("estimate", "se")]
    z = "" if entry["z"] is None else f"{entry['z']:.2f}"
    return [f"{entry['term']}: {entry['name']}", *numbers, z, interval]


def term_cells(entry: dict[str, Any]) -> list[str]:
    """The line of a term in the table of a summary."""
    return [entry["name"], entry["size"], number(entry["spread"]), number(entry["sd"])]
