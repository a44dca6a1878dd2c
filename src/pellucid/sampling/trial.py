"""Trial: whether a grammar can be compiled, found out in a process that can be killed.

Law: llguidance bounds most of what a grammar costs by counts, but not all (an intersection of patterns may take
minutes), and what runs in this process cannot be stopped. So a grammar is compiled there first, within a time.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import weakref
from threading import Lock

LIMIT = 2.0
"""Seconds."""
TOO_SLOW = f"it is not compiled within {LIMIT:g} s; make it simpler"
_PROGRAM = """
import json, sys
from llguidance import LLMatcher
for line in sys.stdin:
    print(json.dumps(LLMatcher.validate_grammar(json.loads(line))), flush=True)
"""


class Trial:
    """One process, started when it is first needed and again after it was killed. Grammars take turns."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def fault(self, grammar: str) -> str:
        """Return what is wrong with a grammar in llguidance's own form; "": nothing."""
        with self._lock:
            answer = self._ask(grammar)
            if answer == "":  # the process was gone, or died of it
                answer = self._ask(grammar)
            if answer is None:
                return TOO_SLOW
            return str(json.loads(answer)) if answer else "its compilation failed"

    def _ask(self, grammar: str) -> str | None:
        """Return the process's line; "": it is gone. None: it took too long and was killed."""
        process = self._process if self._process is not None else self._start()
        answer: str | None = ""
        if process.stdin is not None and process.stdout is not None:
            try:
                process.stdin.write(json.dumps(grammar) + "\n")
                process.stdin.flush()
                with selectors.DefaultSelector() as selector:
                    selector.register(process.stdout, selectors.EVENT_READ)
                    answer = process.stdout.readline() if selector.select(LIMIT) else None
            except OSError:
                answer = ""
        if not answer:
            self._process = None
            process.kill()
            process.wait()
        return answer

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is the server's to answer
        )
        weakref.finalize(self, process.kill)
        # Its first grammar does not pay for the start.
        if process.stdin is not None and process.stdout is not None:
            process.stdin.write(json.dumps('start: "a"') + "\n")
            process.stdin.flush()
            process.stdout.readline()
        self._process = process
        return process
