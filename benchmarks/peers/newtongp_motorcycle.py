"""This library on the motorcycle model: one iteration of a method."""

import numpy as np
from common import Measurements, load, save, serve, slope

SHORT, LONG, COMPARED = 40, 440, 40


def prepare(task: dict) -> tuple[Measurements, dict]:
    import newtongp as ng

    data = load(task)
    rule = ng.cubature.GaussHermite(20) if task["nodes"] == "product" else None
    method = {
        "newton": ng.Newton(safeguard=ng.Heuristic()),
        "vi": ng.VI(safeguard=ng.Heuristic(), cubature=rule),
        "vi gauss-newton": ng.VI(curvature=ng.GaussNewton("full"), cubature=rule),
        "pep": ng.PowerEP(0.5, safeguard=ng.Heuristic(), cubature=rule),
        "pl": ng.PosteriorLinearisation(cubature=rule),
    }[task["method"]]
    kernels = ng.kernels.Independent([ng.kernels.Matern32(), ng.kernels.Matern32()])
    model = ng.Model(ng.MarkovGP(kernels), ng.likelihoods.HeteroscedasticGaussian())
    start = ng.Sites.constant(len(data["x"]), 2, 0.01)

    def run(iterations: int):
        return ng.infer(
            model, data["x"], data["y"], method, ng.Constant(0.3), iterations, tol=0.0, sites=start, throw=False
        )

    found = run(COMPARED)
    if found.steps != COMPARED:
        raise RuntimeError(f"ended after {found.steps} steps with {found.status.name}")
    run(LONG)
    save(task, mean=np.asarray(found.marginals.mean), variance=np.asarray(found.marginals.covariance))
    return {"iteration": slope(run, SHORT, LONG)}, {}


if __name__ == "__main__":
    serve(prepare)
