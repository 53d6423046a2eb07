"""Our update of one batch, with all sites kept and tied."""

from common import serve, timed
from sparse_task import LENGTHSCALE, VARIANCE, batches, rows_of


def prepare(task):
    import numpy as np

    import newtongp as ng
    from newtongp._runtime.double import in_double
    from newtongp.inference.minibatch import BatchRun
    from newtongp.inference.minibatch.full import begin_kept, visit
    from newtongp.inference.minibatch.product import nothing, on_devices
    from newtongp.inference.minibatch.tied import proposals
    from newtongp.inputs.chunks import Batch
    from newtongp.inputs.data import Data

    x, y, inducing = rows_of(task)

    def steps_of(storage):
        prior = ng.SparseGP(ng.kernels.RBF(LENGTHSCALE, VARIANCE), inducing, storage=storage)
        model = ng.Model(prior, ng.likelihoods.Bernoulli("probit"))
        run = in_double(BatchRun)(model, x, y, ng.VI(), None, task["batch"], 0, 1e-6)
        given = batches(task, np.column_stack([x, np.arange(len(x))]), y)
        state = {}

        @in_double
        def several():
            if storage == "full":
                kept = state.pop("kept", None) or begin_kept(run.shared, len(x))
            else:
                tied = state.get("tied") or run._given(nothing(run.prior, run.shared.projection))
            for _ in range(task["steps"]):
                inputs, labels = next(given)
                data = Data(inputs[:, :-1], labels[:, None], np.ones(task["batch"], dtype=bool))
                rows = on_devices(Batch(inputs[:, -1].astype(int), data, task["batch"]), model.likelihood, None)
                if storage == "full":
                    kept = visit(run.shared, rows, kept, 1.0, len(x))
                else:
                    proposal, _ = proposals(run.shared, rows, tied)
                    tied = run._step(tied, proposal.times(len(x) / task["batch"]), 0.1)
            if storage == "full":
                state["kept"] = kept
                kept.belief.mean.block_until_ready()
            else:
                state["tied"] = tied
                tied.belief.mean.block_until_ready()

        return timed(several)

    return {storage: steps_of(storage) for storage in ("full", "tied")}, {}


if __name__ == "__main__":
    serve(prepare)
