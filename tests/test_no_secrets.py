"""Nothing secret and nothing about one machine is in the repository, and no command prints a token."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Put together here, so that this file does not contain what it looks for.
TOKEN = "hf_" + "Tq7" * 12
REGISTRIES = ("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "npmjs" + ".com", "crates" + ".io")
FORBIDDEN = {
    "a token of the Hub": re.compile(rb"\bhf_[A-Za-z0-9]{20,}"),
    "a token of GitHub": re.compile(rb"\bgh[pousr]_[A-Za-z0-9]{30,}"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of AWS": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
    "a package registry's host": re.compile("|".join(map(re.escape, REGISTRIES)).encode()),
    "a password in an address": re.compile(rb"https?://[^\s/:@{}<>\"']+:[^\s/@{}<>\"']+@"),
    "a path of one machine": re.compile(rb"""(?<![\w.\-/*{}])/(?:root|home|work|Users|opt|mnt|tmp)/[A-Za-z0-9_.]"""),
}


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]


def findings(name: str, content: bytes) -> list[str]:
    """Return `file:line: what was found` for everything in a file that must not be there."""
    return [
        f"{name}:{content.count(bytes([10]), 0, match.start()) + 1}: {kind}"
        for kind, pattern in FORBIDDEN.items()
        for match in pattern.finditer(content)
    ]


def test_no_file_holds_a_secret_a_registry_or_a_path_of_one_machine():
    names = tracked_files()
    assert len(names) > 100
    assert [found for name in names for found in findings(name, (ROOT / name).read_bytes())] == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f"token = '{TOKEN}'", "a token of the Hub"),
        ("ghp_" + "a1B2" * 9, "a token of GitHub"),
        ("-----BEGIN RSA " + "PRIVATE KEY-----", "a private key"),
        ("AKIA" + "Z9" * 8, "a key of AWS"),
        (f"pip install --index-url https://{REGISTRIES[0]}/simple", "a package registry's host"),
        ("git clone https://" + "alice:secret@example.org/x", "a password in an address"),
        ("folder = '/" + "home/alice/x'", "a path of one machine"),
        ("cd /" + "root/project", "a path of one machine"),
    ],
)
def test_what_must_not_be_there_would_be_found(line, kind):
    assert findings("file.txt", f"first line\n{line}\n".encode()) == [f"file.txt:2: {kind}"]


def test_innocent_text_is_not_taken_for_a_secret():
    innocent = b"hf_hub_download HF_TOKEN=hf_... https://huggingface.co/a/b@main shards/work/x /ip4/127.0.0.1/tcp/0"
    assert findings("file.txt", innocent) == []


def output_of(*words: str, **variables: str) -> str:
    """Run a command that must fail, with the token in its environment; return all that it prints."""
    script = Path(sys.executable).with_name(words[0])
    environment = {**os.environ, "HF_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run([script, *words[1:]], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("traceback", ["0", "1"])
def test_a_refused_token_is_not_printed(hub, tmp_path, traceback):
    (tmp_path / "file.txt").write_text("content")
    publish = ("hub-tools", "publish", "folder", str(tmp_path), "org/codec")
    output = output_of(*publish, HF_ENDPOINT=hub.endpoint, DALLE_COLLAB_TRACEBACK=traceback)
    assert "refuses the token" in output
    assert ("Traceback" in output) == (traceback == "1")
    assert TOKEN not in output


def test_a_token_is_not_printed_where_no_hub_answers(tmp_path):
    (tmp_path / "file.txt").write_text("content")
    # Port 9 of the loopback interface: nothing listens there.
    output = output_of("hub-tools", "publish", "folder", str(tmp_path), "org/codec", HF_ENDPOINT="http://127.0.0.1:9")
    assert "Cannot reach the Hub at" in output
    assert TOKEN not in output


def test_a_refused_token_is_not_printed_by_a_command_that_reads_a_dataset(hub, tmp_path):
    output = output_of(
        *("dalle-collab", "data", "train-tokenizer", "org/codes", "--output", str(tmp_path / "tokenizer")),
        HF_ENDPOINT=hub.endpoint,
    )
    assert "refuses the token" in output
    assert TOKEN not in output
