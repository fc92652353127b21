"""What a tiny language run needs: text, a tokenizer for it, small models, settings."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerFast

from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.demo.language.tokenizer import train_text_tokenizer

SEQUENCE_LENGTH = 32
VOCAB_SIZE = 300
NUM_DOCUMENTS = 60
SUBJECTS = ("the old house", "a small ship", "our garden", "the north wind", "her brother", "that long road")
VERBS = ("stood near", "went past", "looked over", "was never far from", "came back to")

ALBERT = dict(
    model_type="albert", embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=64,
)  # fmt: skip
GPT2 = dict(model_type="gpt2", n_embd=32, n_layer=2, n_head=2, n_positions=64)
LLAMA = dict(
    model_type="llama", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=True,
)  # fmt: skip
ROBERTA = dict(
    model_type="roberta", hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=64,
)  # fmt: skip


def sentence(number: int) -> str:
    """Return a sentence that its number decides."""
    subject, other = SUBJECTS[number % 6], SUBJECTS[(number // 6 + 1 + number) % 6]
    return f"{subject.capitalize()} {VERBS[number % 5]} {other} {number} times."


def document(number: int) -> str:
    """Return a document of one to five sentences."""
    return " ".join(sentence(number * 7 + place) for place in range(1 + number % 5))


DOCUMENTS = tuple(document(number) for number in range(NUM_DOCUMENTS))


def tiny_tokenizer(task: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of `VOCAB_SIZE` tokens for a task."""
    return train_text_tokenizer(DOCUMENTS, VOCAB_SIZE, fills_masks=task == "fill-mask", sequence_length=SEQUENCE_LENGTH)


def language_run(task: str, model: dict, **settings: object) -> TrainingRun:
    """Return a tiny language run; `task_settings` among the settings are added to the usual ones."""
    values = dict(
        run_id="language",
        task=task,
        model_config={"vocab_size": VOCAB_SIZE, "pad_token_id": 0} | model,
        dataset_repository="org/tiny-text",
        dataset_revision="main",
        target_batch_size=512,
        held_out_share=0.2,
        num_evaluation_records=10,
    )
    task_settings = dict(sequence_length=SEQUENCE_LENGTH) | settings.pop("task_settings", {})
    return TrainingRun(**values | settings, task_settings=task_settings)


ROWS_PER_BLOCK = 16


def write_texts(folder: Path, columns: dict[str, list], split: str = "train") -> Path:
    """Write one Parquet shard of columns into `folder/data`; return the folder."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "data" / f"{split}-00000.parquet", row_group_size=ROWS_PER_BLOCK)
    return folder


def as_json(run: TrainingRun) -> dict:
    """Return a run's settings as they are passed on to another process."""
    return json.loads(run.to_json())
