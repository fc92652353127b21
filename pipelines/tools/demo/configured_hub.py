"""The Hub that this machine is configured for, as a run from one command uses it."""

from collections.abc import Mapping

from huggingface_hub import HfApi, get_token


class ConfiguredHub:
    """The Hub of HF_ENDPOINT or huggingface.co, with the token of its user."""

    def __init__(self) -> None:
        self._api = HfApi()
        self.endpoint: str = self._api.endpoint

    def environment(self) -> Mapping[str, str]:
        """Return what programs need to find it: nothing more than this process has."""
        return {}

    def token_of(self, user: str) -> str:
        """Return the token of the one user that there is.

        Raises:
            ValueError: there is none.
        """
        token = get_token()
        if token is None:
            raise ValueError("There is no Hub token. Log in (hf auth login), or leave out --online.")
        return token

    def check_namespace(self, namespace: str) -> str:
        """Return the user's name if repositories may be created in a namespace.

        Raises:
            ValueError: they may not; the message names those in which they may.
        """
        user = self._api.whoami(token=self.token_of(""))
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise ValueError("The Hub token can only read. Log in with one that can write: hf auth login")
        orgs = [one["name"] for one in user.get("orgs", ()) if one.get("roleInOrg") != "read"]
        names = [user["name"], *orgs]
        if namespace not in names:
            raise ValueError(f"--name begins with {namespace!r}; {user['name']} may create in: {', '.join(names)}.")
        return str(user["name"])
