"""How many of the demo's held-out captions are drawn exactly, plainly, with guessed codes and with int8 weights.

Usage: python tests/benchmarks/drawn_scenes.py [DEMO_OUTPUT]

Needs the output of `make demo`; nothing in it changes. The same captions, seed and judge as the demo's own; where two
ways give the same codes they give the same pictures, so the shares differ by what differs in the codes. Held-out loss
is that of `dalle-collab evaluate`; guesses have none of their own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import snapshot_download
from measurement import Row, write_results

from hub_tools.local_hub.local_hub_process import LocalHub
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.demo.scenes.caption_judge import SceneScore, held_out_scene_captions, score_drawings
from pipelines.demo.shipped_models import PRETRAINED_CLIP, PRETRAINED_CODEC
from pipelines.generation.generation_options import GenerationOptions
from pipelines.generation.image_generation import TextToImage, load_text_to_image
from pipelines.generation.text_to_image import rank_candidates, sample_candidates

RUN = "demo/scenes"
NUM_SCENES, NUM_PAIRS = 400, 100
WAYS = {"plain": ("published", 1), "guessed codes": ("published", 8), "int8 weights": ("int8", 1)}
"""The weights, and how many codes a pass works on."""


def drawn(bundle: TextToImage, captions: Sequence[str], window: int) -> tuple[torch.Tensor, list[SceneScore]]:
    """Return all candidates' codes, (caption, candidate, image), and the scores of CLIP's choices and of the first."""
    options = GenerationOptions(
        num_candidates=16, keep=1, batch_size=256, sampling=SamplingOptions(top_k=64, temperature=0.7, window=window)
    )
    codes = sample_candidates(bundle, captions, options)
    best, first = [], []
    for caption, candidates in zip(captions, codes, strict=True):
        (chosen,) = rank_candidates(bundle, caption, candidates, options)
        (single,) = rank_candidates(bundle, caption, candidates[:1], options)
        best.append(np.asarray(chosen.image))
        first.append(np.asarray(single.image))
    return codes, score_drawings(captions, best, first)


def held_out_losses(environment: dict[str, str]) -> tuple[float, float]:
    """Return the loss on held-out records in float32, and with int8 weights."""
    command = [
        sys.executable, "-m", "pipelines.command_line.main", "evaluate", RUN, "--compare", RUN, "--compare-precision",
        "int8", "--records", "142", "--drawings", "1", "--training-records", "0", "--json",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        command += ["--output", folder]
        report = json.loads(subprocess.check_output(command, env=os.environ | environment, text=True))
    plain, int8 = ({one["name"]: one["value"] for one in report[place]["figures"]} for place in ("first", "second"))
    return plain["loss"], int8["loss"]


def measure(folder: Path, num_scenes: int, num_pairs: int) -> list[Row]:
    """Draw the captions in each way with the checkpoint of a folder, and compare with the plain one."""
    captions = held_out_scene_captions(num_scenes, num_pairs)
    plain_codes, plain_scores, rows = None, [], []
    for way, (weights, window) in WAYS.items():
        bundle = load_text_to_image(folder, codec=PRETRAINED_CODEC, clip=PRETRAINED_CLIP, weights=weights)
        codes, scores = drawn(bundle, captions, window)
        plain_codes, plain_scores = (codes, scores) if plain_codes is None else (plain_codes, plain_scores)
        differing = (codes != plain_codes).any(dim=-1).float().mean().item()
        rows.append(Row(case=way, metric="candidates with another code", unit="share", ours=differing))
        for score, plain in zip(scores, plain_scores, strict=True):
            metric = f"captions of {score.kind} drawn exactly"
            rows.append(Row(case=way, metric=metric, unit="share", ours=score.exact_match, peer=plain.exact_match))
            alone, plain_alone = score.exact_match_without_ranking, plain.exact_match_without_ranking
            rows.append(Row(case=way, metric=f"{metric}, unranked", unit="share", ours=alone, peer=plain_alone))
    return rows


def main() -> None:
    """Serve a copy of the demo's Hub and measure the run that it holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo_output", nargs="?", type=Path, default=Path("demo-output"))
    arguments = parser.parse_args()
    if not (arguments.demo_output / "hub").is_dir():
        sys.exit(f"{arguments.demo_output} holds no demo's output. Run make demo first, or name the folder.")
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalHub(shutil.copytree(arguments.demo_output / "hub", Path(folder) / "hub")) as hub,
    ):
        token = hub.create_token("visitor", role="read")
        checkpoint = snapshot_download(RUN, endpoint=hub.endpoint, token=token, local_dir=Path(folder) / "checkpoint")
        rows = measure(Path(checkpoint), NUM_SCENES, NUM_PAIRS)
        hub_variables = dict(HF_ENDPOINT=hub.endpoint, HF_HOME=f"{folder}/home", HF_TOKEN=token)
        plain, int8 = held_out_losses(hub_variables)
    rows.append(Row(case="int8 weights", metric="held-out loss", unit="nats", ours=int8, peer=plain))
    write_results("drawn_scenes", rows)


if __name__ == "__main__":
    main()
