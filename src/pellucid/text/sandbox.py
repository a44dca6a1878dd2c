"""A Jinja environment for chat templates of unknown authors: Hugging Face's conventions, bounded by counts.

Law: between two visits of `Budget.spend` no work is larger than one pass over one value, and every value is smaller
than the caps below. So no template hangs or fills memory; one that tries raises TemplateRefusedError.

How: the parsed template is rewritten so that loops, macros, concatenations, comparisons and list displays pass through
the environment; calls, filters, tests, operators, slices and outputs do so by Jinja's own hooks. Python's methods are
an allow-list. Sizes of results that grow by multiplication are worked out before they are made.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, cast

from jinja2 import Environment, Undefined, nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEMPLATE = 64 * 1024
"""Characters of a template."""
MAX_STEPS = 200_000
"""Iterations, calls, filters, tests and operators of one rendering."""
MAX_NUMBER = 10_000
"""Largest whole number given to a filter or method: widths, counts."""
MAX_RANGE = 100_000
MAX_DEPTH = 64
"""Calls inside calls."""
MAX_SECONDS = 2.0
_ROOM = 1 << 20
"""Characters that a template may make beyond what its input allows."""
_MAX_BITS = 4096

_STR_METHODS = frozenset(
    [
        *("capitalize", "casefold", "center", "count", "endswith", "find", "format", "index", "join", "ljust", "lower"),
        *("lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition"),
        *("rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
        *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
        *("isprintable", "isspace", "istitle", "isupper"),
    ]
)
_METHODS: dict[type, frozenset[str]] = {
    str: _STR_METHODS,
    dict: frozenset(["get", "items", "keys", "values", "copy"]),
    list: frozenset(["count", "index", "copy"]),
    tuple: frozenset(["count", "index"]),
    int: frozenset(("bit_length",)),
    float: frozenset(("is_integer",)),
}
_FREE = frozenset(
    [
        *("length", "count", "first", "last", "default", "d", "attr", "get", "keys", "values", "items", "startswith"),
        *(
            "endswith",
            "defined",
            "undefined",
            "string",
            "number",
            "integer",
            "float",
            "boolean",
            "none",
            "true",
            "false",
        ),
        *("mapping", "iterable", "sequence", "callable", "sameas", "odd", "even", "divisibleby"),
    ]
)
"""Filters, tests and methods that look at no member of what they are given."""
_SHALLOW = frozenset(
    ("list", "map", "select", "reject", "selectattr", "rejectattr", "reverse", "batch", "slice", "copy")
)
"""Those that visit members, but not theirs."""
_REMOVED_FILTERS = ("urlize", "wordwrap", "pprint", "xmlattr", "striptags", "random")
_WIDE = {"%": re.compile(r"%[^%a-zA-Z]*(\d{5}|\*)"), "{": re.compile(r"\{[^{}]*\d{5}")}


class TemplateRefusedError(TemplateError):
    """A template that asks for more than it may have."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, room: int) -> None:
        """`room`: characters of the messages and tools given."""
        self.size = _ROOM + 4 * room
        """Characters of any one value."""
        self.members = MAX_RANGE + room
        """Members of any one value, those of its members counted too."""
        self.depth = 0
        self._emitted = 0
        self._steps = MAX_STEPS + room // 16
        self._weight = _ROOM + 4 * room
        self._deadline = time.monotonic() + MAX_SECONDS + room * 1e-6

    def spend(self, weight: int = 1) -> None:
        """Pay for one step. One of weight takes about as long as visiting four members, or copying 64 characters."""
        self._steps -= 1
        self._weight -= weight
        if self._steps < 0 or self._weight < 0 or time.monotonic() > self._deadline:
            raise TemplateRefusedError("the chat template works too long")

    def emit(self, characters: int) -> None:
        """Count output, also output of macros and blocks that is captured."""
        self._emitted += characters
        if self._emitted > 2 * self.size:
            raise TemplateRefusedError("the chat template writes too much")

    def fits(self, size: int) -> None:
        """Refuse a value of so many characters before it is made."""
        if size > self.size:
            raise TemplateRefusedError("the chat template makes a value that is too large")


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def budget(room: int) -> Generator[Budget, None, None]:
    """A budget for what is rendered inside."""
    held = Budget(room)
    token = _budget.set(held)
    try:
        yield held
    finally:
        _budget.reset(token)


