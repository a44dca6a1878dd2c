"""Trial: whether a grammar can be compiled, found out in a process that can be killed.

Law: llguidance bounds most of what a grammar costs by counts, but not all (an intersection of patterns may take
minutes), and what runs in this process cannot be stopped. So a grammar is compiled there first, within a time and a
memory. A few are tried at once, so that a slow one does not hold up the others.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import weakref
from contextlib import suppress
from queue import LifoQueue

from pellucid.errors import EngineError

LIMIT = 2.0
"""Seconds that a grammar may take."""
START_LIMIT = 30.0
"""Seconds that a process may take to start, on a machine that is busy."""
MEMORY = 1 << 30
"""Bytes of a process's address space."""
MOST = 3
"""Processes."""
TOO_SLOW = f"it is not compiled within {LIMIT:g} s; make it simpler"
_PROGRAM = """
import json, sys
from llguidance import LLMatcher
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
except (ImportError, ValueError, OSError):
    pass
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(LLMatcher.validate_grammar(json.loads(line))), flush=True)
"""

_Process = subprocess.Popen[str]


class Trial:
    """The processes, each started when it is first needed and again after it was killed. Safe to use from threads."""

    def __init__(self) -> None:
        self._idle: LifoQueue[_Process | None] = LifoQueue()
        """Those at work are not in it; None: one that is not started. The last that came back is taken first."""
        for _ in range(MOST):
            self._idle.put(None)

    def fault(self, grammar: str) -> str:
        """Return what is wrong with a grammar in llguidance's own form; "": nothing.

        Raises EngineError if no process comes up.
        """
        process = self._idle.get()
        try:
            for _ in range(2):  # the process may be gone already, or die of it
                process = process or self._start()
                answer = _ask(process, json.dumps(grammar), LIMIT)
                if answer:
                    return str(json.loads(answer))
                _end(process)
                process = None
                if answer is None:
                    return TOO_SLOW
        finally:
            self._idle.put(process)
        return f"its compilation failed, or took more than {MEMORY >> 20} MiB; make it simpler"

    def _start(self) -> _Process:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(MEMORY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is the server's to answer
        )
        # Its first grammar does not pay for what llguidance makes once.
        if not (_ask(process, "", START_LIMIT) and _ask(process, json.dumps('start: "a"'), START_LIMIT)):
            _end(process)
            raise EngineError("the process in which grammars are tried does not start; try again later")
        weakref.finalize(self, process.kill)
        return process


def _ask(process: _Process, line: str, limit: float) -> str | None:
    """Write a line, if there is one, and return that of the process; "": it is gone. None: it takes too long."""
    if process.stdin is None or process.stdout is None:
        return ""
    try:
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() if selector.select(limit) else None
    except OSError:
        return ""


def _end(process: _Process) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what it did not read is lost with it
                pipe.close()
