"""Every method runs on every kind of data, and ends with a name."""

import numpy as np
import pytest

import newtongp as ng

pytestmark = pytest.mark.versions

X = np.linspace(0.0, 5.0, 12)
METHODS = {
    "newton": ng.Newton(),
    "newton heuristic": ng.Newton(safeguard=ng.Heuristic()),
    "newton riemannian": ng.Newton(safeguard=ng.Riemannian()),
    "gauss-newton": ng.Newton(curvature=ng.GaussNewton()),
    "quasi-newton": ng.Newton(curvature=ng.QuasiNewton()),
    "taylor": ng.Taylor(),
    "vi": ng.VI(),
    "vi heuristic": ng.VI(safeguard=ng.Heuristic()),
    "vi riemannian": ng.VI(safeguard=ng.Riemannian()),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "vi quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "ep": ng.PowerEP(1.0),
    "power ep": ng.PowerEP(0.5),
    "power ep heuristic": ng.PowerEP(0.5, safeguard=ng.Heuristic()),
    "power ep riemannian": ng.PowerEP(0.5, safeguard=ng.Riemannian()),
    "power ep quasi-newton": ng.PowerEP(0.5, curvature=ng.QuasiNewton()),
    "pl": ng.PosteriorLinearisation(),
    "pl regression": ng.PosteriorLinearisation(slope="regression"),
    "pl quasi-newton": ng.PosteriorLinearisation(curvature=ng.QuasiNewton()),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 heuristic": ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic()),
    "pl2 riemannian": ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian()),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
    "pl2 quasi-newton": ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton()),
    "first-order vi": ng.FirstOrderVI(),
}


@pytest.mark.cases(quick=["vi quasi-newton"], others="thorough")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_with_a_finite_answer(name):
    model = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.StudentT(df=4.0, scale=0.5))
    y = np.sin(X)
    y[3] = 4.0
    y[7] = np.nan
    result = ng.infer(model, X, y, method=METHODS[name], throw=False)
    assert result.status in (ng.Status.CONVERGED, ng.Status.MAX_STEPS, ng.Status.STEP_TOO_SMALL)
    assert np.isfinite(result.energy)
    assert np.all(result.marginals.covariance > 0.0)
    assert result.sites.precision[7] == 0.0 and result.sites.linear[7] == 0.0
    assert np.all(np.isfinite(result.predict(X + 0.1).mean))
