"""`--on-jobs`: the command that was typed as a Job of the Hub, shown first and submitted to the embedded one."""

import pytest
from huggingface_hub import HfApi

from pipelines.command_line.jobs.job_options import without_job_options
from pipelines.core.run.training_run import TrainingRun

JOIN = ("join", "org/birds", "--on-jobs", "t4-small")
PREPARE = (
    "data",
    "prepare",
    "hub:org/photographs",
    "--codec",
    "org/codec",
    "--output",
    "codes",
    "--on-jobs",
    "t4-small",
)


@pytest.fixture
def jobs(hub):
    """What gives alice's Jobs, newest first."""
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    return lambda: list(api.list_jobs(namespace="alice"))


def refusal(commands, *words, **options):
    done = commands.run(*words, **options)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    return line


def shown(done):
    assert done.returncode == 0, done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line.split()[0] in WORDS)


WORDS = {"command", "image", "flavor", "timeout", "cost", "secrets", "environ"}


def test_a_dry_run_shows_everything_and_submits_nothing(hub, commands, jobs):
    before = len(jobs())
    done = commands.run(*JOIN, "--job-hours", "8", "--precision", "fp16", "--dry-run")
    said = shown(done)
    assert said["command"] == (
        "pip install --quiet dalle-collab==0.1.0 && "
        "dalle-collab join org/birds --precision fp16 --max-hours 7.9 --client-mode"
    )
    assert said["flavor"] == "t4-small: 4 vCPU, 15 GB, 1 x T4" and said["timeout"] == "28800 s"
    assert said["cost"] == "$0.40 an hour, at most $3.20" and said["secrets"].startswith("HF_TOKEN (encrypted")
    assert said["environ"] == f"HF_ENDPOINT={hub.endpoint}" and hub.alice_token not in done.stdout
    assert done.stdout.rstrip().endswith("Nothing was submitted.") and len(jobs()) == before


@pytest.fixture(scope="module")
def run_over_hub(hub):
    """Return a run whose peers take no connections at all."""
    sparse = dict(synchronisation="sparse", local_steps=4, outer_momentum=0, aggregation_rule="mean")
    run = TrainingRun(run_id="hub-birds", wire="hub", bucket="org/hub-birds.rounds", authorization_service="", **sparse)
    api = HfApi(endpoint=hub.endpoint, token=hub.alice_token)
    api.create_repo("org/hub-birds")
    api.upload_file(repo_id="org/hub-birds", path_in_repo="training_run.json", path_or_fileobj=run.to_json().encode())
    return "org/hub-birds"


@pytest.mark.parametrize("wire", ["p2p", "hub"])
def test_a_job_is_submitted_as_it_was_shown(hub, commands, jobs, run_over_hub, wire):
    run, end = (run_over_hub, "") if wire == "hub" else (JOIN[1], " --client-mode")
    words = "join", run, *JOIN[2:], "--max-hours", "0.5", "--job-package", "git+https://example.org/it"
    done = commands.run(*words)
    job = jobs()[0]
    assert f"Job {job.id} is scheduling" in done.stdout and f"hf jobs cancel alice/{job.id}" in done.stdout
    assert job.command[:2] == ["bash", "-c"] and job.command[2] == shown(done)["command"]
    assert job.command[2].endswith(f"join {run} --max-hours 0.5 --max-hours 0.5{end}")
    assert job.labels == {"dalle-collab": "join", "run": run.replace("/", "--")} | {"name": job.labels["name"]}
    assert list(job.secrets) == ["HF_TOKEN"] and job.environment == {"HF_ENDPOINT": hub.endpoint}


def test_prepared_shards_are_published_by_the_job(commands, jobs):
    done = commands.run(*PREPARE, "--job-publish", "org/codes", "--device", "cuda")
    assert done.returncode == 0, done.stderr
    assert jobs()[0].command[2].partition(" && ")[2] == (
        "dalle-collab data prepare hub:org/photographs --codec org/codec --output codes --device cuda && "
        "hub-tools publish dataset codes org/codes"
    )


def test_what_a_job_cannot_do_is_refused_before_it_costs_anything(commands, jobs, tmp_path):
    before = len(jobs())
    for words, message in (
        ((*JOIN, "--identity-file", "key"), "--identity-file cannot be used with --on-jobs"),
        ((*JOIN, "--host", "/ip4/0.0.0.0/tcp/1"), "nobody can connect to a Job"),
        ((*JOIN, "--job-hours", "0.1"), "a peer needs more: --job-hours 1"),
        ((*JOIN, "--job-hours", "nan"), "hours"),
        ((*JOIN[:-1], "t4-smal"), "Did you mean t4-small?"),
        ((*JOIN[:2], "--dry-run"), "--dry-run is for Jobs only"),
        ((*JOIN[:2], "--job-hours", "2"), "--job-hours is for Jobs only"),
        (PREPARE, "Say where they go: --job-publish ORG/NAME"),
        ((*PREPARE, "--job-publish", "org/codes", "--part", "1/2"), "--part cannot be used with --on-jobs"),
        ((*PREPARE[:2], tmp_path, *PREPARE[3:], "--job-publish", "org/codes"), "a Job sees what is on the Hub only"),
    ):
        assert message in refusal(commands, *words)
    assert "A Job needs a token" in refusal(commands, *JOIN, token="")
    assert len(jobs()) == before


def test_who_may_not_run_jobs_is_told_so(hub, commands):
    reader = hub.create_token("alice", role="read")
    assert "forbids this" in refusal(commands, *JOIN, token=reader)
    assert "refuses the token" in refusal(commands, *JOIN, token="hf_unknown")


def test_only_the_words_about_jobs_are_left_out():
    words = ["a", "--on-jobs", "x", "--job-hours=2", "--job-publish", "--dry-run", "--dry-run", "--job-hourly", "b"]
    assert without_job_options(words) == ["a", "--job-hourly", "b"]
