"""Thousands of random quantiles: P(Y ≤ y) and its inverse must agree with each other, and with an independent integral.

A *draw* is a likelihood with random parameters and a few rows of latents, whose standard deviations are 1e-4 to 1e3
times the width that the noise has in units of the latent. Every quantile is checked against the definition,
P(Y < q) ≤ p ≤ P(Y ≤ q), with a slack of 1e-6 in probability; where one latent needs nodes, P(Y ≤ q) is compared with a
sum over some thousand fixed nodes, made with SciPy's distributions. One line of JSON per draw is appended to the file
of results, and a run that was interrupted goes on where it stopped:

    python tests/campaigns/quantiles.py --out quantiles.jsonl             # all kinds, 24 draws each
    python tests/campaigns/quantiles.py --out quantiles.jsonl --seconds 500
    python tests/campaigns/quantiles.py --replay poisson:3                # one draw in detail
    python tests/campaigns/quantiles.py --out quantiles.jsonl --report    # counts by kind, and every fault
"""

import argparse
import collections
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

import newtongp as ng

DRAWS = 24
SLACK = 1e-6
RATIOS = 1e-4, 1e3
lk = ng.likelihoods


class Case(NamedTuple):
    """A likelihood, its latents, and P(Y ≤ y | f) of SciPy for one latent that needs nodes (or None)."""

    likelihood: Any
    latent: Any
    given: Callable | None
    about: dict


def one_latent(rng, likelihood, given, means, width, rows):
    """Rows of one latent, with standard deviations from 1e-4 to 1e3 times the width of the noise, and at most 100."""
    mean = rng.uniform(*means, size=rows)
    ratio = np.exp(rng.uniform(*np.log(RATIOS), size=rows))
    deviation = np.minimum(ratio * width(mean), 100.0)
    latent = ng.Gaussian(mean[:, None], (deviation**2)[:, None, None])
    return Case(likelihood, latent, given, {"mean": mean.tolist(), "std": deviation.tolist()})


def covariances(rng, sizes):
    """Covariances with these standard deviations (rows, D), and correlations of any size."""
    root = rng.normal(size=(sizes.shape[0], sizes.shape[1], sizes.shape[1]))
    plain = root @ root.transpose(0, 2, 1)
    scale = sizes / np.sqrt(np.diagonal(plain, axis1=1, axis2=2))
    return plain * scale[:, :, None] * scale[:, None, :]


def several_latents(rng, likelihood, means, sizes, rows, given=None):
    """Rows of several latents; `given(first, second)` is P(Y ≤ y | second latent) with the first integrated out."""
    mean = np.stack([rng.uniform(low, high, size=rows) for low, high in means], axis=1)
    deviation = np.stack([np.exp(rng.uniform(np.log(low), np.log(high), size=rows)) for low, high in sizes], axis=1)
    latent = ng.Gaussian(mean, covariances(rng, deviation))
    return Case(likelihood, latent, given, {"mean": mean.tolist(), "covariance": latent.covariance.tolist()})


def positive(link, f):
    return np.exp(f) if link == "exp" else np.logaddexp(0.0, f)


def probability(link, f):
    return special.ndtr(f) if link == "probit" else special.expit(f)


def constant(value):
    return lambda mean: np.full_like(mean, value)


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


# Likelihoods ------------------------------------------------------------------------------------


def gaussian(rng):
    variance = log_uniform(rng, 1e-6, 1e6)
    scale = np.sqrt(variance)

    def given(y, f):
        return stats.norm.cdf(y, f, scale)

    return one_latent(rng, lk.Gaussian(variance), given, (-3.0, 3.0), constant(scale), 6)


def student(rng):
    df, scale = log_uniform(rng, 0.5, 50.0), log_uniform(rng, 1e-3, 1e3)
    case = one_latent(
        rng, lk.StudentT(df, scale), lambda y, f: stats.t.cdf(y, df, f, scale), (-3.0, 3.0), constant(scale), 6
    )
    return case


