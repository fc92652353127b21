"""Parts of the installation: which extra brings a library that was not found."""

EXTRAS = {
    "open_clip": "clip",
    "torchvision": "clip",
    "aiohttp": "data",
    "faiss": "data",
    "imagehash": "data",
    "ray": "ray",
    "peft": "finetuning",
    "scipy": "evaluation",
    "seqeval": "evaluation",
    "torch_fidelity": "evaluation",
    "torchmetrics": "evaluation",
    "gradio": "pages",
    "mcp": "pages",
    "blake3": "local-hub",
    "fastapi": "local-hub",
    "python_multipart": "local-hub",
    "starlette": "local-hub",
    "uvicorn": "local-hub",
}
"""The smallest extra of `setup.cfg` with each library, by the name under which it is imported."""


def missing_extra(error: BaseException) -> str | None:
    """Return one line that names the command which installs what an import did not find; None for other errors."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    library = error.name.partition(".")[0]
    if library == "hivemind":
        return "hivemind, which connects peers, is only installed on Linux. Windows has it: wsl --install"
    if library not in EXTRAS:
        return None
    return f"This needs {library}, which is not installed: pip install 'dalle-collab[{EXTRAS[library]}]'"
