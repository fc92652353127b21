"""`dalle-collab` in a Python in which hivemind cannot be imported; ends with 3 if something has loaded it."""

import sys

sys.modules["hivemind"] = None  # type: ignore[assignment]


def main() -> None:
    from pipelines.command_line.main import main as run

    try:
        run()
    finally:
        if any(name.partition(".")[0] == "hivemind" and module is not None for name, module in sys.modules.items()):
            sys.exit(3)


if __name__ == "__main__":
    main()
