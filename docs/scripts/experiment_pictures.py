"""The pictures of docs/experiments.md: the variational methods of the paper on its motorcycle data.

    PYTHONPATH=. python docs/scripts/experiment_pictures.py           # some minutes
    PYTHONPATH=. python docs/scripts/experiment_pictures.py --resume  # go on after an interruption

Published curves are drawn wide and pale behind ours.
"""

import argparse
from pathlib import Path

from reproduction import conduct, figures

IMAGES = Path(__file__).resolve().parents[1] / "images"
METHODS = (
    "heuristic VI",
    "Riemannian grads VI",
    "variational Gauss-Newton",
    "variational Gauss-Newton (as published)",
    "variational quasi-Newton",
    "first-order VI",
)


def main() -> None:
    """Run the methods on all folds, and draw their curves and an example of the posterior."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--resume", action="store_true", help="leave out methods that an interrupted run has done")
    options.add_argument("--keep", type=Path, default=Path("reproduced") / "motorcycle_runs", help="a folder for runs")
    given = options.parse_args()
    study = conduct("motorcycle", METHODS, with_defaults=False, keep=given.keep, resume=given.resume)
    figures.results(study).savefig(IMAGES / "experiments_motorcycle_vi.png", dpi=80)
    example = figures.heteroscedastic_example(study)
    assert example is not None
    example.savefig(IMAGES / "experiments_motorcycle_posterior.png", dpi=70)


if __name__ == "__main__":
    main()
