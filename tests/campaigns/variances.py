"""Thousands of random posteriors: no variance is negative, and every covariance is PSD.

Every prior is conditioned on sites whose noise is 1e-16 to 1e6 of the signal's variance, with repeated and nearly
repeated inputs, missing rows, singular and negative sites, and asked at the data and at new inputs. A run that was
interrupted goes on where it stopped:

    python tests/campaigns/variances.py --out variances.jsonl               # 25 structures, 6250 posteriors
    python tests/campaigns/variances.py --replay 3:17                       # structure 3, draw 17, in detail
    python tests/campaigns/variances.py --out variances.jsonl --report      # counts by kind, and every fault
"""

import argparse
import collections
import json
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import newtongp as ng

DRAWS = 250
"""Posteriors per structure."""
ROWS, NEW = 10, 6
_STEPS, _DISTINCT = 16, 7
SLACK_OF_CHAINS = 1e-6

K = ng.kernels
KERNELS = {
    "matern12": lambda length, size: K.Matern12(length, size),
    "matern32": lambda length, size: K.Matern32(length, size),
    "matern52": lambda length, size: K.Matern52(length, size),
    "rbf": lambda length, size: K.RBF(length, size),
    "periodic": lambda length, size: K.Periodic(period=3.0 * length, variance=size),
    "linear + constant": lambda length, size: K.Linear(size) + K.Constant(size),
    "integrated brownian": lambda length, size: K.IntegratedBrownian(size),
    "matern + constant": lambda length, size: K.Matern32(length, size) + K.Constant(size),
}


class Structure(NamedTuple):
    """What is compiled once."""

    prior: str
    kernel: str
    latents: int

    def __str__(self) -> str:
        return f"{self.prior}, {self.kernel}, {self.latents} latent(s)"


STRUCTURES = [
    *(Structure("GP", kernel, 1) for kernel in ("matern12", "matern32", "rbf", "periodic", "linear + constant")),
    *(Structure("GP", kernel, 2) for kernel in ("matern32", "rbf")),
    *(Structure("SparseGP", kernel, latents) for kernel in ("matern32", "rbf") for latents in (1, 2)),
    *(Structure("MarkovGP", kernel, 1) for kernel in ("matern12", "matern52", "linear + constant", "periodic")),
    *(Structure("MarkovGP", kernel, 1) for kernel in ("integrated brownian", "matern + constant")),
    *(Structure("MarkovGP", kernel, 2) for kernel in ("matern12", "matern32")),
    *(Structure("StateSpaceModel", kind, latents) for kind in ("noise", "no noise") for latents in (1, 2)),
    *(Structure("LinearModel", "-", latents) for latents in (1, 2)),
]
KINDS = ("psd", "rank one", "negative")


class Draw(NamedTuple):
    """One posterior: a prior, its inputs, sites in the order of the rows, and new inputs."""

    prior: Any
    x: np.ndarray
    precision: np.ndarray
    linear: np.ndarray
    new: np.ndarray
    kind: str
    noise: float
    """Relative to the variance of the signal."""


def build(structure: Structure, length: float, size: float) -> Any:
    """A prior with this lengthscale and about this variance."""
    latents = structure.latents
    if structure.prior == "LinearModel":
        return ng.LinearModel(size, num_latents=latents)
    if structure.prior == "StateSpaceModel":
        each = np.eye(latents)
        noise = size * np.diag([1e-3, 1e-2]) * (structure.kernel == "noise")
        return ng.StateSpaceModel(
            np.kron(each, [[1.0, 0.1], [0.0, 0.95]]),
            np.kron(each, noise),
            np.kron(each, [[1.0, 0.0]]),
            initial_covariance=size * np.eye(2 * latents),
        )
    kernel = KERNELS[structure.kernel](length, size)
    kernel = kernel if latents == 1 else K.Independent([kernel, KERNELS[structure.kernel](0.7 * length, 0.1 * size)])
    if structure.prior == "SparseGP":
        return ng.SparseGP(kernel, inducing=5)
    return ng.GP(kernel) if structure.prior == "GP" else ng.MarkovGP(kernel)


