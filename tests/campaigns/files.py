"""Thousands of result files with valid checksums and changed contents: each is refused, or is what constructors make.

A file is made from one of several results by changing its header (types, signs, sizes, names, structure) or its arrays
(values, types, shapes) at random, and writing the checksum of that. `newtongp.load` must raise `FileFormatError`, or
return a result that says what the file says and whose parts are those that their constructors make of the same values.
Nothing may take much memory or time. One line of JSON per file is appended to the file of results, and a run that was
interrupted goes on where it stopped:

    python tests/campaigns/files.py --out files.jsonl                  # 6000 files
    python tests/campaigns/files.py --replay 3:117                     # result 3, seed 117, in detail
    python tests/campaigns/files.py --out files.jsonl --report         # counts by ending, and every fault
"""

import argparse
import collections
import dataclasses
import functools
import hashlib
import json
import resource
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

import newtongp as ng
from newtongp.inputs.data import read_data
from newtongp.storage import FileFormatError, encode
from newtongp.storage.registry import known_classes

FILES = 6000
MEMORY = 2 * 2**30
"""Bytes that loading may take, far beyond the size of any of these files."""
SECONDS = 20.0
"""Of processor time that one file may take."""

K, L = ng.kernels, ng.likelihoods
X = np.linspace(0.0, 5.0, 6)
COUNTS = np.array([1.0, 0.0, 2.0, np.nan, 1.0, 3.0])
PAIRS = np.stack([np.sin(X), np.cos(X)], axis=1)


def half(x):
    """A mean of a user's own."""
    return 0.5 * x[0]


class Laplace(ng.Likelihood):
    """A likelihood of a user's own."""

    scale: Any = ng.parameters.learned(ng.parameters.Positive(), default=1.0)

    def log_prob(self, y, f):
        return -abs(y - f) / self.scale


CLASSES = [half, Laplace]


# Results to start from ----------------------------------------------------------------------------------------------


def made_up(model, x, y, method=None, **fit) -> ng.Result:
    """A result of the right shape, without inference."""
    rows, latents = len(x), model.prior.num_latents
    covariance = np.broadcast_to(np.eye(latents), (rows, latents, latents)).copy()
    marginals = ng.Gaussian(np.zeros((rows, latents)), covariance)
    history = ng.results.History(np.array([3.0, 2.5]), np.array([3.0, 2.5]), np.ones(2))
    result = ng.Result(
        model=model,
        method=ng.VI() if method is None else method,
        data=read_data(x, y, model),
        status=ng.Status.CONVERGED,
        energy=2.5,
        residual=1e-8,
        steps=2,
        history=history,
        sites=ng.Sites.constant(rows, latents, 0.5),
        marginals=marginals,
        condition=lambda: None,  # pyright: ignore[reportArgumentType]
    )
    if not fit:
        return result
    values = {each.name: each.value for each in ng.hyperparameters(model)}
    first, second, *_ = values
    return ng.results.FitResult(
        result,
        status=ng.Status.CONVERGED,
        learned=values,
        priors={first: ng.parameters.LogNormal(1.0, 1.0)},
        standard_errors={name: np.full(np.shape(value), 0.5) for name, value in values.items()},
        at_bound=[first],
        penalty=0.5,
        fit_history=np.array([3.0, 2.5]),
        evaluations=7,
        seconds=1.5,
        tied={second: first},
    )


def sparse(storage: str) -> ng.Result:
    prior = ng.SparseGP(K.RBF() + K.White(0.1), inducing=3, storage=storage)
    return ng.infer(ng.Model(prior, L.Poisson(exposure=2.0)), X, COUNTS, throw=False)


@functools.cache
def result(number: int) -> ng.Result:
    return RESULTS[number]()


def two_latents(kernel=None):
    return K.Independent([K.RBF(), K.Matern52(2.0) if kernel is None else kernel])


