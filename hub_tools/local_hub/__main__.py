"""The process behind `LocalHub`: prints its endpoint as the only line, and exits with its parent."""

import argparse
import json
import os
from pathlib import Path


def main() -> None:
    """Serve until told to stop, or until the parent process has exited."""
    from ..printing.printable import one_line
    from .controls.hub_controls import CONTROL_TOKEN_VARIABLE, RateLimits
    from .server import ServerOptions, serve

    parser = argparse.ArgumentParser(prog="python -m hub_tools.local_hub")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--part-mebibytes", type=int, default=256)
    parser.add_argument("--rate-limits", type=lambda text: RateLimits(**json.loads(text)))
    arguments = parser.parse_args()
    options = ServerOptions(
        root=arguments.root,
        port=arguments.port,
        part_mebibytes=arguments.part_mebibytes,
        exit_with_parent=True,
        rate_limits=arguments.rate_limits,
        control_token=os.environ.pop(CONTROL_TOKEN_VARIABLE, ""),
    )
    try:
        serve(options, lambda endpoint: print(endpoint, flush=True))
    except (ValueError, OSError) as error:
        raise SystemExit(one_line(error)) from None


if __name__ == "__main__":
    main()
