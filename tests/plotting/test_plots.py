"""What is on the figures: the numbers drawn are those predicted, and what cannot be drawn is refused."""

import builtins
import copy

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import newtongp as ng
from newtongp import plotting
from newtongp.plotting import pieces

pytestmark = pytest.mark.versions

pyplot = pytest.importorskip("matplotlib.pyplot")
likelihoods = ng.likelihoods

X = np.linspace(0.0, 4.0, 12)
COUNTS = np.array([2.0, 3, 1, 4, 6, 5, np.nan, 7, 4, 2, 1, 0])
GRID = np.linspace(-1.0, 5.0, 12)  # as many as rows, so that less is compiled
DAYS = np.datetime64("2024-01-01") + np.arange(12)
PLANE = np.random.default_rng(0).uniform(-2.0, 2.0, size=(30, 2))
SIDES = (np.linspace(-2.0, 2.0, 5), np.linspace(-2.0, 2.0, 4))


@pytest.fixture(autouse=True)
def _close_figures(monkeypatch):
    pyplot.close("all")  # those of other tests, while matplotlib can be imported
    monkeypatch.setattr(pyplot, "show", lambda *_, **__: pytest.fail("nobody asked for a window"))
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def counts():
    return ng.infer(ng.Model(ng.GP(ng.kernels.Matern32()), likelihoods.Poisson()), X, COUNTS)


@pytest.fixture(scope="module")
def stamped():
    prior = ng.MarkovGP(ng.kernels.Matern32(lengthscale=3.0), unit="D")
    exposure = np.linspace(1.0, 2.0, 12)
    return ng.infer(ng.Model(prior, likelihoods.Poisson(exposure=exposure)), DAYS[::-1], COUNTS)


def line(ax, label):
    return next(each for each in ax.lines if each.get_label() == label)


def drawn(figure):
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


@pytest.mark.slow
@pytest.mark.thorough
def test_data_mean_bands_and_latents_are_those_of_the_result(counts):
    figure = counts.plot(grid=GRID[::-1], latents=True, levels=(0.5, 0.9))
    above, below = figure.axes
    prediction = counts.predict(GRID)
    np.testing.assert_allclose(line(above, "mean of y").get_ydata(), prediction.mean)
    np.testing.assert_array_equal(line(above, "data").get_xdata(), X[np.isfinite(COUNTS)])
    np.testing.assert_array_equal(line(above, "data").get_ydata(), COUNTS[np.isfinite(COUNTS)])
    np.testing.assert_allclose(line(below, "mean of f").get_ydata(), prediction.latent.mean[:, 0])
    labels = above.get_legend_handles_labels()[1]
    assert labels == ["90 % of new data", "50 % of new data", "mean of y", "data"]
    widest, inner = above.collections
    corners = widest.get_paths()[0].vertices[:, 1]
    ends = prediction.quantile([0.05, 0.95, 0.25, 0.75])
    assert (corners.min(), corners.max()) == (ends[0].min(), ends[1].max())
    assert inner.get_paths()[0].vertices[:, 1].max() == ends[3].max()
    band = below.collections[0].get_paths()[0].vertices[:, 1]
    tops = prediction.latent.mean[:, 0] + norm.ppf(0.95) * np.sqrt(prediction.latent.variance[:, 0])
    assert band.max() == pytest.approx(tops.max(), rel=1e-6)
    assert {text.get_text() for text in above.texts} == {"before the data", "after the data: forecast"}
    assert len(np.unique(drawn(figure).reshape(-1, 4), axis=0)) > 50


@pytest.mark.slow
def test_time_stamps_are_drawn_as_dates_and_rows_with_their_own_exposure(stamped):
    figure = stamped.plot()
    (ax,) = figure.axes
    np.testing.assert_array_equal(line(ax, "mean of y").get_xdata(), DAYS.astype("datetime64[us]"))
    expected = stamped.predict(DAYS, exposure=np.linspace(2.0, 1.0, 12)).mean
    np.testing.assert_allclose(line(ax, "mean of y").get_ydata(), expected)
    np.testing.assert_array_equal(line(ax, "data").get_xdata(), DAYS[::-1][np.isfinite(COUNTS)])
    assert ax.get_xlabel() == "time" and drawn(figure).size > 0


