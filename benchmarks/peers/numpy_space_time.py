"""A filter and a smoother of a model in space and time in NumPy, with the arithmetic of BLAS: one pass over all times.

The sites are those that VI converges to, so that the marginals are those of the other tools.
"""

import numpy as np
from common import Measurements, load, matern32_transition, save, serve, timed


def prepare(task: dict) -> tuple[Measurements, dict]:
    data = load(task)

    def run():
        return smooth(
            data["t"], data["features"], data["lengthscale"], data["variance"], data["linear"], data["precision"]
        )

    mean, variance = run()
    save(task, mean=mean, variance=variance)
    return {"smoother": timed(run)}, {}


def smooth(t, features, lengthscale, variance, linear, precision):
    """Means and variances of f at all times and places, for a Matern-3/2 kernel in time."""
    times, places = linear.shape
    rate = np.sqrt(3.0) / lengthscale
    stationary = np.diag([variance, variance * rate**2])
    width, column = places, np.arange(places)
    size = 2 * width
    spread, mean = np.kron(stationary, np.eye(width)), np.zeros(size)
    kept = []
    steps = np.diff(t, prepend=t[0])
    for step, tilt, weight in zip(steps, linear, precision, strict=True):
        matrix = matern32_transition(step, rate)
        noise = stationary - matrix @ stationary @ matrix.T
        spread = moved(matrix, moved(matrix, spread).T)
        spread.reshape(2, width, 2, width)[:, column, :, column] += noise
        mean = moved(matrix, mean[:, None])[:, 0]
        cross = spread[:, :width] @ features.T
        inside = features @ cross[:width]
        root = np.sqrt(weight)
        half = np.linalg.inv(np.linalg.cholesky(np.eye(places) + root[:, None] * inside * root[None, :]))
        rows = half @ (root[:, None] * cross.T)
        middle = root[:, None] * (half.T @ half) * root[None, :]
        ahead = features @ mean[:width]
        slope = tilt - weight * ahead
        innovation = slope - middle @ (inside @ slope)
        mean = mean + cross @ innovation
        spread = spread - rows.T @ rows
        gain = cross @ middle
        after = cross - gain @ inside
        kept.append((matrix, np.hstack([gain, after]), middle, innovation, features @ mean[:width], after))
    means, variances = np.empty((times, places)), np.empty((times, places))
    vector, information = np.zeros(size), np.zeros((size, size))
    for index in range(times - 1, -1, -1):
        matrix, gains, middle, innovation, seen, after = kept[index]
        products = information @ gains
        gain = gains[:, :places]
        means[index] = seen + after.T @ vector
        variances[index] = np.einsum("ij,ji->i", features, after[:width]) - np.sum(after * products[:, places:], axis=0)
        weights = innovation - gain.T @ vector
        inner = middle + gain.T @ products[:, :places]
        pull = products[:, :places].T
        pull[:, :width] -= 0.5 * (inner @ features)
        change = features.T @ pull
        information[:width] -= change
        information[:, :width] -= change.T
        vector[:width] += features.T @ weights
        vector = moved(matrix.T, vector[:, None])[:, 0]
        information = moved(matrix.T, moved(matrix.T, information).T)
    return means, variances


def moved(matrix: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return (matrix @ columns.reshape(2, -1)).reshape(columns.shape)


if __name__ == "__main__":
    serve(prepare)
