"""This library, of any version, on the regression network: one step of power EP."""

import sys

import numpy as np
from common import Measurements, save, serve, slope

SHORT, LONG, COMPARED = 2, 12, 4
NOISE = [[0.02, -0.015, -0.005], [-0.015, 0.04, 0.01], [-0.005, 0.01, 0.06]]


def prepare(task: dict) -> tuple[Measurements, dict]:
    sys.path.insert(0, task["source"])
    import newtongp as ng

    x, y, _ = ng.datasets.gprn(0)
    y[133:266, 1:] = np.nan
    signals = [ng.kernels.Matern52(lengthscale=10.0) for _ in range(2)]
    weights = [ng.kernels.Matern52(lengthscale=70.0) for _ in range(6)]
    network = ng.likelihoods.RegressionNetwork(outputs=3, nodes=2, covariance=np.array(NOISE), weight_offset=0.1)
    model = ng.Model(ng.MarkovGP(ng.kernels.Independent([*signals, *weights])), network)
    method = ng.PowerEP(0.5, safeguard=ng.Heuristic(), cubature=ng.cubature.QuasiRandom(128))
    start = ng.Sites.constant(len(x), 8, 0.01)

    def run(steps: int):
        return ng.infer(model, x, y, method, ng.Constant(0.1), steps, tol=0.0, sites=start, throw=False)

    found = run(COMPARED)
    if found.steps != COMPARED:
        raise RuntimeError(f"ended after {found.steps} steps with {found.status.name}")
    save(task, mean=np.asarray(found.marginals.mean), variance=np.asarray(found.marginals.covariance))
    return {"step": slope(run, SHORT, LONG)}, {}


if __name__ == "__main__":
    serve(prepare)
