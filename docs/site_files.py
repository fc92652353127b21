"""Gives mkdocs the documents from where they are in the repository: the README is the first page, and all links fit."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/*.md", "docs/images/*")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of the site; called by mkdocs, whose own list knows the folder `docs` alone."""
    of_the_theme = [file for file in files if file.src_dir != config.docs_dir]
    found = [path for pattern in (*PAGES, *config.extra["linked_files"]) for path in sorted(ROOT.glob(pattern))]
    ours = [File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)) for path in found]
    return Files([*of_the_theme, *ours])
