"""Every likelihood from its default start, on data of scales from 1e-3 to 1e3: how often inference ends well.

python tests/campaigns/starts.py                 # counts by likelihood and method, and every ending that is not good
python tests/campaigns/starts.py --methods vi pl
"""

import argparse
import collections
import importlib.util
import sys
import warnings
from pathlib import Path

import numpy as np

import newtongp as ng


def _load(name):
    spec = importlib.util.spec_from_file_location(f"campaign_of_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = _load("models")
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
    return ng.infer(ng.Model(ng.GP(kernel), likelihood_of(scales)), x, y, method, throw=False)


def main():
    """Run all, and print what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    chosen = parser.parse_args().methods
    warnings.simplefilter("ignore")
    endings = collections.Counter()
    for name in models.LIKELIHOODS:
        for each in chosen:
            for scale in SCALES:
                try:
                    result = run(name, METHODS[each], scale)
                except ValueError as error:
                    endings["refused"] += 1
                    print(f"{name}, {each}: refused, {str(error)[:80]}", flush=True)
                    break
                ending = "ok" if result.settled else result.status.name.lower()
                endings[ending] += 1
                if ending != "ok":
                    print(f"{name}, {each}, scale {scale:g}: {result!r}", flush=True)
    print(dict(endings))


if __name__ == "__main__":
    main()
