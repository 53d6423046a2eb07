"""Plots of terms: a panel of the right kind for every term, with what it shows."""

import numpy as np
import pytest

import newtongp as ng
from newtongp import terms

from .. import tables

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


@pytest.mark.slow
@pytest.mark.thorough
def test_every_term_has_a_panel():
    result = tables.inferred()
    figure = result.plot_terms()
    labels = [label for label in result.model.prior.labels[0] if not label.startswith("offset")]
    group = "group(patient, slope=dose)"
    place = labels.index(group)
    expected = [*labels[:place], f"{group}: intercept", f"{group}: dose", *labels[place + 1 :]]
    assert titles(figure) == expected
    figure.canvas.draw()


@pytest.mark.slow
def test_coefficients_and_groups_are_drawn_with_intervals():
    result = tables.fitted()
    figure = result.plot_terms(level=0.5)
    one, two = figure.axes[:2]
    effects = result.effects(level=0.5)
    names = [label.get_text() for label in one.get_yticklabels()]
    assert names == ["dose", "drug[low]", "drug[high]"]
    np.testing.assert_allclose(one.lines[0].get_xdata(), effects["estimate"][1:4])
    ends = np.array([line[:, 0] for line in one.collections[0].get_segments()])
    np.testing.assert_allclose(ends, effects[["lower", "upper"]][1:4])
    levels = result.effects("patient").sort_values("estimate", ascending=False)
    assert [label.get_text() for label in two.get_yticklabels()] == levels["patient"].tolist()
    np.testing.assert_allclose(two.lines[0].get_xdata(), levels["estimate"])


@pytest.mark.slow
@pytest.mark.thorough
def test_curves_are_centred():
    frame = tables.visits()
    own = terms.Linear() + terms.Smooth("age", by="drug") + terms.Trend("date", "level")
    result = ng.infer(ng.Model(own, "poisson"), frame, "y", ng.Newton())
    figure = result.plot_terms(only=["age", "date"])
    curves, trend = figure.axes[:2]
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["none", "low", "high"]
    for level, line in zip(["none", "low", "high"], curves.lines[:3], strict=True):
        ages = frame["age"][frame["drug"] == level]
        assert abs(np.mean(np.interp(ages, line.get_xdata(), line.get_ydata()))) < 1e-8
    days = trend.lines[0].get_xdata()
    assert np.asarray(days).dtype.kind == "M"


@pytest.mark.slow
def test_areas_are_points_or_polygons():
    frame = tables.visits()
    result = ng.infer(ng.Model(terms.Linear() + terms.Area("area", tables.PAIRS), "poisson"), frame, "y")
    points = {name: (k, 0.0) for k, name in enumerate("abcd")}
    ax = result.plot_terms(only="area", places=points).axes[0]
    np.testing.assert_allclose(ax.collections[0].get_array(), result.effects("area")["estimate"])
    squares = {name: [(k, 0), (k + 1, 0), (k + 1, 1), (k, 1)] for k, name in enumerate("abcd")}
    ax = result.plot_terms(only="area", places=squares).axes[0]
    assert len(ax.collections[0].get_paths()) == 4

    class Shape:
        def __init__(self, corners):
            self.__geo_interface__ = {"type": "MultiPolygon", "coordinates": [[corners], [corners]]}

    ax = result.plot_terms(only="area", places={name: Shape(own) for name, own in squares.items()}).axes[0]
    assert len(ax.collections[0].get_paths()) == 8
    with pytest.raises(ValueError, match="'d' is missing"):
        result.plot_terms(only="area", places={name: points[name] for name in "abc"})
    with pytest.raises(ValueError, match="points \\(x, y\\)"):
        result.plot_terms(only="area", places={**points, "b": [1.0, 2.0, 3.0]})


def test_axes_are_given_or_refused():
    result = tables.fitted()
    _, axes = pyplot.subplots(1, 2)
    assert result.plot_terms(axes) is axes[0].figure
    with pytest.raises(ValueError, match="one per panel, 2, got 1"):
        result.plot_terms([axes[0]])
    with pytest.raises(ValueError, match="use plot_terms"):
        result.plot()
    with pytest.raises(ValueError, match="offsets are known"):
        result.plot_terms(only="offset(log(days))")


@pytest.mark.slow
def test_reports_have_terms(tmp_path):
    page = tables.fitted().report(tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert "Every term of the model" in text and "group(patient): sd(intercept)" in text
