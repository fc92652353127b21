"""Libraries and programs that know nothing of this project work with the embedded Hub, with HF_ENDPOINT set."""

import json

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from hub_tools.hub_client import is_outage

pytestmark = pytest.mark.slow

TRANSFORMERS = """
import sys, torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models

name = sys.argv[1]
config = BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=128)
model = BertModel(config).eval()
for repo, shard in ((name, None), (name + "-sharded", "200KB")):
    model.push_to_hub(repo, private=True, **({"max_shard_size": shard} if shard else {}))
    again = AutoModel.from_pretrained(repo).eval()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0, "red": 1}, "<unk>")))
tokenizer.push_to_hub(name)
assert AutoTokenizer.from_pretrained(name)("red").input_ids == [1]
assert AutoConfig.from_pretrained(name, revision="main").hidden_size == 64

import pathlib, tempfile
from huggingface_hub import HfApi

folder = pathlib.Path(tempfile.mkdtemp())
(folder / "modeling_tiny.py").write_text('''
import torch
from transformers import PreTrainedModel
from .configuration_tiny import TinyConfig

class TinyModel(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(config.width, config.width)
        self.post_init()
''')
(folder / "configuration_tiny.py").write_text('''
from transformers import PreTrainedConfig

class TinyConfig(PreTrainedConfig):
    model_type = "tiny-remote"
    width: int = 3
''')
sys.path.insert(0, str(folder.parent))
(folder / "__init__.py").write_text("")
import importlib
module = importlib.import_module(folder.name + ".modeling_tiny")
module.TinyModel.register_for_auto_class("AutoModel")
module.TinyConfig.register_for_auto_class()
model = module.TinyModel(module.TinyConfig(width=5))
model.push_to_hub(name + "-code")
assert {"modeling_tiny.py", "configuration_tiny.py"} <= set(HfApi().list_repo_files(name + "-code"))
again = AutoModel.from_pretrained(name + "-code", trust_remote_code=True)
assert type(again).__module__.startswith("transformers_modules")
assert again.layer.weight.equal(model.layer.weight)
print("done")
"""

DATASETS = """
import sys, json, datasets
name = sys.argv[1]
columns = {"caption": [f"caption {n}" for n in range(100)], "codes": [[n, n + 1] for n in range(100)]}
made = datasets.Dataset.from_dict(columns)
made.push_to_hub(name, num_shards=4, private=True)
stream = datasets.load_dataset(name, split="train", streaming=True)
assert stream.num_shards == 4
rows = list(stream.shuffle(seed=0, buffer_size=10))
assert sorted(row["codes"][0] for row in rows) == list(range(100))
assert datasets.load_dataset(name, split="train")[99] == {"caption": "caption 99", "codes": [99, 100]}
assert [row["caption"] for row in stream.skip(98)] == ["caption 98", "caption 99"]
print("done")
"""


def test_transformers_pushes_and_loads_models_whole_sharded_and_with_their_code(run_client, api, tokens, repo_id):
    done = run_client("python", "-W", "ignore", "-c", TRANSFORMERS, repo_id, token=tokens.alice)
    assert done.stdout.endswith("done\n")
    files = api.list_repo_files(f"{repo_id}-sharded")
    assert "model.safetensors.index.json" in files
    assert len([name for name in files if name.endswith(".safetensors")]) > 1
    assert api.model_info(repo_id).private is True


def test_datasets_pushes_streams_and_loads(run_client, api, tokens, repo_id):
    assert run_client("python", "-W", "ignore", "-c", DATASETS, repo_id, token=tokens.alice).stdout.endswith("done\n")
    info = api.dataset_info(repo_id)
    assert info.card_data.to_dict()["dataset_info"]["splits"][0]["num_examples"] == 100


def test_the_hf_program_logs_in_uploads_and_downloads(run_client, api, tokens, repo_id, tmp_path):
    who = run_client("hf", "auth", "whoami", token=tokens.alice).stdout
    assert "alice" in who
    assert "org" in who
    (tmp_path / "up" / "sub").mkdir(parents=True)
    (tmp_path / "up" / "a.txt").write_text("text")
    (tmp_path / "up" / "sub" / "b.bin").write_bytes(b"\0" * 5000)
    run_client("hf", "upload", repo_id, str(tmp_path / "up"), ".", "--repo-type", "dataset", token=tokens.alice)
    assert api.list_repo_files(repo_id, repo_type="dataset") == [".gitattributes", "a.txt", "sub/b.bin"]
    down = str(tmp_path / "down")
    run_client("hf", "download", repo_id, "--repo-type", "dataset", "--local-dir", down, token=tokens.alice)
    assert (tmp_path / "down" / "sub" / "b.bin").read_bytes() == b"\0" * 5000
    refused = run_client("hf", "download", f"{repo_id}-missing", token=tokens.alice, check=False)
    assert refused.returncode != 0
    assert "not found" in (refused.stdout + refused.stderr).lower()