@pytest.mark.slow
def test_a_grid_of_stamps_in_any_order_takes_its_exposures_along(stamped):
    order = np.random.default_rng(0).permutation(12)
    exposure = np.linspace(1.0, 3.0, 12)
    curve = line(stamped.plot(grid=DAYS[order], exposure=exposure[order]).axes[0], "mean of y")
    np.testing.assert_array_equal(curve.get_xdata(), DAYS)
    np.testing.assert_allclose(curve.get_ydata(), stamped.predict(DAYS, exposure=exposure).mean)
    older = plotting.plot_prediction(stamped, DAYS, COUNTS, DAYS[order], exposure=exposure[order])
    np.testing.assert_allclose(line(older, "mean of y").get_ydata(), curve.get_ydata())


def test_axes_that_are_given_are_drawn_on(counts):
    figure, axes = pyplot.subplots(2)
    assert counts.plot(axes, GRID, latents=True) is figure and len(figure.axes) == 2
    assert counts.plot(axes[0], GRID) is figure
    with pytest.raises(ValueError, match="axes must be one matplotlib axes object per panel, 2, got 1"):
        counts.plot(axes[0], GRID, latents=True)


def test_a_column_that_never_varies_is_held():
    design = np.column_stack([np.ones(12), X])
    result = ng.infer(ng.Model(ng.LinearModel([1.0, 1.0]), likelihoods.Poisson()), design, COUNTS)
    curve = line(result.plot(grid=GRID).axes[0], "mean of y")
    np.testing.assert_allclose(curve.get_ydata(), result.predict(np.column_stack([np.ones(12), GRID])).mean)


@pytest.mark.slow
def test_steps_are_whole():
    prior = ng.StateSpaceModel([[0.9]], [[0.2]], [1.0])
    result = ng.infer(ng.Model(prior, likelihoods.Gaussian(0.3)), [0, 1, 3, 6], [0.1, 0.3, -0.2, 0.4])
    assert line(result.plot().axes[0], "mean of y").get_xdata().tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.thorough
def test_two_outputs_have_a_panel_each():
    prior = ng.GP(ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF()]))
    y = np.column_stack([np.sin(X), np.cos(X)])
    y[3, 1] = np.nan
    result = ng.infer(ng.Model(prior, likelihoods.MultivariateGaussian(0.1 * np.eye(2))), X, y)
    first, second = result.plot(grid=GRID, levels=(0.95,)).axes
    np.testing.assert_allclose(line(second, "mean of y").get_ydata(), result.predict(GRID).mean[:, 1])
    assert line(first, "data").get_xdata().size == 12 and line(second, "data").get_xdata().size == 11
    assert "mean ± 2 standard deviations" in first.get_legend_handles_labels()[1]
    with pytest.raises(ValueError, match=r"2 inputs vary, with 2 output\(s\)"):
        plotting.plot_result(_on_the_plane(result))


def _on_the_plane(result):
    """The same result, as if of data with two inputs."""
    moved = object.__new__(ng.Result)
    moved.__dict__.update({**result.__dict__, "data": result.data._replace(x=np.column_stack([X, X**2]))})
    return moved


@pytest.mark.slow
def test_two_classes_have_a_probability(counts):
    y = (X > 2.0).astype(float)
    result = ng.infer(ng.Model(counts.model.prior, likelihoods.Bernoulli()), X, y)
    (ax,) = result.plot(grid=GRID, levels=(0.8,)).axes
    np.testing.assert_allclose(line(ax, "P(y = 1)").get_ydata(), result.predict(GRID).mean)
    latent = result.predict(GRID).latent
    top = norm.cdf(latent.mean[:, 0] + norm.ppf(0.9) * np.sqrt(latent.variance[:, 0]))
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(np.max(top), rel=1e-6)
    assert set(line(ax, "data").get_ydata()) == {-0.03, 1.03}