def gamma(rng):
    shape, link = log_uniform(rng, 0.1, 1e8), str(rng.choice(["exp", "softplus"]))

    def given(y, f):
        return special.gammainc(shape, y / positive(link, f))

    return one_latent(rng, lk.Gamma(shape, link), given, (-2.0, 3.0), constant(1.0 / np.sqrt(shape)), 6)


def exponential(rng):
    link = str(rng.choice(["exp", "softplus"]))

    def given(y, f):
        return -np.expm1(-y / positive(link, f))

    return one_latent(rng, lk.Exponential(link), given, (-2.0, 3.0), constant(1.0), 6)


def beta(rng):
    concentration, link = log_uniform(rng, 0.1, 1e8), str(rng.choice(["probit", "logit"]))
    lapse = float(rng.choice([0.0, 0.1]))

    def given(y, f):
        m = lapse + (1.0 - 2.0 * lapse) * probability(link, f)
        rest = lapse + (1.0 - 2.0 * lapse) * probability(link, -f)
        return special.betainc(np.maximum(concentration * m, 1e-300), np.maximum(concentration * rest, 1e-300), y)

    likelihood = lk.Beta(concentration, link, lapse)
    return one_latent(rng, likelihood, given, (-3.0, 3.0), constant(1.0 / np.sqrt(1.0 + concentration)), 6)


def log_normal(rng):
    scale = log_uniform(rng, 1e-4, 10.0)

    def given(y, f):
        return stats.norm.cdf(np.log(y), f, scale)

    return one_latent(rng, lk.LogNormal(scale), given, (-3.0, 3.0), constant(scale), 6)


def rate_width(mean):
    return 1.0 / np.sqrt(np.maximum(np.exp(mean), 1.0))


def poisson(rng):
    link, exposure = str(rng.choice(["exp", "softplus"])), log_uniform(rng, 0.1, 10.0)

    def given(y, f):
        return stats.poisson.cdf(y, exposure * positive(link, f))

    means = (-3.0, 20.0) if link == "exp" else (-3.0, 1e3)
    width = rate_width if link == "exp" else lambda mean: np.sqrt(np.maximum(mean, 1.0))
    return one_latent(rng, lk.Poisson(link, exposure), given, means, width, 6)


def negative_binomial(rng):
    dispersion = log_uniform(rng, 1e-4, 10.0)

    def given(y, f):
        return special.betainc(1.0 / dispersion, y + 1.0, special.expit(-f - np.log(dispersion)))

    def width(mean):
        return np.sqrt(rate_width(mean) ** 2 + dispersion)

    return one_latent(rng, lk.NegativeBinomial(dispersion), given, (-3.0, 14.0), width, 6)


def binomial(rng):
    trials, link = int(log_uniform(rng, 1, 1e7)), str(rng.choice(["probit", "logit"]))

    def given(y, f):
        return stats.binom.cdf(y, trials, probability(link, f))

    return one_latent(rng, lk.Binomial(trials, link), given, (-2.0, 2.0), constant(1.0 / np.sqrt(trials)), 6)


def beta_binomial(rng):
    trials, concentration = int(log_uniform(rng, 1, 200)), log_uniform(rng, 0.5, 1e3)

    def given(y, f):
        p = np.clip(special.expit(f), 1e-300, 1.0 - 1e-16)
        return stats.betabinom.cdf(y, trials, concentration * p, concentration * (1.0 - p))

    width = constant(np.sqrt(1.0 / trials + 1.0 / concentration))
    return one_latent(rng, lk.BetaBinomial(trials, concentration), given, (-2.0, 2.0), width, 6)


def bernoulli(rng):
    link, lapse = str(rng.choice(["probit", "logit"])), float(rng.choice([0.0, 0.1]))

    def given(y, f):
        return np.where(y < 1.0, lapse + (1.0 - 2.0 * lapse) * probability(link, -f), 1.0)

    return one_latent(rng, lk.Bernoulli(link, lapse), given, (-2.0, 2.0), constant(1.0), 6)


