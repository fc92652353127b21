"""`hub-tools`: publish to a Hub, and serve one from a folder."""

import os
from pathlib import Path
from typing import Annotated

import typer

from hub_tools.printing.consoles import open_progress

from .counted import counted
from .endpoint import prepare_hub_client
from .one_line_errors import run_command_line

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Publish datasets, models and Spaces to a Hugging Face Hub, and serve a Hub from a folder.",
)
user_app = typer.Typer(no_args_is_help=True, help="Manage users of a local Hub.")
organization_app = typer.Typer(no_args_is_help=True, help="Manage organizations of a local Hub.")
publish_app = typer.Typer(no_args_is_help=True, help="Publish to the Hub that HF_ENDPOINT names.")
bundle_app = typer.Typer(no_args_is_help=True, help="Bundle a Space with all it needs into a folder.")
app.add_typer(user_app, name="user")
app.add_typer(organization_app, name="org")
app.add_typer(publish_app, name="publish")
app.add_typer(bundle_app, name="bundle")

Root = Annotated[Path, typer.Option(help="Folder in which the Hub stores everything.")]
Private = Annotated[bool, typer.Option("--private", help="Make a new repository visible to members only.")]
Repository = Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository on the Hub; created if missing.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of a static Space, or variable of any other."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be published, and publish nothing.")]


@app.command()
def serve(
    root: Root,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="TCP port; 0 takes a free one.")] = 8300,
    part_mebibytes: Annotated[
        int, typer.Option(help="Larger files are uploaded in parts of this size. Decrease for bad links.")
    ] = 256,
) -> None:
    """Serve a Hub from a folder until Ctrl-C: for one machine or a trusted network.

    \b
    Examples:
      hub-tools serve --root my-hub
      hub-tools serve --root my-hub --port 9000
      hub-tools serve --root my-hub --host 0.0.0.0
    """
    from .http_serving import LOOPBACK_HOSTS
    from .local_hub.server import ServerOptions, serve

    options = ServerOptions(root=root, host=host, port=port, part_mebibytes=part_mebibytes)
    if host not in LOOPBACK_HOSTS:
        typer.echo(
            f"WARNING: listening on {host}, without encryption. TRUSTED NETWORKS ONLY: tokens are sent in clear text.",
            err=True,
        )
    serve(options, lambda endpoint: _say_how_to_use(endpoint, root))


@app.command()
def check(
    root: Root,
    remove_unused: Annotated[
        bool, typer.Option("--remove-unused", help="Delete contents that no commit refers to; the Hub must be stopped.")
    ] = False,
) -> None:
    """Check that everything a local Hub refers to is intact on its disk.

    \b
    Examples:
      hub-tools check --root my-hub
      hub-tools check --root my-hub --remove-unused
    """
    from .local_hub.store import consistency

    report = consistency.check_consistency(root)
    for problem in report.problems:
        typer.echo(problem, err=True)
    typer.echo(
        f"{counted(report.num_commits, 'commit')}, {counted(report.num_contents, 'content')}, "
        f"{len(report.unused)} unused, {counted(len(report.problems), 'problem')}"
    )
    if remove_unused:
        typer.echo(f"removed {counted(consistency.remove_unused(root), 'unused content')}")
    if report.problems:
        raise ValueError(
            f"{root} has {counted(len(report.problems), 'problem')}, listed above. Restore those files from a backup"
        )


@user_app.command("create")
def create_user(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    root: Root,
    token_role: Annotated[str, typer.Option(help="What the token may do: read, contributor or write.")] = "write",
) -> None:
    """Create a user and print a token, once: only its digest is kept. The Hub may be running.

    \b
    Examples:
      hub-tools user create alice --root my-hub
      export HF_TOKEN=$(hub-tools user create alice --root my-hub)
    """
    from .local_hub import LocalHub

    typer.echo(LocalHub(root).create_user(name, token_role=token_role))


