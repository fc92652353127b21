"""Text datasets of the embedded Hub, streamed by the real `datasets` in processes of their own."""

import json

import pytest
from huggingface_hub import HfApi, constants
from language_material import (
    ALBERT,
    DOCUMENTS,
    GPT2,
    LLAMA,
    SEQUENCE_LENGTH,
    as_json,
    language_run,
    tiny_tokenizer,
    write_texts,
)
from language_reader import digest
from support_files import SUPPORT
from transformers import AutoModel, GPT2Config, GPT2ForSequenceClassification, T5Config, T5ForConditionalGeneration

from pipelines.core.run.training_run import TrainingRun
from pipelines.tasks.language_modeling.samples import IGNORED
from pipelines.tasks.language_modeling.task import LanguageModelingTask
from pipelines.tasks.streaming import is_held_out

FILL, WRITE = "fill-mask", "text-generation"
READER = SUPPORT / "language_reader.py"
BATCHES = dict(batch_size=4, seed=1, shuffle_buffer_size=16)


@pytest.fixture(scope="module")
def publish(hub):
    """A function that publishes a folder as a repository and returns its name."""
    constants.HF_HUB_DISABLE_XET = True  # what `prepare_hub_client` does where HF_ENDPOINT is set
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)

    def published(name, folder, kind="dataset"):
        api.create_repo(f"org/{name}", repo_type=kind)
        api.upload_folder(repo_id=f"org/{name}", repo_type=kind, folder_path=str(folder))
        return f"org/{name}"

    return published


@pytest.fixture(scope="module", autouse=True)
def text(publish, tmp_path_factory):
    """The dataset of the tiny runs, with documents of nothing between those of text."""
    texts = [text for document in DOCUMENTS for text in (document, "", None, " \n")]
    return publish("tiny-text", write_texts(tmp_path_factory.mktemp("text"), {"text": texts, "page": list(range(240))}))


@pytest.fixture(scope="module")
def places(publish, tmp_path_factory):
    """Model repositories with the tokenizers, by task."""
    found = {}
    for task in (FILL, WRITE):
        folder = tmp_path_factory.mktemp(task)
        tiny_tokenizer(task).save_pretrained(folder)
        found[task] = publish(f"tokenizer-{task}", folder, "model")
    return found


@pytest.fixture(scope="module")
def ask(commands, places):
    """A function that uses the task of a run in a process of its own; what is wrong is a ValueError."""

    def asked(run, **request):
        values = dict(run=as_json(run), place=places[run.task]) if isinstance(run, TrainingRun) else run
        done = commands.run_program(READER, json.dumps(values | request))
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1]
            assert last.startswith("ValueError: "), done.stderr
            raise ValueError(last)
        return json.loads(done.stdout)

    return asked


def sequences(batches):
    """Return the sequences of batches without padding and masks, in order, as tuples of ids."""
    found = []
    for batch in batches:
        for ids, labels, seen in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
            pairs = zip(ids, labels, seen, strict=True)
            found.append(tuple(token if label == IGNORED else label for token, label, is_seen in pairs if is_seen))
    return found


def test_training_and_evaluation_share_the_documents_between_them(ask):
    run = language_run(FILL, ALBERT, num_evaluation_records=1000)
    tokenizer = tiny_tokenizer(FILL)
    expected = {True: set(), False: set()}
    for document in DOCUMENTS:
        ids = tokenizer(document, truncation=True, max_length=SEQUENCE_LENGTH, return_overflowing_tokens=True)
        expected[is_held_out(document.encode(), run.held_out_share)] |= set(map(tuple, ids["input_ids"]))
    assert set(sequences(ask(run, held_out=True))) == expected[True]
    num_batches = 2 * len(expected[False]) // BATCHES["batch_size"]
    assert set(sequences(ask(run, batches=BATCHES, num_batches=num_batches))) == expected[False]


def test_the_order_is_the_seeds_and_the_masks_are_the_passes(ask):
    run = language_run(FILL, ALBERT)
    first, again, other = (ask(run, batches=BATCHES | dict(seed=seed), num_batches=12) for seed in (1, 1, 2))
    assert first == again != other
    labels = {}
    for batch in (*first, *other):
        for ids, row in zip(sequences([batch]), batch["labels"], strict=True):
            predicted = tuple(place for place, label in enumerate(row) if label != IGNORED)
            labels.setdefault(ids, set()).add(predicted)
    assert max(map(len, labels.values())) == 1, "both peers have seen part of the first pass, masked in one way"


def test_packing_is_a_function_of_the_dataset_and_the_seed(ask):
    run = language_run(WRITE, GPT2, held_out_share=0.0)
    first, again = (ask(run, batches=BATCHES, num_batches=6) for _ in range(2))
    assert first == again
    assert {len(row) for batch in first for row in batch["input_ids"]} == {SEQUENCE_LENGTH}
    packed = [token for row in sorted(sequences(first)) for token in row]
    assert tiny_tokenizer(WRITE).eos_token_id in packed


def test_texts_that_are_not_in_parquet_files_are_read_in_an_order_of_the_seed(ask, publish, tmp_path):
    lines = [json.dumps(dict(text=document)) for document in DOCUMENTS]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    run = language_run(FILL, ALBERT, dataset_repository=publish("lines", tmp_path), held_out_share=0.0)
    first, again, other = (ask(run, batches=BATCHES | dict(seed=seed), num_batches=12) for seed in (1, 1, 2))
    assert first == again != other and len(set(sequences(first))) > 30


def test_a_split_of_its_own_is_the_evaluation(ask, publish, tmp_path):
    write_texts(tmp_path, {"text": list(DOCUMENTS[:20])})
    write_texts(tmp_path, {"text": ["The old house stood near a small ship."]}, split="validation")
    run = language_run(WRITE, GPT2, dataset_repository=publish("split-text", tmp_path), held_out_share=0.0)
    assert len(sequences(ask(run, held_out=True))) == 1


