"""Our update of one batch, with all sites stored and tied."""

from common import serve, timed
from sparse_task import LENGTHSCALE, VARIANCE, batches, rows_of


def prepare(task):
    import numpy as np

    import newtongp as ng
    from newtongp._runtime.double import in_double
    from newtongp.inference.minibatch import BatchRun
    from newtongp.inference.minibatch.full import no_sites, update_batch
    from newtongp.inference.minibatch.product import nothing, on_devices
    from newtongp.inference.minibatch.tied import propose_batch
    from newtongp.inference.minibatch.tied_run import step_once
    from newtongp.inputs.chunks import Batch
    from newtongp.inputs.data import Data

    x, y, inducing = rows_of(task)

    def steps_of(storage):
        prior = ng.SparseGP(ng.kernels.RBF(LENGTHSCALE, VARIANCE), inducing, storage=storage)
        model = ng.Model(prior, ng.likelihoods.Bernoulli("probit"))
        problem = in_double(BatchRun)(model, x, y, ng.VI(), None, task["batch"], 0, 1e-6).problem
        given = batches(task, np.column_stack([x, np.arange(len(x))]), y)
        state = {}

        @in_double
        def several():
            if storage == "full":
                stored = state.pop("stored", None) or no_sites(problem.shared, len(x))
            else:
                tied = state.get("tied") or problem.tied(nothing(problem.prior, problem.shared.projection))
            for _ in range(task["steps"]):
                inputs, labels = next(given)
                data = Data(inputs[:, :-1], labels[:, None], np.ones(task["batch"], dtype=bool))
                rows = on_devices(Batch(inputs[:, -1].astype(int), data, task["batch"]), model.likelihood, None)
                if storage == "full":
                    stored = update_batch(problem.shared, rows, stored, 1.0, len(x))
                else:
                    proposal = propose_batch(problem.shared, rows, tied).product.times(len(x) / task["batch"])
                    tied = step_once(problem.shared, tied, proposal, 0.1, problem.batching.observed)
            if storage == "full":
                state["stored"] = stored
                stored.belief.mean.block_until_ready()
            else:
                state["tied"] = tied
                tied.belief.mean.block_until_ready()

        return timed(several)

    return {storage: steps_of(storage) for storage in ("full", "tied")}, {}


if __name__ == "__main__":
    serve(prepare)
