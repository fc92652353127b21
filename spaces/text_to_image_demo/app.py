"""A Space that draws pictures for prompts with the newest checkpoint of a collaborative training run."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import gradio as gr
from PIL import Image

from hub_tools.endpoint import prepare_hub_client
from hub_tools.one_line_errors import explain_error
from pipelines.generation.generation_options import GenerationOptions, require_prompts
from pipelines.generation.newest_checkpoint import NewestCheckpoint
from pipelines.generation.picture_grid import enlarged
from pipelines.generation.text_to_image import generate_images_for_prompts
from pipelines.page_style import PAGE_STYLE


@dataclass(frozen=True, kw_only=True)
class SpaceSettings:
    """What the owner of the Space chooses."""

    model_repository: str
    """Repository `ORG/RUN` of the run, or a folder."""
    codec: str | None = None
    """Codec in place of the run's."""
    clip: str | None = None
    """CLIP in place of the run's."""
    max_candidates: int = 128
    """Most candidates that a visitor may ask for."""
    device: str = "cpu"
    """Torch device."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings; ValueError where the run is not named."""
        repository = environment.get("MODEL_REPOSITORY", "").strip()
        if not repository:
            raise ValueError("MODEL_REPOSITORY is not set. Name the run: MODEL_REPOSITORY=ORG/RUN")
        return cls(
            model_repository=repository,
            codec=environment.get("CODEC_REPOSITORY") or None,
            clip=environment.get("CLIP_REPOSITORY") or None,
            max_candidates=int(environment.get("MAX_CANDIDATES", "128")),
            device=environment.get("DEVICE", "cpu"),
        )


def build_interface(settings: SpaceSettings) -> gr.Blocks:
    """Return the page; the checkpoint is loaded at the first prompt."""
    checkpoint = NewestCheckpoint(
        settings.model_repository, codec=settings.codec, clip=settings.clip, device=settings.device
    )

    def draw(
        prompt: str,
        candidates: float,
        keep: float,
        top_k: float,
        top_p: float,
        temperature: float,
        seed: float,
        progress: gr.Progress = gr.Progress(),
    ) -> tuple[list[tuple[Image.Image, str]], str]:
        try:
            require_prompts([prompt])
            options = GenerationOptions(
                num_candidates=int(candidates),
                keep=int(keep),
                top_k=int(top_k),
                top_p=top_p,
                temperature=temperature,
                seed=int(seed),
            )
            progress(0, desc="loading the newest checkpoint")
            ranked = generate_images_for_prompts(
                checkpoint.get(),
                [prompt],
                options,
                on_progress=lambda stage, done, total, detail: progress((done, total), desc=stage),
            )[0]
        except (ValueError, OSError) as error:
            return [], explain_error(error)
        pictures = [(enlarged(picture.image), f"CLIP {picture.score:.2f}") for picture in ranked]
        return pictures, f"The best {len(ranked)} of {options.num_candidates} candidates, best first."

    most = settings.max_candidates
    with gr.Blocks(title="Text to image, trained together") as interface:
        gr.Markdown(
            f"# Text to image, trained together\nDrawn by the newest checkpoint of `{settings.model_repository}`."
        )
        with gr.Row():
            prompt = gr.Textbox(label="Prompt", placeholder="What the pictures should show", scale=4)
            button = gr.Button("Draw", variant="primary", scale=1)
        gallery = gr.Gallery(label="Pictures", columns=4, object_fit="contain")
        message = gr.Markdown()
        with gr.Accordion("Settings", open=False):
            candidates = gr.Slider(1, most, value=min(32, most), step=1, label="Candidates")
            keep = gr.Slider(1, min(16, most), value=min(4, most), step=1, label="Keep")
            top_k = gr.Number(256, label="Top-k (0: all codes)", precision=0)
            top_p = gr.Slider(0.05, 1.0, value=1.0, step=0.05, label="Top-p")
            temperature = gr.Slider(0.0, 2.0, value=1.0, step=0.05, label="Temperature")
            seed = gr.Number(0, label="Seed", precision=0)
        inputs = [prompt, candidates, keep, top_k, top_p, temperature, seed]
        gr.on([button.click, prompt.submit], draw, inputs, [gallery, message], api_name="draw", concurrency_limit=1)
    return interface


def main() -> None:
    """Start the Space with the settings of the environment."""
    prepare_hub_client()
    try:
        settings = SpaceSettings.from_environment(os.environ)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    build_interface(settings).queue(max_size=32).launch(css=PAGE_STYLE)


if __name__ == "__main__":
    main()
