"""How long a server asks its clients to wait."""

import datetime
import email.utils
import re

MOST_SECONDS = 3600.0
"""Whoever asks for more is asked again after these."""

EMPTY_RATE_LIMIT = re.compile(r'"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})\b')
"""Of the Hub's header RateLimit: no requests are left for so many seconds."""


def seconds_to_wait(retry_after: str | None, now: datetime.datetime) -> float | None:
    """Return what a Retry-After header asks for, in seconds or as a date, at least 0; None if it says nothing."""
    try:
        seconds = float(retry_after or "nan")
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(retry_after or "")
        except ValueError:
            return None
        seconds = (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp() - now.timestamp()
    return max(seconds, 0.0) if seconds == seconds else None


def asked_seconds(error: BaseException) -> float:
    """Return how long the answer that an error carries asks to wait, 0 if it does not, at most `MOST_SECONDS`."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = seconds_to_wait(headers.get("Retry-After"), datetime.datetime.now(datetime.UTC)) or 0.0
    if limit := EMPTY_RATE_LIMIT.search(headers.get("RateLimit") or ""):
        asked = max(asked, float(limit[1]))
    return min(asked, MOST_SECONDS)
