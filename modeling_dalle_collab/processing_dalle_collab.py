"""Turns captions into text ids, and is the one place that says which image codec and CLIP belong to a run."""

import torch
from transformers import BatchFeature, PreTrainedTokenizerBase, ProcessorMixin


class DalleCollabProcessor(ProcessorMixin):
    """Turns captions into the model's text ids with any fast tokenizer.

    `image_codec_repository` with its revision and fingerprint, and `clip_repository`, are kept in
    `processor_config.json`: the run's images were encoded with that codec, its candidates are ranked with that CLIP.
    """

    _auto_class = "AutoProcessor"  # type: ignore[assignment]  # transformers declares it only as None

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        image_codec_repository: str | None = None,
        image_codec_revision: str | None = None,
        image_codec_fingerprint: str | None = None,
        clip_repository: str | None = None,
        text_sequence_length: int = 256,
        pad_token_id: int = 1,
    ) -> None:
        super().__init__(tokenizer)
        self.image_codec_repository = image_codec_repository
        self.image_codec_revision = image_codec_revision
        self.image_codec_fingerprint = image_codec_fingerprint
        self.clip_repository = clip_repository
        self.text_sequence_length = text_sequence_length
        self.pad_token_id = pad_token_id
        _check_sizes(tokenizer, text_sequence_length, pad_token_id)

    def __call__(self, text: str | list[str]) -> BatchFeature:
        """Return `input_ids`: (batch, text_sequence_length) int64, cut or padded with `pad_token_id` on the right.

        No special tokens are added. A caption that is too long loses its end, as in training. Raises `ValueError` if
        a caption is not a string.
        """
        captions = [text] if isinstance(text, str) else list(text)
        for index, caption in enumerate(captions):
            if not isinstance(caption, str):
                raise ValueError(
                    f"Caption {index} is {caption!r} ({type(caption).__name__}), expected a string. "
                    f"Drop records without a caption before training."
                )
        input_ids = torch.full((len(captions), self.text_sequence_length), self.pad_token_id)
        # Long captions are cut here; the tokenizer would warn that the model could not take them.
        pieces = self.tokenizer(captions, add_special_tokens=False, verbose=False)["input_ids"] if captions else []
        for row, ids in zip(input_ids, pieces, strict=True):
            kept = torch.tensor(ids[: self.text_sequence_length], dtype=torch.int64)
            row[: len(kept)] = kept
        return BatchFeature({"input_ids": input_ids})


def _check_sizes(tokenizer: PreTrainedTokenizerBase, text_sequence_length: int, pad_token_id: int) -> None:
    if text_sequence_length < 1:
        raise ValueError(f"text_sequence_length is {text_sequence_length}, expected at least 1.")
    if not 0 <= pad_token_id < len(tokenizer):
        raise ValueError(
            f"pad_token_id is {pad_token_id}, expected an id of the tokenizer, which has {len(tokenizer)}: "
            f"use the model configuration's pad_token_id."
        )


__all__ = ["DalleCollabProcessor"]
