"""A fit of ours: VI with all hyperparameters of the kernel."""

import os
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from common import read, serve, timed


def prepare(task):
    import newtongp as ng

    data = read(task["data"])
    kernel = {"matern52": ng.kernels.Matern52, "rbf": ng.kernels.RBF}[task["kernel"]]()
    # GPflow keeps probabilities away from 0 and 1 by this much.
    likelihood = ng.likelihoods.Bernoulli(lapse=1e-3) if task["likelihood"] == "bernoulli" else ng.likelihoods.Poisson()
    model = ng.Model(ng.GP(kernel), likelihood)
    wishes = {"lapse": ng.Fixed()} if task["likelihood"] == "bernoulli" else None

    def run():
        return ng.fit(model, data["x"], data["y"], parameters=wishes, standard_errors=False)

    start = time.perf_counter()
    result = run()
    return {"fit": timed(run)}, {"elbo": -result.energy, "first": time.perf_counter() - start}


if __name__ == "__main__":
    serve(prepare)
