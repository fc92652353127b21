"""Taking part in a run from a notebook, as on Colab and Kaggle: the token, and a session's state as it changes."""

import importlib
import math
import time
from collections.abc import Callable

from huggingface_hub import get_token

from pipelines.tools.pages.joining.join_session import JoinSession
from pipelines.tools.pages.joining.join_view import JoinView
from pipelines.tools.pages.joining.presentation import STYLE, checks_html, contribution_html, state_html

SECONDS_BETWEEN_LOOKS = 1.0
SECRET = "HF_TOKEN"


def find_token() -> str | None:
    """Return the Hub token of this machine: HF_TOKEN, a login, Colab's secret or Kaggle's; None if there is none."""
    return get_token() or _kaggle_token()


def _kaggle_token() -> str | None:
    try:
        secrets = importlib.import_module("kaggle_secrets")
    except ImportError:
        return None
    try:
        return secrets.UserSecretsClient().get_secret(SECRET) or None
    except Exception:  # Kaggle's client has a separate error for each of many causes, and all mean: no secret
        return None


def notebook_html(view: JoinView, now: float) -> str:
    """Return the session's state as HTML, for the output of a cell."""
    parts = state_html(view, now), contribution_html(view), checks_html(view)
    return f'<style>{STYLE}</style><div style="max-width: 56rem">{"<br>".join(filter(None, parts))}</div>'


def watch(session: JoinSession, show: Callable[[str], None], *, seconds: float = math.inf) -> JoinView:
    """Show the session's state whenever it changes, until nothing is running or `seconds` have passed.

    Interrupting the cell only ends the watching. Returns the last view.
    """
    deadline, version = time.monotonic() + seconds, -1
    try:
        while True:
            version = session.wait_for_change(version, SECONDS_BETWEEN_LOOKS)
            view = session.view()
            show(notebook_html(view, time.time()))
            if not (view.is_alive or view.is_checking) or time.monotonic() >= deadline:
                return view
            # A starting trainer sends many events at once; the notebook need not be redrawn for each.
            time.sleep(min(SECONDS_BETWEEN_LOOKS, max(0.0, deadline - time.monotonic())))
    except KeyboardInterrupt:
        return session.view()
