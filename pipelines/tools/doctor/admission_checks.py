"""Who may take part in a run, and is the service that decides it up?"""

from collections.abc import Mapping
from typing import Any

from hub_tools.hub_client import request_json
from pipelines.core.admission.settings import is_on_this_machine
from pipelines.core.run.training_run import TrainingRun
from pipelines.tools.doctor.check_result import CheckResult, fail, ok, warn
from pipelines.tools.doctor.hub_checks import USER_ERRORS, retried

SERVICE_SECONDS = 15.0
"""A sleeping Space takes a while to answer."""


def check_admission(repository: str, run: TrainingRun, caller: Mapping[str, object] | None) -> list[CheckResult]:
    """Ping the run's admission service; judge whether it will admit the caller.

    `caller` is the Hub's answer to `whoami`, or None without a token.
    """
    if run.is_open:
        return [ok("admission service", "an open run: anyone may join, nobody is checked")]
    try:
        answer = retried(lambda: _describe(run.authorization_service))
    except USER_ERRORS as error:
        cure = f"Its organiser starts it: dalle-collab run authorize {repository}"
        return [fail("admission service", f"{run.authorization_service} does not answer ({error})", "an answer", cure)]
    return [judge_service(repository, run, answer), judge_membership(repository, caller)]


def judge_service(repository: str, run: TrainingRun, answer: object) -> CheckResult:
    """Compare what the service says about itself with the run's settings."""
    name, expected = "admission service", f"the service of {repository} with the run's key"
    values = answer if isinstance(answer, dict) else {}
    if (values.get("repository"), values.get("authorization_key")) != (repository, run.authorization_key):
        seen = f"{run.authorization_service} serves {values.get('repository', 'something else')}, or has another key"
        cure = f"Write its address and key into the run again: dalle-collab run authorize {repository}"
        return fail(name, seen, expected, cure)
    if problem := values.get("lists_problem"):
        cure = "Fix the allow and ban lists in the run's repository."
        return warn(name, f"the service cannot read its lists: {problem}", "readable lists", cure)
    return ok(name, f"{run.authorization_service} answers", expected)


def judge_membership(repository: str, caller: Mapping[str, Any] | None) -> CheckResult:
    """Members of the run's organisation are admitted; others only if its allow list names them."""
    name, organisation = "membership", repository.partition("/")[0]
    if caller is None:
        return fail(name, "no Hub token", f"a member of {organisation}", "Log in: hf auth login")
    belongs = {caller["name"], *(item["name"] for item in caller.get("orgs", ()))}
    if organisation in belongs:
        return ok(name, f"{caller['name']} belongs to {organisation}", f"a member of {organisation}")
    return warn(
        name,
        f"{caller['name']} is not a member of {organisation}",
        f"a member of {organisation}, or a user on the run's allow list",
        f"Ask an admin of {organisation} to add you, or a moderator of the run to put you on its allow list.",
    )


def _describe(service: str) -> object:
    status, answer = request_json("GET", service, seconds=SERVICE_SECONDS, trust_env=not is_on_this_machine(service))
    if status != 200:
        raise ConnectionError(f"it answers {status}")
    return answer
