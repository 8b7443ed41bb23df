"""Print the Markdown tables of a result file.

python benchmarks/table.py benchmarks/results/2030-01-31-0123abc-full.json
"""

import argparse
import json
from pathlib import Path

from report import markdown, summary


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the Markdown tables of a result file.")
    parser.add_argument("result", type=Path)
    parser.add_argument("--summary", action="store_true", help="all rates in one table")
    args = parser.parse_args()
    content = json.loads(args.result.read_text())
    print(summary(content) if args.summary else markdown(content), end="")


if __name__ == "__main__":
    main()
