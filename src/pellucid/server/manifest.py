"""The manifest: every route, and what a key must have for it.

Law: what is not here is not served, whatever the router knows; a test holds this table and the router together. Paths
are matched as they were sent: another spelling of a path is another path.
"""

from __future__ import annotations

import re
from typing import Literal

from starlette.types import Scope as ASGIScope

from pellucid.server.keys import Scope
from pellucid.server.routes.page import FILES

Access = Scope | Literal["open", "any"]
"""A scope; or open: no key; or any: a key, whatever its scopes."""

ROUTES: dict[tuple[str, str], Access] = {
    ("GET", "/health"): "open",
    ("GET", "/ready"): "open",
    **{("GET", path): "open" for path in FILES},
    ("GET", "/version"): "any",
    ("GET", "/openapi.json"): "any",
    ("GET", "/metrics"): "metrics",
    ("GET", "/v1/models"): "any",
    ("GET", "/v1/models/{model:path}"): "any",
    ("POST", "/v1/chat/completions"): "infer",
    ("POST", "/v1/completions"): "infer",
    ("POST", "/v1/embeddings"): "infer",
    ("POST", "/v1/responses"): "infer",
    ("POST", "/v1/messages"): "infer",
    ("POST", "/v1/messages/count_tokens"): "infer",
    ("POST", "/tokenize"): "infer",
    ("POST", "/detokenize"): "infer",
    ("GET", "/tokenizer_info"): "infer",
    # A trace is reached by the id that its maker got.
    ("POST", "/inspect/replay"): "inspect",
    ("GET", "/inspect/requests/{id}/tokens"): "inspect",
    ("GET", "/inspect/requests/{id}/logits"): "inspect",
    ("GET", "/inspect/requests/{id}/lens"): "inspect",
    ("GET", "/inspect/requests/{id}/attn/heads"): "inspect",
    ("GET", "/inspect/requests/{id}/attn/row"): "inspect",
    ("GET", "/inspect/requests/{id}/attn/tile"): "inspect",
    ("GET", "/inspect/requests/{id}/attribution"): "inspect",
    ("GET", "/inspect/requests/{id}/neurons"): "inspect",
    ("GET", "/inspect/requests/{id}/embed"): "inspect",
    ("GET", "/inspect/requests/{id}/activations"): "inspect",
    ("GET", "/inspect/model"): "inspect",
    ("GET", "/inspect/model/rope"): "inspect",
    ("POST", "/inspect/influence"): "inspect",
    ("POST", "/inspect/ablate"): "inspect",
    ("POST", "/inspect/compare"): "inspect",
    # These tell of the requests of all tenants.
    ("GET", "/inspect/kv"): "admin",
    ("GET", "/inspect/engine/events"): "admin",
    ("GET", "/inspect/waste"): "admin",
    ("GET", "/inspect/requests"): "admin",
    ("GET", "/inspect/requests/{id}"): "admin",
}

OPEN = frozenset(path for (_, path), access in ROUTES.items() if access == "open")


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+(:path)?\}", path)
    # re.split gives the text, then ":path" or None, by turns.
    return re.compile(
        "".join(re.escape(p or "") if i % 2 == 0 else ".+" if p else "[^/]+" for i, p in enumerate(parts))
    )


_EXACT = {path for _, path in ROUTES if "{" not in path}
_PATTERNS = [(_pattern(path), path) for path in dict.fromkeys(path for _, path in ROUTES) if "{" in path]
_METHODS = {path: {method for method, other in ROUTES if other == path} for _, path in ROUTES}


def path_of(scope: ASGIScope) -> str:
    """Return the path of a request as it was sent."""
    return (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")


def route_of(path: str) -> str | None:
    """Return the path of the manifest that a path, as it was sent, means; None: it is not here."""
    if path in _EXACT:
        return path
    return next((template for pattern, template in _PATTERNS if pattern.fullmatch(path)), None)


def methods_of(route: str) -> set[str]:
    """Return the methods of a path of the manifest."""
    return _METHODS[route]
