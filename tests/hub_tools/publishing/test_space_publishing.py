"""Spaces on the embedded Hub get their files, variables, secrets and hardware; what is secret stays so."""

import httpx
import pytest
from swarm_of_processes import tiny_run

from hub_tools.publishing.space_publishing import SPACE_SUFFIXES, SpacePlan, check_plan, plans_of_run

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

SECRET = "hf_secret_value_of_this_test"


@pytest.fixture
def publish(run_client, tokens):
    def publish(*arguments, check=True, **environment):
        return run_client("hub-tools", "publish", *arguments, token=tokens.alice, check=check, **environment)

    return publish


def test_a_space_gets_its_variables_secrets_and_hardware_and_once_more_changes_nothing(publish, api, repo_id):
    arguments = (
        "space", "training_dashboard", repo_id, "--set", "RUN=org/birds", "--secret", "READ_TOKEN",
        "--hardware", "cpu-upgrade",
    )  # fmt: skip
    done = publish(*arguments, READ_TOKEN=SECRET)
    assert {name: item.value for name, item in api.get_space_variables(repo_id).items()} == {"RUN": "org/birds"}
    assert list(api.get_space_secrets(repo_id)) == ["READ_TOKEN"]
    assert api.get_space_runtime(repo_id).requested_hardware == "cpu-upgrade"
    assert "app.py" in api.list_repo_files(repo_id, repo_type="space")
    again = publish(*arguments, READ_TOKEN=SECRET)
    assert "Nothing to do" in again.stdout
    assert SECRET not in done.stdout + done.stderr + again.stdout + again.stderr
    publish("space", "training_dashboard", repo_id, "--set", "RUN=org/owls")
    assert api.get_space_variables(repo_id)["RUN"].value == "org/owls"


def test_a_dry_run_says_what_it_would_do_and_does_nothing(publish, api, repo_id):
    done = publish(
        "space", "training_dashboard", repo_id, "--set", "RUN=org/birds", "--secret", "READ_TOKEN", "--dry-run",
        READ_TOKEN=SECRET,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{repo_id}: training_dashboard, ") and lines[0].endswith(" kB")
    assert lines[1:] == ["  variable RUN=org/birds", "  secret READ_TOKEN, from the environment"]
    assert not api.repo_exists(repo_id, repo_type="space")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (dict(name="no_such_space"), "There is no Space 'no_such_space'"),
        (dict(repository="birds"), "expected ORG/NAME"),
        (dict(settings={"a b": "c"}), "--set got the name 'a b'"),
        (dict(settings={"HF_TOKEN": "hf_" + 30 * "x"}), "would be public.*--secret HF_TOKEN"),
        (dict(secrets=("A_TOKEN_THAT_IS_NOT_SET",)), "where it is unset. Export it"),
        (dict(name="landing_page", hardware="t4-small"), "is a static Space"),
    ],
    ids=["name", "repository", "variable", "token", "secret", "static"],
)
def test_a_plan_that_cannot_work_is_refused_before_anything_is_written(plan, words):
    with pytest.raises(ValueError, match=words):
        check_plan(SpacePlan(**(dict(name="training_dashboard", repository="org/dashboard") | plan)))


def test_nothing_is_set_in_a_public_space_that_was_meant_to_be_private(publish, api, repo_id):
    api.create_repo(repo_id, repo_type="space", space_sdk="gradio")
    done = publish(
        "space", "training_dashboard", repo_id, "--private", "--set", "RUN=org/birds", "--secret", "READ_TOKEN",
        check=False, READ_TOKEN=SECRET,
    )  # fmt: skip
    assert done.returncode == 1 and "exists and is public, --private expects a private one" in done.stderr
    assert api.get_space_variables(repo_id) == {} and list(api.get_space_secrets(repo_id)) == []


def test_the_spaces_of_a_run_know_the_run_and_each_other():
    plans = {plan.name: plan for plan in plans_of_run("org/birds")}
    assert set(plans) == set(SPACE_SUFFIXES)
    linked = {value for plan in plans.values() for value in plan.settings.values()}
    assert linked == {"org/birds"} | {plan.repository for plan in plans.values()}
    assert all("org/birds" in plan.settings.values() for plan in plans.values())


def test_everything_of_a_run_is_published_and_what_it_lacks_is_named(publish, hub, api, repo):
    settings = tiny_run(dataset_repository=f"{repo}-codes").to_json()
    api.upload_file(repo_id=repo, path_in_repo="training_run.json", path_or_fileobj=settings.encode())
    planned = publish("run", repo, "--all", "--dry-run")
    assert not api.repo_exists(f"{repo}-together", repo_type="space")
    assert f"{repo} has no card yet" in planned.stderr and f"Its dataset {repo}-codes does not exist" in planned.stderr
    done = publish("run", repo, "--all")
    for suffix in SPACE_SUFFIXES.values():
        assert f"{repo}-{suffix}: http" in done.stdout
        assert f"{repo}-{suffix}: " in planned.stdout
    page = httpx.get(f"{hub.endpoint}/spaces/{repo}-together/resolve/main/settings.json").json()
    assert (page["run"], page["training_dashboard"]) == (repo, f"{repo}-dashboard")
    variables = api.get_space_variables(f"{repo}-dashboard")
    assert (variables["RUN"].value, variables["DEMO_SPACE"].value) == (repo, f"{repo}-draw")
    again = publish("run", repo, "--all")
    assert again.stdout.count("already up to date") == len(SPACE_SUFFIXES)


def test_what_is_no_run_is_not_published(publish, api, repo):
    done = publish("run", repo, "--all", check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == f"hub-tools: {repo} is not a training run that you may read. Create it first: " + (
        "dalle-collab run create"
    )