def test_a_client_that_forgot_to_switch_xet_off_is_told_how(run_client, tokens, repo_id, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0" * 5000)
    file = str(tmp_path / "a.bin")
    code = (
        "import sys, huggingface_hub\n"
        f"huggingface_hub.create_repo({repo_id!r})\n"
        f"huggingface_hub.upload_file(path_or_fileobj={file!r}, path_in_repo='a.bin', repo_id={repo_id!r})\n"
    )
    done = run_client(code=code, token=tokens.alice, HF_HUB_DISABLE_XET="0", check=False)
    assert done.returncode != 0
    # `prepare_hub_client` is the cure, whatever the environment says.
    cure = "from hub_tools.endpoint import prepare_hub_client\nprepare_hub_client()\n"
    cured = cure + code.replace("create_repo(", "create_repo(exist_ok=True, repo_id=")
    run_client("env", "-u", "HF_HUB_DISABLE_XET", "python", "-c", cured, token=tokens.alice)


def test_nothing_is_looked_up_outside_the_hub(run_client, tokens, repo_id):
    code = (
        "import socket, sys, json\n"
        "names = set()\n"
        "sys.addaudithook(lambda event, args: names.add(str(args[0])) if event == 'socket.getaddrinfo' else None)\n"
        "import huggingface_hub\n"
        f"huggingface_hub.create_repo({repo_id!r})\n"
        f"huggingface_hub.upload_file(path_or_fileobj=b'x', path_in_repo='a.txt', repo_id={repo_id!r})\n"
        f"huggingface_hub.snapshot_download({repo_id!r})\n"
        "print(json.dumps(sorted(names)))\n"
    )
    assert json.loads(run_client(code=code, token=tokens.alice).stdout.splitlines()[-1]) == ["127.0.0.1"]


def test_a_fork_beside_a_request_does_not_wait_for_ever(run_client):
    code = (
        "import multiprocessing, threading\n"
        "from hub_tools.endpoint import prepare_hub_client\n"
        "prepare_hub_client()\n"
        "from huggingface_hub import get_session\n"
        "held, done = threading.Event(), threading.Event()\n"
        "def request():\n"
        "    with get_session()._transport._pool._optional_thread_lock:\n"
        "        held.set()\n"
        "        done.wait()\n"
        "thread = threading.Thread(target=request)\n"
        "thread.start()\n"
        "held.wait()\n"
        "child = multiprocessing.get_context('fork').Process(target=print, args=('alive',))\n"
        "child.start()\n"
        "child.join(20)\n"
        "code = child.exitcode\n"
        "child.kill()\n"
        "print(code)\n"
        "done.set()\n"
        "thread.join()\n"
    )
    assert run_client(code=code).stdout.split() == ["alive", "0"]


def test_a_refused_connection_leaves_the_requests_of_other_threads_alone(run_client):
    code = (
        "import socket, threading\n"
        "from hub_tools.endpoint import prepare_hub_client\n"
        "prepare_hub_client()\n"
        "from huggingface_hub import get_session\n"
        "from huggingface_hub.utils import http_backoff\n"
        "import httpx2\n"
        "slow, closed = socket.create_server(('127.0.0.1', 0)), socket.create_server(('127.0.0.1', 0))\n"
        "nobody = closed.getsockname()[1]\n"
        "closed.close()\n"
        "def request():\n"
        "    print(get_session().get(f'http://127.0.0.1:{slow.getsockname()[1]}/').text)\n"
        "thread = threading.Thread(target=request)\n"
        "thread.start()\n"
        "connection, _ = slow.accept()\n"
        "connection.recv(10_000)\n"
        "before = get_session()\n"
        "try:\n"
        "    http_backoff('GET', f'http://127.0.0.1:{nobody}/', max_retries=0)\n"
        "except httpx2.ConnectError:\n"
        "    print('refused', get_session() is before, flush=True)\n"
        "connection.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 8\\r\\n\\r\\nanswered')\n"
        "thread.join()\n"
    )
    assert run_client(code=code).stdout.split() == ["refused", "True", "answered"]


def test_only_what_may_succeed_later_is_an_outage():
    def answered(status):
        response = httpx2.Response(status, request=httpx2.Request("GET", "http://hub"))
        return HfHubHTTPError("", response=response)

    assert all(is_outage(answered(status)) for status in (429, 500, 502, 503, 504))
    assert not any(is_outage(answered(status)) for status in (401, 403, 404, 416))
    assert is_outage(httpx2.ConnectError("refused")) and is_outage(httpx2.ReadTimeout("late"))
    assert is_outage(ConnectionError("Server Disconnected"))
    assert not is_outage(FileNotFoundError("no such shard")) and not is_outage(ValueError("damaged"))