@user_app.command("token")
def create_token(
    name: Annotated[str, typer.Argument(help="Name of the user.")],
    root: Root,
    role: Annotated[str, typer.Option(help="What the token may do: read, contributor or write.")] = "write",
) -> None:
    """Create another token for a user and print it, once.

    \b
    Examples:
      hub-tools user token alice --root my-hub --role read
    """
    from .local_hub import LocalHub

    typer.echo(LocalHub(root).create_token(name, role=role))


@organization_app.command("create")
def create_organization(name: Annotated[str, typer.Argument(help="Name of the organization.")], root: Root) -> None:
    """Create an organization. The Hub may be running.

    \b
    Examples:
      hub-tools org create birds --root my-hub
    """
    from .local_hub import LocalHub

    LocalHub(root).create_organization(name)
    typer.echo(f"Created {name}. Add members: hub-tools org add {name} USER --role admin --root {root}")


@organization_app.command("add")
def add_member(
    name: Annotated[str, typer.Argument(help="Name of the organization.")],
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    root: Root,
    role: Annotated[str, typer.Option(help="read, contributor, write or admin.")] = "write",
) -> None:
    """Add a user to an organization, or change the user's role. The Hub may be running.

    \b
    Examples:
      hub-tools org add birds alice --role admin --root my-hub
      hub-tools org add birds bob --role read --root my-hub
    """
    from .local_hub import LocalHub

    LocalHub(root).add_member(name, user, role)
    typer.echo(f"{user} has role {role} in {name}")


@publish_app.command("dataset")
def publish_dataset(
    folder: Annotated[Path, typer.Argument(help="Folder of Parquet shards.")],
    repository: Repository,
    private: Private = False,
    license: Annotated[str | None, typer.Option(help="Licence for the card, such as cc-by-4.0.")] = None,
    credits: Annotated[str, typer.Option(help="Who made the pictures, for the card.")] = "",
    message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
) -> None:
    """Check Parquet shards and publish those that the Hub lacks, with a dataset card, up to 100 in a commit.

    Stopped, the same command goes on. Repeating it makes no new commit.

    \b
    Examples:
      hub-tools publish dataset shards my-org/birds-codes
      hub-tools publish dataset shards my-org/birds-codes --private --license cc-by-4.0
      hub-tools publish dataset shards my-org/birds-codes --credits "Photographs: A. Finch"
    """

    from .publishing import dataset_publishing

    with open_progress(transient=True) as progress:
        task = progress.add_task("Checking shards", total=None)
        dataset = dataset_publishing.inspect_shards(
            folder, lambda done, total: progress.update(task, completed=done, total=total)
        )
    typer.echo(
        f"{counted(len(dataset.shards), 'shard')}, {counted(dataset.num_rows, 'record')}, "
        f"{dataset.num_bytes:,} bytes: all readable"
    )
    with open_progress(transient=True) as progress:
        task = progress.add_task("Publishing shards", total=None)
        published = dataset_publishing.publish_checked_dataset(
            dataset,
            repository,
            private=private,
            message=message,
            license=license,
            credits=credits,
            on_shard=lambda done, total: progress.update(task, completed=done, total=total),
        )
    _say_published(published.url, changed=published.changed)


@publish_app.command("folder")
def publish_folder(
    folder: Annotated[Path, typer.Argument(help="Folder to publish as it is.")],
    repository: Repository,
    type: Annotated[str, typer.Option(help="model, dataset or space.")] = "model",
    private: Private = False,
    message: Annotated[str | None, typer.Option(help="Title of the commit.")] = None,
) -> None:
    """Publish a folder as it is, in one commit: a codec, a CLIP, a tokenizer. Repeating it makes no new commit.

    \b
    Examples:
      hub-tools publish folder codec my-org/birds-codec
      hub-tools publish folder my-space my-org/my-space --type space
    """
    from .publishing import folder_publishing

    published = folder_publishing.publish_folder(folder, repository, repo_type=type, private=private, message=message)
    _say_published(published.url, changed=published.changed)