def ordinal(rng):
    thresholds, scale = np.cumsum(rng.uniform(0.1, 1.0, size=4)) - 1.0, log_uniform(rng, 1e-3, 10.0)

    def given(y, f):
        distance = np.append(thresholds, np.inf)[np.clip(y, 0, 4).astype(int)] - f
        return special.ndtr(distance / scale)

    return one_latent(rng, lk.Ordinal(thresholds, scale), given, (-2.0, 2.0), constant(scale), 6)


def zero_inflated(rng):
    share = float(rng.uniform(0.05, 0.95))

    def given(y, f):
        return share + (1.0 - share) * stats.poisson.cdf(y, np.exp(f))

    return one_latent(rng, lk.ZeroInflated(lk.Poisson(), share), given, (-3.0, 16.0), rate_width, 6)


class Laplace(ng.Likelihood):
    """One of a user's own."""

    scale: float = 1.0

    def log_prob(self, y, f):
        import jax.numpy as jnp

        return -jnp.abs(y - f) / self.scale - jnp.log(2.0 * self.scale)

    def cdf(self, y, f):
        import jax.numpy as jnp

        u = (y - f) / self.scale
        tail = 0.5 * jnp.exp(-jnp.abs(u))
        return jnp.where(u < 0.0, tail, 1.0 - tail)


def users_own(rng):
    scale = log_uniform(rng, 1e-3, 1e3)

    def given(y, f):
        return stats.laplace.cdf(y, f, scale)

    return one_latent(rng, Laplace(scale), given, (-3.0, 3.0), constant(scale), 6)


# Of several latents, the first enters linearly: `given` is what is left of a function of the second.


def heteroscedastic(rng):
    link = str(rng.choice(["exp", "softplus"]))

    def given(y, mean, variance, f):
        return special.ndtr((y - mean) / np.sqrt(variance + positive(link, f) ** 2))

    sizes = ((1e-4, 1e3), (1e-2, 3.0))
    return several_latents(rng, lk.HeteroscedasticGaussian(link), ((-3.0, 3.0), (-2.0, 2.0)), sizes, 4, given)


def product(rng):
    link = str(rng.choice(["exp", "softplus", "identity"]))
    noise = log_uniform(rng, 1e-8, 1.0)

    def given(y, mean, variance, f):
        amplitude = f if link == "identity" else positive(link, f)
        return special.ndtr((y - amplitude * mean) / np.sqrt(noise + amplitude**2 * variance))

    sizes = ((1e-3, 10.0), (1e-2, 3.0))
    return several_latents(rng, lk.Product(noise, link), ((-3.0, 3.0), (-2.0, 2.0)), sizes, 4, given)


def demodulation(rng):
    likelihood = lk.AmplitudeDemodulation(2, variance=log_uniform(rng, 1e-6, 1.0))
    return several_latents(rng, likelihood, ((-1.0, 1.0),) * 4, ((1e-2, 3.0),) * 4, 2)


def network(rng):
    nodes = int(rng.choice([1, 2]))
    likelihood = lk.RegressionNetwork(2, nodes, covariance=log_uniform(rng, 1e-6, 1.0))
    latents = nodes * 3
    return several_latents(rng, likelihood, ((-1.0, 1.0),) * latents, ((1e-2, 3.0),) * latents, 2)


def multivariate(rng):
    noise = covariances(rng, np.exp(rng.uniform(-7.0, 7.0, size=(1, 3))))[0]
    noise[np.diag_indices(3)] *= 1.01
    return several_latents(rng, lk.MultivariateGaussian(noise), ((-3.0, 3.0),) * 3, ((1e-4, 1e3),) * 3, 4)


