"""Adaptive integration of many functions over an interval at once.

On every panel the Gauss-Kronrod rule with 15 nodes is compared with the Gauss rule with 7 of them, and the values at
its ends with their extrapolation from the nodes. A panel with too large an error is halved or, if most of the change is
between two neighbouring nodes (a step, a narrow peak), cut at these.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# From QUADPACK's qk15: nodes from the centre of [-1, 1] outwards, and the weights of the two rules.
_HALF_NODES = np.array(
    [
        0.0,
        0.207784955007898467600689403773245,
        0.405845151377397166906606412076961,
        0.586087235467691130294144691693013,
        0.741531185599394439863864773280788,
        0.864864423359769072789712788640926,
        0.949107912342758524526189684047851,
        0.991455371120812639206854697526329,
    ]
)
_HALF_KRONROD = np.array(
    [
        0.209482141084727828012999174891714,
        0.204432940075298892414161999234649,
        0.190350578064785409913256402421014,
        0.169004726639267902826583426598550,
        0.140653259715525918745189590510238,
        0.104790010322250183839876322541518,
        0.063092092629978553290700663189204,
        0.022935322010529224963732008058970,
    ]
)
_HALF_GAUSS = np.array(
    [
        0.417959183673469387755102040816327,
        0.0,
        0.381830050505118944950369775488975,
        0.0,
        0.279705391489276667901467771423780,
        0.0,
        0.129484966168869693270611432679082,
        0.0,
    ]
)


def _mirrored(half: np.ndarray, sign: float) -> np.ndarray:
    return np.concatenate([sign * half[:0:-1], half])


def _at_end(nodes: np.ndarray) -> np.ndarray:
    """The weights with which the values at the nodes are extrapolated to 1."""
    distances = nodes[:, None] - nodes
    np.fill_diagonal(distances, 1.0)
    numerators = np.where(np.eye(nodes.size, dtype=bool), 1.0, 1.0 - nodes)
    return np.prod(numerators / distances, axis=1)


_INNER = _mirrored(_HALF_NODES, -1.0)
_NODES = np.concatenate([[-1.0], _INNER, [1.0]])
"""The ends of a panel are evaluated too: a step next to them would otherwise be missed."""
_KRONROD, _GAUSS = (np.pad(_mirrored(half, 1.0), 1) for half in (_HALF_KRONROD, _HALF_GAUSS))
_UPPER = np.concatenate([[0.0], _at_end(_INNER), [-1.0]])
_LOWER = _UPPER[::-1]
_GAP = 1.0 - _INNER[-1]

_MOST_ROUNDS = 60
_MOST_PANELS = 1000
"""The maximum number of panels per integral; what remains unresolved is noise."""
_ONE_STEP = 0.5
"""A panel is cut between two neighbouring nodes if they account for this fraction of its change."""


class Integrals(NamedTuple):
    """Values (n, V) of n integrals with V components, and their estimated errors (n, V)."""

    value: np.ndarray
    error: np.ndarray


def integrate(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    breaks: np.ndarray,
    allowed: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Integrals:
    """∫ function over the interval from the first to the last of `breaks`, for n integrals.

    `function(items, x)` returns the values (len(x), V) of the integrands of these items at x. `breaks` is (n, B),
    sorted, and holds the ends of the initial panels. `allowed(value, magnitude)` is the allowed error (n, V) of a
    panel, given estimates of the integrals and of the integrals of absolute values.
    """
    count, ends = breaks.shape
    items = np.repeat(np.arange(count), ends - 1)
    low, high = breaks[:, :-1].ravel(), breaks[:, 1:].ravel()
    wide = high > low
    items, low, high = items[wide], low[wide], high[wide]
    panels = np.bincount(items, minlength=count)
    done = done_size = done_error = None
    for round_number in range(_MOST_ROUNDS):
        centre, half = 0.5 * (low + high), 0.5 * (high - low)
        x = centre[:, None] + half[:, None] * _NODES
        values = function(np.repeat(items, _NODES.size), x.ravel()).reshape(items.size, _NODES.size, -1)
        value, size, error = _panels(values, half)
        if done is None:
            done, done_size, done_error = (np.zeros((count, values.shape[2])) for _ in range(3))
        total = done + _sums(items, value, count)
        tolerance = allowed(total, done_size + _sums(items, size, count))[items]
        # NaN does not need refinement.
        rough = np.any(error > tolerance, axis=1) & (half > 1e-15 * (1.0 + np.abs(centre)))
        rough &= panels[items] < _MOST_PANELS
        if round_number == _MOST_ROUNDS - 1:
            rough[:] = False
        done += _sums(items[~rough], value[~rough], count)
        done_size += _sums(items[~rough], size[~rough], count)
        done_error += _sums(items[~rough], error[~rough], count)
        if not np.any(rough):
            break
        items, low, high = _cut(items[rough], low[rough], high[rough], x[rough], values[rough], tolerance[rough])
        panels += np.bincount(items, minlength=count)
    if done is None or done_error is None:
        raise ValueError("there is nothing to integrate")
    return Integrals(done, done_error)


def _sums(items: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    return np.stack([np.bincount(items, column, count) for column in values.T], axis=1)


def _panels(values: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The integral, that of the absolute value, and QUADPACK's estimate of the error, on every panel."""
    width = half[:, None]
    kronrod = np.einsum("psv,s->pv", values, _KRONROD)
    size = width * np.einsum("psv,s->pv", np.abs(values), _KRONROD)
    spread = width * np.einsum("psv,s->pv", np.abs(values - 0.5 * kronrod[:, None, :]), _KRONROD)
    raw = width * np.abs(kronrod - np.einsum("psv,s->pv", values, _GAUSS))
    ratio = np.divide(200.0 * raw, spread, out=np.zeros_like(raw), where=spread > 0.0)
    error = np.where(ratio < 1.0, spread * ratio**1.5, np.maximum(spread, raw))
    ends = sum(np.abs(np.einsum("psv,s->pv", values, weights)) for weights in (_LOWER, _UPPER))
    error = np.maximum(error, _GAP * width * ends)
    # Differences of equal numbers are rounding error.
    return width * kronrod, size, np.where(error > 1e-14 * size, error, 0.0)


