"""Areas on maps: points or polygons, coloured by values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .pieces import DATA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = ("Point", "Polygon", "MultiPolygon")


def shapes_of(places: Any, areas: Sequence[Any]) -> list[list[np.ndarray]]:
    """For every area its outer rings, each (V, 2); a point is a ring with one corner.

    `places` maps areas to points (x, y), to corners (V, 2), or to geometries (GeoJSON, or objects with a
    `__geo_interface__`, as shapely has). It may also be a GeoJSON FeatureCollection, whose features are found by their
    "id", and by their order if they have none, as in a list.

    >>> square = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    >>> geojson = {"type": "Feature", "id": "a", "geometry": {"type": "Polygon", "coordinates": [square]}}
    >>> shapes_of({"type": "FeatureCollection", "features": [geojson]}, ["a"])[0][0].shape
    (3, 2)
    """
    known = _by_area(places)
    return [_rings(known, area) for area in areas]


def _by_area(places: Any) -> Mapping[Any, Any]:
    if not isinstance(places, Mapping):
        places = getattr(places, "__geo_interface__", None) or getattr(places, "to_dict", lambda: places)()
    if isinstance(places, Mapping) and places.get("type") == "FeatureCollection":
        features = list(places["features"])
        return {feature.get("id", place): feature["geometry"] for place, feature in enumerate(features)}
    if isinstance(places, (list, tuple, np.ndarray)):
        return dict(enumerate(places))
    if not isinstance(places, Mapping):
        raise ValueError(
            "places must be a mapping from areas to points or polygons, a list of them, or a GeoJSON "
            f"FeatureCollection, got {type(places).__name__}"
        )
    return places


def _rings(places: Mapping[Any, Any], area: Any) -> list[np.ndarray]:
    if area not in places:
        raise ValueError(f"places must map every area to a point or a polygon, but {area!r} is missing: add it")
    given = places[area]
    shape: Any = given if isinstance(given, Mapping) else getattr(given, "__geo_interface__", None)
    if shape is not None:
        kind, inside = shape["type"], shape.get("coordinates")
        if kind not in _KINDS:
            raise ValueError(f"areas are points or polygons, but that of {area!r} is a {kind}")
        rings = [[inside]] if kind == "Point" else [inside[0]] if kind == "Polygon" else [part[0] for part in inside]
        return [np.asarray(ring, dtype=float).reshape(-1, np.shape(ring)[-1])[:, :2] for ring in rings]
    array = np.asarray(given, dtype=float)
    if array.shape == (2,):
        array = array[None]
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            f"places must be points (x, y) or corners (V, 2), but that of {area!r} has shape {array.shape}"
        )
    return [array]


def draw_shapes(ax: "Axes", shapes: list[list[np.ndarray]], values: np.ndarray, style: Mapping[str, Any]) -> Any:
    """Draw areas coloured by their values; returns what a colour bar needs. `style` has cmap, vmin and vmax."""
    if all(len(shape) == 1 and len(shape[0]) == 1 for shape in shapes):
        points = np.array([shape[0][0] for shape in shapes])
        size = float(np.clip(9000.0 / len(points), 12.0, 200.0))
        drawn = ax.scatter(points[:, 0], points[:, 1], c=values, s=size, edgecolors=DATA, linewidths=0.4, **style)
    else:
        from matplotlib.collections import PolyCollection

        rings = [(ring, value) for shape, value in zip(shapes, values, strict=True) for ring in shape]
        drawn = PolyCollection(
            [ring for ring, _ in rings], array=np.array([value for _, value in rings]), cmap=style["cmap"]
        )
        drawn.set_clim(style["vmin"], style["vmax"])
        drawn.set(edgecolor=DATA, linewidth=0.4)
        ax.add_collection(drawn)
        ax.autoscale_view()
    ax.set_aspect("equal")
    ax.set(xticks=[], yticks=[])
    return drawn
