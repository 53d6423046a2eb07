"""A fit of GPflow's VGP: L-BFGS over everything, or natural gradients in turn with L-BFGS for hyperparameters."""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from common import read, serve, timed


def prepare(task):
    import gpflow
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = read(task["data"])
    rows = data["x"], data["y"][:, None]

    def make():
        kernel = {"matern52": gpflow.kernels.Matern52, "rbf": gpflow.kernels.SquaredExponential}[task["kernel"]]()
        bernoulli = task["likelihood"] == "bernoulli"
        return gpflow.models.VGP(
            rows, kernel, gpflow.likelihoods.Bernoulli() if bernoulli else gpflow.likelihoods.Poisson()
        )

    def by_lbfgs():
        model = make()
        gpflow.optimizers.Scipy().minimize(
            model.training_loss, model.trainable_variables, options={"maxiter": 5000, "ftol": 1e-13, "gtol": 1e-6}
        )
        return model

    def by_natural_gradients():
        model = make()
        gpflow.set_trainable(model.q_mu, False)
        gpflow.set_trainable(model.q_sqrt, False)
        natural, lbfgs = gpflow.optimizers.NaturalGradient(gamma=0.5), gpflow.optimizers.Scipy()
        step = tf.function(lambda: natural.minimize(model.training_loss, [(model.q_mu, model.q_sqrt)]))
        last = float("inf")
        for _ in range(100):
            for _ in range(10):
                step()
            lbfgs.minimize(model.training_loss, model.kernel.trainable_variables, options={"maxiter": 10})
            loss = float(model.training_loss())
            if abs(last - loss) < 1e-6:
                break
            last = loss
        for _ in range(20):
            step()
        return model

    run = by_lbfgs if task["way"] == "lbfgs" else by_natural_gradients
    start = time.perf_counter()
    elbo = float(run().elbo())
    return {"fit": timed(run)}, {"elbo": elbo, "first": time.perf_counter() - start}


if __name__ == "__main__":
    serve(prepare)
