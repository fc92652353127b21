"""A table of what became of samples or rows."""

from collections.abc import Mapping


def print_outcomes(success: str, num_successes: int, others: Mapping[str, int]) -> None:
    """Print how many succeeded and how many did not, by reason, with their shares."""
    from rich.table import Table

    from hub_tools.printing.consoles import open_console

    table = Table("", "samples", "share")
    num_samples = num_successes + sum(others.values())
    for name, count in [(success, num_successes), *others.items()]:
        table.add_row(name.replace("_", " "), str(count), f"{100 * count / max(1, num_samples):.1f} %")
    open_console().print(table)
