"""The output of fine-tuning: an adapter, a whole model or both, each ready for the Hub, written atomically."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import yaml

from hub_tools.foreign.json_texts import read_json
from hub_tools.printing.marked_up import code, in_words, markdown_table, plain
from pipelines.tasks.text_to_image.finetuning.finetuning import FinetuningProgress, FinetuningSource, TrainableModel
from pipelines.tasks.text_to_image.finetuning.finetuning_options import FinetuningOptions
from pipelines.tasks.text_to_image.image_codes.codec_code import copy_codec_code

SETTINGS_FILE = "finetuning.json"
ADAPTER_FOLDER, MODEL_FOLDER = "adapter", "model"


def check_output(folder: Path) -> None:
    """Raise ValueError if results would replace anything other than older results."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / SETTINGS_FILE).is_file():
        raise ValueError(f"{folder} has other files. Name a new folder, or one of an earlier fine-tuning: --output DIR")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Name a folder: --output DIR")


def write_finetuned(
    folder: Path,
    model: TrainableModel,
    source: FinetuningSource,
    options: FinetuningOptions,
    progress: FinetuningProgress,
    *,
    merge: bool = False,
) -> list[Path]:
    """Write `adapter/` for LoRA, `model/` for a whole model, and the settings; an older result is replaced at the end.

    `merge` also merges the adapter into the base model and writes that, which consumes the adapter in memory. Returns
    the folders that can be published.
    """
    check_output(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        _write_parts(temporary, model, source, options, progress, merge)
        _put_in_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return [folder / name for name in (ADAPTER_FOLDER, MODEL_FOLDER) if (folder / name).is_dir()]


def _write_parts(
    folder: Path,
    model: TrainableModel,
    source: FinetuningSource,
    options: FinetuningOptions,
    progress: FinetuningProgress,
    merge: bool,
) -> None:
    settings = _settings(source, options, progress)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if not options.full:
        _write_adapter(folder / ADAPTER_FOLDER, model)
        (folder / ADAPTER_FOLDER / "README.md").write_text(adapter_card(source, settings), encoding="utf-8")
        if not merge:
            return
        model = model.merge_and_unload()
    model.save_pretrained(folder / MODEL_FOLDER)
    source.processor.save_pretrained(folder / MODEL_FOLDER)
    copy_codec_code(folder / MODEL_FOLDER)
    (folder / MODEL_FOLDER / "README.md").write_text(model_card(source, settings), encoding="utf-8")


def _write_adapter(folder: Path, model: TrainableModel) -> None:
    model.save_pretrained(str(folder))
    # peft records the class of this package, which AutoPeftModel could not import without the package.
    path = folder / "adapter_config.json"
    config = read_json(path)
    config["auto_mapping"] = {"base_model_class": "AutoModel", "parent_library": "transformers"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _put_in_place(temporary: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _settings(source: FinetuningSource, options: FinetuningOptions, progress: FinetuningProgress) -> dict[str, object]:
    return {
        "base_model": source.model_name,
        "base_model_revision": source.model_revision,
        "dataset": source.dataset,
        "dataset_revision": source.dataset_revision,
        "codec_fingerprint": source.processor.image_codec_fingerprint,
        **dataclasses.asdict(progress),
        **dataclasses.asdict(options),
    }


def adapter_card(source: FinetuningSource, settings: dict[str, object]) -> str:
    """Return the text of the adapter's README.md."""
    base, revision = source.model_name, source.model_revision
    pinned = f", revision={json.dumps(revision)}" if revision else ""
    return f"""{_front_matter(source, "peft", "adapter")}
# Adapter for {plain(base)}

A LoRA that was fine-tuned with `dalle-collab model finetune`.

```python
from peft import PeftModel
from transformers import AutoModel

model = AutoModel.from_pretrained({json.dumps(base)}{pinned}, trust_remote_code=True)
model = PeftModel.from_pretrained(model, "THIS_REPOSITORY")
```

{_settings_table(settings)}"""


def model_card(source: FinetuningSource, settings: dict[str, object]) -> str:
    """Return the text of the whole model's README.md."""
    return f"""{_front_matter(source, "transformers", "finetune")}
# Fine-tuned from {plain(source.model_name)}

A text-to-image transformer that was fine-tuned with `dalle-collab model finetune`. After
`pip install torch transformers pillow`:

```python
from transformers import pipeline

draw = pipeline("text-to-image", model="THIS_REPOSITORY", trust_remote_code=True)
draw("a caption", num_images_per_prompt=4, seed=1)[0].save("picture.png")
```

{_settings_table(settings)}
The model knows what its training data shows and no more; it repeats the data's biases.
"""


def _front_matter(source: FinetuningSource, library: str, relation: str) -> str:
    values: dict[str, object] = dict(library_name=library, pipeline_tag="text-to-image")
    if source.model_revision:  # the Hub refuses cards whose base model is not a repository
        values |= dict(base_model=source.model_name, base_model_relation=relation)
    values |= dict(tags=["dalle"], datasets=[source.dataset])
    return f"---\n{yaml.safe_dump(values, sort_keys=False, default_flow_style=None)}---\n"


def _settings_table(settings: dict[str, object]) -> str:
    rows = ((code(name), plain(in_words(value))) for name, value in settings.items())
    return f"## How it was made\n\n{markdown_table(('setting', 'value'), rows)}\n"
