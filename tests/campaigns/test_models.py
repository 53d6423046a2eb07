"""Sixty models of the campaign in models.py, so that it runs and its checks can fail."""

import pytest

import newtongp as ng
from tests.campaigns import models

ALL = models.structures()


def test_every_prior_kernel_likelihood_and_method_is_among_the_structures():
    assert len(ALL) >= 150 and len(set(ALL)) == len(ALL)
    assert {s.prior for s in ALL} == set(models.PRIORS)
    assert {s.kernel for s in ALL} == {*models.KERNELS, "-"}
    assert {s.likelihood for s in ALL} == set(models.LIKELIHOODS)
    assert {s.method for s in ALL} == set(models.METHODS)
    assert sum(models.DRAWS.values()) * len(ALL) >= 5000


@pytest.mark.cases(
    thorough=[
        "GP, linear + matern, gaussian, vi, 2 column(s)",
        "SparseGP, matern12, student light, vi heuristic, 1 column(s)",
        "MarkovGP, matern52, student, power ep, 1 column(s)",
        "StateSpaceModel, -, bernoulli, newton, 1 column(s)",
    ],
)
@pytest.mark.parametrize("index", [0, 1, 2, 3, 4], ids=lambda index: str(ALL[index]))
def test_models_end_well(index):
    for number in range(12):
        model, x, y, about = models.draw(ALL[index], 7, 1000 * index + number)
        ending, found = models.faults_of(ALL[index], model, x, y)
        assert not found, (number, about, ending, found)


@pytest.mark.slow
def test_a_wrong_ending_is_a_fault(monkeypatch):
    model, x, y, _ = models.draw(ALL[0], 7, 0)
    right = ng.infer

    def wrong(*args, **options):
        result = right(*args, **options)
        result.marginals = ng.Gaussian(result.marginals.mean, -result.marginals.covariance)
        result.residual, result.status = 1.0, ng.Status.CONVERGED
        return result

    monkeypatch.setattr(ng, "infer", wrong)
    found = models.faults_of(ALL[0], model, x, y)[1]
    assert any("variance" in fault for fault in found) and any("residual" in fault for fault in found)
