"""`dalle-collab run keys`: which keys may publish a run or be its anchors."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.command_line.terminal.setting_options import Run

if TYPE_CHECKING:
    from pipelines.features.publishing.repository.key_list import KeyList
    from pipelines.features.publishing.repository.organiser import Organiser
    from pipelines.features.publishing.repository.snapshot import RunSnapshot


def keys(
    repository: Run,
    add: Annotated[str | None, typer.Option(metavar="KEY", help="List this key, ed25519:...")] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="publisher or anchor, for --add; may be repeated; default: both.")
    ] = None,
    revoke: Annotated[str | None, typer.Option(metavar="KEY", help="Revoke this key, for good, from now on.")] = None,
    restore: Annotated[
        bool, typer.Option("--restore", help="Put this machine's copy of the list back after somebody changed it.")
    ] = False,
    backup_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a backup of the organiser's key, with a passphrase.")
    ] = None,
    restore_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Make this machine the organiser's, from such a backup.")
    ] = None,
    organiser_key: Annotated[
        Path | None, typer.Option(help="File of the organiser's key; default: where run create puts it.")
    ] = None,
) -> None:
    """Show the run's keys, or change them: that takes the organiser's key, and is one commit.

    A publisher signs checkpoints; an anchor is an auxiliary peer whose word on the run's epoch and state counts. What a
    key signed before it was revoked still counts, as does the newest checkpoint: roll back if you do not trust it.
    Running peers follow within minutes.

    A backup asks for a passphrase, and reads it from standard input where there is no terminal; without one it is not
    encrypted.

    Examples:

      dalle-collab run keys my-org/birds

      dalle-collab run keys my-org/birds --add ed25519:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=

      dalle-collab run keys my-org/birds --revoke ed25519:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=

      dalle-collab run keys my-org/birds --backup-key birds-key.pem
    """
    from pipelines.features.publishing.repository.organiser import change_keys, needed_organiser, organiser_here
    from pipelines.features.publishing.repository.snapshot import RunSnapshot

    if bool(add) + bool(revoke) + restore + bool(backup_key) + bool(restore_key) > 1 or (role and not add):
        raise ValueError(
            "Expected one of --add, --revoke, --restore, --backup-key and --restore-key at a time, and --role only "
            "with --add."
        )
    snapshot = RunSnapshot.read(repository)
    if backup_key:
        _back_up(needed_organiser(repository, snapshot.run, organiser_key), backup_key)
        return
    if restore_key:
        _restore(snapshot, restore_key, organiser_key)
        return
    if not (add or revoke or restore):
        _show(snapshot, snapshot.keys, organiser_here(repository, snapshot.run, organiser_key))
        return
    organiser = needed_organiser(repository, snapshot.run, organiser_key)

    def change(head: "RunSnapshot", listed: "KeyList") -> "KeyList":
        if add:
            return listed.adding(add, _roles(role), now=time.time())
        return _revoking(head, listed, revoke) if revoke else listed

    message = f"{'List' if add else 'Revoke'} a key" if add or revoke else "Put the list of keys back"
    changed = change_keys(organiser, repository, change, message)
    _show(snapshot, changed, organiser)


def _back_up(organiser: "Organiser", file: Path) -> None:
    if file.exists():
        raise ValueError(f"{file} exists already; expected the name of a new file.")
    passphrase = _passphrase("Passphrase of the backup, empty for none", is_new=True)
    organiser.key.save(file, passphrase)
    how = "it needs its passphrase" if passphrase else "it is NOT encrypted: keep it as you keep a password"
    typer.echo(f"{file}: backup of the organiser's key, {organiser.key.public}; {how}. Keep it on another machine.")


def _restore(snapshot: "RunSnapshot", backup: Path, key_file: Path | None) -> None:
    from pipelines.core.signing.publisher_keys import PublisherKey
    from pipelines.features.publishing.repository.organiser import organiser_key_file, restore_organiser

    key = PublisherKey.load(backup, lambda: _passphrase(f"Passphrase of {backup}", is_new=False))
    path = key_file or organiser_key_file(snapshot.repository)
    restore_organiser(key, snapshot.run, path)
    typer.echo(f"This machine has the organiser's key: {path}")


def _passphrase(question: str, *, is_new: bool) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    answer: str = typer.prompt(
        question, default="", show_default=False, hide_input=True, confirmation_prompt=is_new, err=True
    )
    return answer


def _roles(named: list[str] | None) -> tuple[str, ...]:
    from pipelines.features.publishing.repository.key_list import ROLES

    if unknown := set(named or ()) - set(ROLES):
        raise ValueError(f"--role got {', '.join(sorted(unknown))}; expected {' or '.join(ROLES)}.")
    return tuple(named or ROLES)


def _revoking(head: "RunSnapshot", listed: "KeyList", key: str) -> "KeyList":
    from pipelines.features.publishing.repository.manifest import CheckpointRefusedError

    try:
        newest = head.manifest_sha256 if head.manifest_under(listed) else None
    except CheckpointRefusedError:  # then there is nothing that should go on counting
        newest = None
    return listed.revoking(key, now=time.time()).keeping(newest)


def _show(snapshot: "RunSnapshot", listed: "KeyList", organiser: "Organiser | None") -> None:
    from rich.table import Table

    from hub_tools.printing.consoles import open_console
    from pipelines.features.publishing.repository.key_list import utc

    own = _own_key(snapshot.repository)
    table = Table("key", "roles", "since", "revoked", "", title=snapshot.repository)
    for entry in listed.entries:
        since = utc(entry.added_at) if entry.added_at else ""
        revoked = "" if entry.revoked_at is None else utc(entry.revoked_at)
        here = "this machine" if entry.key == own else ""
        table.add_row(entry.key, ", ".join(entry.roles), since, revoked, here)
    open_console().print(table)
    if not snapshot.run.organiser_key:
        typer.echo("The list is not signed: whoever may write to the repository can change it.")
    else:
        typer.echo(f"Serial {listed.serial}, signed by the organiser, {snapshot.run.organiser_key}.")
    if organiser is not None:
        typer.echo(f"This machine has the organiser's key: {organiser.key_file}")


def _own_key(repository: str) -> str | None:
    """Return the public key of this machine's auxiliary peer, if it has one."""
    from pipelines.core.signing.publisher_keys import PublisherKey
    from pipelines.features.publishing.auxiliary.auxiliary_options import AuxiliaryOptions
    from pipelines.features.publishing.repository.organiser import local_folder

    path = AuxiliaryOptions(folder=local_folder("auxiliary", repository)).key_file
    return PublisherKey.load_or_create(path).public if path.exists() else None
