"""Says which figures in the documents are not what the last benchmarks wrote: python tests/verify_figures.py

The comparisons are those of `test_measured_figures.py`. Exit code 1 if a figure is stale.
"""

import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("test_measured_figures.py")


class Figures:
    """Prints what failed, and nothing else."""

    def __init__(self) -> None:
        self.num_checks = self.num_stale = 0
        self.not_checked: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.not_checked = sorted(items[0].module.NOT_CHECKED) if items else []  # type: ignore[attr-defined]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.num_checks += report.when == "call"
        if report.failed:
            self.num_stale += 1
            print(report.longreprtext, end="\n\n")


def main() -> int:
    """Compare all figures, and say what is stale and what was not compared."""
    figures = Figures()
    code = pytest.main([str(CHECKS), "-o", "addopts=", "-p", "no:terminal", "-p", "no:xdist"], plugins=[figures])
    print(f"{figures.num_checks} checks of figures, {figures.num_stale} stale.")
    print(f"Nothing compares these results with the documents: {', '.join(figures.not_checked)}")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