def _current() -> Budget:
    held = _budget.get()
    if held is None:
        raise TemplateRefusedError("a template runs inside a budget only")
    return held


def _measure(value: Any) -> int:
    """Characters that a value takes as text, at most. Pays for the visit; refuses a value larger than any may be."""
    held = _current()
    total, members, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        members += 1
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            waiting.extend(cast(Mapping[Any, Any], item).keys())
            waiting.extend(cast(Mapping[Any, Any], item).values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(cast(list[Any], item))
        elif isinstance(item, int):
            total += item.bit_length() // 3
        total += 4
        if members + len(waiting) > held.members:
            raise TemplateRefusedError("the chat template makes a value that is too large")
    held.fits(total)
    held.spend(total // 64 + members // 4)
    return total


def _shallow(value: Any) -> int:
    """Members of a container, or characters of a text, without a visit to them."""
    return len(cast(Any, value)) if isinstance(value, (str, list, tuple, dict, range)) else 1


def _format_size(pattern: str, marker: str, arguments: Any) -> None:
    """Refuse a format whose result would be too large."""
    if _WIDE[marker].search(pattern):
        raise TemplateRefusedError("the chat template formats with a width that is too large")
    widest = max(_measure(arguments), MAX_NUMBER)
    _current().fits(len(pattern) + pattern.count(marker) * widest)


def _check_arguments(name: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a filter or method whose result would be too large; `target` is what it works on."""
    held = _current()
    values = (*args, *kwargs.values())
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise TemplateRefusedError(f"the chat template calls {name} with a number that is too large")
    if name in _FREE:
        held.spend()
        return
    if name in _SHALLOW:
        held.spend(1 + _shallow(target) // 4)
        return
    for value in (target, *values):
        _measure(value)
    texts = [len(value) for value in values if isinstance(value, str)]
    if name == "replace" and isinstance(target, str) and values:
        old = str(values[0])
        held.fits(len(target) + (target.count(old) if old else len(target) + 1) * max(texts, default=0))
    elif name == "join":
        held.fits(sum(texts) * (_measure(target) + 1) if isinstance(target, (list, tuple)) else 0)
    elif name == "indent":
        width = max([4, *texts, *(value for value in values if isinstance(value, int))])
        held.fits((str(target).count("\n") + 1) * width)
    elif name == "format":
        _format_size(str(target), "{", values)
        _format_size(str(target), "%", values)
    elif name == "sum" and any(isinstance(value, (str, list, tuple)) for value in values[1:] + values[:1]):
        raise TemplateRefusedError("the chat template sums what are not numbers")
    elif name == "tojson" and any(isinstance(value, int) and value > 16 for value in values):
        raise TemplateRefusedError("the chat template calls tojson with an indent that is too large")


def _checked_join(separator: str, items: Any) -> str:
    """`separator.join(items)`, its size worked out first."""
    held = _current()
    parts = list(items)
    held.spend(1 + len(parts) // 4)
    held.fits(len(separator) * len(parts) + sum(len(part) for part in parts if isinstance(part, str)))
    return separator.join(parts)


def _paid(result: Any) -> Any:
    """A result, paid for if it is text or a container."""
    if isinstance(result, (str, list, tuple, dict)):
        _measure(cast(Any, result))
    return cast(Any, result)


def _guard_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that pays for its work. Marks such as `pass_context` survive."""
    passes = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        own = args[1:] if passes else args
        _check_arguments(name, own[0] if own else None, own[1:], kwargs)
        result = function(*args, **kwargs)
        return _paid(result)

    return guarded


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as Hugging Face's templates expect it: nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise TemplateError(str(message))


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise TemplateRefusedError(f"the chat template loops over more than {MAX_RANGE} numbers")
    _current().spend(1 + len(numbers) // 16)
    return numbers


@pass_context
def _output(context: Context, value: Any) -> Any:
    """Every value that is written passes here."""
    del context
    if isinstance(value, Undefined):
        return value
    _measure(value)
    text = value if isinstance(value, str) else str(value)
    held = _current()
    held.emit(len(text))
    return text


class _Namespace(Namespace):
    """A namespace whose text is short, whatever it holds."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; its body is all that matters here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Compile and render inside `budget(...)`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_output,
            optimized=False,
            cache_size=0,
        )
        own: Any = self
        names: dict[str, Any] = own.globals
        filters: dict[str, Any] = own.filters
        tests: dict[str, Any] = own.tests
        names.pop("lipsum", None)
        names |= {"namespace": _Namespace, "range": _range, "raise_exception": _raise, "strftime_now": _now}
        for name in _REMOVED_FILTERS:
            filters.pop(name, None)
        filters["tojson"] = _tojson
        for table in (filters, tests):
            table.update({name: _guard_filter(name, function) for name, function in table.items()})

    # What the rewritten template calls.

    def tick(self, literal: int) -> bool:
        """One turn of a loop or macro whose body holds `literal` characters of fixed text."""
        held = _current()
        held.spend()
        held.emit(literal)
        return True

    def weigh(self, value: Any) -> Any:
        """A list display, or a side of a comparison."""
        _measure(value)
        return value

    def concatenate(self, *parts: Any) -> str:
        """The operator `~`."""
        _current().fits(sum(map(_measure, parts)))
        return str_join(parts)

    # Jinja's own hooks.

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _rewrite(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Methods of plain values are an allow-list; the rest is as in the sandbox."""
        for kind, allowed in _METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`; a slice pays for the copy."""
        if isinstance(argument, slice):
            _current().spend(1 + _shallow(obj) // 64)
        return super().getitem(obj, cast(Any, argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator; what it would make is weighed first."""
        held = _current()
        if operator == "%" and isinstance(left, str):
            _format_size(left, "%", right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise TemplateRefusedError("the chat template makes a number that is too large")
        else:
            sizes = [_measure(side) for side in (left, right)]
            if operator == "*":
                count = next((abs(side) for side in (left, right) if isinstance(side, int)), 1)
                held.fits(max(sizes) * count)
            held.fits(sum(sizes))
        held.spend()
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base
        """A call of a method, macro or global; what it would make is weighed first."""
        held = _current()
        if __obj == __self.tick or __obj == __self.weigh or __obj == __self.concatenate:
            return __obj(*args)
        target = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # str.format comes wrapped
        plain = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
        name = getattr(__obj, "__name__", type(__obj).__name__)
        if isinstance(target, str) and name == "join":
            return _checked_join(target, args[0] if args else ())
        if isinstance(__obj, (Macro, type)) or __obj is _range:
            held.spend()
        else:
            _check_arguments(name, target if isinstance(target, (str, list, tuple, dict)) else None, args, plain)
        held.depth += 1
        if held.depth > MAX_DEPTH:
            raise TemplateRefusedError(f"the chat template calls itself deeper than {MAX_DEPTH}")
        try:
            result = super().call(__context, __obj, *args, **kwargs)
        finally:
            held.depth -= 1
        return _paid(result)


def _rewrite(template: nodes.Template) -> nodes.Template:
    """Let loops, macros, `~`, comparisons and displays pass through the environment."""

    def hook(line: int, name: str, *arguments: nodes.Expr) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None)
        call.set_lineno(line)
        return call

    def visit(node: nodes.Node) -> nodes.Node:
        for field, value in node.iter_fields():
            if isinstance(value, list):
                items = cast(list[Any], value)
                value[:] = [visit(item) if isinstance(item, nodes.Node) else item for item in items]
            elif isinstance(value, nodes.Node):
                setattr(node, field, visit(value))
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)):
            literal = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            turn = hook(node.lineno, "tick", nodes.Const(literal))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = nodes.And(hook(node.lineno, "tick", nodes.Const(0)), node.test)
            node.body.insert(0, nodes.ExprStmt(turn).set_lineno(node.lineno))
        elif isinstance(node, nodes.Concat):
            return hook(node.lineno, "concatenate", *node.nodes)
        elif isinstance(node, nodes.Compare):
            node.expr = hook(node.lineno, "weigh", node.expr)
            for operand in node.ops:
                operand.expr = hook(node.lineno, "weigh", operand.expr)
        elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
            return hook(node.lineno, "weigh", node)
        return node

    visit(template)
    template.set_environment(cast(Environment, template.environment))  # the parser sets it
    return template
