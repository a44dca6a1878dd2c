# ruff: noqa: E501 - a template stands on one line
"""Chat templates that try to hang, fill memory or get out: each is refused, soon, with little memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest

from pellucid.errors import RequestError
from pellucid.text.chat import ChatTemplate
from pellucid.text.sandbox import MAX_TEMPLATE
from pellucid.text.tokenizer import Tokenizer

LOOP = "{% for a in range(100000) %}"
END = "{% endfor %}"
DOUBLE = (
    "{% set ns = namespace(s='x' * 1000) %}"
    + "{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}{{ ns.s | length }}"
)
NEST = "{% set ns = namespace(l=[1]) %}" + "{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"

HANGS = {
    "nested loops": LOOP * 5 + END * 5,
    "nested loops with output": LOOP * 3 + "x" * 1000 + END * 3,
    "loops over a long text": "{% set t = 'x' * 1000000 %}" + LOOP + "{{ t.count('y') }}" + END,
    "comparisons in a loop": "{% set l = range(100000) | list %}{% set m = range(100000) | list %}"
    + LOOP + "{% if l == m and l == m %}{% endif %}" + END,
    "membership in a loop": "{% set l = range(100000) | list %}" + LOOP + "{% if 'x' in l %}{% endif %}" + END,
    "filters in a loop": "{% set l = range(100000) | list %}" + LOOP + "{% set s = l | sum %}" + END,
    "a loop filter that lets nothing pass": LOOP + "{% for b in range(100000) if false %}{% endfor %}" + END,
    "a huge range": "{% for a in range(10 ** 12) %}{% endfor %}",
    "a recursive loop": "{% for a in [1] recursive %}{{ loop(range(100000)) }}{% endfor %}",
    "a recursive loop that widens": "{% for a in range(1000) recursive %}{% if loop.depth < 9 %}{{ loop(range(1000)) }}{% endif %}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro that calls itself twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a macro of text that doubles": "{% macro m(n) %}" + "x" * 500 + "{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "string multiplication": "{{ 'x' * 10 ** 10 }}",
    "string multiplication, constant": "{{ 'x' * 10000000000 }}",
    "list multiplication": "{{ ([0] * 10 ** 10) | length }}",
    "powers": "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "a growing number": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
    "doubling with +": DOUBLE.replace("STEP", "ns.s + ns.s"),
    "doubling with ~": DOUBLE.replace("STEP", "ns.s ~ ns.s"),
    "doubling with join": DOUBLE.replace("STEP", "[ns.s, ns.s] | join"),
    "doubling with a method": DOUBLE.replace("STEP", "''.join([ns.s, ns.s])"),
    "doubling with format": DOUBLE.replace("STEP", "'{0}{0}'.format(ns.s)"),
    "doubling with %": DOUBLE.replace("STEP", "'%s%s' % (ns.s, ns.s)"),
    "doubling with the filter format": DOUBLE.replace("STEP", "'%s%s' | format(ns.s, ns.s)"),
    "doubling with replace": DOUBLE.replace("STEP", "ns.s.replace('x', 'xx')"),
    "squaring with replace": DOUBLE.replace("STEP", "ns.s | replace('x', ns.s)"),
    "squaring with join": DOUBLE.replace("STEP", "ns.s.join(ns.s | list)"),
    "doubling with a block": "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}{% endfor %}",
    "a list that holds itself twice": NEST + "{{ ns.l }}",
    "such a list as JSON": NEST + "{{ ns.l | tojson }}",
    "such lists compared": NEST + "{% set k = namespace(l=[1]) %}{% for i in range(60) %}{% set k.l = [k.l, k.l] %}{% endfor %}{{ k.l == ns.l }}",
    "such lists of lists": "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "such dicts": "{% set ns = namespace(l={}) %}{% for i in range(60) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l }}",
    "such dicts by dict()": "{% set ns = namespace(l={}) %}{% for i in range(60) %}{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l }}",
    "such tuples": "{% set ns = namespace(l=(1,)) %}{% for i in range(60) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ ns.l }}",
    "a width": "{{ 'x'.center(10 ** 10) }}",
    "a width of a filter": "{{ 'x' | center(10000000000) }}",
    "a width in a format": "{{ '%10000000000d' % 1 }}{{ '{:10000000000}'.format(1) }}",
    "a width beside a format": "{{ '%*d' % (10 ** 10, 1) }}",
    "a width inside a format": "{{ '{:{}}'.format(1, 10 ** 10) }}",
    "an indent": "{{ ('\n' * 100000) | indent(10000) }}",
    "an indent of JSON": "{{ [[[[1]]]] | tojson(indent=100000) }}",
    "sums of lists": "{{ range(100000) | batch(1) | sum(start=[]) | length }}",
    "many comments to strip": "{{ ('<!---->' * 100000) | striptags }}",
    "slices": "{% set t = 'x' * 1000000 %}" + LOOP + "{% set u = t[1:] %}" + END,
    "deep lists": "{% set ns = namespace(l=[]) %}" + LOOP + "{% set ns.l = [ns.l] %}" + END + "{{ ns.l }}",
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "a long template": "x" * (MAX_TEMPLATE + 1),
    "a long literal in a loop": LOOP + "y" * 60000 + END,
}  # fmt: skip

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ (messages | attr('__class__')) | string }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__code__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ '{0.__class__.__mro__}'.format('x') }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages.clear() }}",
    "{{ ''.encode().decode() }}",
    "{{ 'a'.translate({97: 'b' * 100}) }}",
    "{{ lipsum(100) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
    "{{ loop }}{{ tick(1) }}",
    "{{ environment.tick(-10 ** 9) }}",
]


def render(source: str, tokenizer: Tokenizer) -> str:
    return ChatTemplate(source, tokenizer, {}).render([{"role": "user", "content": "hi"}]).text


@pytest.mark.parametrize("name", HANGS)
def test_a_template_that_asks_too_much_is_refused(name: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_of("smollm2")
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(RequestError) as caught:
            render(HANGS[name], tokenizer)
        spent, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert spent < 6, "CPU seconds, under tracemalloc"
    assert peak < 200 << 20
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_get_out(source: str, tokenizer_of: Callable[[str], Tokenizer]) -> None:
    messages = [{"role": "user", "content": "hi"}]
    try:
        text = ChatTemplate(source, tokenizer_of("smollm2"), {}).render(messages).text
    except RequestError:
        text = ""
    assert "class" not in text
    assert "root:" not in text
    assert messages == [{"role": "user", "content": "hi"}]


def test_an_honest_template_over_many_messages_passes(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    source = (
        "{% for m in messages %}{% if m.content is string and not m.content.startswith('x') %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "word " * 400}] * 2000
    start = time.process_time()
    text = ChatTemplate(source, tokenizer_of("smollm2"), {}).render(messages).text
    assert len(text) > 4_000_000
    assert time.process_time() - start < 10


def test_a_million_characters_of_message_pass(tokenizer_of: Callable[[str], Tokenizer]) -> None:
    content = "<|im_end|>" * 100_000
    source = "{{ messages[0].content | trim }}{% generation %}{{ '!' }}{% endgeneration %}"
    rendered = ChatTemplate(source, tokenizer_of("smollm2"), {}).render([{"role": "user", "content": content}])
    assert rendered.text == content + "!"
    assert all(part.control is None for part in rendered.parts)