@publish_app.command("space")
def publish_space(
    name: Annotated[str, typer.Argument(help="Name of one of this project's Spaces.")],
    repository: Repository,
    private: Private = False,
    set_: Settings = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Name of a secret; its value is read from the environment.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="Hardware to request, such as t4-small.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Publish one of this project's Spaces, bundled with the modules it imports, and set its variables.

    \b
    Examples:
      hub-tools publish space training_dashboard my-org/dashboard --set RUN=my-org/birds
      hub-tools publish space landing_page my-org/together --set run=my-org/birds
      hub-tools publish space join_training my-org/gpu --set RUN=my-org/birds --secret HF_TOKEN --hardware t4-small
    """
    from .publishing import page_settings, space_publishing

    plan = space_publishing.SpacePlan(
        name=name,
        repository=repository,
        settings=page_settings.parse_settings(set_ or []),
        secrets=tuple(secret or ()),
        hardware=hardware,
        private=private,
    )
    if dry_run:
        for line in space_publishing.describe_plan(plan):
            typer.echo(line)
        return
    published = space_publishing.publish_space(plan)
    _say_published(published.url, changed=published.changed)


@publish_app.command("run")
def publish_run(
    run: Annotated[str, typer.Argument(metavar="ORG/RUN", help="Model repository of the run.")],
    all_: Annotated[bool, typer.Option("--all", help="Publish all five Spaces; required.")] = False,
    private: Private = False,
    dry_run: DryRun = False,
) -> None:
    """Publish the pages of a run: landing page, dashboard, drawing, calculator and joining, linked to each other.

    They are named ORG/RUN-together, -dashboard, -draw, -memory and -join. What the run still lacks is listed.
    Repeating it updates only what differs.

    \b
    Examples:
      hub-tools publish run my-org/birds --all --dry-run
      hub-tools publish run my-org/birds --all
    """
    from .publishing import space_publishing
    from .publishing.commits import patiently

    if not all_:
        raise ValueError("publish run publishes all Spaces of a run. Confirm: --all. For one: hub-tools publish space")
    plans = space_publishing.plans_of_run(run, private=private)
    for sentence in patiently(lambda: space_publishing.missing_parts(run)):
        typer.echo(f"! {sentence}", err=True)
    if dry_run:
        for plan in plans:
            for line in space_publishing.describe_plan(plan):
                typer.echo(line)
        return
    for repository, published in space_publishing.publish_all(plans).items():
        typer.echo(f"{repository}: {published.url if published.changed else 'already up to date'}")


@bundle_app.command("space")
def bundle_space(
    name: Annotated[str, typer.Argument(help="Name of one of this project's Spaces.")],
    output: Annotated[Path, typer.Option(help="Folder to write; an earlier bundle is replaced.")],
    set_: Settings = None,
) -> None:
    """Write one of this project's Spaces, with the modules it imports, into a folder.

    \b
    Examples:
      hub-tools bundle space text_to_image_demo --output bundle
      cd bundle && python app.py
      hub-tools bundle space landing_page --output page --set run=my-org/birds
      python -m http.server --directory page
    """
    from .publishing import page_settings, space_bundling

    files = space_bundling.bundle_space(name, output, page_settings.parse_settings(set_ or []))
    typer.echo(f"{counted(len(files), 'file')} in {output}")


def main() -> None:
    """Run the command line; end with exit code 1 and one line for an error that the user can fix."""
    prepare_hub_client()
    run_command_line(app, prog_name="hub-tools")


def _say_how_to_use(endpoint: str, root: Path) -> None:
    from .local_hub.local_hub_process import client_environment

    typer.echo(f"Embedded Hub at {endpoint}, kept in {root}. Ctrl-C stops it. To use it in other shells:")
    for name, value in client_environment(endpoint).items():
        typer.echo(f"export {name}={value}")
    typer.echo(f"export HF_TOKEN=$(hub-tools user create {os.environ.get('USER') or 'NAME'} --root {root})")


def _say_published(url: str, *, changed: bool) -> None:
    typer.echo(url if changed else f"Nothing to do: the Hub already has exactly this, {url}")


if __name__ == "__main__":
    main()
