"""Jobs of the embedded Hub with the real client, and what a Job of ours would send."""

import math
import shlex

import httpx
import pytest
from huggingface_hub import JobHardwareInfo
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.hub_jobs import JobPlan, describe_plan, dollars_per_hour, hardware_of, submit

PLAN = dict(commands=[["echo", "hello world"]], flavor="t4-small", hours=2.0, package="dalle-collab==0.1.0")


def spec(**changes):
    return dict(dockerImage="python:3.12", command=["true"], environment={}, flavor="cpu-basic") | changes


def post(hub, namespace, token, body):
    url, headers = f"{hub.endpoint}/api/jobs/{namespace}", {"Authorization": f"Bearer {token}"}
    return httpx.post(url, json=body, headers=headers)


def test_a_job_is_submitted_listed_inspected_and_cancelled(api, tokens):
    job = submit(JobPlan(**PLAN, labels={"run": "org--birds"}), api, tokens.alice)
    assert (job.status.stage, job.flavor, job.owner.name) == ("SCHEDULING", "t4-small", "alice")
    assert job.command == ["bash", "-c", "pip install --quiet dalle-collab==0.1.0 && echo 'hello world'"]
    assert job.labels["run"] == "org--birds"
    seen = api.inspect_job(job_id=job.id)
    assert (seen.id, seen.command, seen.initiator.name) == (job.id, job.command, "alice")
    assert job.id in [listed.id for listed in api.list_jobs(namespace="alice")]
    api.cancel_job(job_id=job.id)
    assert api.inspect_job(job_id=job.id).status.stage == "CANCELED"


def test_the_token_is_a_secret_whose_value_nobody_sees_again(hub, api, tokens):
    job = submit(JobPlan(**PLAN), api, tokens.alice)
    assert list(job.secrets) == ["HF_TOKEN"] and set(job.secrets.values()) == {""}
    url, headers = f"{hub.endpoint}/api/jobs/alice", {"Authorization": f"Bearer {tokens.alice}"}
    assert tokens.alice not in httpx.get(url, headers=headers).text
    assert all(tokens.alice.encode() not in path.read_bytes() for path in hub.root.glob("hub.sqlite3*"))
    for change in (
        dict(commands=[["join", f"--events={tokens.alice}"]]),
        dict(environment={"HF_TOKEN": tokens.alice}),
        dict(package=f"git+https://{tokens.alice}@example.org/x"),
        dict(labels={"note": tokens.alice}),
    ):
        with pytest.raises(ValueError, match="Your token is in the command"):
            submit(JobPlan(**(PLAN | change)), api, tokens.alice)


def test_strangers_and_readers_run_and_see_nothing(hub, client, tokens, api):
    job = api.run_job(image="python:3.12", command=["true"], namespace="org")
    for token, status in ((tokens.eve, 403), (tokens.carol, 403), (tokens.alice_read, 403), ("hf_wrong", 401)):
        assert post(hub, "org", token, spec()).status_code == status
    for unknown in (client(tokens.eve), client(False)):
        for ask in (unknown.inspect_job, unknown.cancel_job):
            with pytest.raises(HfHubHTTPError):
                ask(job_id=job.id, namespace="org")
    with pytest.raises(HfHubHTTPError):
        client(tokens.carol).cancel_job(job_id=job.id, namespace="org")
    with pytest.raises(HfHubHTTPError):
        api.inspect_job(job_id=job.id, namespace="alice")
    assert api.inspect_job(job_id=job.id, namespace="org").status.stage == "SCHEDULING"


@pytest.mark.parametrize(
    "change",
    [
        dict(flavor="h200x999"), dict(flavor=["t4-small"]), dict(command="rm -rf /"), dict(command=[]),
        dict(command=[1]), dict(dockerImage=""), dict(dockerImage=None), dict(timeoutSeconds=0),
        dict(timeoutSeconds=True), dict(timeoutSeconds=10**9), dict(environment={"A": 1}), dict(environment=["A"]),
        dict(secrets={"A": None}), dict(command=["x" * 300_000]), dict(labels="x"),
    ],
    ids=lambda change: str(change)[:40],
)  # fmt: skip
def test_a_malformed_job_is_refused(hub, tokens, change):
    assert post(hub, "alice", tokens.alice, spec(**change)).status_code == 400


def test_every_word_of_a_command_stays_one_word():
    hostile = ["join", "org/run; rm -rf ~", "$(curl evil)", "`id`", "a'b", "", "--x=\n&& y"]
    line = JobPlan(**(PLAN | dict(commands=[hostile], package="x && evil"))).shell_line
    words = shlex.split(line, comments=False)
    assert words == ["pip", "install", "--quiet", "x && evil", "&&", *hostile]


def hardware(**changes):
    values = dict(name="t4-small", prettyName="T4", cpu="4 vCPU", ram="15 GB", unitCostMicroUSD=1)
    return JobHardwareInfo(**(values | dict(unitCostUSD=0.01, unitLabel="minute") | changes))


def test_what_it_costs_is_said_or_said_to_be_unknown(api):
    assert dollars_per_hour(hardware()) == pytest.approx(0.6)
    assert dollars_per_hour(hardware(unitCostUSD=1, unitLabel="hour")) == 1
    assert "$0.60 an hour, at most $1.20" in "\n".join(describe_plan(JobPlan(**PLAN), hardware()))
    for strange in (
        dict(unitLabel="fortnight"), dict(unitLabel=None), dict(unitCostUSD=math.nan), dict(unitCostUSD=-1),
        dict(unitCostUSD="free"), dict(unitCostUSD=None), dict(unitLabel=["minute"]), dict(unitCostUSD=True),
    ):  # fmt: skip
        assert dollars_per_hour(hardware(**strange)) is None
        assert "cost     unknown" in "\n".join(describe_plan(JobPlan(**PLAN), hardware(**strange)))
    with pytest.raises(ValueError, match=r"no hardware 't4-smal' for Jobs. Did you mean t4-small"):
        hardware_of(api, "t4-smal")


@pytest.mark.parametrize("hours", [0, -1, math.nan, math.inf, 10_000])
def test_a_job_ends(hours):
    with pytest.raises(ValueError, match="hours"):
        JobPlan(**(PLAN | dict(hours=hours)))
