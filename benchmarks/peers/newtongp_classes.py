"""Digits by our sparse GP with a softmax likelihood."""

from classes_task import LENGTHSCALE, VARIANCE, perform


def fit(task, data):
    import newtongp as ng

    classes = int(data["y"].max()) + 1
    kernels = [ng.kernels.RBF(LENGTHSCALE, VARIANCE) for _ in range(classes)]
    prior = ng.SparseGP(ng.kernels.Independent(kernels), data["inducing"])
    shared = None
    if task["likelihood"] == "softmax":
        names = [(f"kernel[{k}].{name}", f"kernel[0].{name}") for k in range(1, classes) for name in FIELDS]
        shared = {own: ng.Tied(first) for own, first in names}
    result = ng.fit(
        ng.Model(prior, ng.likelihoods.Softmax(classes)),
        data["x"],
        data["y"],
        parameters=shared,
        weak_priors=False,
        standard_errors=False,
        throw=False,
    )
    how = f"L-BFGS, {result.evaluations} evaluations, {result.status.name.lower()}"
    return how, lambda: result.predict(data["new"]).probabilities


FIELDS = ("lengthscale", "variance")


if __name__ == "__main__":
    perform(fit)
