"""Options: those that several commands share, each written once, and those whose text is more than one plain value.

Also which options were given, so that none of them is ignored.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import typer

from hub_tools.one_line_errors import note_run


class Panel(TypedDict):
    """Under which heading the help has an option."""

    rich_help_panel: str


NETWORK = Panel(rich_help_panel="Network")
_SAMPLING = Panel(rich_help_panel="Sampling")
_VOLUNTEERS = Panel(rich_help_panel="Computed by volunteers")
CLASSIFICATION = Panel(rich_help_panel="Classification, of language runs")

COMMANDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "pictures": ("draws", "generate", ("DalleCollabForConditionalGeneration",)),
    "texts": ("writes", "write", ("ForCausalLM", "LMHeadModel")),
}
"""What models make: the verb, the command, and how the names of their classes end."""

_RUN: dict[str, object] = dict(metavar="ORG/RUN", callback=note_run)
Run = Annotated[str, typer.Argument(help="Model Hub repository of the run.", **_RUN)]
RunOrFolder = Annotated[str, typer.Argument(help="Model Hub repository of a run, or a folder.", **_RUN)]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the checkpoint.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Codec = Annotated[str | None, typer.Option(help="VQGAN folder or repository; default: the run's.")]
Clip = Annotated[str | None, typer.Option(help="open_clip folder, Hub repository or MODEL/TAG; default: the run's.")]
MaxHours = Annotated[float | None, typer.Option(help="Leave after this many hours.")]

PromptsFile = Annotated[Path | None, typer.Option("--prompts", help="File with one prompt per line.")]
BatchSize = Annotated[int, typer.Option(help="Candidates drawn or written at once; fewer need less memory.")]
PromptsAsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON for each prompt.")]

TopK = Annotated[int, typer.Option(help="Sample from this many likeliest codes or tokens; 0 for all.", **_SAMPLING)]
TopP = Annotated[
    float | None, typer.Option(help="Sample from codes or tokens up to this total probability.", **_SAMPLING)
]
Temperature = Annotated[float, typer.Option(help="Below 1: safer; above 1: stranger; 0: the likeliest.", **_SAMPLING)]
GuidanceScale = Annotated[
    float,
    typer.Option(help="Above 1: closer to the prompt, for models trained with caption_dropout.", **_SAMPLING),
]
SamplingSeed = Annotated[int, typer.Option(help="The same seed gives the same pictures or texts.", **_SAMPLING)]

Swarm = Annotated[
    bool,
    typer.Option("--swarm", help="Ask volunteers who serve the run; no weights are downloaded.", **_VOLUNTEERS),
]
Blocks = Annotated[
    bool,
    typer.Option(
        "--blocks", help="Run the model across servers of its layers; no layers are downloaded.", **_VOLUNTEERS
    ),
]
ServerPrecision = Annotated[
    str,
    typer.Option(help="With --swarm or --blocks: the servers' precision: float32, bfloat16 or int8.", **_VOLUNTEERS),
]
Audit = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="With --swarm: download the weights and check a sample; with --blocks: others compute the same.",
        **_VOLUNTEERS,
    ),
]
Patience = Annotated[float, typer.Option(help="With --swarm or --blocks: seconds to wait for a server.", **_VOLUNTEERS)]
RemoteRanking = Annotated[
    bool,
    typer.Option("--remote-ranking", help="With --swarm: a server ranks, too; no CLIP is downloaded.", **_VOLUNTEERS),
]

Relay = Annotated[bool, typer.Option("--relay", help="Be reachable through public peers.", **NETWORK)]
BandwidthLimit = Annotated[float | None, typer.Option(help="Upload at most this many Mbit/s.", **NETWORK)]
Host = Annotated[list[str] | None, typer.Option(help="Multiaddress to listen on; may be repeated.", **NETWORK)]
Announce = Annotated[list[str] | None, typer.Option(help="Multiaddress to announce (port forwarding).", **NETWORK)]
IdentityFile = Annotated[Path | None, typer.Option(help="Key file for a stable peer ID; made if missing.", **NETWORK)]
StartupTimeout = Annotated[float, typer.Option(help="Seconds for the libp2p daemon to start.", **NETWORK)]

Compare = Annotated[
    str | None, typer.Option(metavar="ORG/RUN", help="Measure this one too, on the same prompts and seeds.")
]
Features = Annotated[
    list[str] | None,
    typer.Option(help="What FID and KID compare: clip, inception, inception:FILE, transformers:REPOSITORY."),
]
Originals = Annotated[list[Path] | None, typer.Option(help="Pictures as they were before the codec: tars or folders.")]
ReportFolder = Annotated[Path, typer.Option(help="Folder for the report, and for what is drawn or fine-tuned.")]
TrainingRecords = Annotated[int, typer.Option(min=0, help="Training pictures among which copies are looked for.")]
TokenClassification = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REPO",
        help="Fine-tune to find entities in this dataset's words, and measure it.",
        **CLASSIFICATION,
    ),
]
SentenceClassification = Annotated[
    list[str] | None,
    typer.Option(metavar="REPO", help="Fine-tune to sort this dataset's texts into classes.", **CLASSIFICATION),
]
LearningRates = Annotated[
    list[float] | None,
    typer.Option(help="The best on validation examples is used. Default: 3e-5, 2e-4, 1e-3.", **CLASSIFICATION),
]


def parse_settings(texts: Sequence[str] | None) -> dict[str, object]:
    """Return values by name; a value that is not JSON is text.

    Raises:
        ValueError: one of them is not NAME=VALUE.
    """
    return dict(_parse_setting(text) for text in texts or ())


def number_or_auto(option: str, text: str) -> int | None:
    """Return the value of an option that is a whole number or, for None, `auto`.

    Raises:
        ValueError: it is neither.
    """
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{option} is {text!r}; expected auto or a whole number.") from error


def refuse_given(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse parameters of a command that its command line has and that would have no effect, for this reason.

    Raises:
        ValueError: one of these was given.
    """
    sources = {name: context.get_parameter_source(name) for name in names}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if options := [parameter.opts[0] for parameter in context.command.params if parameter.name in given]:
        raise ValueError(f"Leave out {', '.join(options)}: {reason}.")


