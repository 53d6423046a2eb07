"""Maps and series of places of models in space and time."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.plotting import space_time

pyplot = pytest.importorskip("matplotlib.pyplot")
K = ng.kernels


@pytest.fixture(autouse=True)
def _close():
    yield
    pyplot.close("all")


def _infer(x, seed=0, unit=None, space=None):
    y = np.random.default_rng(seed).poisson(3.0, len(x)).astype(float)
    y[1] = np.nan
    prior = ng.SpaceTimeGP(K.Matern12(lengthscale=4.0), space or K.Matern32(lengthscale=0.5), unit=unit, mean=1.0)
    return ng.infer(ng.Model(prior, "poisson"), x, y)


@pytest.fixture(scope="module")
def stations():
    places = np.array([[0.0, 0.0], [0.4, 0.9], [1.0, 0.3]])
    return _infer(np.array([[time, *place] for time in range(6) for place in places]))


@pytest.fixture(scope="module")
def districts():
    days = np.arange("2024-01-01", "2024-02-05", 7, dtype="datetime64[D]")
    rows = [(day, area) for day in days.tolist() for area in range(3)]
    return _infer(rows, unit="D", space=K.Category())


@pytest.mark.slow
@pytest.mark.thorough
def test_maps_over_coordinates_have_one_scale_and_the_predicted_values(stations):
    figure = stations.plot_maps([2.0, 7.5])
    first, second = figure.axes[:2]
    assert [ax.get_title(loc="left") for ax in (first, second)] == ["time 2", "time 7.5"]
    meshes = [ax.collections[0] for ax in (first, second)]
    assert meshes[0].get_clim() == meshes[1].get_clim()
    corner = meshes[1].get_coordinates()[0, 0]
    predicted = stations.predict([[7.5, *corner]]).mean[0]
    np.testing.assert_allclose(np.asarray(meshes[1].get_array()).ravel()[0], predicted, rtol=1e-10)
    # Rows of that time are points; at a time without rows there are none.
    assert [len(ax.collections[1].get_offsets()) for ax in (first, second)] == [3, 0]


@pytest.mark.cases(thorough=["points", "polygons"], others="slow")
@pytest.mark.parametrize("kind", ["points", "polygons", "geojson"])
def test_maps_of_areas(districts, kind):
    points = [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0)]
    squares = [np.add(point, [[0, 0], [1, 0], [1, 1], [0, 1]]) for point in points]
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [own.tolist()]}}
        for own in squares
    ]
    places = {
        "points": dict(enumerate(points)),
        "polygons": squares,
        "geojson": {"type": "FeatureCollection", "features": features},
    }[kind]
    day = np.datetime64("2024-01-22")
    ax = districts.plot_maps([day], places, what="latent").axes[0]
    assert ax.get_title(loc="left") == "2024-01-22"
    expected = districts.predict([(day, area) for area in range(3)]).latent.mean[:, 0]
    np.testing.assert_allclose(np.asarray(ax.collections[0].get_array()), expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_series_of_places(districts):
    figure = districts.plot_places(until=np.datetime64("2024-03-01"), names={0: "north"}, levels=0.8)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["north", "1", "2"]
    data = next(line for line in figure.axes[1].lines if line.get_label() == "data")
    assert len(data.get_xdata()) == 4  # one of five is missing
    mean = next(line for line in figure.axes[0].lines if line.get_label() == "mean of y")
    last = districts.predict([(np.datetime64("2024-03-01"), 0)]).mean[0]
    np.testing.assert_allclose(mean.get_ydata()[-1], last, rtol=1e-9)


def test_the_lowest_panel_of_every_column_has_the_times():
    panels = space_time._panels(None, 6, share=True)[1]
    assert [ax.xaxis.get_tick_params()["labelbottom"] for ax in panels] == [False] * 2 + [True] * 4


@pytest.mark.slow
@pytest.mark.thorough
def test_what_cannot_be_drawn_is_refused(districts, stations):
    with pytest.raises(ValueError, match="give places"):
        districts.plot_maps()
    with pytest.raises(ValueError, match="leave it out"):
        stations.plot_maps(places={0: (0.0, 0.0)})
    with pytest.raises(ValueError, match="what must be one of"):
        stations.plot_maps(what="median")
    with pytest.raises(ValueError, match="must be numbers, as the times"):
        stations.plot_maps([np.datetime64("2024-01-01")])
    with pytest.raises(ValueError, match="places must have 2 finite"):
        stations.plot_places([0.1])
    with pytest.raises(ValueError, match="one title per place"):
        stations.plot_places(names=["one"])
    with pytest.raises(ValueError, match="until must be a time after"):
        stations.plot_places(until=-1.0)
    with pytest.raises(ValueError, match="got '2024-03-01': make time stamps of strings"):
        districts.plot_places(until="2024-03-01")
    with pytest.raises(ValueError, match="2 is missing"):
        districts.plot_maps([np.datetime64("2024-01-22")], {0: (0.0, 0.0), 1: (1.0, 0.0)})
    line = ng.infer(ng.Model(ng.MarkovGP("matern12"), "poisson"), np.arange(4.0), [1, 0, 2, 1])
    with pytest.raises(ValueError, match=r"use plot\(\)"):
        line.plot_maps()
