"""HTTP clients for tests, with and without the token."""

import asyncio
import re
from pathlib import Path
from typing import Any, NamedTuple, Optional
from urllib.parse import unquote, urlencode

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.app import make_app
from agent_checkpoint.web.auth import Auth

PORT = 8421
ORIGIN = f"http://127.0.0.1:{PORT}"
TOKEN = "a token for the tests"


class Answer(NamedTuple):
    """What came back."""

    status_code: int
    headers: "dict[str, str]"
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


class Client:
    """Asks an application directly, without a server: it may say anything in a request."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.base = "/"
        self.cookies: dict[str, str] = {}

    def get(self, url: str, **options: Any) -> Answer:
        return self.request("GET", url, **options)

    def head(self, url: str, **options: Any) -> Answer:
        return self.request("HEAD", url, **options)

    def put(self, url: str, **options: Any) -> Answer:
        return self.request("PUT", url, **options)

    def post(self, url: str, **options: Any) -> Answer:
        return self.request("POST", url, **options)

    def request(
        self,
        method: str,
        url: str,
        *,
        params: Any = None,
        headers: Any = None,
        content: bytes = b"",
    ) -> Answer:
        path, _, query = url.partition("?")
        if not path.startswith(self.base):  # pages name each other from where they are
            path = self.base + path.removeprefix("./").removeprefix("/")
        query = urlencode(params) if params else query
        said = {"host": f"127.0.0.1:{PORT}"}
        if self.cookies:
            said["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        said.update({name.lower(): value for name, value in (headers or {}).items()})
        scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in said.items()],
        }
        answer = asyncio.run(self._ask(scope, content))
        if "set-cookie" in answer.headers:
            name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
            (self.base,) = re.findall("; Path=([^;]+)", answer.headers["set-cookie"])
        return answer

    async def _ask(self, scope: Any, content: bytes) -> Answer:
        bodies = [content]
        status, headers, pieces = 0, {}, []

        async def receive() -> Any:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            return await asyncio.Event().wait()  # nobody hangs up

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return Answer(status, headers, b"".join(pieces))


class Visitor:
    """A browser, as far as requests go, that has opened the address with the token."""

    def __init__(self, manager: CheckpointManager, **options: Any) -> None:
        self.manager = manager
        self.auth = Auth(port=PORT)
        self.client = Client(make_app(manager, self.auth, **options))
        answer = self.client.get(self.auth.base, params={"token": self.auth.invite()})
        assert answer.status_code == 303

    def get(self, page: str, /, **asked: Any) -> Any:
        return self.client.get(page, params={name: str(value) for name, value in asked.items()})

    def text(self, page: str, /, **asked: Any) -> str:
        answer = self.get(page, **asked)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, page: str, /, form: Any, *, origin: Optional[str] = ORIGIN) -> Any:
        """Send a form of the page; one of a list of pairs may have a name twice."""
        pairs = [*(form.items() if isinstance(form, dict) else form), ("csrf", self.auth.csrf)]
        return self.send(page, pairs, origin=origin)

    def approve(self, approval: str, **form: str) -> Any:
        """Approve what the page of a request shows, with other texts in fields `argument.0` …."""
        html = self.text("/request", id=approval)
        found = re.search(r'name="seen" value="(\w*)"', html)
        seen = found[1] if found else ""
        fields = {f"{name}.{seen}": text for name, text in form.items()}
        return self.post("/approve", {"approval": approval, "seen": seen, **fields})

    def send(self, page: str, pairs: Any, *, origin: Optional[str] = ORIGIN) -> Any:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if origin is not None:
            headers["Origin"] = origin
        return self.client.post(page, content=urlencode(pairs).encode(), headers=headers)


def opened(path: Path) -> CheckpointManager:
    return CheckpointManager(backend="sqlite", path=path, durability="fast")


def links(html: str) -> "list[str]":
    """Return where a page leads, from the path that all pages are below."""
    found = re.findall(r'(?:href|action)="([^"#][^"]*)"', html)
    return ["/" + place.removeprefix("./").replace("&amp;", "&") for place in found]
