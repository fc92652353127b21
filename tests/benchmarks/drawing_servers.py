"""Candidates per second of one and of three drawing servers, and of three of which one is killed.

Usage: python tests/benchmarks/drawing_servers.py [--quick]

Servers are real processes on one machine, each paced to the same rate, which is far below what the machine can do: what
is measured is how well the work is spread, not the machine. The Hub is the embedded one, the model tiny.
"""

import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "support"))

import torch
from drawn_runs import DrawnRun, drawn_run
from forked_processes import ForkedProcess, fork_server, printed_json
from measurement import Row, write_results
from support_files import SUPPORT

from hub_tools.local_hub import LocalHub
from modeling_dalle_collab import DalleCollabForConditionalGeneration, DalleCollabProcessor

CANDIDATES, CODES_PER_SECOND, NUM_REPEATS = 128, 240, 3


def asked(run: DrawnRun, folder: Path, number: int, kill_at: int | None = None) -> dict:
    """Have the candidates drawn by the servers there are; kill the last one when so many candidates are there."""
    log, progress = folder / f"asker-{time.monotonic_ns()}.log", folder / "progress"
    progress.write_text("0")
    words = [run.name, str(number), str(progress)]
    asker = ForkedProcess(fork_server(run.environment), str(SUPPORT / "swarm_asker.py"), words, log, run.environment)
    if kill_at is not None:
        while int(progress.read_text() or 0) < kill_at and asker.poll() is None:
            time.sleep(0.02)
        run.servers[-1].signal(signal.SIGKILL)
    assert asker.wait(600) == 0, log.read_text()
    return printed_json(log)


def rows_of(run: DrawnRun, folder: Path, quick: bool) -> list[Row]:
    """Return rows about one server, three, and three of which one dies."""
    number, repeats = (32, 1) if quick else (CANDIDATES, NUM_REPEATS)
    processor = DalleCollabProcessor.from_pretrained(run.folder / "run")
    model = DalleCollabForConditionalGeneration.from_pretrained(run.folder / "run").eval()
    text = torch.as_tensor(processor(text=["a small red star"])["input_ids"])
    here = model.generate_image_codes(text, num_candidates=number)[0].tolist()
    answers: dict[str, list[dict]] = {}

    def ask(case: str, **how: int) -> None:
        answers.setdefault(case, []).append(asked(run, folder, number, **how))

    run.serve("--max-codes-per-second", CODES_PER_SECOND)
    for _ in range(repeats):
        ask("one server")
    for _ in range(2):
        run.serve("--max-codes-per-second", CODES_PER_SECOND)
    for _ in range(repeats):
        ask("three servers")
    for _ in range(repeats):
        ask("three servers, one killed", kill_at=number // 4)
        run.serve("--max-codes-per-second", CODES_PER_SECOND)
    ceiling = CODES_PER_SECOND / model.config.num_image_codes
    rows, one = [], None
    for case, answered in answers.items():
        rate = sorted(number / answer["seconds"] for answer in answered)[len(answered) // 2]
        one = one or rate
        most = ceiling * (1 if case == "one server" else 3)
        differing = sum(codes != own for answer in answered for codes, own in zip(answer["codes"], here, strict=True))
        rows += [
            Row(case=case, metric="candidates", unit="1/s", ours=rate, floor=most),
            Row(case=case, metric="beside one server", unit="", ours=rate / one),
            Row(case=case, metric="candidates that differ from one machine's", unit="", ours=differing),
            Row(case=case, metric="drawn twice", unit="candidates", ours=max(a["num_lost"] for a in answered)),
        ]
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as place, LocalHub(Path(place) / "hub") as hub:
        hub.alice_token = hub.create_user("alice")
        hub.create_organization("org", members={"alice": "admin"})
        (folder := Path(place) / "run").mkdir()
        with drawn_run(hub, folder, "paced-run") as run:
            rows = rows_of(run, folder, "--quick" in sys.argv)
    write_results("drawing_servers", rows, is_quick="--quick" in sys.argv)


if __name__ == "__main__":
    main()