def _cut(items, low, high, x, values, tolerance) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split each panel in two halves, or in three at the two nodes with most of the change."""
    change = np.sum(np.abs(np.diff(values, axis=1)) / tolerance[:, None, :], axis=2)
    place = np.argmax(change, axis=1)
    row = np.arange(items.size)
    step = change[row, place] > _ONE_STEP * np.sum(change, axis=1)
    centre = 0.5 * (low + high)
    first = np.where(step, x[row, place], centre)
    second = np.where(step, x[row, place + 1], centre)
    made = [(items, low, first), (items, first, second), (items, second, high)]
    joined = tuple(np.concatenate(parts) for parts in zip(*made, strict=True))
    wide = joined[2] > joined[1]
    return joined[0][wide], joined[1][wide], joined[2][wide]


# Initial panels ---------------------------------------------------------------------------------

_SPACING = 0.3
_ZOOM = np.linspace(0.0, 1.0, 10)[1:-1]
_MOST_ZOOMS = 40
_RATIO = 4.0


def locate(
    objectives: Callable[[np.ndarray, np.ndarray], np.ndarray], count: int, reach: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where in [-reach, reach] each of V functions is largest, (n, V), how far from there it falls by 1, and its value.

    `objectives(items, x)` returns (len(x), V). They are logarithms of the integrands, in which even a narrow peak is
    visible from far away.
    """
    most = np.arcsinh(reach)
    grid = np.sinh(np.linspace(-most, most, 2 * int(np.ceil(most / _SPACING)) + 1))
    values = _finite(objectives(np.repeat(np.arange(count), grid.size), np.tile(grid, count)))
    values = values.reshape(count, grid.size, -1)
    place = np.clip(np.argmax(values, axis=1), 1, grid.size - 2)
    best = np.max(values, axis=1)
    at_best = grid[np.argmax(values, axis=1)]
    low, high = grid[place - 1], grid[place + 1]
    ends = [np.take_along_axis(values, (place + shift)[:, None, :], axis=1)[:, 0] for shift in (-1, 1)]
    drop = best - np.minimum(*ends)
    row, component = np.nonzero(drop > 1.0)
    for _ in range(_MOST_ZOOMS):
        if row.size == 0:
            break
        a, b = low[row, component], high[row, component]
        x = a[:, None] + (b - a)[:, None] * _ZOOM
        trials = _finite(objectives(np.repeat(row, _ZOOM.size), x.ravel()))
        trials = trials[np.arange(x.size), np.repeat(component, _ZOOM.size)].reshape(x.shape)
        top = np.argmax(trials, axis=1)
        index = np.arange(row.size)
        better = trials[index, top] > best[row, component]
        best[row, component] = np.where(better, trials[index, top], best[row, component])
        at_best[row, component] = np.where(better, x[index, top], at_best[row, component])
        centre, spacing = at_best[row, component], (b - a) / (_ZOOM.size + 1)
        low[row, component] = np.maximum(a, centre - spacing)
        high[row, component] = np.minimum(b, centre + spacing)
        sides = [_finite(objectives(row, end))[index, component] for end in (low[row, component], high[row, component])]
        # A plateau falls on one side only.
        falls = best[row, component] - np.minimum(*sides) > 1.0
        falls &= spacing > 1e-15 * (1.0 + np.abs(centre))
        row, component = row[falls], component[falls]
    return at_best, 0.5 * (high - low), best


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), -np.inf, values)


def graded(centres: np.ndarray, widths: np.ndarray, standard: np.ndarray) -> np.ndarray:
    """Ends of panels (n, B) that widen away from each centre (n, V), over the range of the `standard` ones."""
    reach = np.maximum(np.abs(standard[0]), np.abs(standard[-1]))
    narrowest = np.min(widths, initial=reach)
    steps = max(1, int(np.ceil(np.log(2.0 * reach / narrowest) / np.log(_RATIO))))
    growth = 3.0 * _RATIO ** np.arange(steps)
    offsets = np.concatenate([-growth[::-1], [0.0], growth])
    around = centres[:, :, None] + widths[:, :, None] * offsets
    # Wider panels would be no finer than the standard ones.
    wide = np.abs(offsets) * widths[:, :, None] > 4.0
    around = np.where(wide, centres[:, :, None], around)
    inside = np.clip(around.reshape(centres.shape[0], -1), standard[0], standard[-1])
    together = np.concatenate([inside, np.broadcast_to(standard, (centres.shape[0], standard.size))], axis=1)
    return np.sort(together, axis=1)
