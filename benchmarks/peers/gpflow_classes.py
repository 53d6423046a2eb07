"""Digits by GPflow's SVGP: MultiClass by L-BFGS, Softmax by Adam, as it is integrated by draws."""

import numpy as np
from classes_task import DRAWS, LENGTHSCALE, VARIANCE, perform

STEPS, RATE, ITERATIONS = 1000, 0.02, 500


def fit(task, data):
    import gpflow
    import tensorflow as tf

    classes = int(data["y"].max()) + 1
    softmax = task["likelihood"] == "softmax"
    rows = data["x"], data["y"].astype(np.int64 if softmax else np.float64)[:, None]
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(VARIANCE, LENGTHSCALE),
        gpflow.likelihoods.Softmax(classes) if softmax else gpflow.likelihoods.MultiClass(classes),
        data["inducing"],
        num_latent_gps=classes,
        num_data=len(data["x"]),
    )
    gpflow.set_trainable(model.inducing_variable, False)
    loss = model.training_loss_closure(rows)
    if softmax:
        optimiser = tf.keras.optimizers.Adam(RATE)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                value = loss()
            variables = model.trainable_variables
            optimiser.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))

        for _ in range(STEPS):
            step()
        how = f"Adam, {STEPS} steps"
    else:
        found = gpflow.optimizers.Scipy().minimize(loss, model.trainable_variables, options={"maxiter": ITERATIONS})
        how = f"L-BFGS, {found.nfev} evaluations"

    def predict():
        if not softmax:
            return model.predict_y(data["new"])[0].numpy()
        mean, variance = (part.numpy() for part in model.predict_f(data["new"]))
        draws = np.random.default_rng(0).normal(size=(DRAWS, classes))
        found = []
        for m, v in zip(mean, variance, strict=True):
            powers = m + np.sqrt(v) * draws
            powers = np.exp(powers - powers.max(axis=1, keepdims=True))
            found.append(np.mean(powers / powers.sum(axis=1, keepdims=True), axis=0))
        return np.stack(found)

    return how, predict


if __name__ == "__main__":
    perform(fit)