RESULTS = [
    lambda: made_up(ng.Model(ng.GP(2.0 * K.Matern32(0.8)), L.Poisson(exposure=np.arange(1.0, 7.0))), X, COUNTS),
    lambda: made_up(
        ng.Model(ng.MarkovGP(K.Periodic(harmonics=3) * K.Matern12(9.0), unit="D", pieces=2), "poisson"), X, COUNTS
    ),
    lambda: made_up(ng.Model(ng.GP("matern32"), L.Binomial([3, 3, 4, 4, 5, 5], lapse=0.1)), X, COUNTS, ng.PowerEP(0.5)),
    lambda: made_up(
        ng.Model(ng.GP(two_latents()), L.Chained(L.NegativeBinomial(), dispersion="softplus")),
        X,
        COUNTS,
        ng.PosteriorLinearisation(cubature=ng.cubature.Unscented(3, kappa=0.5)),
    ),
    lambda: made_up(ng.Model(ng.GP(K.Linear() + K.Constant(), mean=half), L.Ordinal([-1.0, 0.0, 1.5])), X, COUNTS),
    lambda: made_up(ng.Model(ng.MarkovGP(K.RBF(2.0, order=4)), L.StudentT()), X, COUNTS, fit=True),
    lambda: made_up(
        ng.Model(ng.LinearModel([[2.0, 0.5], [0.5, 1.0]], num_latents=2), L.MultivariateGaussian(np.diag([1.0, 2.0]))),
        PAIRS,
        PAIRS,
        ng.VI(curvature=ng.QuasiNewton(), safeguard=ng.Heuristic()),
    ),
    lambda: made_up(
        ng.Model(
            ng.StateSpaceModel([[1.0, 0.1], [0.0, 1.0]], [[1e-3, 0.0], [0.0, 1e-2]], [1.0, 0.0]),
            L.ZeroInflated(L.NegativeBinomial(0.5, "softplus"), 0.2),
        ),
        np.arange(6.0),
        COUNTS,
        ng.FirstOrderVI(0.05, ng.cubature.GaussHermite(5)),
    ),
    lambda: made_up(
        ng.Model(
            ng.GP(
                K.Independent([K.RBF([1.0, 2.0]).on(1, 0), K.Cosine().on(1), K.Brownian().on(0), K.RationalQuadratic()])
            ),
            L.RegressionNetwork(1, 2, 0.3),
        ),
        PAIRS + 2.0,
        COUNTS,
        ng.PowerEP(1.0, cubature=ng.cubature.QuasiRandom(64)),
    ),
    lambda: made_up(
        ng.Model(ng.GP(K.RBF(), mean=ng.means.Linear([1.0]) + 2.0), Laplace(0.5)), X, np.sin(X), ng.Newton()
    ),
    lambda: sparse("full"),
    lambda: sparse("tied"),
]


# Changes ------------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, -1, 2, 3, 0.5, -0.5, 1e-320, 1e308, -1e308, 10**6, 10**9, 2**31, 2**63, 2**200, -(10**9)]
NODES = [None, True, False, "", "x", "exp", "logit", "|V8", {}, [], {"tuple": []}, {"list": []}, {"dict": []}]
NODES += [
    {"float": "nan"},
    {"float": "inf"},
    {"float": "-inf"},
    {"array": 0},
    {"array": 1},
    {"scalar": 0},
    {"array": 10**9},
]
ENTRIES = [0.0, -1.0, 1e-320, 1e308, np.nan, np.inf, -np.inf, 0.5, 1e9]