@pytest.mark.slow
@pytest.mark.thorough
def test_several_classes_have_theirs_on_a_line_and_on_a_map():
    labels = np.digitize(PLANE[:, 0], [-0.7, 0.7])
    prior = ng.GP(ng.kernels.Independent([ng.kernels.RBF(variance=4.0)] * 3))
    result = ng.infer(ng.Model(prior, likelihoods.Softmax(3)), PLANE, labels, ng.Newton())
    figure = result.plot(grid=SIDES)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["y = 0", "y = 1", "y = 2"]
    assert drawn(figure).size > 0
    held = np.column_stack([PLANE[:, 0], np.zeros(30)])
    curves = ng.infer(result.model, held, labels, ng.Newton())
    (ax,) = curves.plot(grid=GRID).axes
    probabilities = curves.predict(np.column_stack([GRID, np.zeros(12)])).probabilities
    np.testing.assert_allclose(line(ax, "P(y = 2)").get_ydata(), probabilities[:, 2])


class Signs(ng.Likelihood):
    """Three classes along one latent."""

    support = likelihoods.Ordinal([0.0, 1.0]).support

    def log_prob(self, y, f):
        return jnp.log(self.probabilities(f))[jnp.asarray(y, int)]

    def probabilities(self, f):
        weights = jnp.exp(jnp.stack([-f, jnp.zeros_like(f), f]))
        return weights / jnp.sum(weights)


@pytest.mark.slow
@pytest.mark.thorough
def test_classes_along_one_latent_are_all_drawn(counts):
    labels = np.digitize(X, [1.0, 3.0])
    (ax,) = ng.infer(ng.Model(counts.model.prior, Signs()), X, labels).plot(grid=GRID).axes
    ticks = [each for each in ax.lines if each.get_marker() == "|"]
    assert [each.get_color() for each in ticks] == [line(ax, f"P(y = {label})").get_color() for label in range(3)]
    np.testing.assert_array_equal(np.concatenate([each.get_xdata() for each in ticks]), X)


@pytest.fixture(scope="module")
def classified():
    y = (PLANE[:, 0] * PLANE[:, 1] > 0.0).astype(float)
    y[5] = np.nan
    return ng.infer(ng.Model(ng.GP(ng.kernels.RBF(variance=4.0)), likelihoods.Bernoulli()), PLANE, y)


@pytest.mark.slow
def test_a_map_has_the_probability_and_the_data(classified):
    figure = classified.plot(grid=SIDES, latents=True)
    probability, latent = figure.axes[:2]
    corners = np.array([[a, b] for b in SIDES[1] for a in SIDES[0]])
    expected = classified.predict(corners)
    np.testing.assert_allclose(np.ravel(probability.collections[0].get_array()), expected.mean)
    np.testing.assert_allclose(np.ravel(latent.collections[0].get_array()), expected.latent.mean[:, 0])
    points = [each for each in probability.collections if each.get_label().startswith("y = ")]
    assert sum(len(each.get_offsets()) for each in points) == 29
    assert drawn(figure).size > 0 and (probability.get_xlabel(), probability.get_ylabel()) == ("x₁", "x₂")


@pytest.mark.slow
def test_a_map_of_numbers_colours_the_data_alike(classified):
    y = np.round(np.exp(PLANE[:, 0]))
    result = ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), likelihoods.Poisson()), PLANE, y)
    mesh, points = result.plot(grid=SIDES).axes[0].collections
    assert mesh.norm is points.norm
    np.testing.assert_array_equal(points.get_array(), y)
    with pytest.raises(ValueError, match="grid must be a pair of vectors"):
        result.plot(grid=GRID)


