"""Every published curve against ours, to the last iteration that can be compared: minutes to an hour per case study.

    python tests/campaigns/curves.py product                                  # all methods with a published curve
    python tests/campaigns/curves.py gprn --methods "quasi-Newton" --iterations 21

One line per method; the exit code is 1 where a curve is not the published one.
"""

import argparse
import io
import sys

from rich.console import Console

from reproduction import cases, study
from reproduction.catalogue import Entry

LOSS, SCORES = 1e-6, 1e-5
"""The largest relative differences: of losses, and of NLPDs and RMSEs, whose published predictions carry a jitter."""


def compared(case: cases.Case, names: list[str] | None) -> list[Entry]:
    """The methods with a published curve that they follow."""
    curves = study.published_curves(case.name)
    found = study.choose_entries(case.name, names)
    return [entry for entry in found if (entry.curve or entry.name) in curves and entry.last_compared(case) > 0]


def compare(case: cases.Case, entry: Entry, iterations: int | None) -> bool:
    """Run one method on all splits, and say how far its mean curves are from the published ones."""
    last = min(entry.last_compared(case), iterations or case.iterations)
    quiet = Console(file=io.StringIO())
    found = study.conduct(case.name, [entry.name], iterations=last, with_defaults=False, console=quiet)
    agreement = found.agreement(found.outcomes[0])
    assert agreement is not None
    scores = max(agreement.nlpd, agreement.rmse or 0.0)
    same = agreement.loss < LOSS and scores < SCORES
    rmse = "" if agreement.rmse is None else f"  RMSE {agreement.rmse:.0e}"
    verdict = "" if same else "  NOT THE PUBLISHED CURVE"
    differences = f"loss {agreement.loss:.0e}  NLPD {agreement.nlpd:.0e}{rmse}"
    print(f"{entry.name:40s} k ≤ {agreement.until:4d}  {differences}{verdict}", flush=True)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=list(cases.CASES))
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--iterations", type=int, help="stop earlier than the last iteration that can be compared")
    choices = parser.parse_args()
    case = cases.CASES[choices.case]()
    same = [compare(case, entry, choices.iterations) for entry in compared(case, choices.methods)]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