def places(tree: Any, at: tuple[Any, ...] = ()):
    """Where something is in a tree of JSON."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


def at(tree: Any, place: tuple[Any, ...]) -> Any:
    return functools.reduce(lambda part, key: part[key], place, tree)


def changed(tree: Any, arrays: list[np.ndarray], rng: np.random.Generator) -> tuple[Any, list[np.ndarray]]:
    """Another tree and other arrays: one change, or a few."""
    tree, arrays = json.loads(json.dumps(tree)), [array.copy() for array in arrays]
    for _ in range(rng.geometric(0.7)):
        if rng.random() < 0.3:
            _change_array(arrays, rng)
        else:
            _change_node(tree, rng)
    return tree, arrays


def _change_node(tree: Any, rng: np.random.Generator) -> None:
    everywhere = list(places(tree))
    values = [place for place in everywhere if place[-2:-1] == ("fields",) and not isinstance(at(tree, place), dict)]
    chosen = values if rng.random() < 0.5 and values else everywhere
    place = chosen[rng.integers(len(chosen))]
    parent, key = at(tree, place[:-1]), place[-1]
    old, kind = parent[key], rng.integers(6)
    if kind == 0 and isinstance(old, (int, float)) and not isinstance(old, bool):
        parent[key] = [-old, 2 * old, old + 1, float(old), str(old), bool(old)][rng.integers(6)]
    elif kind == 1 and isinstance(old, str):
        names = [
            *known_classes(),
            *ng.Status.__members__,
            "exp",
            "softplus",
            "probit",
            "logit",
            "identity",
            "tied",
            "kmeans",
        ]
        parent[key] = names[rng.integers(len(names))]
    elif kind == 2:
        if isinstance(parent, dict) and rng.random() < 0.5:
            del parent[key]
        elif isinstance(parent, dict):
            parent[["extra", "__class__", "variance", "fields", "object"][rng.integers(5)]] = old
        else:
            parent.insert(key, json.loads(json.dumps(old)))
    elif kind == 3:
        parent[key] = NUMBERS[rng.integers(len(NUMBERS))]
    elif kind == 4:
        parent[key] = json.loads(json.dumps(NODES[rng.integers(len(NODES))]))
    else:
        parent[key] = json.loads(json.dumps(at(tree, everywhere[rng.integers(len(everywhere))])))


def _change_array(arrays: list[np.ndarray], rng: np.random.Generator) -> None:
    index = int(rng.integers(len(arrays)))
    array, kind = arrays[index], rng.integers(6)
    if kind == 0 and array.dtype.kind == "f":
        flat = array.reshape(-1)
        flat[rng.integers(flat.size) if flat.size else slice(0)] = ENTRIES[rng.integers(len(ENTRIES))]
    elif kind == 1 and array.dtype.kind == "f":
        array = array * [-1.0, 2.0, 1e-3, 1e200][rng.integers(4)]
    elif kind == 2:
        array = array.astype([np.float32, np.int64, np.bool_, np.float16, "M8[D]"][rng.integers(5)])
    elif kind == 3:
        array = array[..., None] if rng.random() < 0.5 else array.reshape(-1)
    elif kind == 4 and array.ndim:
        array = array[:-1] if rng.random() < 0.5 else np.concatenate([array, array[:1]])
    else:
        array = np.swapaxes(array, 0, -1) if array.ndim > 1 else array[::-1] if array.ndim else array[None]
    arrays[index] = np.ascontiguousarray(array)


def write(path: Path, tree: Any, arrays: list[np.ndarray]) -> None:
    """A file with these contents, and their checksum."""
    declared = [[array.dtype.str, list(array.shape)] for array in arrays]
    header = {"newtongp": "0.1.0", "kind": "result", "arrays": declared, "tree": tree}
    text = json.dumps(header).encode()
    content = struct.pack("<8sIQ", b"\x89NGP\r\n\x1a\n", 1, len(text)) + text + b"".join(a.tobytes() for a in arrays)
    path.write_bytes(content + hashlib.sha256(content).digest())


# What must hold of what is loaded -----------------------------------------------------------------------------------


def said(node: Any, arrays: list[np.ndarray]) -> Any:
    """What a node of a file says: numbers as arrays of floats, whatever their type, and sums in sums as one."""
    if isinstance(node, dict) and set(node) & {"array", "scalar"}:
        array = arrays[next(iter(node.values()))]
        return array if array.dtype.kind in "mMb" else array.astype(float)
    if isinstance(node, dict) and set(node) == {"float"}:
        return np.array(float(node["float"]))
    if isinstance(node, (int, float)) and not isinstance(node, bool):
        return np.array(float(node))
    if isinstance(node, dict) and "object" in node:
        fields = {name: said(part, arrays) for name, part in node["fields"].items()}
        if node["object"] in ("kernels.Sum", "kernels.Product", "means.Sum"):
            inside = fields["parts"]["tuple"]
            flat = [each["fields"]["parts"]["tuple"] if each["object"] == node["object"] else [each] for each in inside]
            fields["parts"] = {"tuple": [each for part in flat for each in part]}
        if node["object"] == "priors.StateSpaceModel":
            # One number serves for all states.
            size = fields["transition"].shape[-1]
            for name in ("initial_mean", "transition_offset"):
                fields[name] = np.full(size, fields[name]) if np.shape(fields[name]) == () else fields[name]
        if node["object"] == "likelihoods.Chained":
            # Latents take the place of these, whatever they are.
            fields["base"]["fields"] |= dict.fromkeys(fields["names"]["tuple"])
        return {"object": node["object"], "fields": fields}
    if isinstance(node, dict):
        return {key: said(part, arrays) for key, part in node.items()}
    return [said(part, arrays) for part in node] if isinstance(node, list) else node


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where `a`, what a file says, is not what `b` says, of what was loaded from it."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            return [f"{where}: {a!r} is {b!r}"]
        fine = a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")
        return [] if fine else [f"{where}: {a!r} is {b!r}"]
    if isinstance(a, dict) and isinstance(b, dict):
        # What a file leaves out has its default.
        missing = set(a) - set(b) if where.endswith(".fields") else set(a) ^ set(b)
        found = [f"{where}: {missing} in one only"] if missing else []
        return found + [each for key in set(a) & set(b) for each in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [
            each
            for i, (one, other) in enumerate(zip(a, b, strict=True))
            for each in differences(one, other, f"{where}[{i}]")
        ]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a!r} is {b!r}"]


def _lapse(o):
    return 0.0 if o.lapse is None else o.lapse


def _named(cls):
    def make(o):
        arguments = {"kernel": o.kernel, "mean": o.mean}
        if cls is ng.MarkovGP:
            arguments |= {"unit": o.clock, "pieces": o.pieces}
        made = cls(**arguments)
        if o.by_name:
            kernel = o.kernel.kernels[0] if isinstance(o.kernel, K.Independent) else o.kernel
            assert cls(type(kernel).__name__).by_name
            made = eqx.tree_at(lambda m: m, made, made)
            object.__setattr__(made, "by_name", True)
        return made

    return make


def _sparse(o):
    inducing = o.count if o.inducing is None else o.inducing[0] if len(o.inducing) == 1 else list(o.inducing)
    return ng.SparseGP(o.kernel, inducing, o.mean, o.selection, o.seed, o.storage)


def _ordinal(o):
    made = L.Ordinal(
        np.append(o.first, o.first + (0.0 if o.gaps is None else np.cumsum(o.gaps)))[: o.num_levels - 1],
        o.scale,
        o.link,
    )
    assert np.allclose(made.first, o.first) and (o.gaps is None or np.allclose(made.gaps, o.gaps, atol=1e-12))
    return o


def _chained(o):
    base = o.base
    for name in o.names:
        base = eqx.tree_at(lambda b, n=name: getattr(b, n), base, np.array(0.25), is_leaf=lambda leaf: leaf is None)
    return L.Chained(base, **dict(zip(o.names, o.link_names, strict=True)))


CONSTRUCTED = {
    ng.Model: lambda o: ng.Model(o.prior, o.likelihood),
    ng.GP: _named(ng.GP),
    ng.MarkovGP: _named(ng.MarkovGP),
    ng.SparseGP: _sparse,
    ng.LinearModel: lambda o: ng.LinearModel(o.prior_covariance, o.mean, o.latents),
    ng.StateSpaceModel: lambda o: ng.StateSpaceModel(
        o.transition,
        o.noise,
        o.observation,
        o.initial_mean,
        o.initial_covariance,
        o.transition_offset,
        o.observation_offset,
        o.pieces,
    ),
    K.Active: lambda o: o.kernel.on(*o.dimensions),
    L.Poisson: lambda o: L.Poisson(o.link, o.exposure),
    L.Bernoulli: lambda o: L.Bernoulli(o.link, _lapse(o)),
    L.Binomial: lambda o: L.Binomial(o.trials, o.link, _lapse(o)),
    L.Beta: lambda o: L.Beta(o.concentration, o.link, _lapse(o)),
    L.NegativeBinomial: lambda o: L.NegativeBinomial(o.dispersion, o.link, o.exposure),
    L.StudentT: lambda o: L.StudentT(o.df, o.scale),
    L.Gaussian: lambda o: L.Gaussian(o.variance),
    L.Ordinal: _ordinal,
    L.Chained: _chained,
    L.ZeroInflated: lambda o: L.ZeroInflated(o.base, o.probability),
    L.MultivariateGaussian: lambda o: L.MultivariateGaussian(o.noise),
    L.RegressionNetwork: lambda o: L.RegressionNetwork(o.outputs, o.nodes, o.noise, o.weight_offset),
    ng.FirstOrderVI: lambda o: ng.FirstOrderVI(float(o.learning_rate), o.cubature),
    ng.Heuristic: lambda o: ng.Heuristic(float(o.floor)),
    Laplace: lambda o: Laplace(o.scale),
}
"""Objects made anew from their own values, by calls as a user writes them."""


def anew(value: Any) -> Any:
    """An object from its own values, through its constructor."""
    if type(value) in CONSTRUCTED:
        return CONSTRUCTED[type(value)](value)
    named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(
        **{name: float(v) if np.shape(v) == () and isinstance(v, np.ndarray) else v for name, v in named.items()}
    )


def modules(value: Any):
    """An object and all that it is made of; not what `Chained` has put latents into, which no constructor makes."""
    if isinstance(value, eqx.Module):
        yield value
        for field in dataclasses.fields(value):
            if not isinstance(value, L.Chained):
                yield from modules(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from modules(part)


def faults_of(path: Path, tree: Any, arrays: list[np.ndarray]) -> tuple[str, list[str]]:
    """How loading a file ended, and what is wrong with that."""
    try:
        loaded = ng.load(path, classes=CLASSES)
    except FileFormatError:
        return "refused", []
    except Exception as error:
        return "error", [f"{type(error).__name__}: {error}"]
    found = differences(said(tree, arrays), said(*encode(loaded)))
    for module in (*modules(loaded.model), *modules(loaded.method)):
        try:
            other = said(*encode(anew(module)))
            found += differences(other, said(*encode(module)), type(module).__name__)
        except Exception as error:
            found.append(f"{type(module).__name__} cannot be made anew: {type(error).__name__}: {error}")
    if loaded.status is ng.Status.RUNNING or (not loaded.status.failed and not np.isfinite(loaded.energy)):
        found.append(f"ended with {loaded.status.name} and energy {loaded.energy}")
    return "loaded", found


def one(number: int, seed: int, folder: Path) -> tuple[str, list[str], Any, list[np.ndarray]]:
    tree, arrays = changed(*encode(result(number)), np.random.default_rng([number, seed]))
    path = folder / "file.ngp"
    write(path, tree, arrays)
    return *faults_of(path, tree, arrays), tree, arrays


# The campaign -------------------------------------------------------------------------------------------------------


def _limit_memory() -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def _too_slow(*_):
    raise TimeoutError(f"loading took more than {SECONDS} s")


def run(out: Path, files: int) -> None:
    done = {(line["result"], line["seed"]) for line in _lines(out)}
    for number in range(len(RESULTS)):
        encode(result(number))
    known_classes()
    _limit_memory()
    signal.signal(signal.SIGPROF, _too_slow)
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
        for count in range(files):
            number, seed = count % len(RESULTS), count // len(RESULTS)
            if (number, seed) in done:
                continue
            started = time.perf_counter()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            ending, found, *_ = one(number, seed, Path(folder))
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            seconds = round(time.perf_counter() - started, 3)
            line = {"result": number, "seed": seed, "ending": ending, "faults": found, "seconds": seconds}
            file.write(json.dumps(line) + "\n")
            file.flush()


def _lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def report(out: Path) -> bool:
    """Print counts by result and ending, and every fault; whether there is none."""
    lines = _lines(out)
    counts = collections.Counter((line["result"], line["ending"]) for line in lines)
    for number in range(len(RESULTS)):
        print(
            number,
            type(result(number)).__name__,
            {end: n for (which, end), n in sorted(counts.items()) if which == number},
        )
    endings = collections.Counter(line["ending"] for line in lines)
    slowest = max((line["seconds"] for line in lines), default=0.0)
    print(f"{len(lines)} files: {dict(endings)}; slowest {slowest} s")
    wrong = [line for line in lines if line["faults"]]
    for line in wrong:
        print(f"{line['result']}:{line['seed']}", line["faults"][:3])
    print(f"{len(wrong)} with faults")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--replay")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.replay:
        number, seed = map(int, options.replay.split(":"))
        with tempfile.TemporaryDirectory() as folder:
            ending, found, tree, _ = one(number, seed, Path(folder))
        before, _ = encode(result(number))
        for place in places(tree):
            with_old = dict.fromkeys(places(before))
            if place not in with_old or at(before, place) != at(tree, place):
                print(place, str(at(tree, place))[:100])
        print(ending, *found, sep="\n")
        return len(found) > 0
    if not options.report:
        run(options.out, options.files)
    return 0 if report(options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
