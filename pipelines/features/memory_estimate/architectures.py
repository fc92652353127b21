"""The models that the estimate knows: ours, and every language model of transformers that a configuration describes."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from transformers import (
    CONFIG_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
)

from hub_tools.checks import check_model_sizes
from hub_tools.one_line_errors import explain_error
from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
from modeling_dalle_collab.attention_dalle_collab import DENSE_MAX_POSITIONS, AttentionTables
from pipelines.features.memory_estimate.counted_step import CountedSteps, Line, Passes, Stack, count_step
from pipelines.features.memory_estimate.model_presets import ModelFigures, ModelSizes, StepKind

BATCHES = (2, 3)
"""With one sample some copies are views."""

CANNOT_BUILD = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What models of strangers' sizes raise."""

STACK_NAMES = ("num_hidden_layers", "num_encoder_layers", "num_decoder_layers", "decoder_layers")
"""What configurations call the numbers of layers."""
LARGEST_PERIOD = 8

KINDS = (
    (AutoModelForSeq2SeqLM, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
    (AutoModelForMaskedLM, MODEL_FOR_MASKED_LM_MAPPING),
    (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING),
)


def _attend_without_dropout(*args: Any, dropout: float = 0.0, **options: Any) -> tuple[Tensor, None]:
    """Attend as on a GPU, where fused attention draws its dropout again in the backward pass and stores no mask."""
    return sdpa_attention_forward(*args, **options)


def _mask_of_one_sequence(*, kv_length: int, local_size: int | None = None, **options: Any) -> Tensor | None:
    """Return a mask only for local attention: without values transformers can't see that nothing is packed."""
    if local_size is None or kv_length < local_size:
        return None
    return sdpa_mask(kv_length=kv_length, local_size=local_size, **options)


ATTENTION = {"cuda": "counted_on_a_gpu", "cpu": "counted_on_a_cpu"}
AttentionInterface.register(ATTENTION["cuda"], _attend_without_dropout)
AttentionInterface.register(ATTENTION["cpu"], sdpa_attention_forward)
for _name in ATTENTION.values():
    AttentionMaskInterface.register(_name, _mask_of_one_sequence)


def is_known(values: Mapping[str, object]) -> bool:
    """Return whether a `config.json` is of a model that the estimate knows."""
    return _kind_of(values.get("model_type")) is not None


def _kind_of(model_type: object) -> Any:
    if model_type == DalleCollabConfig.model_type:
        return DalleCollabConfig
    kind = CONFIG_MAPPING[model_type] if isinstance(model_type, str) and model_type in CONFIG_MAPPING else None
    return kind if any(kind in mapping for _, mapping in KINDS) else None


def read_configuration(values: Mapping[str, object]) -> PreTrainedConfig:
    """Return what a `config.json` describes. Raises ValueError for models that the estimate doesn't know, bad sizes."""
    model_type = values.get("model_type")
    if (kind := _kind_of(model_type)) is None:
        raise ValueError(
            f"The model is of type {str(model_type)[:40]!r}; the calculator knows dalle_collab and the language models "
            "of transformers, such as albert, bert, gpt2, llama, t5. Choose the known model closest in kind and size."
        )
    check_model_sizes(values)
    try:
        return kind.from_dict(dict(values))
    except (AttributeError, StrictDataclassError, TypeError, ValueError) as error:
        raise ValueError(f"config.json is invalid: {explain_error(error)}") from error


@lru_cache(maxsize=64)
def figures(sizes: ModelSizes) -> ModelFigures:
    """Return the numbers that an estimate needs besides the steps' peaks; raises as `activation_lines`."""
    config = _configuration(sizes)
    try:
        shapes = _shapes(_whole(sizes))
        in_layers = sum((_shapes(layer) for stack in _layer_lists(sizes) for layer in stack), Counter())
        layers = _stacks(sizes)[0].layers
    except CANNOT_BUILD as error:
        raise ValueError(f"The sizes of the model do not fit together: {explain_error(error)}") from error
    positions = getattr(_layers_of(config), "max_position_embeddings", None)
    if isinstance(config, DalleCollabConfig):
        positions = config.text_sequence_length + config.num_image_codes
    return ModelFigures(
        num_layers=layers,
        num_positions=positions,
        vocab_size=_layers_of(config).vocab_size,
        shapes=tuple(shapes.items()),
        layer_shapes=tuple((shape, number / max(1, layers)) for shape, number in in_layers.items()),
    )


@lru_cache(maxsize=64)
def activation_lines(sizes: ModelSizes, kind: StepKind) -> tuple[Line, ...]:
    """Return lines (bytes without samples, bytes of each) whose highest is the peak of a step's activations.

    Raises ValueError for sizes that do not fit together, and models that cannot be counted.
    """
    try:
        return _activation_lines(sizes, kind)
    except CANNOT_BUILD as error:
        if kind.precision != "pure":  # torch has no product of experts for fake tensors of 32 bits
            halves = activation_lines(sizes, replace(kind, precision="pure"))
            return tuple((2 * without, 2 * each) for without, each in halves)
        raise ValueError(f"The sizes of the model do not fit together: {explain_error(error)}") from error


def _activation_lines(sizes: ModelSizes, kind: StepKind) -> tuple[Line, ...]:
    config = _configuration(sizes)
    if isinstance(config, DalleCollabConfig) or kind.recompute in ("none", "checkpoint"):
        return tuple(_counted(sizes, kind).lines())
    # Were it reversible: the last layer's output, and six streams more while a layer is computed again.
    checkpointed = _counted(sizes, replace(kind, recompute="checkpoint"))
    stream = checkpointed.kept_for_a_layer()
    lines = [tuple(a + 6 * b for a, b in zip(line, stream, strict=True)) for line in checkpointed.lines(0)]
    if kind.recompute == "partial":
        stored = _counted(sizes, replace(kind, recompute="none")).lines(0.5)
        lines += [tuple(a + 2 * b for a, b in zip(line, stream, strict=True)) for line in stored]
    return tuple(lines)


@lru_cache(maxsize=16)
def _configuration(sizes: ModelSizes) -> PreTrainedConfig:
    return read_configuration(sizes.values)


def _layers_of(config: PreTrainedConfig) -> Any:
    return config.get_text_config()


@lru_cache(maxsize=4)
def _whole(sizes: ModelSizes) -> nn.Module:
    with FakeTensorMode():
        return _build(_configuration(sizes))


def _layer_lists(sizes: ModelSizes) -> list[nn.ModuleList]:
    """Return the modules of the layers: lists as long as a stack is deep, and not within one another."""
    numbers, found = set(_numbers_of_layers(_configuration(sizes)).values()), {}
    for name, module in _whole(sizes).named_modules():
        is_within = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) in numbers and not is_within:
            found[name] = module
    return list(found.values())