@pytest.mark.cases(slow=["likelihood1", "likelihood0"])
@pytest.mark.parametrize("likelihood", [likelihoods.Poisson(), likelihoods.Bernoulli()])
def test_a_map_needs_no_data(classified, likelihood):
    result = ng.infer(ng.Model(classified.model.prior, likelihood), PLANE, np.full(30, np.nan))
    ax, bar = result.plot(grid=SIDES).axes
    np.testing.assert_allclose(np.ravel(ax.collections[0].get_array()), result.predict(np.zeros((1, 2))).mean[0])
    assert ax.get_legend() is None and "data" not in bar.get_ylabel()


class OnlyDensity(ng.Likelihood):
    def log_prob(self, y, f):
        return -0.5 * (y - f) ** 2


@pytest.mark.slow
def test_a_likelihood_that_says_nothing_of_y_shows_its_latent(counts):
    result = ng.infer(ng.Model(counts.model.prior, OnlyDensity()), X, np.sin(X))
    (ax,) = result.plot(grid=GRID).axes
    assert ax.get_ylabel() == "latent f" and line(ax, "mean of f").get_ydata().shape == (12,)


class Cauchy(ng.Likelihood):
    def log_prob(self, y, f):
        return -jnp.log1p((y - f) ** 2)

    def cdf(self, y, f):
        return 0.5 + jnp.arctan(y - f) / jnp.pi


@pytest.mark.slow
def test_y_without_a_mean_has_a_median(counts):
    result = ng.infer(ng.Model(counts.model.prior, Cauchy()), X, np.sin(X))
    np.testing.assert_allclose(
        line(result.plot(grid=GRID).axes[0], "median of y").get_ydata(), result.predict(GRID).quantile(0.5)
    )


@pytest.mark.slow
def test_a_grid_of_chunked_data_says_where_other_columns_are_held(classified):
    chunked = copy.copy(classified)
    chunked.data = None
    grid = np.column_stack([np.full(12, 0.7), GRID])
    curve = line(chunked.plot(grid=grid[::-1], levels=0.9).axes[0], "P(y = 1)")
    np.testing.assert_array_equal(curve.get_xdata(), GRID)
    np.testing.assert_allclose(curve.get_ydata(), classified.predict(grid).mean)
    with pytest.raises(ValueError, match=r"grid must vary in one column if the data was read in chunks, .* in 2: "):
        chunked.plot(grid=PLANE)


@pytest.mark.slow
def test_one_point_is_drawn_in_the_middle(counts, stamped):
    assert counts.plot(grid=[1.0]).axes[0].get_xlim() == pytest.approx((0.488, 1.512))
    left, right = stamped.plot(grid=DAYS[:1], exposure=1.0).axes[0].get_xlim()
    assert right - left == pytest.approx(1.024)
    (ax,) = counts.plot(grid=[9.0, 9.0]).axes
    assert not ax.texts  # the end of the data is not on the picture
    for drawn_on in (
        plotting.plot_prediction(counts, X, COUNTS, [1.0]),
        plotting.plot_conditional_mean(counts, [1.0]),
    ):
        assert drawn_on.get_xlim()[0] < 1.0 < drawn_on.get_xlim()[1]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([], "levels must have at least one number such as 0.95, got \\[\\]"),
        ("95%", "levels must be numbers such as 0.95, got '95%'"),
        ((0.5, np.nan), "levels must lie strictly between 0 and 1"),
    ],
)
def test_levels_are_read(levels, message, counts):
    assert pieces.read_levels(0.9) == [0.9] and pieces.read_levels([0.5, 0.9, 0.5]) == [0.9, 0.5]
    with pytest.raises(ValueError, match=message):
        counts.plot(levels=levels)


