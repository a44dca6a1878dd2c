"""Regexes, grammars and schemas that explode: settled or refused with 400 over HTTP, and the server answers on.

What each of them costs inside is measured in tests/sampling/test_grammar.py.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from serving import Live

PATH = "/v1/completions"


def nested(levels: int, key: str = "properties") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}} if key == "properties" else {key: [schema, schema]}
    return schema


BOMBS: list[tuple[str, Any]] = [
    ("guided_regex", "(a+)+$" * 50),
    ("guided_regex", "(a|a)*" * 500 + "b"),
    ("guided_regex", "((((a{99}){99}){99}){99}){99}"),
    ("guided_regex", "a{1000000000}"),
    ("guided_regex", "(" * 20000 + ")" * 20000),
    ("guided_regex", "[" * 60000),
    ("guided_regex", "\\p{L}{5000}" * 50),
    ("guided_grammar", 'start: start start | "a" | ""'),
    ("guided_grammar", "start: " + "(" * 20000),
    ("guided_grammar", "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40)) + '\na40: "x"\nstart: a0'),
    ("guided_grammar", 'start: %json {"type": "array", "minItems": 1000000000}'),
    ("guided_json", {"$ref": "#"}),
    ("guided_json", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    ("guided_json", {"$ref": "http://127.0.0.1:1/schema.json"}),
    ("guided_json", {"$ref": "file:///etc/passwd"}),
    ("guided_json", nested(12)),
    ("guided_json", nested(7, "anyOf")),
    ("guided_json", nested(7, "allOf")),
    ("guided_json", {"type": "string", "pattern": "(x+x+)+y", "minLength": 1 << 40}),
    ("guided_json", {"type": "array", "minItems": 1 << 62, "items": {}}),
    ("guided_json", {"type": "integer", "multipleOf": 1e-300}),
    ("guided_json", {"enum": [str(i) * 40 for i in range(1500)]}),
    ("guided_choice", ["a" * 60000] * 2),
]


@pytest.mark.parametrize(("field", "bomb"), BOMBS, ids=lambda value: str(value)[:32])
def test_a_bomb_is_settled_or_refused(live: Live, field: str, bomb: Any) -> None:
    response = live.post(PATH, {"prompt": "l>", "max_tokens": 4, "temperature": 0, field: bomb})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        error = response.json()["error"]
        assert len(error["message"]) < 1000 and "\n" not in error["message"]
    after = live.post(PATH, {"prompt": "a>", "temperature": 0})
    assert after.json()["choices"][0]["text"] == "apples and pears"


def test_a_remote_schema_is_not_fetched(live: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.3)
        port = trap.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/x", f"http://localhost:{port}/x#/y"):
            live.post(PATH, {"prompt": "l>", "max_tokens": 4, "guided_json": {"$ref": url}})
            image = {"type": "image_url", "image_url": {"url": url}}
            chat = {"messages": [{"role": "user", "content": [image]}]}
            assert live.post("/v1/chat/completions", chat).status_code == 400
        with pytest.raises(TimeoutError):
            trap.accept()


def test_bombs_beside_others_harm_none(live: Live) -> None:
    good = {"prompt": "b>", "temperature": 0}
    with ThreadPoolExecutor(8) as pool:
        bombs = [
            pool.submit(live.post, PATH, {"prompt": "l>", "max_tokens": 4, name: bomb}) for name, bomb in BOMBS[:8]
        ]
        answers = [pool.submit(live.post, PATH, good) for _ in range(24)]
    assert {answer.result().json()["choices"][0]["text"] for answer in answers} == {"one. two. three."}
    assert all(bomb.result().status_code in (200, 400) for bomb in bombs)
