"""The exception tree. Each class maps to one HTTP status, one API code and one exit code.

Law: a message is one line that says what is wrong, where, and what to do. Users' mistakes raise a subclass of
PellucidError; anything else that escapes is a bug of ours.
"""

from __future__ import annotations


class PellucidError(Exception):
    """Root of every error that Pellucid raises on purpose."""

    status: int = 500
    code: str = "internal_error"
    type: str = "server_error"
    exit_code: int = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(PellucidError):
    """An option, environment variable or configuration value that cannot be used."""

    status = 400
    code = "invalid_config"
    type = "invalid_request_error"
    exit_code = 2


class ModelFileError(PellucidError):
    """A model file that is cut off, corrupt or contradicts itself. The message names file, place and fault."""

    code = "invalid_model_file"
    exit_code = 3


class UnsupportedModelError(PellucidError):
    """A sound file of a family, format or tokenizer that Pellucid does not know; names what it does know."""

    code = "unsupported_model"
    exit_code = 3


class ModelNotFoundError(PellucidError):
    """No model of that name, path or repository."""

    status = 404
    code = "model_not_found"
    type = "invalid_request_error"
    exit_code = 4


class DownloadError(PellucidError):
    """A model could not be brought: network, licence, disk, or a digest that differs."""

    code = "download_failed"
    exit_code = 5


class UnreachableError(PellucidError):
    """A server that a command was pointed at does not answer, or is not one of ours."""

    code = "server_unreachable"
    exit_code = 5


class RequestError(PellucidError):
    """A request that cannot be served as asked; `param` names the field."""

    status = 400
    code = "invalid_value"
    type = "invalid_request_error"
    exit_code = 2


class ContextLengthError(RequestError):
    """Prompt and answer do not fit the context."""

    code = "context_length_exceeded"


class CapacityError(PellucidError):
    """No room now: the queue is full, or the cache can never hold the request."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    exit_code = 6

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MemoryPlanError(PellucidError):
    """The model, or the cache asked for, does not fit this machine; names what would."""

    code = "insufficient_memory"
    exit_code = 6


class EngineError(PellucidError):
    """The engine failed inside a step; the sequence it concerns has ended."""

    code = "engine_error"
