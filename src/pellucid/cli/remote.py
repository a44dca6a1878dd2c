"""A running server, as the commands that look at one reach it.

Law: what is wrong with the address, the key or the server is one typed error that says what to do.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from pellucid.errors import ConfigError, PellucidError, RequestError, UnreachableError


class Remote:
    """A server at an address."""

    def __init__(self, url: str, api_key: str | None, timeout: float = 5.0) -> None:
        """Reach `url`, with or without /v1 at its end.

        Raises ConfigError for what is no http address.
        """
        base = url.rstrip("/").removesuffix("/v1")
        base = base if "://" in base else f"http://{base}"
        try:
            parsed = httpx.URL(base)
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise ValueError
        except (httpx.InvalidURL, ValueError):
            raise ConfigError(
                f"{url!r} is not a server's address; give one as http://127.0.0.1:8000", param="url"
            ) from None
        self.url = base
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        """Ask now; any status but 401 and 403 is an answer.

        Raises:
            UnreachableError: nobody answers.
            ConfigError: the key is missing or wrong.
        """
        try:
            response = self._http.get(path)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(
                f"{self.url} does not answer: {reason}; is `pellucid serve` running there?"
            ) from None
        if response.status_code in (401, 403):
            raise ConfigError(
                f"{self.url} asks for a key (HTTP {response.status_code}); give --api-key or PELLUCID_API_KEY",
                param="api_key",
            )
        return response

    def look(self, path: str) -> Any:
        """What the server says under /inspect.

        Raises, beside what `get` does, RequestError (there is no such thing) or UnreachableError, with its reason.
        """
        response = self.get(path)
        if response.status_code == 200:
            return response.json()
        raise self._refusal(path, response)

    def _refusal(self, path: str, response: httpx.Response) -> PellucidError:
        why, code = reason(response)
        if response.status_code == 404 and code in (None, "not_found"):
            return UnreachableError(
                f"{self.url}{path} is not served there; a server looks inside on loopback only, and older ones may not"
            )
        kind = RequestError if response.status_code < 500 else UnreachableError
        return kind(f"{self.url}: {why}")


def reason(response: httpx.Response) -> tuple[str, str | None]:
    """Message and code of an answer that is an error."""
    try:
        error = response.json()["error"]
        return str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {response.status_code}", None