@pytest.mark.slow
def test_a_grid_that_cannot_be_is_named(counts, classified):
    with pytest.raises(ValueError, match=r"grid must have one column, as x has, got shape \(30, 2\)"):
        counts.plot(grid=PLANE)
    with pytest.raises(ValueError, match="grid must be finite, but row 1 is nan"):
        classified.plot(grid=([0.0, np.nan, 1.0], [0.0, 1.0]))
    with pytest.raises(ValueError, match=r"grid must have at least two values .* got 1 and 2 different ones"):
        classified.plot(grid=([0.0, 0.0], [0.0, 1.0]))
    with pytest.raises(ValueError, match="grid must be finite, but row 0 is inf"):
        plotting.plot_prediction(counts, X, COUNTS, [np.inf])


def test_a_plot_refuses_what_it_cannot_draw(counts):
    result = ng.infer(
        ng.Model(ng.LinearModel(1.0), likelihoods.Poisson()), np.random.default_rng(0).normal(size=(12, 3)), COUNTS
    )
    with pytest.raises(ValueError, match="plot draws one input, or two with one output, but 3 inputs vary"):
        result.plot()
    with pytest.raises(ValueError, match="levels must lie strictly between 0 and 1"):
        counts.plot(levels=(95,))
    chunked = object.__new__(ng.Result)
    chunked.__dict__.update({**counts.__dict__, "data": None})
    with pytest.raises(ValueError, match="grid is needed if the data was read in chunks"):
        chunked.plot()
    np.testing.assert_allclose(
        line(chunked.plot(grid=GRID).axes[0], "mean of y").get_ydata(), counts.predict(GRID).mean
    )


@pytest.mark.slow
@pytest.mark.thorough
def test_convergence_shows_the_energy_and_the_distance_from_the_end(counts):
    above, below = counts.plot_convergence().axes
    np.testing.assert_array_equal(above.lines[0].get_ydata(), counts.history.energy)
    assert below.get_ylabel() == "energy above its last value" and below.get_yscale() == "log"
    assert "converged after" in above.get_title(loc="left")
    by_ep = ng.infer(counts.model, X, COUNTS, ng.PowerEP(1.0))
    below = by_ep.plot_convergence().axes[1]
    assert below.get_ylabel() == "residual (RMS)"
    np.testing.assert_array_equal(below.lines[0].get_ydata(), by_ep.history.objective)
    by_newton = ng.infer(counts.model, X, COUNTS, ng.Newton())
    assert by_newton.plot_convergence().axes[1].get_ylabel() == "objective above its last value"
    searched = object.__new__(ng.Result)
    searched.__dict__.update({**counts.__dict__, "fit_history": np.array([5.0, 3.0, 2.0, 1.9])})
    above, below = searched.plot_convergence().axes
    assert above.lines[0].get_ydata().tolist() == [5.0, 3.0, 2.0, 1.9] and below.get_xlabel() == "iteration"
    np.testing.assert_allclose(below.lines[0].get_ydata(), [3.1, 1.1, 0.1])
    with pytest.raises(ValueError, match="no step was taken"):
        ng.infer(counts.model, X, COUNTS, max_steps=0, throw=False).plot_convergence()


def test_calibration_shows_its_histogram_and_coverage(counts):
    calibration = counts.calibration()
    figure = calibration.plot(bins=5)
    left, right = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in left.patches[:5]], calibration.histogram(5))
    marks = right.lines[-1]
    np.testing.assert_allclose(marks.get_ydata(), list(calibration.coverage.values()))
    assert "11 rows, leave-one-out" in left.get_title(loc="left") and drawn(figure).size > 0
    with pytest.raises(ValueError, match="calibration has no rows to draw"):
        ng.diagnostics.Calibration(np.full(3, np.nan), np.full(3, np.nan), "new data").plot()


def test_without_matplotlib_it_is_said_what_to_install(counts, monkeypatch):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    calibration = counts.calibration()
    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    for plot in (counts.plot, counts.plot_convergence, calibration.plot):
        with pytest.raises(ImportError, match=r"pip install 'newtongp\[plot\]'"):
            plot()
