"""Power EP on the paper's regression network, eight latents a row: one step, also of another version of this library.

    python benchmarks/network.py [--before ../old/src] [--repeats 5] [--out FILE]

400 rows, of which a third have two of three outputs missing. Nodes are for all latents: 128 quasi-random ones, as many
as the paper's rule has, but without negative weights. Versions take turns on one core, and a ratio is the median over
the turns. Sites become so precise that rounding alone moves the means by 1e-7.
"""

import argparse
import json
import tempfile
from pathlib import Path

from markov import Tools, largest, machine, medians, milliseconds, ratio, spread, table

SOURCE = Path(__file__).resolve().parent.parent / "src"


def main() -> None:
    given = parse()
    results = {"machine": machine(), "repeats": given.repeats}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        results["steps"] = [compare(given)]
    table(
        "one step of power EP, regression network (400 rows)",
        results["steps"],
        {
            "now, ms": lambda row: milliseconds(row["seconds"].get("now")),
            "before, ms": lambda row: milliseconds(row["seconds"].get("before")),
            "before by now": lambda row: spread(row["speedup"]),
            "apart": lambda row: largest(row["apart"]),
        },
    )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--before", type=Path, help="the folder src of another version")
    options.add_argument("--repeats", type=int, default=5, help="turns of everything (5)")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def compare(given: argparse.Namespace) -> dict:
    with Tools(given, None) as tools:
        for name, source in {"now": SOURCE, "before": given.before}.items():
            if source is not None:
                tools.start(name, "newtongp_network.py", source=str(source.resolve()))
        seconds = tools.alternate({name: (name, "step") for name in tools.ready})
        return {
            "seconds": medians(seconds),
            "speedup": ratio(seconds, "before", "now"),
            "apart": tools.apart("now", "before"),
        }


if __name__ == "__main__":
    main()
