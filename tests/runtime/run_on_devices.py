"""What `test_devices.py` runs in processes of its own: `answer [address rank]`, or `lose address rank lost`."""

import json
import os
import sys
import warnings

import jax
import numpy as np

import newtongp as ng

RNG = np.random.default_rng(0)
N = 330
X = RNG.uniform(0.0, 6.0, (N, 1))
Y = RNG.poisson(np.exp(np.sin(X[:, 0]))).astype(float)
Y[3] = np.nan
EXPOSURE = RNG.uniform(0.5, 2.0, N)


def run(storage, x, y, **settings):
    prior = ng.SparseGP(ng.kernels.Matern32(0.9, 1.3), 8, mean=0.3, storage=storage)
    model = ng.Model(prior, ng.likelihoods.Poisson(exposure=EXPOSURE))
    # 61 rows cannot be shared equally by eight, nor by two.
    return ng.infer(model, x, y, batch_size=61, key=0, **settings)


def give_answer():
    found = {"devices": jax.device_count()}
    for storage in ("full", "tied"):
        result = run(storage, X, Y)
        assert result.status.ok
        found[f"{storage} energy"] = result.energy
        found[f"{storage} history"] = result.history.energy.tolist()
        found[f"{storage} mean"] = result.predict(X[:20], exposure=1.0).mean.tolist()
        if storage == "full":
            found["marginals"] = result.marginals.covariance.tolist()
            found["sites"] = result.sites.linear.tolist()
    print(json.dumps(found))


def get_lost(rank, lost):
    passes = 0

    def chunks():
        nonlocal passes
        passes += 1
        if passes == 4 and rank == lost:
            os._exit(9)
        yield from ((X[rows : rows + 66], Y[rows : rows + 66]) for rows in range(0, N, 66))

    run("full", chunks, None, tol=1e-13)


def main(task, address=None, rank=0, lost=None):
    warnings.simplefilter("ignore")
    if address is not None:
        jax.distributed.initialize(
            coordinator_address=address, num_processes=2, process_id=int(rank), heartbeat_timeout_seconds=10
        )
    if task == "answer":
        give_answer()
    else:
        get_lost(int(rank), int(lost))


if __name__ == "__main__":
    main(*sys.argv[1:])