def test_a_dataset_that_cannot_be_trained_on_is_one_line(ask, publish, tmp_path):
    ask(language_run(FILL, ALBERT), check=True)
    run = language_run(FILL, ALBERT, task_settings=dict(text_column="body"))
    with pytest.raises(ValueError, match=r"org/tiny-text has no column body; it has text, page. .*text_column="):
        ask(run, check=True)
    with pytest.raises(ValueError, match=r"Column page of org/tiny-text holds int, expected text"):
        ask(language_run(FILL, ALBERT, task_settings=dict(text_column="page")), check=True)
    empty = publish("empty-text", write_texts(tmp_path / "empty", {"text": ["", None, "\n"]}))
    with pytest.raises(ValueError, match=r"org/empty-text has no text in column text"):
        ask(language_run(FILL, ALBERT, dataset_repository=empty), check=True)
    with pytest.raises(ValueError, match=r"The dataset org/nowhere at revision main cannot be read"):
        ask(language_run(FILL, ALBERT, dataset_repository="org/nowhere"), check=True)
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "train.jsonl").write_text('{"text": "One."}\n{"text": "Two."}\n')
    few = publish("few-texts", tmp_path / "few")
    with pytest.raises(ValueError, match=r"fewer sequences than one micro-batch of 4"):
        ask(language_run(FILL, ALBERT, dataset_repository=few, held_out_share=0.0), batches=BATCHES, num_batches=1)


def test_a_run_starts_from_a_checkpoint_with_the_same_parameters_everywhere(ask, publish, hub, places, tmp_path):
    start = LanguageModelingTask(language_run(WRITE, LLAMA), "nowhere").new_model()
    start.save_pretrained(tmp_path)
    repository = publish("start", tmp_path, "model")
    values = dict(
        run_id="again", task=WRITE, dataset_repository="org/tiny-text",
        settings=dict(start_from=repository, sequence_length=32, held_out_share=0.1, num_epochs=5, num_warmup_epochs=1),
    )  # fmt: skip
    run = TrainingRun.from_mapping(ask(dict(place=places[WRITE]), compose=values))
    assert (
        run.task_settings["start_from_revision"]
        == HfApi(endpoint=hub.endpoint, token=hub.alice_token).model_info(repository).sha
    )
    assert run.model_config["hidden_size"] == 32 and run.num_epochs == 5
    assert ask(run, start=True) == digest(start)


def test_a_checkpoint_of_another_task_is_one_line(ask, publish, places, hub, tmp_path):
    sizes = dict(vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    AutoModel.from_config(GPT2Config(**sizes)).save_pretrained(tmp_path / "a")
    settings = dict(run_id="x", dataset_repository="org/tiny-text", settings=dict(start_from="org/other-task"))
    publish("other-task", tmp_path / "a", "model")
    with pytest.raises(ValueError, match=r"no fill-mask model of type gpt2"):
        ask(dict(place=places[FILL]), compose=settings | dict(task=FILL))
    untied = GPT2Config(**sizes, tie_word_embeddings=False)
    GPT2ForSequenceClassification(untied).save_pretrained(tmp_path / "b")
    repository = publish("classifier", tmp_path / "b", "model")
    composed = ask(
        dict(place=places[WRITE]),
        compose=settings | dict(task=WRITE, settings=dict(start_from=repository, sequence_length=32)),
    )
    with pytest.raises(ValueError, match=r"cannot start from org/classifier .*no parameters for lm_head.weight"):
        ask(TrainingRun.from_mapping(composed), start=True)
    T5ForConditionalGeneration(
        T5Config(vocab_size=300, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path / "c")
    repository = publish("seq2seq", tmp_path / "c", "model")
    with pytest.raises(ValueError, match=r"a decoder; text-generation trains single-stack models"):
        ask(dict(place=places[WRITE]), compose=settings | dict(task=WRITE, settings=dict(start_from=repository)))
    (tmp_path / "d").mkdir()
    config = dict(model_type="own", auto_map={"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.OwnLM"})
    (tmp_path / "d" / "config.json").write_text(json.dumps(config))
    (tmp_path / "d" / "code.py").write_text("raise SystemExit('code of a stranger was run')\n")
    repository = publish("own-code", tmp_path / "d", "model")
    with pytest.raises(ValueError, match=r"own-code .*cannot be used: .*custom code cannot be trained"):
        ask(dict(place=places[WRITE]), compose=settings | dict(task=WRITE, settings=dict(start_from=repository)))


def test_settings_find_their_place_and_unknown_ones_are_named(ask, places):
    values = dict(run_id="x", task=FILL, dataset_repository="org/tiny-text")
    run = ask(
        dict(place=places[FILL]),
        compose=values
        | dict(settings=ALBERT | dict(sequence_length=32, mask_probability=0.2, num_epochs=10, num_warmup_epochs=1)),
    )
    run = TrainingRun.from_mapping(run)
    assert run.task_settings == dict(sequence_length=32, mask_probability=0.2) and run.num_epochs == 10
    assert run.model_config == ALBERT | dict(vocab_size=300, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    assert run.target_batch_size == round(4096 * 32 * 0.2), "4096 sequences, of which a fifth is predicted"
    with pytest.raises(ValueError, match=r"Unknown setting hiden of a model of type albert"):
        ask(dict(place=places[FILL]), compose=values | dict(settings=ALBERT | dict(hiden=3)))
    with pytest.raises(ValueError, match=r"The run has no model: --set model_type=TYPE"):
        ask(dict(place=places[FILL]), compose=values | dict(settings={}))
