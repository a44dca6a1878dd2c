"""Keys: scopes by the manifest, budgets, rates, tenants; the file of keys and the command that changes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pellucid.errors import CapacityError, ConfigError
from pellucid.secret import Secret
from pellucid.server.allowance import Allowances
from pellucid.server.app import create_app
from pellucid.server.keyfile import add, revoke
from pellucid.server.keys import SCOPES, Key, Keyring, parse, read
from pellucid.server.manifest import ROUTES, route_of
from pellucid.server.routes.page import FILES
from serving import Live, running
from toymodel import toy_llm

FINE = 'sha256 = "' + "ab" * 32 + '"'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Secret]]:
    """A file with a key of each scope, one more, one with a budget, one with a rate."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    made = {str(scope): add(file, scope, [scope], {}) for scope in SCOPES}
    made["poor"] = add(file, "poor", ["infer"], {"tokens_per_day": 40})
    made["other"] = add(file, "other", ["infer"], {})
    made["slow"] = add(file, "slow", ["infer"], {"requests_per_minute": 2})
    return file, made


@pytest.fixture(scope="module")
def live(keys: tuple[Path, dict[str, Secret]]) -> Iterator[Live]:
    with toy_llm() as llm, running(llm, keys=Keyring(file=keys[0]), inspect=True) as live:
        yield live


def bring(secret: Secret) -> dict[str, str]:
    return {"authorization": f"Bearer {secret.reveal()}"}


def test_the_manifest_is_the_router() -> None:
    paths = create_app(None, inspect=True).openapi()["paths"]
    served = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    served |= {("GET", path) for path in ("/openapi.json", *FILES)}  # those that the schema leaves out
    assert served == {(method, path.replace(":path", "")) for method, path in ROUTES}


