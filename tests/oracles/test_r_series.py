"""Structural series by StructTS: models of tables, and state space models; conventions are in `data/r/README.md`."""

import equinox as eqx
import numpy as np
import pytest

import newtongp as ng

from . import mixed_models as mixed

CASES = {"structural_nile_level": ("level",), "structural_ukgas_bsm": ("level", "slope", "season")}
LOGLIK, MEANS, SDS = 1e-5, 1e-6, 1e-8


def series(name):
    """The case, and its table with a step before the data that is missing: the state x₀, and columns for its parts."""
    case, table = mixed.load(name)
    count = len(table["y"])
    steps = np.arange(count + 1.0)
    quarter = steps.astype(int) % 4
    # The season at step t is that at a step before with the same quarter; the fourth one is minus their sum.
    starts = {f"start{k}": (quarter == -k % 4) - 1.0 * (quarter == 1) for k in range(3)}
    return case, {"step": steps, "quarter": quarter, "y": np.append(np.nan, table["y"]), **starts}


def terms(name, prior):
    """The start of the level and its walks; then the start of the season and its walk."""
    linear, walk, smooth = ng.terms.Linear, ng.terms.RandomWalk("step", 1), ng.terms.Smooth
    if name == "structural_nile_level":
        return linear(prior=prior) + walk
    level = linear("step", prior=prior) + walk + smooth("step", kernel=ng.kernels.Walk(2))
    season = linear("start0", "start1", "start2", intercept=False, prior=prior)
    return level + season + smooth("step", kernel=ng.kernels.SeasonalWalk(4))


LEVEL = {"structural_nile_level": [1.0, 1.0], "structural_ukgas_bsm": [1.0, 1.0, 1.0, 0.0, 0.0]}


def walks_of(model):
    """The variances in the order of the file."""
    _, level, *others = model.prior.latents[0].terms
    walks = [term.kernel for term in others if isinstance(term, ng.terms.Smooth)]
    return [level.variance, *(walk.variance for walk in walks), model.likelihood.variance]


def model_of(name, case, prior, variances=None):
    """The model with this prior of the start x₀, around zero."""
    model = ng.Model(terms(name, prior), ng.likelihoods.Gaussian())
    if variances is None:
        return model
    return eqx.tree_at(walks_of, model, [np.array(float(variances[part])) for part in (*CASES[name], "noise")])


def starts(case, kind):
    """The prior of x₀, and the mean of its level."""
    return ("flat", 0.0) if kind == "diffuse" else (float(np.sqrt(case["P0_entry"])), np.ravel(case["m0"])[0])


@pytest.mark.cases(
    thorough=["structural_ukgas_bsm-diffuse", "structural_ukgas_bsm-diagonal", "structural_nile_level-diagonal"],
    others="slow",
)
@pytest.mark.parametrize("kind", ["diagonal", "diffuse"])
@pytest.mark.parametrize("name", CASES)
def test_fixed_point_of_terms(name, kind):
    case, table = series(name)
    expected = case[kind]["fixed_point"]
    prior, centre = starts(case, kind)
    table["y"] = table["y"] - centre
    result = ng.infer(model_of(name, case, prior, expected["variances"]), table, "y")
    loglik = expected["loglik" if kind == "diagonal" else "loglik_flat"]
    np.testing.assert_allclose(-result.energy, loglik, atol=LOGLIK, rtol=0.0)
    spread = np.nanstd(table["y"], ddof=1)
    level = np.array(LEVEL[name])
    x = result.columns.read(table, "x")[1:]
    # Flat starts are the better reference for the sds: see below.
    flat = case["diffuse"]["fixed_point"]["smoothed_sd"]
    for part, chosen, shift in (("level", level, centre), ("season", 1.0 - level, 0.0)):
        if part not in CASES[name]:
            continue
        found = result.posterior.of_terms(x, [chosen])
        np.testing.assert_allclose(np.ravel(found.mean) + shift, expected["smoothed_mean"][part], atol=MEANS * spread)
        np.testing.assert_allclose(np.sqrt(np.ravel(found.covariance)), flat[part], atol=SDS * spread, rtol=1e-5)


@pytest.mark.cases(thorough=["structural_ukgas_bsm"], others="slow")
@pytest.mark.parametrize("name", CASES)
def test_optimum_of_terms(name):
    case, table = series(name)
    expected = case["diagonal"]["optimum"]
    prior, centre = starts(case, "diagonal")
    table["y"] = table["y"] - centre
    # Weak priors would keep a variance whose optimum is zero slightly above it.
    result = ng.fit(model_of(name, case, prior), table, "y", weak_priors=False, standard_errors=False)
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=LOGLIK, rtol=0.0)
    for value, best in zip(walks_of(result.model), expected["variances"].values(), strict=True):
        if best < 1e-8 * np.nanvar(table["y"]):  # zero
            assert value < 1e-8 * np.nanvar(table["y"])
        else:
            np.testing.assert_allclose(value, best, rtol=0.01)


def chain(name, case, variances):
    """The same by matrices, from x₀ ~ N(m₀, P₀ I), one step before the data."""
    transition = np.atleast_2d(np.array(case["model"]["T"], dtype=float))
    size = transition.shape[0]
    noise = np.zeros(size)
    noise[: len(CASES[name])] = [variances[part] for part in CASES[name]]
    return ng.StateSpaceModel(
        transition,
        np.diag(noise),
        np.atleast_1d(np.array(case["model"]["Z"], dtype=float)),
        np.atleast_1d(np.array(case["m0"], dtype=float)),
        case["P0_entry"] * np.eye(size),
    )


@pytest.mark.cases(thorough=["structural_ukgas_bsm", "structural_ukgas_bsm"], others="slow")
@pytest.mark.parametrize("name", CASES)
def test_fixed_point_of_a_chain(name):
    case, table = series(name)
    expected = case["diagonal"]["fixed_point"]
    prior = chain(name, case, expected["variances"])
    model = ng.Model(prior, ng.likelihoods.Gaussian(expected["variances"]["noise"]))
    result = ng.infer(model, table["step"][1:], table["y"][1:])
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=LOGLIK, rtol=0.0)
    states = result.states(table["step"][1:])
    spread = np.nanstd(table["y"], ddof=1)
    for place, part in enumerate(CASES[name]):
        found = np.asarray(states.mean)[:, place]
        np.testing.assert_allclose(found, expected["smoothed_mean"][part], atol=MEANS * spread)
        # From so wide a start R's filter loses digits of the first few. Those of the flat start, by dense algebra, are
        # the same to 1e-8.
        sds = np.sqrt(np.asarray(states.covariance)[:, place, place])
        flat = case["diffuse"]["fixed_point"]["smoothed_sd"][part]
        np.testing.assert_allclose(sds[8:], expected["smoothed_sd"][part][8:], atol=MEANS * spread)
        np.testing.assert_allclose(sds, flat, atol=SDS * spread, rtol=1e-5)
