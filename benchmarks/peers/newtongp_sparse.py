"""Our update of one batch, with all sites kept and tied."""

from common import serve, timed
from sparse_task import LENGTHSCALE, VARIANCE, batches, rows_of


def prepare(task):
    import numpy as np

    import newtongp as ng
    from newtongp import minibatch
    from newtongp.data import Data
    from newtongp.precision import in_double

    x, y, inducing = rows_of(task)

    def steps_of(storage):
        prior = ng.SparseGP(ng.kernels.RBF(LENGTHSCALE, VARIANCE), inducing, storage=storage)
        model = ng.Model(prior, ng.likelihoods.Bernoulli("probit"))
        run = in_double(minibatch.BatchRun)(model, x, y, ng.VI(), None, task["batch"], 0, 1e-6)
        given = batches(task, np.column_stack([x, np.arange(len(x))]), y)
        state = {}

        @in_double
        def several():
            if storage == "full":
                kept = state.pop("kept", None) or minibatch._begin_kept(run.shared, len(x))
            else:
                tied = state.get("tied") or run._given(minibatch.nothing(run.prior, run.shared.projection))
            for _ in range(task["steps"]):
                inputs, labels = next(given)
                data = Data(inputs[:, :-1], labels[:, None], np.ones(task["batch"], dtype=bool))
                rows = minibatch.on_devices(
                    minibatch.Batch(inputs[:, -1].astype(int), data, task["batch"]), model.likelihood, None
                )
                if storage == "full":
                    kept = minibatch._visit(run.shared, rows, kept, 1.0, len(x))
                else:
                    proposal, _ = minibatch.proposals(run.shared, rows, tied)
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
