"""Pull requests by which strangers ask to contribute to an open run: who is admitted, refused, or left alone."""

import threading
from types import SimpleNamespace

import pytest
from hub_round_parts import TinyRun, close_round, log_in
from huggingface_hub import CommitOperationAdd, HfApi
from running_programs import wait_for

from pipelines.features.open_runs.admitting import JoinRequestDesk
from pipelines.features.open_runs.asking import RequestRefusedError, ask_to_contribute
from pipelines.features.open_runs.join_request import answer_to, is_admitted, volunteer_file, volunteer_path
from pipelines.features.open_runs.volunteer_list import listed_volunteers
from pipelines.features.publishing.repository.rollback import changed_files

RUN = "org/birds"
CLOSED = {"who_may_contribute": "members"}


def diff_of(path, content):
    lines = "".join(f"+{line}\n" for line in content.decode().split("\n") if line)
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\nindex 0000000..1111111\n"
    return f"{header}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n{lines}"


OWN = diff_of("volunteers/eve.yaml", volunteer_file(RUN, "eve"))


def asked(diff=OWN, author="eve", **changes):
    return dict(status="open", title="t", author=author and {"name": author}, diff=diff) | changes


def test_a_user_is_admitted_by_his_own_file_alone():
    assert answer_to(asked(), RUN, frozenset()).admits == "eve"
    assert is_admitted(RUN, "volunteers/eve.yaml", "0" * 40) is None
    assert not any(vars(answer_to(asked(status="closed"), RUN, frozenset())).values())


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (asked(author="mallory"), "Expected one new file, `volunteers/mallory.yaml`"),
        (asked(author=None), "no account"),
        (asked(author="../../x"), "no account"),
        (asked(diff_of("volunteers/eve.yaml", volunteer_file(RUN, "adam"))), "Expected one new file"),
        (asked(diff_of("volunteers/eve.yaml", b"bucket: org/birds.rounds\n")), "Expected one new file"),
        (asked(OWN + "+more\n"), "Expected one new file"),
        (asked(OWN.replace("+bucket", "-bucket")), "Expected one new file"),
        (asked(diff_of("volunteers/EVE.yaml", volunteer_file(RUN, "eve"))), "Expected one new file"),
    ],
)
def test_what_has_the_shape_of_a_request_and_is_none_is_closed_with_what_was_expected(request_, words):
    answer = answer_to(request_, RUN, frozenset())
    assert words in answer.closes_with and not answer.admits


def test_a_user_whom_the_organiser_has_barred_is_refused():
    assert "barred eve" in answer_to(asked(), RUN, frozenset({"eve"})).closes_with


@pytest.mark.parametrize(
    "diff", [None, "", 7, [], diff_of("README.md", b"x\n"), OWN + diff_of("README.md", b"x\n"), "x" * 10**5]
)
def test_what_changes_anything_else_is_left_to_the_organiser_and_named_on_one_line(diff):
    answer = answer_to(asked(diff, title="a\n\x1b[2J\u202e" + "b" * 500), RUN, frozenset())
    assert answer.leaves.isprintable() and len(answer.leaves) < 200
    assert not answer.admits and not answer.closes_with


@pytest.mark.parametrize("separator", ["\r", "\x0b", "\x0c", "\x85", "\u2028"])
def test_no_line_of_a_stranger_s_file_is_taken_for_one_of_the_hub_s(separator):
    hidden = OWN.replace("+bucket", f"+{separator}@@ -0,0 +1 @@{separator}+bucket")
    assert answer_to(asked(hidden), RUN, frozenset()).closes_with


def test_a_rollback_keeps_who_was_admitted_and_who_was_barred():
    head, source = {"volunteers/eve.yaml": "a", "new": "b"}, {"volunteers/eve.yaml": "c", "volunteers/adam.yaml": "d"}
    assert changed_files(head, source) == ({}, ("new",))


@pytest.fixture
def open_run(hub, monkeypatch):
    log_in(monkeypatch, hub)
    run = TinyRun(who_may_contribute="everybody")
    HfApi().create_repo(run.repository)
    yield run
    run.close()


def statuses(repository):
    return {one.num: one.status for one in HfApi().get_repo_discussions(repository)}