def coregionalisation(rng):
    likelihood = lk.LinearCoregionalisation(rng.normal(size=(3, 2)), np.exp(rng.uniform(-7.0, 7.0, size=3)))
    return several_latents(rng, likelihood, ((-3.0, 3.0),) * 2, ((1e-4, 1e3),) * 2, 4)


def heteroscedastic_student(rng):
    likelihood = lk.HeteroscedasticStudentT(log_uniform(rng, 1.0, 20.0), str(rng.choice(["exp", "softplus"])))
    return several_latents(rng, likelihood, ((-3.0, 3.0), (-3.0, 2.0)), ((1e-2, 1e2), (1e-2, 2.0)), 2)


def chained(rng):
    if rng.uniform() < 0.5:
        likelihood = lk.Chained(lk.NegativeBinomial(), dispersion="softplus")
    else:
        likelihood = lk.Chained(lk.ZeroInflated(lk.Poisson()), probability="logit")
    return several_latents(rng, likelihood, ((-2.0, 8.0), (-2.0, 2.0)), ((1e-2, 2.0), (1e-2, 3.0)), 2)


KINDS = {
    "gaussian": gaussian,
    "student": student,
    "gamma": gamma,
    "exponential": exponential,
    "beta": beta,
    "log-normal": log_normal,
    "poisson": poisson,
    "negative binomial": negative_binomial,
    "binomial": binomial,
    "bernoulli": bernoulli,
    "ordinal": ordinal,
    "zero-inflated": zero_inflated,
    "user's own": users_own,
    "heteroscedastic": heteroscedastic,
    "product": product,
    "demodulation": demodulation,
    "network": network,
    "multivariate": multivariate,
    "coregionalisation": coregionalisation,
    "heteroscedastic student": heteroscedastic_student,
    "chained": chained,
    "beta-binomial": beta_binomial,
}


# An integral over one latent that shares nothing with the library's -------------------------------


def graded_nodes(centres):
    """Gauss-Legendre nodes in [-10, 10] on panels that double in width away from each centre, from 1e-13 on."""
    points, weights = np.polynomial.legendre.leggauss(12)
    away = np.concatenate([-(2.0 ** np.arange(5, -45, -1.0)), [0.0], 2.0 ** np.arange(-44, 6.0)])
    ends = np.concatenate([np.add.outer(centres, away).ravel(), np.linspace(-10.0, 10.0, 41)])
    ends = np.unique(np.clip(ends, -10.0, 10.0))
    low, high = ends[:-1, None], ends[1:, None]
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * points
    return nodes.ravel(), (0.5 * (high - low) * weights).ravel()


def steps_of(function):
    """Where a function of z crosses the middle of its range, by bisection. It need not be monotone."""
    grid = np.linspace(-10.0, 10.0, 4001)
    values = function(grid)
    above = values > 0.5 * (np.min(values) + np.max(values))
    crossed = np.flatnonzero(above[1:] != above[:-1])
    low, high = grid[crossed], grid[crossed + 1]
    for _ in range(100):
        middle = 0.5 * (low + high)
        same = (function(middle) > 0.5 * (np.min(values) + np.max(values))) == above[crossed]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return low


def reference(case, row, y):
    """P(Y ≤ y) of one row by fixed nodes, or None where more than one latent needs them."""
    if case.given is None:
        return None
    mean, covariance = case.latent.mean[row], case.latent.covariance[row]
    with np.errstate(all="ignore"):
        if mean.size == 1:

            def function(z):
                return case.given(y, mean[0] + np.sqrt(covariance[0, 0]) * z)
        else:
            slope = covariance[0, 1] / covariance[1, 1]
            rest = max(covariance[0, 0] - slope * covariance[0, 1], 0.0)
            deviation = np.sqrt(covariance[1, 1])

            def function(z):
                return case.given(y, mean[0] + slope * deviation * z, rest, mean[1] + deviation * z)

        z, weights = graded_nodes(steps_of(function))
        return float(np.sum(weights * stats.norm.pdf(z) * function(z)))


