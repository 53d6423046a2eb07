"""Mermaid's diagrams as SVG, made when the site is built: to draw them, a browser would load a script from elsewhere.

Only what the documentation needs is understood: `graph TD` and lines such as `one --> other`.
"""

import html
import itertools
import re
from typing import Any

_DIAGRAM = re.compile(r'<pre class="mermaid"><code>(.*?)</code></pre>', re.DOTALL)
_WIDE, _HIGH, _ACROSS, _DOWN = 100.0, 28.0, 122.0, 64.0
_BEND = 14.0
"""How wide the place is that an edge takes in a layer that it passes."""


def with_diagrams(page: str) -> str:
    """The page with its diagrams drawn."""
    return _DIAGRAM.sub(lambda match: _drawn(edges_of(html.unescape(match.group(1)))), page)


def edges_of(text: str) -> list[tuple[str, str]]:
    """The edges of a graph.

    >>> edges_of("graph TD\\n    a --> b\\n    b --> c")
    [('a', 'b'), ('b', 'c')]
    """
    first, *lines = text.strip().splitlines()
    if first.strip() != "graph TD":
        raise ValueError(f"a diagram must begin with 'graph TD', got {first!r}")
    edges = []
    for line in lines:
        one, arrow, other = line.partition("-->")
        if not arrow:
            raise ValueError(f"a line of a diagram must be 'one --> other', got {line!r}")
        edges.append((one.strip(), other.strip()))
    return edges


def layers_of(edges: list[tuple[str, str]]) -> dict[str, int]:
    """How far down each node is: below everything that points to it.

    >>> layers_of([("a", "b"), ("b", "c"), ("a", "c")])
    {'a': 0, 'b': 1, 'c': 2}
    """
    layers = dict.fromkeys((name for edge in edges for name in edge), 0)
    for _ in layers:
        for one, other in edges:
            layers[other] = max(layers[other], layers[one] + 1)
    if any(layers[other] <= layers[one] for one, other in edges):
        raise ValueError("a diagram must not have cycles")
    return layers


def _drawn(edges: list[tuple[str, str]]) -> str:
    layers = layers_of(edges)
    paths = [_path(edge, layers) for edge in edges]
    rows = _ordered(paths, layers)
    place = _places(rows)
    width = max(x for x, _ in place.values()) + _WIDE / 2 + 4.0
    height = max(y for _, y in place.values()) + _HIGH + 4.0
    arrows = "".join(
        f'<path d="{_curve([place[point] for point in path])}" marker-end="url(#arrow)"/>' for path in paths
    )
    boxes = "".join(_box(name, *place[name]) for name in layers)
    head = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker>'
    )
    return (
        f'<div class="diagram"><svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" '
        f'aria-label="A graph of {len(layers)} nodes"><defs>{head}</defs>{arrows}{boxes}</svg></div>'
    )


def _path(edge: tuple[str, str], layers: dict[str, int]) -> list[Any]:
    """The points of an edge: its nodes, and a bend in every layer between them."""
    one, other = edge
    return [one, *[(edge, layer) for layer in range(layers[one] + 1, layers[other])], other]


def _ordered(paths: list[list[Any]], layers: dict[str, int]) -> list[list[Any]]:
    """The nodes and bends of each layer, in an order with few crossings: each near the middle of its neighbours."""
    rows: list[list[Any]] = [[] for _ in range(max(layers.values()) + 1)]
    near: dict[Any, list[Any]] = {}
    for path in paths:
        for point in path:
            row = rows[layers[point] if isinstance(point, str) else point[1]]
            if point not in near:
                row.append(point)
                near[point] = []
        for one, other in itertools.pairwise(path):
            near[one].append(other)
            near[other].append(one)
    for turn in range(24):
        x = {point: value for point, (value, _) in _places(rows).items()}
        for number in range(len(rows)) if turn % 2 else reversed(range(len(rows))):
            rows[number].sort(key=lambda point: sum(x[other] for other in near[point]) / len(near[point]))
    return rows


def _places(rows: list[list[Any]]) -> dict[Any, tuple[float, float]]:
    """Where the middle of each node's upper edge is, and each bend."""
    widths = [sum(_ACROSS if isinstance(point, str) else _BEND for point in row) for row in rows]
    place = {}
    for number, (row, wide) in enumerate(zip(rows, widths, strict=True)):
        x = (max(widths) - wide) / 2
        for point in row:
            own = _ACROSS if isinstance(point, str) else _BEND
            place[point] = (x + own / 2, 4.0 + number * _DOWN)
            x += own
    return place


def _curve(points: list[tuple[float, float]]) -> str:
    """From the lower edge of the first point, through the bends, to the upper edge of the last."""
    (x, y), *others = points
    y += _HIGH
    parts = [f"M{x:.1f} {y:.1f}"]
    for number, (next_x, next_y) in enumerate(others, start=1):
        middle = (y + next_y) / 2
        parts.append(f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
        if number < len(others):  # straight down through the layer that the edge passes
            y += _HIGH
            parts.append(f"V{y:.1f}")
    return "".join(parts)


def _box(name: str, x: float, y: float) -> str:
    return (
        f'<rect x="{x - _WIDE / 2:.1f}" y="{y:.1f}" width="{_WIDE}" height="{_HIGH}" rx="4"/>'
        f'<text x="{x:.1f}" y="{y + 18.5:.1f}" text-anchor="middle">{html.escape(name)}</text>'
    )


def on_page_content(content: str, /, **_: Any) -> str:
    """Called by MkDocs for the content of every page."""
    return with_diagrams(content)
