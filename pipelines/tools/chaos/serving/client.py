"""Somebody who uses what is served, again and again, and compares it with what the own copy of the model makes.

Usage: customer.py ORG/RUN EVENTS WHAT; `WHAT` is `drawings`, of drawing servers, or `layers`, of block servers.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from modeling_dalle_collab import DalleCollabForConditionalGeneration
    from pipelines.tools.chaos.chaotic_peer import EventLog

NUM_CANDIDATES = 24
NUM_COMPUTED = 2
PATIENCE_SECONDS = 20.0
SECONDS_BETWEEN_QUESTIONS = 0.2


def draw_again_and_again(repository: str, events: "EventLog") -> None:
    """Have pictures drawn and audited; write whether they are those of this machine, and who was named."""
    from pipelines.features.serving.draw.client import NobodyDrawsError
    from pipelines.features.serving.draw.drawing_client import connect

    with connect(repository, audits=True, patience_seconds=PATIENCE_SECONDS) as client:
        model = own_model(repository)
        for seed in itertools.count():
            sampling, started = client.request("picture number 7", seed=seed), time.monotonic()
            expected = model.generate_image_codes(sampling.input_ids, num_candidates=NUM_CANDIDATES, seed=seed)[0]
            try:
                drawn = client.draw(sampling, range(NUM_CANDIDATES))
            except NobodyDrawsError as error:
                events.write("nobody", text=str(error))
                continue
            events.write(
                "drawn",
                is_equal=torch.equal(torch.stack([one.codes for one in drawn.candidates]), expected),
                num_lost=drawn.num_lost,
                named=[complaint.claim.server for complaint in drawn.complaints],
                servers=sorted({one.server.peer for one in drawn.candidates}),
                seconds=time.monotonic() - started,
            )
            time.sleep(SECONDS_BETWEEN_QUESTIONS)


def compute_again_and_again(repository: str, events: "EventLog") -> None:
    """Draw across block servers; write whether the codes are those of this machine, and which layers are missing."""
    from pipelines.core.swarm.streams.refusals import PeerGoneError
    from pipelines.features.serving.blocks.client.distributed_model import DistributedModel
    from pipelines.features.serving.blocks.client.stream_swarm import join_as_client
    from pipelines.features.serving.blocks.routing import NoChainError

    with join_as_client(repository) as swarm:
        own = own_model(repository)
        text = torch.full((1, own.config.text_sequence_length), own.config.pad_token_id)
        model = DistributedModel.from_pretrained(repository, swarm=swarm, patience_seconds=1.0)
        for seed in itertools.count():
            started = time.monotonic()
            try:
                codes = model.generate_image_codes(text, num_candidates=NUM_COMPUTED, seed=seed, window=1)
            except NoChainError as error:
                events.write("hole", missing=[[hole.start, hole.stop] for hole in error.missing], text=str(error))
            except PeerGoneError as error:
                events.write("gone", text=str(error))
            else:
                expected = own.generate_image_codes(text, num_candidates=NUM_COMPUTED, seed=seed, window=1)
                seconds = time.monotonic() - started
                events.write("computed", is_equal=torch.equal(codes, expected), seconds=seconds)
            time.sleep(SECONDS_BETWEEN_QUESTIONS)


def own_model(repository: str) -> "DalleCollabForConditionalGeneration":
    """Return the run's model as this machine has it."""
    from hub_tools.run_files import MODEL_FILES
    from pipelines.features.publishing.repository.snapshot import RunSnapshot
    from pipelines.tasks.text_to_image.generation.image_generation import load_drawing_parts

    return load_drawing_parts(RunSnapshot.read(repository).download_signed(MODEL_FILES), device="cpu").model


WHAT = {"drawings": draw_again_and_again, "layers": compute_again_and_again}


def main(repository: str, path: str, what: str) -> None:
    """Use what is served until the process is killed."""
    from hub_tools.endpoint import prepare_hub_client
    from hub_tools.processes.process_group import guard_process_group
    from pipelines.tools.chaos.chaotic_peer import EventLog

    guard_process_group()
    prepare_hub_client()
    torch.set_num_threads(1)
    events = EventLog(Path(path))
    events.write("started")
    WHAT[what](repository, events)


if __name__ == "__main__":
    main(*sys.argv[1:])