# What is checked ----------------------------------------------------------------------------------


def draw(kind: str, number: int) -> tuple[Case, np.ndarray]:
    """A case and two probabilities."""
    rng = np.random.default_rng([zlib.crc32(kind.encode()), number])
    case = KINDS[kind](rng)
    return case, np.array([rng.uniform(0.001, 0.999), rng.choice([0.025, 0.5, 0.975])])


def faults_of(case: Case, levels: np.ndarray, compare: bool = True) -> tuple[int, list[str]]:
    """How many quantiles were checked, and what is wrong with them."""
    prediction = ng.prediction.Prediction(case.likelihood, case.latent, None)
    found, faults, checked = prediction.quantile(levels), [], 0
    integer = case.likelihood.support.integer
    for p, quantile in zip(levels, found, strict=True):
        before = np.nextafter(quantile, -np.inf)
        upper, lower = (
            prediction.cdf(quantile),
            prediction.cdf(np.minimum(quantile - 1.0, before) if integer else before),
        )
        checked += quantile.size
        wrong = ~((lower - SLACK <= p) & (p <= upper + SLACK))
        if integer:
            wrong |= (quantile != np.round(quantile)) | ((lower >= p + SLACK) & (quantile > 0.0))
        for place in np.argwhere(wrong):
            at = tuple(place)
            faults.append(f"p={p:.6g} q={quantile[at]!r} below {lower[at]!r} at {upper[at]!r} in {at}")
        for row in range(quantile.shape[0]) if compare and quantile.ndim == 1 else ():
            exact = reference(case, row, quantile[row])
            if exact is not None and np.isfinite(quantile[row]) and not abs(exact - upper[row]) <= SLACK:
                faults.append(f"p={p:.6g} q={quantile[row]!r} has P = {upper[row]!r}, exactly {exact!r} in {row}")
    return checked, faults


# The run ------------------------------------------------------------------------------------------


def run(out: Path, draws: int, seconds: float) -> None:
    """All draws that are not in the file yet, until the time is up."""
    done = {(line["kind"], line["number"]) for line in read(out)}
    start = time.perf_counter()
    with out.open("a", encoding="utf-8") as file:
        for number in range(draws):
            for kind in KINDS:
                if (kind, number) in done:
                    continue
                if time.perf_counter() - start > seconds:
                    return
                begin = time.process_time()
                case, levels = draw(kind, number)
                checked, faults = faults_of(case, levels)
                line = {"kind": kind, "number": number, "checked": checked, "faults": faults}
                line["seconds"] = round(time.process_time() - begin, 3)
                file.write(json.dumps(line) + "\n")
                file.flush()


def read(out: Path) -> list[dict]:
    if not out.exists():
        return []
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def report(lines: list[dict]) -> None:
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for line in lines:
        counts[line["kind"]] += collections.Counter(
            draws=1, checked=line["checked"], faults=len(line["faults"]), seconds=line["seconds"]
        )
    for kind, count in counts.items():
        print(
            f"{kind:25s} " + "  ".join(f"{name} {count[name]:g}" for name in ("draws", "checked", "faults", "seconds"))
        )
    print(f"{sum(line['checked'] for line in lines)} quantiles, {sum(len(line['faults']) for line in lines)} faults")
    for line in lines:
        for fault in line["faults"]:
            print(f"{line['kind']}:{line['number']}: {fault}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("quantiles.jsonl"))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--seconds", type=float, default=np.inf)
    parser.add_argument("--replay")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.replay:
        kind, number = options.replay.rsplit(":", 1)
        case, levels = draw(kind, int(number))
        print(case.likelihood, levels, case.about, *faults_of(case, levels)[1], sep="\n")
    elif options.report:
        report(read(options.out))
    else:
        run(options.out, options.draws, options.seconds)
        report(read(options.out))


if __name__ == "__main__":
    main()
