"""One natural gradient step of GPflow's SVGP on one batch."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from common import serve, timed
from sparse_task import LENGTHSCALE, VARIANCE, batches, rows_of


def prepare(task):
    import gpflow
    import tensorflow as tf

    if not task.get("all_cores"):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y, inducing = rows_of(task)
    kernel = gpflow.kernels.SquaredExponential(VARIANCE, LENGTHSCALE)
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Bernoulli(), inducing, num_data=len(x), whiten=True)
    for part in (model.kernel, model.inducing_variable, model.q_mu, model.q_sqrt):
        gpflow.set_trainable(part, False)
    optimiser = gpflow.optimizers.NaturalGradient(gamma=0.1)
    shape = [(task["batch"], x.shape[1]), (task["batch"], 1)]

    @tf.function(input_signature=[tf.TensorSpec(each, tf.float64) for each in shape])
    def step(x, y):
        optimiser.minimize(lambda: model.training_loss((x, y)), [(model.q_mu, model.q_sqrt)])

    given = batches(task, x, y[:, None])

    def run():
        for _ in range(task["steps"]):
            step(*map(tf.constant, next(given)))
        model.q_mu.numpy()

    return {"step": timed(run)}, {}


if __name__ == "__main__":
    serve(prepare)