def test_every_route_with_every_key(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    for (method, template), access in ROUTES.items():
        path = re.sub(r"\{\w+(:path)?\}", "none", template)
        assert route_of(path) == template
        given = {"": {}, "wrong": {"authorization": "Bearer pk-wrong"}} | {s: bring(keys[1][s]) for s in SCOPES}
        for who, headers in given.items():
            if path == "/inspect/engine/events" and who == access:
                continue  # it would stream for ever; its own tests read it
            status = live.http.request(method, path, headers=headers).status_code
            if access == "open":
                assert status == 200, (path, who)
            elif who in ("", "wrong"):
                assert status == 401, (path, who)
            elif access in ("any", who):
                assert status not in (401, 403), (path, who)
            else:
                assert status == 403, (path, who)


def test_a_scope_that_lacks_is_named(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    answer = live.post("/v1/completions", {"prompt": "a"}, headers=bring(keys[1]["metrics"]))
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "insufficient_scope"
    assert "infer" in answer.json()["error"]["message"]


def test_a_budget_ends(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    def ask(tokens: int) -> httpx.Response:
        body = {"prompt": [1, 2, 3], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return live.post("/v1/completions", body, headers=bring(keys[1]["poor"]))

    assert ask(100).json()["error"]["code"] == "insufficient_quota"  # more than there is, whatever it would use
    assert [ask(15).status_code for _ in range(3)] == [200, 200, 429]
    last = ask(15)
    assert int(last.headers["retry-after"]) >= 1
    assert "4 of 40 left in this day" in last.json()["error"]["message"]
    assert ask(1).status_code == 200  # what is left may be used


def test_a_rate_holds(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    answers = [live.http.get("/v1/models", headers=bring(keys[1]["slow"])) for _ in range(4)]
    # A minute may begin between two of them, so two or more pass, and the refused say when to come again.
    assert [a.status_code for a in answers[:2]] == [200, 200]
    assert 429 in [a.status_code for a in answers]
    refused = next(a for a in answers if a.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 60


def test_unused_tokens_come_back_and_windows_turn() -> None:
    now = [1000.0 * 86400]
    allowances = Allowances(lambda: now[0])
    key = Key("a", "a", frozenset(SCOPES), tokens_per_minute=100, requests_per_minute=1)
    first = allowances.reserve(key, 80)
    assert first is not None
    with pytest.raises(CapacityError, match="20 of 100 left in this minute"):
        allowances.reserve(key, 30)
    allowances.settle(first, 10)
    second = allowances.reserve(key, 90)
    assert second is not None
    now[0] += 60
    allowances.settle(second, 0)  # of a minute that is over: nothing comes back to this one
    assert allowances.reserve(key, 100) is not None
    with pytest.raises(CapacityError):
        allowances.reserve(key, 1)


def test_prefixes_are_shared_within_a_key_only(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    prompt = [5 + i % 7 for i in range(64)]

    def cached(who: str, **more: object) -> int:
        body = {"prompt": prompt, "max_tokens": 1, **more}
        usage = live.post("/v1/completions", body, headers=bring(keys[1][who])).json()["usage"]
        return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    assert cached("infer") == 0
    assert cached("infer") > 0
    assert cached("infer", cache_salt="mine") == 0
    assert cached("infer", cache_salt="mine") > 0
    assert cached("other") == 0  # another tenant: nothing of what others asked is told, not even by its speed


def test_nobody_steps_before_other_keys(live: Live, keys: tuple[Path, dict[str, Secret]]) -> None:
    answer = live.post("/v1/completions", {"prompt": "a", "priority": -1}, headers=bring(keys[1]["infer"]))
    assert answer.status_code == 403
    assert "priority" in answer.json()["error"]["message"]


def test_the_file_says_where_it_is_wrong() -> None:
    for text, line, what in (
        ("[keys.a\n", 1, "TOML"),
        (f"[keys.a]\n{FINE}\n", 1, "scopes"),
        (f'[keys.a]\n{FINE}\nscopes = ["root"]\n', 3, "scopes"),
        ('[keys.a]\nsha256 = "pk-the-key-itself"\nscopes = ["infer"]\n', 2, "never the key"),
        (f'[keys.a]\n{FINE}\nscopes = ["infer"]\nrequests = 3\n', 4, "'requests' is not known"),
        (f'[keys.a]\n{FINE}\nscopes = ["infer"]\n[keys.b]\n{FINE}\nscopes = ["infer"]\n', 5, "the key of 'a'"),
        (f'[keys.a]\n{FINE}\nscopes = ["infer"]\ntokens_per_day = 0\n', 4, "whole number"),
        ("port = 3\n", 1, "'port' is not known"),
    ):
        with pytest.raises(ConfigError) as raised:
            parse(text.encode(), "keys.toml")
        assert what in str(raised.value)
        assert f"line {line}" in str(raised.value), text


def test_keys_are_made_and_revoked_around_what_else_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    one = add(file, "one", ["infer"], {"weight": 2.0})
    file.write_text(file.read_text() + "\n# a note of the operator\n")
    two = add(file, "two", ["inspect", "metrics"], {})
    assert file.stat().st_mode & 0o777 == 0o600
    ring = Keyring(file=file)
    found = ring.find(one.reveal())
    assert found is not None
    assert (found.name, found.weight, found.scopes) == ("one", 2.0, {"infer"})
    for secret in (one, two):
        assert secret.reveal() not in file.read_text()
        assert secret.reveal() not in f"{secret} {secret!r} {json.dumps(str(secret))}"
    revoke(file, "one")
    assert "a note of the operator" in file.read_text() or [k.name for k in read(file)] == ["two"]
    ring.reload()
    assert ring.find(one.reveal()) is None
    assert ring.find(two.reveal()) is not None
    with pytest.raises(ConfigError, match="has a key 'two' already"):
        add(file, "two", ["infer"], {})
    with pytest.raises(ConfigError, match="no key 'one'"):
        revoke(file, "one")
    file.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod 600"):
        ring.reload()
    assert ring.find(two.reveal()) is not None, "a file that is wrong takes nobody's key away"