def prompts_of(prompts: Sequence[str] | None, file: Path | None) -> list[str]:
    """Return the prompts of a command line and, after them, those of a file's lines.

    Raises:
        ValueError: there is none, one is empty, or the file has none or is not text.
    """
    texts = [*(prompts or ())]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text ({error.reason}). Expected one prompt per line.") from error
        if not lines:
            raise ValueError(f"{file} has no prompts. Expected one prompt per line.")
        texts += lines
    from pipelines.tasks.text_to_image.generation.generation_options import require_prompts

    require_prompts(texts)
    return texts


def volunteers_of(
    context: typer.Context, *, swarm: bool, blocks: bool, audit: bool, precision: str, patience: float
) -> dict[str, Any]:
    """Return how volunteers are asked, as `connect` and `model_across_blocks` take it.

    Raises:
        ValueError: options exclude each other, or one would have no effect.
    """
    if swarm and blocks:
        raise ValueError("--swarm has volunteers draw, and --blocks borrows their layers. Choose one of them.")
    if audit and not (swarm or blocks):
        raise ValueError("--audit checks what volunteers compute, and needs --swarm or --blocks.")
    if not (swarm or blocks):
        refuse_given(context, "it is about volunteers' servers, for --swarm and --blocks", "precision", "patience")
    if swarm:
        refuse_given(context, "with --swarm volunteers choose how many they draw at once", "batch_size")
    return dict(precision=precision, audits=audit, patience_seconds=patience)


def require_product(repository: str, revision: str | None, product: str) -> None:
    """Refuse a repository or folder whose model makes the other of `pictures` and `texts`.

    What cannot be read passes: whoever loads the model says why.

    Raises:
        ValueError: with the command that is meant.
    """
    import httpx2

    from hub_tools.foreign.downloads import fetch_file
    from hub_tools.foreign.json_texts import read_json
    from hub_tools.places import local_folder

    try:
        folder = local_folder(repository, revision=revision, expected="a folder or a Hub repository ORG/RUN")
        file = folder / "config.json" if folder else fetch_file(repository, "config.json", revision=revision)
        classes = [str(name) for name in read_json(file).get("architectures") or ()]
    except (OSError, ValueError, AttributeError, TypeError, httpx2.HTTPError):
        return
    for other, (doing, command, ends) in COMMANDS.items():
        if other != product and any(name.endswith(ends) for name in classes):
            raise ValueError(f"{repository} {doing} {other}. To have it do so: dalle-collab {command} {repository} ...")


def _parse_setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"--set got {text!r}; expected NAME=VALUE, for example --set target_batch_size=256.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
