"""The options of the filter, which several commands have, and the filter that they describe."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy

Places = Annotated[
    list[str], typer.Argument(help="Tars, Parquet files, folders of them or of pictures, or Hub datasets ORG/NAME.")
]
CaptionLines = Annotated[
    str, typer.Option(metavar="drop|first|join", help="A caption of several lines: what becomes of it.")
]

CaptionFrom = Annotated[
    str,
    typer.Option(
        metavar="files|name|folder|path",
        help="Captions are in texts and tables (files), in the picture's name, in its folder's, or in both (path).",
    ),
]


def read_policy(
    *,
    min_caption_length: Annotated[int, typer.Option(help="Characters in the shortest caption kept.")] = 3,
    max_caption_length: Annotated[int, typer.Option(help="Characters in the longest caption kept.")] = 2000,
    keep_placeholders: Annotated[
        bool, typer.Option("--keep-placeholders", help="Keep captions such as nan, IMG_2019.jpg, addresses and lists.")
    ] = False,
    max_aspect_ratio: Annotated[float, typer.Option(help="Largest ratio of longer to shorter side kept.")] = 2.0,
    min_side: Annotated[int, typer.Option(help="Pixels of the shorter side of the smallest picture kept.")] = 1,
    drop_unlabelled: Annotated[
        bool, typer.Option("--drop-unlabelled", help="Drop samples without an NSFW label or score (for web crawls).")
    ] = False,
    max_unsafe_score: Annotated[float, typer.Option(help="Highest punsafe kept, where there is one.")] = 0.5,
    min_similarity: Annotated[
        float | None, typer.Option(help="Lowest similarity of caption and picture kept; drops samples without one.")
    ] = None,
    caption_lines: CaptionLines = "drop",
    caption_from: CaptionFrom = "files",
    caption_column: Annotated[
        str | None, typer.Option(help="Column or JSON field of captions; default: caption, text, alt_text, ...")
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Column of pictures in Parquet and Hub datasets; default: image, jpg, ...")
    ] = None,
) -> "FilterPolicy":
    """The filter that these options describe; ValueError for values out of range."""
    from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy
    from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions

    return FilterPolicy(
        min_caption_length=min_caption_length,
        max_caption_length=max_caption_length,
        keep_placeholders=keep_placeholders,
        max_aspect_ratio=max_aspect_ratio,
        min_side=min_side,
        keep_unlabelled=not drop_unlabelled,
        max_unsafe_score=max_unsafe_score,
        min_similarity=min_similarity,
        reading=ReadingOptions(
            caption_lines=caption_lines,
            caption_from=caption_from,
            caption_column=caption_column,
            image_column=image_column,
        ),
    )


def with_filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of the filter, which reach it as its first argument, `policy`."""
    options = inspect.signature(read_policy).parameters
    parameters = [*list(inspect.signature(command).parameters.values())[1:], *options.values()]

    @functools.wraps(command)
    def with_policy(**values: Any) -> None:
        policy = read_policy(**{name: values.pop(name) for name in options})
        command(policy, **values)

    with_policy.__signature__ = inspect.Signature(parameters)  # typer makes its options of it
    with_policy.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_policy