def _numbers_of_layers(config: PreTrainedConfig) -> dict[str, int]:
    layers = _layers_of(config)
    names = dict.fromkeys(layers.attribute_map.get(name, name) for name in STACK_NAMES)
    return {name: vars(layers)[name] for name in names if vars(layers).get(name) is not None}


def _stacks(sizes: ModelSizes, recompute: str = "none") -> list[Stack]:
    """Return the stacks of layers, and between which depths each kind of layer comes once or as often as it repeats.

    Settings with an entry for each layer and the layers' parameters tell their kinds; the first may be of their own.
    """
    config, stacks = _configuration(sizes), []
    for name, layers in _numbers_of_layers(config).items():
        if isinstance(config, DalleCollabConfig):
            pattern = len(config.attention_pattern)
            # Gradients of shared weights are added up from the second use on. The last layer is one of its own.
            few = (2 if recompute in ("checkpoint", "partial") else 1) * pattern + 1
            period = (2 if recompute == "partial" else 1) * pattern
        else:
            shapes = [[list(_shapes(layer)) for layer in found] for found in _layer_lists(sizes)]
            rows = [row for row in (*_lists_of_layers(config).values(), *shapes) if len(row) == layers]
            kinds = [str(kinds) for kinds in zip(*rows, strict=True)]
            periods = {period: _repeats_from(kinds, period) for period in range(1, LARGEST_PERIOD + 1)}
            period = min(periods, key=lambda period: periods[period] + 2 * period)
            # Behind first layers of their own one is to come before the last, whose gradients are the first.
            few = max(2, periods[period] + period + bool(periods[period]))
            few += (layers - few) % period
        stacks.append(Stack(name, layers, min(few, layers), period))
    return stacks


def _few_and_more(config: PreTrainedConfig, stacks: list[Stack]) -> list[PreTrainedConfig]:
    """Return the configuration with few layers, and those with more layers in one stack."""
    few = {stack.name: stack.few for stack in stacks}
    deeper = [few | {stack.name: stack.few + stack.period} for stack in stacks]
    return [_with_depths(config, stacks[0], depths) for depths in (few, *deeper)]


