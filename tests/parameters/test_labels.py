"""Names of the parameters of terms, which are labelled by their columns."""

import newtongp as ng


def test_terms_with_the_same_label_are_numbered():
    same = ng.terms.Smooth("day", kernel="matern12"), ng.terms.Smooth("day", kernel="matern52")
    model = ng.Model(same[0] + ng.terms.Smooth("age") + same[1], ng.likelihoods.Poisson())
    names = [parameter.name for parameter in ng.hyperparameters(model)]
    assert names == [
        "smooth(day)[0].kernel.lengthscale",
        "smooth(day)[0].kernel.variance",
        "smooth(age).kernel.lengthscale",
        "smooth(age).kernel.variance",
        "smooth(day)[1].kernel.lengthscale",
        "smooth(day)[1].kernel.variance",
    ]
