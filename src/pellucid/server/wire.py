"""HTTP/1.1 as h11 reads it, held to limits and rules that h11 leaves open.

Law: a head is judged the same however its bytes arrive; what is refused has a status and a reason of its own. A head of
which two readers could think differently (a proxy and this server) is refused.
"""

from __future__ import annotations

import h11

from pellucid.server.errors import HTTPError


class Wire(h11.Connection):
    """The server's side of one connection."""

    def __init__(self, head_bytes: int) -> None:
        """Begin; the request line and the headers may hold `head_bytes` together."""
        super().__init__(h11.SERVER, head_bytes)
        self._head_bytes = head_bytes
        self.fault: HTTPError | None = None
        """Why the last event could not be had, where h11 does not know it."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. Raises RemoteProtocolError for what is no HTTP or over the limits."""
        at_head = self.their_state is h11.IDLE
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            if at_head and error.error_status_hint == 431:
                line = b"\n" in self.trailing_data[0][: self._head_bytes]
                self.fault = self._headers_too_large() if line else self._url_too_long()
            raise
        if isinstance(event, h11.Request):
            self.fault = self._judge(event)
            if self.fault is not None:
                raise h11.RemoteProtocolError(self.fault.message, error_status_hint=self.fault.status)
        return event

    def _judge(self, request: h11.Request) -> HTTPError | None:
        line = len(request.method) + len(request.target) + len(b"  HTTP/1.1\r\n")
        if line > self._head_bytes:
            return self._url_too_long()
        if line + sum(len(name) + len(value) + len(b": \r\n") for name, value in request.headers) > self._head_bytes:
            return self._headers_too_large()
        names = {name for name, _ in request.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version < b"1.1"):
            return HTTPError(
                "Transfer-Encoding with Content-Length, or in HTTP/1.0, is refused: the length of the body is in doubt",
                status=400,
                code="invalid_http",
            )
        return None

    def _url_too_long(self) -> HTTPError:
        return HTTPError(f"The URL is longer than {self._head_bytes} bytes", status=414, code="url_too_long")

    def _headers_too_large(self) -> HTTPError:
        return HTTPError(f"The headers are larger than {self._head_bytes} bytes", status=431, code="headers_too_large")
