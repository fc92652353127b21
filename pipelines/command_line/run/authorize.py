"""`dalle-collab run authorize`: decide who may join a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.command_line.terminal.setting_options import Run, refuse_given

if TYPE_CHECKING:
    from pipelines.features.admission_service.service import ServiceOptions


def authorize(
    context: typer.Context,
    repository: Run,
    public_address: Annotated[
        str | None, typer.Option(help="https:// address at which peers reach it; default: --host and --port.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 takes a free one.")] = 8400,
    key_file: Annotated[
        Path | None, typer.Option(help="The authority's private key; made if missing. Default: RUN-authority.key")
    ] = None,
    token_minutes: Annotated[float, typer.Option(help="Lifetime of a token; a ban takes effect within it.")] = 10.0,
    grace_minutes: Annotated[float, typer.Option(help="How long peers may stay while the Hub is down.")] = 60.0,
    requests_per_minute: Annotated[
        int, typer.Option(help="Requests allowed per client address, and per peer that has been confirmed.")
    ] = 60,
    peers_per_user: Annotated[int, typer.Option(help="Peers of one user that may be admitted at a time.")] = 8,
    drawing: Annotated[
        str | None,
        typer.Option(help="Who may draw with what volunteers serve: members, or everybody. Default: as before."),
    ] = None,
    write_space: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the service as a Space into FOLDER and exit.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the run to everybody and exit.")] = False,
) -> None:
    """Serve admission to the run: peers prove on the Hub whose they are, and only permitted users may join.

    Members of ORG may join. Moderators change that in admission.json of the run's repository, which is read for every
    request: {"allow": ["carol"], "ban": ["mallory"]}; "*" in allow stands for every user of the Hub. Start it before
    the auxiliary peer: peers already in the swarm keep the settings they have read.

    Examples:

      dalle-collab run authorize my-org/birds --public-address https://door.my-org.example

      dalle-collab run authorize my-org/birds --public-address https://my-org-door.hf.space --write-space door

      dalle-collab run authorize my-org/birds --drawing everybody

      dalle-collab run authorize my-org/birds --open
    """
    from hub_tools.checks import check_choice
    from pipelines.core.run.sections import WHO_MAY_DRAW
    from pipelines.features.publishing.repository.announcements import announce_admission

    serving = ("host", "port", "token_minutes", "grace_minutes", "requests_per_minute", "peers_per_user")
    if open_:
        refuse_given(context, "--open ends admission", *serving, "public_address", "key_file", "write_space")
    elif write_space is not None:
        refuse_given(context, "--write-space serves nothing here", *serving)
    key_file = key_file or Path(f"{repository.rpartition('/')[2]}-authority.key")
    if drawing is not None:
        check_choice("--drawing", drawing, WHO_MAY_DRAW)
    if open_:
        announce_admission(repository, "", "", drawing)
        typer.echo(f"{repository} is OPEN: everybody may join. Peers that are already running keep the old settings.")
    elif write_space is not None:
        _write_space(repository, public_address, key_file, write_space, drawing)
    else:
        from pipelines.features.admission_service.service import ServiceOptions

        options = ServiceOptions(
            lifetime_seconds=60 * token_minutes,
            grace_seconds=60 * grace_minutes,
            requests_per_minute=requests_per_minute,
            peers_per_user=peers_per_user,
        )
        _serve(repository, public_address, host, port, key_file, options, drawing)


def _check_has_swarm(repository: str) -> None:
    """Raise ValueError if there is no swarm to which anybody could be admitted."""
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    who = f"The Hub admits its peers: name them in the settings of the organisation {repository.split('/')[0]}."
    RunSnapshot.read(repository).run.check_has_swarm(repository, who)


def _serve(
    repository: str, public_address: str | None, host: str, port: int, key_file: Path, options: "ServiceOptions",
    drawing: str | None,
) -> None:  # fmt: skip
    import tempfile

    from huggingface_hub import HfApi

    from pipelines.core.admission.settings import check_service_address
    from pipelines.features.admission_service.server import load_or_create_key, open_service, serve_admission
    from pipelines.features.publishing.repository.announcements import announce_admission
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    if public_address:
        check_service_address(public_address)
    _check_has_swarm(repository)

    def announce(address: str) -> None:
        announced = (public_address or address).rstrip("/")
        announce_admission(repository, announced, service.key.public, drawing)
        typer.echo(f"Admitting peers to {repository} at {announced}. Ctrl-C stops it; peers then stay for a while.")

    with tempfile.TemporaryDirectory(prefix="dalle-collab-authorize-") as cache:
        run = RunSnapshot.read(repository).run
        service = open_service(
            repository, load_or_create_key(key_file), HfApi(), Path(cache), options,
            run_id=run.run_id, averaging_timeout_seconds=run.averaging_timeout_seconds,
        )  # fmt: skip
        serve_admission(service, host, port, announce)


def _write_space(
    repository: str, public_address: str | None, key_file: Path, folder: Path, drawing: str | None
) -> None:
    from pipelines.features.admission_service.server import load_or_create_key
    from pipelines.features.admission_service.space import write_admission_space
    from pipelines.features.publishing.repository.announcements import announce_admission

    if public_address is None:
        raise ValueError(
            "Peers must know where the Space will be; add for example: --public-address https://my-org-door.hf.space"
        )
    _check_has_swarm(repository)
    key = load_or_create_key(key_file)
    write_admission_space(repository, folder)
    announce_admission(repository, public_address.rstrip("/"), key.public, drawing)
    typer.echo(f"Wrote {folder}. Publish it: hub-tools publish folder {folder} my-org/door --type space")
    typer.echo(f"Then set its secret AUTHORIZATION_KEY to the one line of {key_file}.")
