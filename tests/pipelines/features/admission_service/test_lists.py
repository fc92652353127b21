"""Who may join: members, the allow list, and above both the ban list; and lists that were written wrongly."""

import pytest

from pipelines.features.admission_service.lists import AdmissionLists, objection_to


@pytest.mark.parametrize(
    ("username", "organisations", "text", "expected"),
    [
        ("alice", ["birds", "other"], "{}", None),
        ("bob", ["other"], "{}", "not_member"),
        ("bob", [], '{"allow": ["Bob"]}', None),
        ("bob", [], '{"allow": ["*"]}', None),
        ("alice", ["Birds"], '{"ban": ["ALICE"]}', "banned"),
        ("bob", [], '{"allow": ["*", "bob"], "ban": ["bob"]}', "banned"),
        ("birds", [], "{}", None),
    ],
)
def test_members_and_the_allowed_may_join_and_the_banned_may_not(username, organisations, text, expected):
    lists = AdmissionLists.from_json(text)
    assert objection_to(username, organisations, organisation="birds", lists=lists) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "admission.json is not JSON"),
        ("[]", "has something other than the lists allow and ban"),
        ('{"banned": []}', "has something other"),
        ('{"ban": "mallory"}', "'ban' in admission.json is not a list"),
        ('{"ban": [3]}', "has 3, which is not a user name"),
        ('{"allow": ["a b"]}', "has 'a b', which is not a user name"),
        ('{"ban": ["*"]}', r"bans '\*', but a ban is for single users"),
    ],
)
def test_lists_that_are_wrong_say_what_is_right(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        AdmissionLists.from_json(text)
    assert '{"allow": ["carol"], "ban": ["mallory"]}' in str(caught.value)
