"""A run's five Spaces on this machine, each from its bundle in a separate process, linked to each other."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hub_tools.local_hub import LocalHub
from hub_tools.publishing.space_bundling import bundle_space
from hub_tools.publishing.space_publishing import settings_of_spaces
from pipelines.tools.demo.configured_hub import ConfiguredHub
from pipelines.tools.demo.free_ports import take_ports
from pipelines.tools.demo.running.finished_work import remove
from pipelines.tools.demo.running.output_folder import sole_demo
from pipelines.tools.demo.running.programs import VARIABLE, Program, mark_of_all, stop_all
from pipelines.tools.demo.running.progress_lines import ProgressLines
from pipelines.tools.demo.stages import Stages

SPACES_FOLDER = "spaces"
SPACES_FILE = "spaces.json"
VISITOR = "visitor"
"""User of the demo's Hub who joins through a page."""

FIRST_PORT = 8301
TITLES = {
    "landing_page": "what the run is and how it is doing",
    "training_dashboard": "every figure of the training",
    "text_to_image_demo": "draw with the newest checkpoint",
    "memory_calculator": "what fits on which machine",
    "join_training": "join with this machine",
}


@dataclass(frozen=True, kw_only=True)
class SpacesPlan:
    """Which run the Spaces show."""

    run: str
    """Repository `ORG/RUN`."""

    folder: Path
    """Folder for the bundles; `spaces.json` in it lists the pages."""

    endpoint: str
    """The Hub's address."""

    token: str
    """Token that the joining page joins with."""

    examples: str = ""
    """Captions to try, with a vertical bar between them."""

    is_online: bool = False
    """Whether the Hub is the one that this machine is configured for."""


class RunningSpaces:
    """Use as a context manager: the Spaces start at once and stop with the block; `addresses` lists them."""

    def __init__(self, plan: SpacesPlan, stages: Stages) -> None:
        self._plan, self._stages = plan, stages
        self._programs: dict[str, Program] = {}
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> "RunningSpaces":
        ports = dict(zip(TITLES, take_ports(FIRST_PORT, len(TITLES)), strict=True))
        self.addresses = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        try:
            for name, port in ports.items():
                self._start(name, port)
        except BaseException:
            self.__exit__()
            raise
        plan = self._plan
        values = dict(run=plan.run, examples=plan.examples, addresses=self.addresses, is_online=plan.is_online)
        (self._plan.folder / SPACES_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        for name, program in self._programs.items():
            if program.exit_code is not None:
                words = self._stages.last_words(f"space-{name}")
                self._stages.lines.say(f"The page {name} ended with exit code {program.exit_code}: {words}")
        stop_all(list(self._programs.values()))

    def _start(self, name: str, port: int) -> None:
        remove(self._plan.folder / name)  # a bundle that an earlier demo was killed in the middle of is none
        bundle, settings = self._plan.folder / name, settings_of_spaces(self._plan.run, self.addresses)[name]
        if name == "landing_page":
            bundle_space(name, bundle, dict(settings, hub=self._plan.endpoint))
            command, settings = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], {}
        else:
            bundle_space(name, bundle)
            command = [sys.executable, "app.py"]
        # One port: where another program was faster, Gradio would take the next page's.
        ports = {"GRADIO_SERVER_PORT": str(port), "GRADIO_NUM_PORTS": "1"}
        environment = {**ports, "GRADIO_SERVER_NAME": "127.0.0.1", **settings}
        if name == "text_to_image_demo" and self._plan.examples:
            environment["EXAMPLES"] = self._plan.examples
        token = self._plan.token if name == "join_training" else ""
        self._programs[name] = self._stages.start_program(
            command, folder=bundle, environment=environment, token=token, log_name=f"space-{name}"
        )


def describe_spaces(addresses: Mapping[str, str]) -> list[str]:
    """Return a line per page: its address and what it shows."""
    return [f"{address}  {TITLES[name]}" for name, address in addresses.items()]


def read_addresses(output: Path) -> dict[str, str]:
    """Return where the pages of the demo in a folder are; empty if it had none."""
    file = output / SPACES_FOLDER / SPACES_FILE
    return json.loads(file.read_text(encoding="utf-8"))["addresses"] if file.exists() else {}


def look_around(output: Path, console: Console) -> None:
    """Serve the Hub and the pages of a demo that has been run, until Ctrl-C.

    Raises:
        ValueError: there is no demo with pages in the folder.
    """
    file = output / SPACES_FOLDER / SPACES_FILE
    if not file.exists():
        raise ValueError(f"{output} has no demo with pages. Run one first: dalle-collab demo run")
    values = json.loads(file.read_text(encoding="utf-8"))
    lines = ProgressLines(console)
    is_online = values.get("is_online", False)
    with sole_demo(output, lines), opened_hub(output, lines, is_online=is_online) as hub:
        stages = Stages(output, hub.environment(), console)
        plan = SpacesPlan(
            run=values["run"], folder=file.parent, endpoint=hub.endpoint, token=hub.token_of(VISITOR),
            examples=values["examples"], is_online=is_online,
        )  # fmt: skip
        with RunningSpaces(plan, stages) as running:
            console.print("The pages of the run; Ctrl-C stops them:")
            for line in [*describe_spaces(running.addresses), f"{hub.endpoint}  the Hub"]:
                console.print(f"  {line}", highlight=False)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


@contextlib.contextmanager
def opened_hub(output: Path, lines: ProgressLines, *, is_online: bool) -> Iterator[LocalHub | ConfiguredHub]:
    """Serve the Hub in a demo's folder for the length of the block, or give the one that is configured."""
    if is_online:
        yield ConfiguredHub()
        return
    hub = LocalHub(output / "hub", environment={VARIABLE: f"{mark_of_all(output)}hub"})
    with lines.doing("Starting the demo's Hub"):
        hub.start()
    try:
        yield hub
    finally:
        hub.stop()
