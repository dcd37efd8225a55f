"""The HTTP client of the server at the configured address."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from tampu.backends.unix_http import UnixHTTPConnection
from tampu.errors import StoreError, TampuError
from tampu.settings.settings import Settings

_TIMEOUT_S = 10.0
_MAX_BYTES = 16 << 20
_WARNINGS = "Warning"
_EVENT = b"data: "
_WARNING = re.compile(r'299 \S+ "([^"]*)"')
WARNINGS = "warnings"  # in the first object of a response: those of its header


class ServerError(TampuError):
    """The server refused a request or failed; `status` is that of its response, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class NoServerError(ServerError):
    """No program listens at the address."""


@dataclass(frozen=True, slots=True)
class HTTPServer:
    """The server at the configured address, whether it is running or not."""

    adds_prefix: ClassVar[bool] = True
    status: ClassVar[str] = ""

    settings: Settings

    def __str__(self) -> str:
        return str(self.settings.socket or self.settings.address)

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float | None = _TIMEOUT_S,
    ) -> dict[str, Any]:
        """Return the object in its response.

        Raises:
            NoServerError: if no server is running.
            ServerError: if it refused, or its response is invalid.
        """
        with closing(self._lines(method, path, body, timeout_s)) as lines:
            return next(lines, {})

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the objects in the lines of its response; closing the iterator cancels the request.

        Raises:
            NoServerError: if no server is running.
            ServerError: if it refused, its response is invalid, or it reports an error.
        """
        for line in self._lines("POST", path, body, None):
            if "error" in line:
                raise ServerError(str(line["error"]))
            yield line

    def software(self, timeout_s: float) -> str:
        """Return its `Server` header, such as `tampu/1.2`; empty without one.

        Raises:
            NoServerError: if no server is running.
            ServerError: if its response is invalid.
        """
        with self._answer("GET", "/health", None, timeout_s) as answer:
            return answer.getheader("Server", "")

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Return the body of its response.

        Raises:
            NoServerError: if no server is running.
            ServerError: if it refused, or its response is invalid.
        """
        with self._answer(method, path, body, None, content_type) as answer:
            found = answer.read()
        if answer.status != http.client.OK:
            raise ServerError(error_message(found) or answer.reason, answer.status)
        return found

    def events(self, path: str, body: bytes, content_type: str) -> Generator[dict[str, Any]]:
        """Yield the server-sent events of its response; closing the iterator cancels the request.

        Raises:
            NoServerError: if no server is running.
            ServerError: if it refused, its response is invalid, or it reports an error.
        """
        with self._answer("POST", path, body, None, content_type) as answer:
            if answer.status != http.client.OK:
                raise ServerError(error_message(answer.read()) or answer.reason, answer.status)
            yield from read_events(answer)

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _lines(
        self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None
    ) -> Generator[dict[str, Any]]:
        with self._answer(method, path, body, timeout_s) as answer:
            warnings = _WARNING.findall(answer.getheader(_WARNINGS, ""))
            while text := answer.readline(_MAX_BYTES):
                found = json.loads(text)
                if not isinstance(found, dict):
                    raise ValueError("not an object")
                if answer.status != http.client.OK:
                    raise ServerError(_message(found.get("error", answer.reason)), answer.status)
                if warnings:
                    found[WARNINGS], warnings = warnings, []
                yield found

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | bytes | None,
        timeout_s: float | None,
        content_type: str = "application/json",
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Content-Type": content_type}
        if keys := self.settings.api_keys or self.settings.use_api_keys:
            headers["Authorization"] = f"Bearer {keys[0]}"
        connection = self._connection(timeout_s)
        try:
            content = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, self._prefix + path, content, headers)
            yield connection.getresponse()
        except (ConnectionRefusedError, FileNotFoundError) as error:
            message = (
                f"no server is running at {self}: start one with `tampu serve`, "
                "or set TAMPU_HOST to the address of another"
            )
            raise NoServerError(message) from error
        except TimeoutError as error:
            raise ServerError(
                f"no response from the server at {self} in {timeout_s:g} s"
            ) from error
        except OSError as error:
            message = f"the server at {self} cannot be reached: {error.strerror or error}"
            raise ServerError(message) from error
        except (http.client.HTTPException, ValueError) as error:
            is_json = not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            what = str(error) if is_json else "not JSON"
            raise ServerError(f"unexpected response from the server at {self}: {what}") from error
        finally:
            connection.close()

    @property
    def _prefix(self) -> str:
        """What comes before the path of a request: where a proxy has the server."""
        return "" if self.settings.socket else self.settings.address.path

    def _connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self.settings.socket is not None:
            return UnixHTTPConnection(self.settings.socket, timeout_s)
        address = self.settings.address.for_clients
        is_secret = address.scheme == "https"
        kind = http.client.HTTPSConnection if is_secret else http.client.HTTPConnection
        return kind(address.host, address.port, timeout=timeout_s)


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of server-sent events.

    Raises:
        ServerError: for an event with an error.
    """
    for line in lines:
        if line.startswith(_EVENT):
            found = json.loads(line.removeprefix(_EVENT))
            if "error" in found:
                raise ServerError(_message(found["error"]))
            yield found


def error_message(body: bytes) -> str:
    """Return the message of the error in a response of any API."""
    try:
        return _message(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _message(error: object) -> str:
    """Return the message of an error of any API."""
    return str(error["message"] if isinstance(error, dict) and "message" in error else error)


def loaded_models(server: HTTPServer) -> list[dict[str, Any]]:
    """Return the models in the server's memory, as `GET /api/ps` describes them.

    Raises:
        ServerError: if no server is running, or it refused.
    """
    models = server.ask("GET", "/api/ps").get("models")
    return models if isinstance(models, list) else []


def stop_model(server: HTTPServer, model: str) -> None:
    """Unload a model from the server's memory.

    Raises:
        ServerError: if no server is running, or it refused.
    """
    body = {"model": model, "keep_alive": 0, "stream": False}
    server.ask("POST", "/api/generate", body)


def unload(server: HTTPServer, model: str) -> None:
    """Unload a model from the server's memory, if a server is running and has it there."""
    from tampu.store.names import ModelName

    try:
        names = {ModelName.parse(str(loaded.get("name"))) for loaded in loaded_models(server)}
        if ModelName.parse(model) in names:
            stop_model(server, model)
    except (ServerError, StoreError):
        return
