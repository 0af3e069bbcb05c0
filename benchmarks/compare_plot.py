"""Draws docs/peers.svg from what `compare.py` measured, and prints Markdown tables of it.

python benchmarks/compare_plot.py [RESULTS.json] [--svg docs/peers.svg]
"""

import argparse
from pathlib import Path

import msgspec
from peers.results import Results
from peers.svg import svg
from peers.tables import markdown

HERE = Path(__file__).parent


def main() -> None:
    """Does what the head of this file says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=HERE / "results" / "peers.json")
    parser.add_argument("--svg", type=Path, default=HERE.parent / "docs" / "peers.svg")
    options = parser.parse_args()
    results = msgspec.json.decode(options.results.read_bytes(), type=Results)
    options.svg.write_text(svg(results), encoding="utf-8")
    print(markdown(results))


if __name__ == "__main__":
    main()
