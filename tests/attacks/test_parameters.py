"""Every field of every request out of its range, of another type, or missing: 400, and never the engine's trouble.

The cases are made from the schemas that the server publishes, so a new field is tried as soon as there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serving import Live

USER = [{"role": "user", "content": "a"}]
SOUND: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 3},
    "/v1/completions": {"prompt": "a>", "max_tokens": 3},
    "/v1/embeddings": {"input": "a"},
    "/v1/responses": {"input": "a", "max_output_tokens": 3},
    "/v1/messages": {"messages": USER, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": USER},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [97]},
}
BY_TYPE: dict[str, list[str]] = {
    "integer": ["1.5", '"1"', "[]", "{}", "NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400, "-1" + "0" * 400],
    "number": ['"1"', "[]", "{}", "NaN", "Infinity", "1e400", "1" + "0" * 400],
    "boolean": ["1", '"true"', "[]"],
    "string": ["1", "true", "[1]", "{}", '"\\ud800"'],
    "array": ["1", "true", "{}"],
    "object": ["1", "true", "[]"],
}
SPECIAL = {
    "/v1/completions": {
        "prompt": ["[]", "[[]]", "[260]", "[-1]", "[9999999999]", "[1, 1.5]", '["a", [1]]'],
        "logit_bias": ['{"260": 1}', '{"-1": 1}', '{"1": 101}', '{"1": NaN}', '{"1e3": 1}'],
        "stop_token_ids": ["[260]", "[-1]"],
        "stop": ['[""]', json.dumps(["x" * 257]), json.dumps(["x"] * 17)],
        "best_of": ["2", "-1"],
        "min_tokens": ["4"],
    },
    "/v1/embeddings": {
        "input": ["[]", "[[]]", "[260]", "[-1]", "[1, 1.5]", '["a", [1]]', '""', json.dumps(["a"] * 33)],
        "dimensions": ["25"],
        "encoding_format": ['"int8"'],
        "pooling": ['"max"'],
    },
    "/detokenize": {"tokens": ["[260]", "[-1]", "[18446744073709551616]", "[1.5]", '["a"]']},
}
"""Values that only the vocabulary or another field makes wrong."""


def kinds(spec: dict[str, Any], field: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The alternatives of a field's schema."""
    if "$ref" in field:
        yield from kinds(spec, spec["components"]["schemas"][field["$ref"].rpartition("/")[2]])
    elif "anyOf" in field:
        for one in field["anyOf"]:
            yield from kinds(spec, one)
    else:
        yield field


def wrong(spec: dict[str, Any], field: dict[str, Any]) -> Iterator[str]:
    """JSON of values that a field's own schema rules out."""
    found = list(kinds(spec, field))
    types = {kind.get("type") for kind in found}
    if None in types or not types - {"null"}:
        return  # any type, or values by name
    for name, values in BY_TYPE.items():
        if name in types:
            for value in values:
                as_number = value.strip("-").isdigit() or value == "1.5"
                fits = (value[0] == "[" and "array" in types) or (value[0] == "{" and "object" in types)
                fits |= (value[0] == '"' and "string" in types) or (value == "true" and "boolean" in types)
                fits |= as_number and len(value) < 9 and bool({"number", "integer"} & types)
                if not fits or "\\ud800" in value:
                    yield value
    for kind in found:
        for bound, step in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0), ("exclusiveMaximum", 0)):
            if bound in kind:
                yield json.dumps(kind[bound] + step)
        if kind.get("type") == "string" and "maxLength" in kind and len(found) <= 2:
            yield json.dumps("x" * (kind["maxLength"] + 1))
        if kind.get("type") == "array" and "maxItems" in kind and len(types - {"null"}) == 1:
            yield json.dumps([0] * (kind["maxItems"] + 1))


@pytest.mark.parametrize("path", SOUND)
def test_what_the_schema_rules_out_is_400(live: Live, path: str) -> None:
    spec = live.http.get("/openapi.json").json()
    reference = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    fields: dict[str, Any] = spec["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    assert live.post(path, SOUND[path]).status_code == 200
    tried = 0
    for name, field in fields.items():
        for value in [*wrong(spec, field), *SPECIAL.get(path, {}).get(name, [])]:
            sound = {key: other for key, other in SOUND[path].items() if key != name}
            body = json.dumps(sound)[:-1] + ("," if sound else "") + f'"{name}": {value}}}'
            response = live.http.post(path, content=body, headers={"content-type": "application/json"})
            assert response.status_code == 400, (path, name, value[:80], response.text[:300])
            assert name in response.text or "JSON" in response.text, (name, response.text[:300])
            tried += 1
    assert tried > len(fields)
    assert live.post(path, SOUND[path]).status_code == 200
