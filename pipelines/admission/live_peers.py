"""Which peers of each user are admitted at the moment: one account may bring so many and no more."""

import threading


class LivePeers:
    """A book of admissions that are still valid, by user. Thread-safe; it begins empty when the service starts."""

    def __init__(self, most_per_user: int) -> None:
        self._most = most_per_user
        self._expirations = dict[str, dict[str, float]]()
        self._lock = threading.Lock()

    def admit(self, username: str, peer_id: str, now: float, expires_at: float) -> float:
        """Write a peer down until its admission expires and return 0.0, or return the seconds until there is room."""
        with self._lock:
            live = {peer: expiry for peer, expiry in self._expirations.get(username, {}).items() if expiry > now}
            self._expirations[username] = live
            if peer_id not in live and len(live) >= self._most:
                return min(live.values()) - now
            live[peer_id] = expires_at
            return 0.0
