"""The program that asks volunteers for drawings: reads requests from standard input, writes what comes of them.

All lines are JSON. The first one that is read has the arguments of `connect`; each further one asks for a drawing,
which ends the one before, or ends one. While it lives, the program writes a line every few seconds.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from pipelines.features.serving.draw.client import Drawn
    from pipelines.features.serving.draw.drawing_client import DrawingClient

ALIVE_SECONDS = 2.0
SECONDS_BETWEEN_NEWS = 0.2

Say = Callable[[Mapping[str, object]], None]


class DrawingJob:
    """One drawing that was asked for."""

    def __init__(
        self, client: "DrawingClient", asked: Mapping[str, Any], say: Say, on_lost: Callable[[], None]
    ) -> None:
        """Begin; `on_lost` is called if nobody draws, so that a fresh node may look for the swarm."""
        import torch

        from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions

        self.number = asked["number"]
        self._client, self._say, self._on_lost = client, say, on_lost
        self._num_previewed, self._known, self._told_at = asked["num_previewed"], dict[int, list[int]](), 0.0
        given = asked["image_prompt"]
        sampling = client.request(
            asked["prompt"],
            seed=asked["seed"],
            options=SamplingOptions.from_mapping(asked["sampling"]),
            image_prompt=None if given is None else torch.tensor([given]),
        )
        candidates = range(asked["num_candidates"])
        self._future: Future[Drawn] = client.start(
            sampling, candidates, on_progress=self._on_progress, on_codes=self._on_codes
        )
        self._future.add_done_callback(self._on_end)

    def stop(self) -> None:
        """Draw no more, and tell nothing of it any more."""
        self._future.cancel()

    def _on_codes(self, candidate: int, codes: "Tensor") -> None:
        if candidate < self._num_previewed:
            self._known[candidate] = codes.tolist()

    def _on_progress(self, done: int, total: int) -> None:
        if time.monotonic() - self._told_at > SECONDS_BETWEEN_NEWS:
            self._told_at = time.monotonic()
            self._say(dict(number=self.number, done=done, total=total, known=sorted(self._known.items())))

    def _on_end(self, future: "Future[Drawn]") -> None:
        from hub_tools.one_line_errors import explain_error
        from pipelines.features.serving.draw.client import NobodyDrawsError
        from pipelines.features.serving.draw.who_drew import what_came

        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            is_lost = isinstance(error, NobodyDrawsError)
            self._say(dict(number=self.number, problem=explain_error(error), is_last=is_lost))
            if is_lost:
                self._on_lost()
            return
        drawn = future.result()
        self._say(
            dict(
                number=self.number,
                codes=[candidate.codes.tolist() for candidate in drawn.candidates],
                drawn_by=[candidate.server.name for candidate in drawn.candidates],
                remarks=what_came([drawn], is_audited=self._client.is_audited),
            )
        )


def draw_on_demand(settings: Mapping[str, Any], say: Say) -> None:
    """Enter the swarm and draw what is asked for until standard input ends, or nobody draws any more."""
    from pipelines.features.serving.draw.drawing_client import connect

    requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    alive = threading.Thread(target=_say_that_it_lives, args=(say,), daemon=True, name="alive")

    def on_event(event: str, **_values: object) -> None:
        # By then everything that forks has been started, and loading a model for audits may take long.
        if event in ("loading", "entered") and alive.ident is None:
            alive.start()

    with connect(on_event=on_event, **settings) as client:
        threading.Thread(target=_read_requests, args=(requests,), daemon=True, name="requests").start()
        drawing: DrawingJob | None = None
        while (line := requests.get()) is not None:
            asked = json.loads(line)
            if drawing is not None and (drawing.number == asked.get("stop") or "prompt" in asked):
                drawing.stop()
            if "prompt" in asked:
                try:
                    drawing = DrawingJob(client, asked, say, on_lost=lambda: requests.put(None))
                except ValueError as error:
                    say(dict(number=asked["number"], problem=str(error)))


def _say_that_it_lives(say: Say) -> None:
    while True:
        say({})
        time.sleep(ALIVE_SECONDS)


def _read_requests(requests: "queue.SimpleQueue[str | None]") -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put(None)


def main() -> None:
    """Draw for the page that has started this program; report an error in one line."""
    from hub_tools.endpoint import prepare_hub_client
    from hub_tools.one_line_errors import explain_error
    from hub_tools.processes.process_group import guard_process_group

    guard_process_group()
    # Only lines of JSON may reach the page, whatever a library prints.
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lock = threading.Lock()

    def say(values: Mapping[str, object]) -> None:
        with lock:
            print(json.dumps(values), file=lines, flush=True)

    prepare_hub_client()
    settings = json.loads(sys.stdin.readline())
    try:
        draw_on_demand(settings, say)
    except (ValueError, OSError) as error:
        say(dict(problem=explain_error(error)))
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