def _lists_of_layers(config: PreTrainedConfig) -> dict[str, Any]:
    layers = _layers_of(config)
    number = layers.num_hidden_layers
    return {
        name: value for name, value in vars(layers).items() if isinstance(value, list | tuple) and len(value) == number
    }


def _repeats_from(kinds: list[str], period: int) -> int:
    """Return from which layer on the kinds repeat after so many layers."""
    return max((place + 1 for place in range(len(kinds) - period) if kinds[place] != kinds[place + period]), default=0)


def _with_depths(config: PreTrainedConfig, first: Stack, depths: Mapping[str, int]) -> PreTrainedConfig:
    changed = copy.deepcopy(config)
    layers = _layers_of(changed)
    for name, value in _lists_of_layers(config).items():
        # Behind the last of its layers a list goes on with those a period before.
        longer = [*value, *value[first.layers - first.period :]]
        setattr(layers, name, longer[: depths[first.name]])
    for name, depth in depths.items():
        setattr(layers, name, depth)
    return changed


def _shapes(module: nn.Module) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in module.parameters())


@lru_cache(maxsize=64)
def _counted(sizes: ModelSizes, kind: StepKind) -> CountedSteps:
    stacks = _stacks(sizes, kind.recompute)
    models = _few_and_more(_configuration(sizes), stacks)
    first, second = ([_count(model, batch, kind) for model in models] for batch in BATCHES)
    return CountedSteps(stacks, BATCHES, (first, second))


def _count(config: PreTrainedConfig, batch: int, kind: StepKind) -> Passes:
    if isinstance(config, DalleCollabConfig):
        config.recompute = "none" if kind.recompute == "checkpoint" else kind.recompute
        return _count_with(config, batch, kind)
    try:
        return _count_with(copy.deepcopy(config), batch, kind, attn_implementation=ATTENTION[kind.device])
    except (KeyError, ValueError):  # its attention is of its own
        return _count_with(config, batch, kind)


def _count_with(config: PreTrainedConfig, batch: int, kind: StepKind, **options: object) -> Passes:
    on_gpu = kind.device == "cuda"
    with FakeTensorMode():
        model = _build(config, torch.bfloat16 if kind.precision == "pure" else torch.float32, **options)
        if kind.recompute == "checkpoint" and model.supports_gradient_checkpointing:
            model.activation_checkpointing_enable()
        if isinstance(config, DalleCollabConfig) and on_gpu:
            _compute_as_on_a_gpu(model)
        inputs = _inputs(config, batch, kind.sequence_length)

        def loss() -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind.precision == "autocast"):
                return model(**inputs).loss

        return count_step(model, loss, has_byte_masks=on_gpu)


def _build(config: PreTrainedConfig, dtype: torch.dtype = torch.float32, **options: object) -> Any:
    if isinstance(config, DalleCollabConfig):
        return DalleCollabForConditionalGeneration._from_config(config, dtype=dtype)
    config.use_cache = False
    kind = next(kind for kind, mapping in KINDS if _is_of(kind, mapping, config))
    return kind.from_config(config, trust_remote_code=False, dtype=dtype, **options)


def _is_of(kind: type, mapping: Any, config: PreTrainedConfig) -> bool:
    if kind is AutoModelForSeq2SeqLM and not config.is_encoder_decoder:
        return False
    return type(config) in mapping and not (kind is AutoModelForMaskedLM and getattr(config, "is_decoder", False))


def _inputs(config: PreTrainedConfig, batch: int, sequence: int) -> dict[str, Any]:
    if isinstance(config, DalleCollabConfig):
        text, codes = (
            torch.zeros(batch, n, dtype=torch.long) for n in (config.text_sequence_length, config.num_image_codes)
        )
        return dict(input_ids=text, image_codes=codes, return_logits=False)
    ids = torch.zeros(batch, sequence, dtype=torch.long)
    return dict(input_ids=ids, labels=ids) | (dict(decoder_input_ids=ids) if config.is_encoder_decoder else {})


def _compute_as_on_a_gpu(model: DalleCollabForConditionalGeneration) -> None:
    """Have our model compute what it does on a GPU: its ways for a CPU are for layers without hooks."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.register_forward_pre_hook(lambda module, args: None)

    def with_dense_tables(stack: nn.Module, args: tuple[Tensor], options: dict[str, object]) -> Any:
        tables = AttentionTables.build(model.config, args[0].device, args[0].dtype, frozenset(DENSE_MAX_POSITIONS))
        return args, options | dict(tables=tables)

    model.model.stack.register_forward_pre_hook(with_dense_tables, with_kwargs=True)
