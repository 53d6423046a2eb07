"""Tracking: the path of a target from two sensors that see only its direction, with outliers and a gap.

The data are made: the target moves on a bent path with nearly constant velocity, one direction in ten is wrong, and the
target is out of sight for a while. The extended Kalman smoother assumes Gaussian noise; with Student-t noise, VI finds
the path in spite of wrong directions.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import newtongp as ng

SENSORS = np.array([[-1.5, 0.5], [1.0, 1.0]])
STEP, NOISE, DEGREES = 0.1, 0.03, 3.0


class Bearings(ng.Likelihood):
    """The direction to the target from both sensors, with Gaussian or Student-t noise of `NOISE` radians."""

    num_latents = 2  # the position
    num_outputs = 2  # one angle per sensor
    heavy_tails: bool = eqx.field(static=True, default=False)

    def mean(self, f):
        return jnp.arctan2(f[1] - SENSORS[:, 1], f[0] - SENSORS[:, 0])

    def covariance(self, f):
        return NOISE**2 * jnp.eye(2)

    def log_prob(self, y, f):
        away = (y - self.mean(f)) / NOISE
        if not self.heavy_tails:
            return jnp.sum(-0.5 * away**2 - jnp.log(NOISE) - 0.5 * jnp.log(2.0 * jnp.pi))
        constant = gammaln(0.5 * (DEGREES + 1.0)) - gammaln(0.5 * DEGREES) - 0.5 * jnp.log(DEGREES * jnp.pi)
        return jnp.sum(constant - jnp.log(NOISE) - 0.5 * (DEGREES + 1.0) * jnp.log1p(away**2 / DEGREES))


def make_data(steps: int = 80, seed: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """The positions, and the angles at which the sensors see them."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0.0, 1.0, steps)
    positions = np.stack([-0.8 + 1.8 * at, -0.3 - 0.35 * np.sin(6.0 * at)], axis=1)
    away = positions[:, None, :] - SENSORS[None]
    angles = np.arctan2(away[:, :, 1], away[:, :, 0]) + NOISE * rng.normal(size=(steps, 2))
    wrong = rng.uniform(size=steps) < 0.1
    angles[wrong] += rng.normal(scale=0.5, size=(int(wrong.sum()), 2))
    angles[steps // 2 : steps // 2 + steps // 10] = np.nan  # out of sight
    return positions, angles


def make_prior() -> ng.StateSpaceModel:
    """Nearly constant velocity in the plane."""
    eye, none = np.eye(2), np.zeros((2, 2))
    return ng.StateSpaceModel(
        transition=np.block([[eye, STEP * eye], [none, eye]]),
        noise=0.1 * np.block([[STEP**3 / 3 * eye, STEP**2 / 2 * eye], [STEP**2 / 2 * eye, STEP * eye]]),
        observation=np.block([eye, none]),
        initial_mean=np.array([-0.7, -0.3, 0.2, -0.2]),
        initial_covariance=np.diag([0.3, 0.3, 0.5, 0.5]) ** 2,
    )


def main(picture: Any = None, steps: int = 80) -> dict[str, float]:
    """Smooth the path in three ways; print and return the root mean squared distance from the truth."""
    positions, angles = make_data(steps)
    index, prior = np.arange(steps), make_prior()
    results = {
        "extended Kalman smoother": ng.filter_sweep(ng.Model(prior, Bearings()), index, angles, ng.Taylor()),
        "iterated, Gaussian noise": ng.infer(ng.Model(prior, Bearings()), index, angles, ng.Taylor()),
        "VI, Student-t noise": ng.infer(ng.Model(prior, Bearings(heavy_tails=True)), index, angles, ng.VI()),
    }
    errors = {}
    for name, result in results.items():
        path = result.states(index).mean[:, :2]
        errors[name] = float(np.sqrt(np.mean(np.sum((path - positions) ** 2, axis=1))))
        print(f"{name}: {errors[name]:.3f} from the truth")
    if picture is not None:
        draw(results, positions, index).savefig(picture, dpi=110)
    return errors


def draw(results: dict[str, ng.Result], positions: np.ndarray, index: np.ndarray) -> Any:
    """The sensors, the path, the smoothed paths, and where the target was out of sight."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.plot(*positions.T, color="#222222", lw=5.0, alpha=0.25, label="truth")
    for (name, result), colour in zip(results.items(), ("#999999", "#e08a00", "#01497c"), strict=True):
        states = result.states(index)
        ax.plot(*states.mean[:, :2].T, color=colour, lw=1.5, label=name)
    deviation = np.sqrt(np.diagonal(states.covariance, axis1=1, axis2=2)[:, :2])
    hidden = slice(len(index) // 2, len(index) // 2 + len(index) // 10)
    ax.errorbar(
        *states.mean[hidden, :2].T,
        xerr=1.96 * deviation[hidden, 0],
        yerr=1.96 * deviation[hidden, 1],
        fmt="none",
        ecolor="#01497c",
        alpha=0.5,
        lw=0.8,
        label="95 % intervals while out of sight",
    )
    ax.plot(*SENSORS.T, "^", color="#a4161a", markersize=9, label="sensors")
    ax.set(xlabel="east, km", ylabel="north, km")
    ax.set_aspect("equal", adjustable="datalim")
    ax.legend(frameon=False, fontsize="small", loc="upper center")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("tracking.png")