def draw(structure: Structure, seed: int) -> Draw:
    """A random posterior of this structure."""
    rng = np.random.default_rng([STRUCTURES.index(structure), seed])
    latents, size = structure.latents, 10.0 ** rng.uniform(-6.0, 6.0)
    noise = 10.0 ** rng.uniform(-16.0, 6.0)
    if structure.prior == "StateSpaceModel":
        inner = np.sort(rng.choice(np.arange(1, _STEPS - 1), _DISTINCT - 2, replace=False))
        distinct = np.concatenate([[0], inner, [_STEPS - 1]])
        x = np.concatenate([distinct, rng.choice(distinct, ROWS - _DISTINCT)])[:, None].astype(float)
        empty = np.setdiff1d(np.arange(_STEPS), distinct)
        # None of the empty steps twice: programs are compiled for the number of steps and rows.
        between = rng.choice(empty, NEW // 2, replace=False)
        new = np.concatenate([rng.choice(distinct, NEW // 2), between])[:, None].astype(float)
    else:
        columns = 3 if structure.prior == "LinearModel" else 1
        x = rng.uniform(0.1, 4.0, (ROWS, columns))
        if rng.random() < 0.4:
            x[1:3] = x[0]
        if rng.random() < 0.3:
            x[4] = x[5] * (1.0 + 1e-9)
        new = np.concatenate([x[:2], x[3:4] * (1.0 + 1e-7), rng.uniform(0.0, 5.0, (NEW - 3, columns))])
    turned = np.linalg.qr(rng.normal(size=(ROWS, latents, latents)))[0]
    values = 10.0 ** rng.uniform(-1.0, 1.0, (ROWS, latents)) / (noise * size)
    kind = KINDS[int(rng.integers(len(KINDS)))]
    if kind == "rank one":
        values[:, 1:] = 0.0
    if kind == "negative":
        values[rng.random((ROWS, latents)) < 0.3] *= -1e-3
    values[rng.random(ROWS) < 0.2] = 0.0
    precision = np.einsum("nij,nj,nkj->nik", turned, values, turned)
    linear = np.einsum("nij,nj->ni", precision, np.sqrt(size) * rng.normal(size=(ROWS, latents)))
    length = 10.0 ** rng.uniform(-1.0, 1.0)
    return Draw(build(structure, length, size), x, precision, linear, new, kind, noise)


@jax.jit
def _condition(prior, inputs, sites):
    workspace = prior.prepare(inputs)
    found = workspace.marginals(sites)
    return prior.condition(workspace, sites), found.proper, found.log_det, workspace.marginals_of_f(found.marginals)


def faults_of(case: Draw) -> tuple[str, list[str]]:
    """Whether the posterior is proper, and everything that must not be."""
    with warnings.catch_warnings(), jax.enable_x64(True):
        warnings.simplefilter("ignore", ng.RoundingWarning)
        place = case.prior.layout(case.x)
        rows = np.arange(ROWS) if place.rows is None else np.asarray(place.rows)
        there = rows >= 0
        sites = ng.Sites(
            jnp.asarray(np.where(there[:, None], case.linear[rows], 0.0)),
            jnp.asarray(np.where(there[:, None, None], case.precision[rows], 0.0)),
        )
        posterior, proper, log_det, marginals = jax.tree.map(
            lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf,
            _condition(case.prior, place.inputs, sites),
        )
        if not proper:
            return "improper", [] if case.kind == "negative" else ["PSD sites, and an improper posterior"]
        found = [] if np.isfinite(log_det) else ["log det not finite"]
        found += _of_blocks("marginal", marginals.covariance)
        found += _of_blocks("posterior's marginal", posterior.marginals.covariance)
        predicted, joint = posterior.predict(case.new), posterior.joint(case.new)
        found += _of_blocks("predicted", predicted.covariance)
        found += _of_matrix("joint", joint.covariance)
        prior = _prior_variances(case)
        apart = np.abs(np.diagonal(joint.covariance) - predicted.variance.reshape(-1))
        # Rounding is relative to the prior variance, and more where the mean extrapolates. Chains that are conditioned
        # through square roots keep half of the digits.
        slack = SLACK_OF_CHAINS if isinstance(case.prior, (ng.MarkovGP, ng.StateSpaceModel)) else 1e-8
        if case.kind != "negative" and not np.all(apart <= slack * prior.reshape(-1)):
            found.append("joint and predicted variances differ")
        if case.kind != "negative" and not np.all(predicted.variance <= prior * (1.0 + 1e-9)):
            found.append("a variance above the prior's")
        draws = posterior.draw(jax.random.key(0), case.new, 3)
        if not np.all(np.isfinite(draws)):
            found.append("draws not finite")
        return "proper", found


def _prior_variances(case: Draw) -> np.ndarray:
    """Of the new inputs, from the definition of the prior."""
    prior = case.prior
    if isinstance(prior, ng.LinearModel):
        return np.repeat(np.sum(case.new**2, axis=1, keepdims=True) * prior.prior_covariance, prior.num_latents, axis=1)
    if isinstance(prior, ng.StateSpaceModel):
        state, every = np.asarray(prior.initial_covariance), []
        for _ in range(_STEPS):
            every.append(np.diagonal(prior.observation @ state @ prior.observation.T))
            state = prior.transition @ state @ prior.transition.T + prior.noise
        return np.stack(every)[case.new[:, 0].astype(int)]
    return np.asarray(K.multilatent.diagonals(prior.kernel, jnp.asarray(case.new))).T


def _of_blocks(name: str, blocks: np.ndarray) -> list[str]:
    return [fault for block in blocks for fault in _of_matrix(name, block)][:1]


def _of_matrix(name: str, matrix: np.ndarray) -> list[str]:
    if not np.all(np.isfinite(matrix)):
        return [f"{name} covariance not finite"]
    variances = np.diagonal(matrix)
    if not np.all(variances >= 0.0):
        return [f"{name} variance negative"]
    if not np.array_equal(matrix, matrix.T):
        return [f"{name} covariance not symmetric"]
    scales = np.where(variances > 0.0, np.sqrt(variances), 1.0)
    smallest = np.min(np.linalg.eigvalsh(matrix / scales[:, None] / scales[None, :]))
    return [f"{name} covariance not PSD"] if smallest < -1e-13 * len(matrix) else []


def run(out: Path, draws: int, part: int, parts: int) -> None:
    """Every posterior that is not in the file yet."""
    done = {(line["structure"], line["draw"]) for line in _lines(out)}
    with out.open("a", encoding="utf-8") as file:
        for index, structure in enumerate(STRUCTURES):
            if index % parts != part:
                continue
            for number in range(draws):
                if (index, number) in done:
                    continue
                case = draw(structure, number)
                ending, found = faults_of(case)
                line = {
                    "structure": index,
                    "draw": number,
                    "what": str(structure),
                    "kind": case.kind,
                    "noise": case.noise,
                    "ending": ending,
                    "faults": found,
                }
                file.write(json.dumps(line) + "\n")
                file.flush()
                if found:
                    print(f"{index}:{number} {structure}, {case.kind}: {'; '.join(found)}", flush=True)
            # Compiled programs take mappings, of which Linux allows a process only so many.
            jax.clear_caches()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def report(path: Path) -> int:
    """Print counts and faults; the number of posteriors with faults."""
    lines = _lines(path)
    print(f"{len(lines)} posteriors of {len({line['structure'] for line in lines})} structures")
    for key in ("kind", "ending", "what"):
        for value, count in sorted(collections.Counter(line[key] for line in lines).items()):
            print(f"  {value:40s} {count}")
    faulty = [line for line in lines if line["faults"]]
    print(f"{len(faulty)} with faults")
    for line in faulty:
        print(f"{line['structure']}:{line['draw']} {line['what']}, {line['kind']}: {'; '.join(line['faults'])}")
    return len(faulty)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("variances.jsonl"))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--part", default="0/1", help="which part of the structures, such as 0/25")
    parser.add_argument("--replay", help="structure:draw")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.replay:
        index, number = map(int, given.replay.split(":"))
        case = draw(STRUCTURES[index], number)
        print(STRUCTURES[index], case, faults_of(case), sep="\n")
        return 0
    if not given.report:
        part, parts = map(int, given.part.split("/"))
        run(given.out, given.draws, part, parts)
    return 1 if report(given.out) else 0


if __name__ == "__main__":
    sys.exit(main())