def test_a_stranger_joins_an_open_run_by_a_pull_request_contributes_and_is_barred(hub, open_run, monkeypatch):
    run, token, outcome = open_run, hub.token_of("eve-open"), []

    def ask():
        try:
            outcome.append(ask_to_contribute(run.repository, "eve-open"))
        except RequestRefusedError as error:
            outcome.append(error)

    thread, desk = threading.Thread(target=ask, daemon=True), JoinRequestDesk(run.repository)
    closer, state = run.closer(), run.state()
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", token)
        run.key_of("eve-open")
        assert run.files.bucket_of("eve-open") == f"eve-open/{run.repository.replace('/', '.')}"
        thread.start()
        wait_for(lambda: statuses(run.repository), "the pull request", 20)
        run.put(state, "eve-open", run.contribution(state, 0))
    assert closer._files.volunteers() == []
    desk.look()
    thread.join(20)
    assert outcome == [None] and statuses(run.repository) == {1: "closed"}
    run.put(state, "vera-open", run.contribution(state, 1))  # in a bucket of the organisation
    closer._next_listing = 0.0
    closed = close_round(closer)
    assert {"eve-open"} <= {member.pointer.user for member in closed.members} <= {"eve-open", "vera-open"}
    run.follow(run.reader(), state)
    ask_to_contribute(run.repository, "eve-open")  # at once: he is admitted
    bar = CommitOperationAdd(volunteer_path("eve-open"), b"{}\n")
    HfApi().create_commit(run.repository, [bar], commit_message="Bar")
    assert "eve-open" not in closer._files.volunteers()
    with pytest.raises(RequestRefusedError, match="has barred eve-open"):
        ask_to_contribute(run.repository, "eve-open")


def test_a_stranger_whose_request_the_organiser_closes_hears_his_words_and_a_closed_run_names_the_role(
    hub, open_run, monkeypatch
):
    run, outcome = open_run, []

    def ask():
        with pytest.raises(RequestRefusedError) as refused:
            ask_to_contribute(run.repository, "adam-open")
        outcome.append(str(refused.value))

    thread = threading.Thread(target=ask, daemon=True)
    with monkeypatch.context() as patch:
        patch.setenv("HF_TOKEN", hub.token_of("adam-open"))
        thread.start()
        (num,) = wait_for(lambda: statuses(run.repository), "the pull request", 20)
        closed_run = TinyRun.new_files(SimpleNamespace(repository=run.repository, run=run.run.replace(**CLOSED)))
        with pytest.raises(OSError, match="ask an admin of org for the role contributor"):
            closed_run.make_bucket("adam-open", private=False)
    HfApi().change_discussion_status(run.repository, num, "closed", comment="Not today.\n\x1b[2J")
    thread.join(20)
    assert outcome[0].endswith("was closed: Not today. \ufffd[2J"), outcome


def test_hostile_pull_requests_change_nothing_and_hide_nobody(hub, open_run, caplog):
    run, desk = open_run, JoinRequestDesk(open_run.repository)
    mallory = HfApi(token=hub.token_of("mallory-open"))
    eve = HfApi(token=hub.token_of("eve-open"))

    def propose(api, title="Volunteer", **files):
        operations = [CommitOperationAdd(path.replace("__", "/"), content) for path, content in files.items()]
        return api.create_commit(run.repository, operations, commit_message=title, create_pr=True).pr_num

    def own(user):
        return {volunteer_path(user): volunteer_file(run.repository, user)}

    before = HfApi().list_repo_files(run.repository)
    asked_ = propose(eve, **own("eve-open"))
    left = propose(mallory, "words\x1b[2J", **own("mallory-open"), **{"README.md": b"mine\n"})
    desk.look()
    huge = propose(mallory, **{volunteer_path("mallory-open"): b"a\n" * 10**5})
    desk.look()
    other = propose(mallory, **own("adam-open"))
    desk.look()
    desk.look()
    found = statuses(run.repository)
    assert found == {asked_: "closed", left: "open", huge: "open", other: "closed"}
    assert listed_volunteers(run.repository).admitted == {"eve-open"}
    assert sorted(HfApi().list_repo_files(run.repository)) == sorted([*before, volunteer_path("eve-open")])
    *_, told, _closed = mallory.get_discussion_details(run.repository, other).events
    assert told.content.startswith("Expected one new file, `volunteers/mallory-open.yaml`")
    said = [record.getMessage() for record in caplog.records if "left to the organiser" in record.getMessage()]
    assert len(said) == 2 and all(map(str.isprintable, said)), said
