"""A few fits of the campaign in fits.py, so that it runs and its checks can fail."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.fitting.learned import slots_of
from tests.campaigns import fits

ALL = fits.structures()


def test_every_prior_kernel_likelihood_and_method_is_among_the_structures():
    assert len(set(ALL)) == len(ALL) and fits.DRAWS * len(ALL) >= 300
    assert {s.prior for s in ALL} == set(fits.PRIORS)
    assert {s.kernel for s in ALL} == {*fits.KERNELS, "-"}
    assert {s.likelihood for s in ALL} == set(fits.LIKELIHOODS)
    assert {s.method for s in ALL} == set(fits.METHODS)


OWN = fits.Structure("GP", "ripple", "gaussian", "newton")
BOUNDED = fits.Structure("LinearModel", "-", "zero-inflated", "newton")


@pytest.mark.cases(
    thorough=["GP, ripple, gaussian, newton", "GP, ripple, gaussian, newton", "LinearModel, -, zero-inflated, newton"],
    others="slow",
)
@pytest.mark.parametrize("structure", [OWN, pytest.param(BOUNDED, marks=pytest.mark.slow)], ids=str)
def test_fits_end_inside_and_where_the_slope_is_small(structure):
    endings = []
    for number in range(3):
        ending, found = fits.faults_of(structure, fits.draw(structure, 1000, number))
        endings.append(ending)
        assert not found, (number, ending, found)
    assert "CONVERGED" in endings


@pytest.mark.slow
@pytest.mark.thorough
def test_a_wrong_ending_is_a_fault():
    drawn = fits.draw(OWN, 1000, 0)
    # A search that has not begun, and calls that the end.
    result = ng.fit(
        fits.build_model(OWN), drawn.x, drawn.y, ng.Newton(), max_steps=0, standard_errors=False, throw=False
    )
    assert fits.steep(result, {}) == []
    result.status = ng.Status.CONVERGED
    assert any("slope" in fault for fault in fits.steep(result, {}))
    assert not fits.outside(result, {})
    assert slots_of(result.model, list(result.learned), {})[0].name == "kernel.share"
    result.learned["kernel.share"] = np.array(1.5)
    assert any("kernel.share is 1.5, outside" in fault for fault in fits.outside(result, {}))
    lengthscale = float(result.learned["kernel.lengthscale"])
    assert any(
        "beyond" in fault for fault in fits.outside(result, {"kernel.lengthscale": ng.Free(upper=0.5 * lengthscale)})
    )
