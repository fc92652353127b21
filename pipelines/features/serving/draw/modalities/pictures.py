"""Pictures: a DALL-E model draws the codes of a grid, as many for each candidate."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig

from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration, DalleCollabProcessor
from modeling_dalle_collab.inputs_dalle_collab import check_image_prompt, check_text
from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.serving.draw.modalities.modality import Modality
from pipelines.tasks.text_to_image.generation.image_generation import DrawingContext, load_drawing_parts

if TYPE_CHECKING:
    from pipelines.features.serving.draw.requests import DrawRequest, SamplingRequest

CPU = torch.device("cpu")


class Pictures(Modality[DalleCollabForConditionalGeneration, DalleCollabProcessor]):
    """See `Modality`."""

    product, unit = "picture", "image codes"

    def check(self, ids: Tensor, given: Tensor | None, options: SamplingOptions, config: PretrainedConfig) -> None:
        check_text(ids, cast("DalleCollabConfig", config), CPU)
        if given is not None:
            check_image_prompt(given, cast("DalleCollabConfig", config), CPU, batch=1)

    def usual_options(self, config: PretrainedConfig) -> SamplingOptions:
        return SamplingOptions()

    def num_places(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        return min(options.num_image_codes or config.num_image_codes, config.num_image_codes)

    def num_numbers(self, options: SamplingOptions, config: PretrainedConfig) -> int:
        """See `Modality`: a shorter drawing is the beginning of the whole one."""
        return config.num_image_codes

    def num_symbols(self, config: PretrainedConfig) -> int:
        return config.codebook_size

    def every(self, config: PretrainedConfig) -> int:
        """See `Modality`: a row."""
        return config.image_grid_size

    def needed_bytes(self, asked: "DrawRequest", config: PretrainedConfig) -> int:
        return needed_bytes(config, len(asked.candidates), is_guided=asked.sampling.options.guidance_scale != 1)

    def most_bytes_of_one(self, config: PretrainedConfig) -> int:
        return needed_bytes(config, 1, is_guided=True)

    def ids_of(self, processor: DalleCollabProcessor, prompt: str) -> Tensor:
        return torch.as_tensor(processor(text=[prompt])["input_ids"])

    def rules_of(self, processor: DalleCollabProcessor) -> str:
        rules = processor.tokenizer.backend_tokenizer.to_str()
        return f"{processor.text_sequence_length} {processor.pad_token_id} {rules}"

    def read(self, folder: Path) -> tuple[DalleCollabProcessor, DalleCollabConfig]:
        processor = DalleCollabProcessor.from_pretrained(folder, trust_remote_code=False)
        return processor, DalleCollabConfig.from_pretrained(folder)

    def load(self, folder: Path, *, precision: str, device: str) -> DrawingContext:
        """See `Modality`; raises as `load_drawing_parts`."""
        parts = load_drawing_parts(folder, device=device)
        self.rounded(parts.model, precision)
        return parts

    def rounded(self, model: DalleCollabForConditionalGeneration, precision: str) -> None:
        if precision == "int8":
            model.use_int8_weights()
        elif precision == "bfloat16":
            model.bfloat16()

    def stream(
        self,
        model: DalleCollabForConditionalGeneration,
        samplings: Sequence["SamplingRequest"],
        numbers: Tensor,
        num_candidates: int,
    ) -> Iterator[Tensor]:
        given = [sampling.image_prompt for sampling in samplings if sampling.image_prompt is not None]
        return model.stream_image_codes(
            torch.cat([sampling.input_ids for sampling in samplings]).to(model.device),
            every=samplings[0].every,
            num_candidates=num_candidates,
            numbers=numbers,
            image_prompt=torch.cat(given).to(model.device) if given else None,
            **vars(samplings[0].options),
        )

    def measuring(self, model: DalleCollabForConditionalGeneration, num_candidates: int) -> Iterator[int]:
        input_ids = torch.full((1, model.config.text_sequence_length), model.config.pad_token_id, device=model.device)
        for codes in model.stream_image_codes(input_ids, every=1, num_candidates=num_candidates):
            yield codes.shape[2]

    @torch.no_grad()
    def logits_behind(
        self, model: DalleCollabForConditionalGeneration, sampling: "SamplingRequest", codes: Tensor
    ) -> Tensor:
        """See `Modality`; guided if wished."""
        missing = model.config.num_image_codes - codes.shape[1]
        whole = torch.nn.functional.pad(codes, (0, missing)).to(model.device)
        text = sampling.input_ids.to(model.device).expand(len(codes), -1)

        def image_logits(input_ids: Tensor) -> Tensor:
            hidden = model.model(input_ids, whole).last_hidden_state
            return model.block_logits(hidden)[1][:, : codes.shape[1]].float()

        logits, scale = image_logits(text), sampling.options.guidance_scale
        if scale == 1:
            return logits
        null = image_logits(torch.full_like(text, model.config.pad_token_id))
        return null + (logits - null) * scale

    def means(self, distances: Tensor, codes: Tensor, config: PretrainedConfig) -> Tensor:
        """See `Modality`: all places count."""
        return distances.mean(dim=1)


def needed_bytes(config: PretrainedConfig, num_samples: int, *, is_guided: bool, bytes_per_value: int = 4) -> int:
    """Return what drawing so many samples takes at most: keys and values of all layers, and logits."""
    places = config.num_image_codes + config.text_block_length
    kept = 2 * config.num_hidden_layers * places * config.num_attention_heads * config.head_dim * bytes_per_value
    logits = 16 * config.codebook_size * 8  # of a window's places, sorted and summed in float64
    return num_samples * (kept * (2 if is_guided else 1) + 4 * logits)


PICTURES = Pictures()
