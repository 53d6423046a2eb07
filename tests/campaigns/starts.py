"""Every likelihood from its default start, on data of scales from 1e-3 to 1e3: how often inference ends well.

One line of JSON per run is appended to the file of results, and a survey that was interrupted goes on where it stopped:

    python tests/campaigns/starts.py --out starts.jsonl                       # all likelihoods and methods, one seed
    python tests/campaigns/starts.py --out starts.jsonl --methods vi pl --seeds 0 1 2
    python tests/campaigns/starts.py --out starts.jsonl --seconds 400         # no new program after that
    python tests/campaigns/starts.py --replay "student:vi:30:0"               # one run, in detail
    python tests/campaigns/starts.py --out starts.jsonl --report              # counts, and what did not end well

Most of the time goes to the compiler: XLA_FLAGS=--xla_backend_optimization_level=0 makes it quicker.
"""

import argparse
import collections
import json
import time
import warnings
from pathlib import Path

import jax
import numpy as np

import newtongp as ng
from tests.campaigns import models

ROWS = 20
SCALES = (1e-3, 3e-2, 1.0, 30.0, 1e3)
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "pl": ng.PosteriorLinearisation(),
    "taylor": ng.Taylor(),
}


def run(name, method, scale, seed=0):
    """One run: f of this scale, y drawn from the likelihood at it, and a prior of the same scale."""
    latents, has_units, likelihood_of, draw = models.LIKELIHOODS[name][:4]
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, ROWS))
    waves = np.stack([np.sin(x / (1.0 + k)) for k in range(latents)], axis=1)
    scales = models.Scales(1.0, scale, scale, 0.3)
    f = scale * waves if has_units else np.clip(scale, 0.0, 8.0) * waves
    y = draw(rng, f, scales)
    kernel = ng.kernels.Matern32(2.0, scale**2 if has_units else 1.0)
    kernel = kernel if latents == 1 else ng.kernels.Independent([kernel] * latents)
    return ng.infer(ng.Model(ng.GP(kernel), likelihood_of(scales)), x, y, METHODS[method], throw=False)


def ending_of(name, method, scale, seed):
    """How a run ended, and what there is to say about it if that is not well."""
    try:
        result = run(name, method, scale, seed)
    except ValueError as error:
        return "refused", str(error)
    except Exception as error:
        return "exception", f"{type(error).__name__}: {error}"
    return ("ok", "") if result.settled else (result.status.name.lower(), repr(result))


def survey(out, methods, seeds, seconds):
    """All runs that the file does not have yet, as long as there is time."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    done = {(entry["likelihood"], entry["method"], entry["scale"], entry["seed"]) for entry in map(json.loads, lines)}
    started = time.process_time()
    for method in methods:
        for name in models.LIKELIHOODS:
            missing = [(s, seed) for seed in seeds for s in SCALES if (name, method, s, seed) not in done]
            if not missing:
                continue
            if time.process_time() - started > seconds:
                return
            for scale, seed in missing:
                ending, about = ending_of(name, method, scale, seed)
                entry = {"likelihood": name, "method": method, "scale": scale, "seed": seed}
                with open(out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({**entry, "ending": ending, "about": about}) + "\n")
            jax.clear_caches()


def report(out):
    """Counts by method and ending, and every ending that is not good."""
    entries = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    counts = collections.Counter((entry["method"], entry["ending"]) for entry in entries)
    names = {entry["likelihood"] for entry in entries}
    print(f"{len(entries)} runs of {len(names)} likelihoods")
    for (method, ending), count in sorted(counts.items()):
        print(f"{method}, {ending}: {count}")
    for entry in entries:
        if entry["ending"] != "ok":
            where = f"{entry['likelihood']}:{entry['method']}:{entry['scale']:g}:{entry['seed']}"
            print(f"{where}: {entry['ending']}, {entry['about'][:120]}")


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("starts.jsonl"))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=np.inf, help="of CPU, after which no new program is begun")
    parser.add_argument("--replay", help="likelihood:method:scale:seed")
    parser.add_argument("--report", action="store_true", help="only read the file")
    given = parser.parse_args()
    if given.replay:
        name, method, scale, seed = given.replay.split(":")
        print(run(name, method, float(scale), int(seed)).summary())
        return
    warnings.simplefilter("ignore")
    if not given.report:
        survey(given.out, given.methods, given.seeds, given.seconds)
    report(given.out)


if __name__ == "__main__":
    main()
