"""Print the Markdown tables of a result file.

python benchmarks/table.py benchmarks/results/2030-01-31-0123abc-full.json
"""

import argparse
import json
from pathlib import Path

from report import markdown


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the Markdown tables of a result file.")
    parser.add_argument("result", type=Path)
    print(markdown(json.loads(parser.parse_args().result.read_text())), end="")


if __name__ == "__main__":
    main()
