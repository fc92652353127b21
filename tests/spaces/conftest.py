"""A Space started from its bundle. A test file names its folder in `SPACE` and has a fixture `environment`."""

import gradio_client
import pytest
from space_process import started_space

from hub_tools.publishing.space_bundling import bundle_folder


@pytest.fixture(scope="module")
def bundle(request, tmp_path_factory):
    output = tmp_path_factory.mktemp("bundle") / "space"
    bundle_folder(request.module.SPACE, output)
    return output


@pytest.fixture(scope="module")
def address(bundle, environment):
    with started_space(bundle, environment) as (_, address):
        yield address


@pytest.fixture(scope="module")
def client(address, tmp_path_factory):
    return gradio_client.Client(address, download_files=str(tmp_path_factory.mktemp("files")), verbose=False)
