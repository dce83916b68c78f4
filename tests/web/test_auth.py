"""Authentication: token, cookie, host, origin, CSRF token, headers."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError
from agent_checkpoint.web.app import GET_ROUTES, POST_ROUTES, make_app
from agent_checkpoint.web.auth import Auth, is_loopback
from tests.web.conftest import Place
from tests.web.example_store import KEY
from tests.web.visitor import ORIGIN, PORT, TOKEN, Client, Visitor, opened

PAGES = sorted({*GET_ROUTES, *POST_ROUTES, "/static/page.css", "/static/page.js", "/events"})


def stranger(manager: CheckpointManager, auth: Auth) -> Client:
    return Client(make_app(manager, auth))


@pytest.fixture
def manager() -> CheckpointManager:
    made = CheckpointManager()
    made.save("key", {"a": 1})
    return made


@pytest.fixture
def visitor(manager: CheckpointManager) -> Visitor:
    return Visitor(manager)


# -- the token -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_shown_without_the_token(manager: CheckpointManager, page: str) -> None:
    client = stranger(manager, Auth(port=PORT))
    for answer in (client.get(page), client.post(page, headers={"Origin": ORIGIN})):
        assert answer.status_code == 401
        assert "key" not in answer.text
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("change", [lambda _: "", lambda _: TOKEN, lambda one: one[:-1], str.upper])
def test_another_token_is_none(manager: CheckpointManager, change: Any) -> None:
    auth = Auth(TOKEN, port=PORT)
    client = stranger(manager, auth)
    said = change(auth.invite())
    assert client.get(auth.base, params={"token": said}).status_code == 401


def test_a_token_is_exchanged_for_a_cookie_that_no_script_and_no_other_page_gets(
    manager: CheckpointManager,
) -> None:
    auth = Auth(port=PORT)
    client = stranger(manager, auth)
    token = auth.invite()
    answer = client.get(f"{auth.base}timeline", params={"key": "a b&c", "token": token})
    assert answer.status_code == 303
    assert answer.headers["location"] == f"{auth.base}timeline?key=a+b%26c"
    assert answer.headers["referrer-policy"] == "no-referrer"
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", f"Path={auth.base}"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert token not in cookie
    assert client.get("/").status_code == 200


def test_a_token_counts_only_below_the_path_of_its_run(manager: CheckpointManager) -> None:
    auth = Auth(port=PORT)
    assert stranger(manager, auth).get("/", params={"token": auth.invite()}).status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%2f%2fevil.example"])
def test_the_token_leads_to_no_other_site(manager: CheckpointManager, path: str) -> None:
    auth = Auth(port=PORT)
    client = stranger(manager, auth)
    answer = client.get(auth.base + path, params={"token": auth.invite()})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith(auth.base)
    answer = client.request("GET", auth.base + path, params={"token": auth.invite()})
    assert answer.headers["location"].startswith(auth.base)


def test_the_cookie_of_another_server_is_none(manager: CheckpointManager) -> None:
    visitor, other = Visitor(manager), Visitor(manager)
    (name, value) = next(iter(other.client.cookies.items()))
    client = stranger(manager, visitor.auth)
    assert client.get("/", headers={"Cookie": f"{name}={value}"}).status_code == 401


def test_tokens_are_random_and_long() -> None:
    guards = [Auth(port=PORT) for _ in range(20)]
    for found in ({one.invite() for one in guards}, {one.base for one in guards}):
        assert len(found) == 20
        assert min(map(len, found)) >= 32


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidInputError, match="--token"):
        Auth(hosts=["127.0.0.1", host], port=PORT)
    Auth(TOKEN, hosts=[host], port=PORT)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="16"):
        Auth("short", port=PORT)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "[::1]"])
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


# -- host and origin -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",
        f"127.0.0.1.evil.example:{PORT}",
        f"10.0.0.7:{PORT}",
        "127.0.0.1",
        "127.0.0.1:80",
        f"localhost.evil.example:{PORT}",
        "",
    ],
)
def test_a_foreign_host_is_refused(visitor: Visitor, host: str) -> None:
    assert visitor.client.get("/", headers={"Host": host}).status_code == 421


def test_only_what_is_listened_at_is_a_host_of_ours(manager: CheckpointManager) -> None:
    client = stranger(manager, Auth(hosts=["LocalHost", "::1"], port=PORT))
    for host, status in (
        (f"localhost:{PORT}", 401),
        (f"[::1]:{PORT}", 401),
        (f"127.0.0.1:{PORT}", 421),
        (f"127.0.0.2:{PORT}", 421),
    ):
        assert client.get("/", headers={"Host": host}).status_code == status


def test_where_others_reach_it_addresses_are_hosts_and_foreign_names_are_not(
    manager: CheckpointManager,
) -> None:
    client = stranger(manager, Auth(TOKEN, hosts=["0.0.0.0"], port=PORT))
    assert client.get("/", headers={"Host": f"192.168.1.4:{PORT}"}).status_code == 401
    assert client.get("/", headers={"Host": f"evil.example:{PORT}"}).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        f"https://127.0.0.1:{PORT}",
        "http://127.0.0.1:9999",
        f"http://127.0.0.1:{PORT}.evil.example",
        f"http://localhost:{PORT}",
    ],
)
def test_a_foreign_origin_is_refused(visitor: Visitor, origin: str) -> None:
    assert visitor.client.get("/", headers={"Origin": origin}).status_code == 403
    assert visitor.post("/fork", {"id": "key", "name": "new"}, origin=origin).status_code == 403
    assert visitor.manager.list_keys() == ["key"]


def test_a_form_without_an_origin_is_refused(visitor: Visitor) -> None:
    answer = visitor.post("/fork", {"id": "key", "name": "n", "confirmed": "yes"}, origin=None)
    assert answer.status_code == 403
    assert visitor.manager.list_keys() == ["key"]


def test_a_request_that_says_it_is_from_another_site_is_refused(visitor: Visitor) -> None:
    headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    assert visitor.client.post("/fork", headers=headers).status_code == 403


# -- forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", sorted(POST_ROUTES))
@pytest.mark.parametrize("csrf", [None, "", "wrong"])
def test_a_form_needs_the_token_of_the_page(visitor: Visitor, page: str, csrf: Any) -> None:
    form = {"id": "key", "key": "key", "name": "new", "confirmed": "yes", "approval": "x"}
    pairs = [*form.items(), *([] if csrf is None else [("csrf", csrf)])]
    answer = visitor.send(page, pairs)
    assert answer.status_code == 403
    assert "not from this server" in answer.text
    assert visitor.manager.list_keys() == ["key"]


def test_the_same_form_with_the_token_is_carried_out(visitor: Visitor) -> None:
    answer = visitor.post("/fork", {"id": "key", "name": "new", "confirmed": "yes"})
    assert answer.status_code == 303
    assert visitor.manager.list_keys() == ["key", "new"]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data"])
def test_only_forms_are_taken(visitor: Visitor, kind: str) -> None:
    headers = {"Origin": ORIGIN, "Content-Type": kind}
    answer = visitor.client.post("/fork", content=b"x", headers=headers)
    assert answer.status_code == 415


def test_a_huge_form_is_refused(visitor: Visitor) -> None:
    answer = visitor.post("/fork", {"id": "key", "name": "n" * 3_000_000})
    assert answer.status_code == 413
    assert visitor.post("/fork", [("x", "y")] * 1000).status_code == 400


@pytest.mark.parametrize("page", sorted(POST_ROUTES.keys() - GET_ROUTES.keys()))
def test_what_changes_something_is_no_get(visitor: Visitor, page: str) -> None:
    assert visitor.get(page).status_code == 405


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_none(visitor: Visitor, method: str) -> None:
    assert visitor.client.request(method, "/").status_code == 405


def addresses(key: str) -> "list[tuple[str, dict[str, str]]]":
    said = {
        "key": key,
        "id": key,
        "a": f"{key}@1",
        "b": key,
        "q": "a",
        "part": "agent",
        "path": "x",
    }
    said["of"] = "a preview"
    return [
        (page, {**said, **({"part": ""} if page == "/checkpoint" else {})}) for page in GET_ROUTES
    ]


def content(manager: CheckpointManager) -> Any:
    backend = manager.store.backend
    streams = {name: backend.read(name) for name in backend.streams()}
    return streams, sorted(item.id for item in backend.list_objects())


@pytest.mark.slow
def test_looking_changes_nothing(shared: Place) -> None:
    with opened(shared.store) as manager:
        visitor = Visitor(manager)
        before = content(manager)
        for page, said in addresses(KEY):
            answer = visitor.client.get(page, params=said)
            allowed = (400,) if page == "/rewind" else (200, 404)  # not a session of an agent
            assert answer.status_code in allowed, (page, answer.text)
            said = {**said, "csrf": visitor.auth.csrf, "confirmed": "yes", "name": "n"}
            visitor.client.get(page, params=said)
            visitor.client.head(page, params=said)
        assert content(manager) == before
        assert sorted(path.name for path in shared.repo.iterdir()) == [
            "README.md",
            "app",
            "logo.png",
            "tests",
        ]


def test_read_only_changes_nothing_and_offers_nothing(shared: Place) -> None:
    with opened(shared.store) as manager:
        visitor = Visitor(manager, read_only=True)
        before = content(manager)
        for page in POST_ROUTES:
            form = {"id": KEY, "key": KEY, "name": "new", "confirmed": "yes"}
            answer = visitor.post(page, form)
            assert answer.status_code == 403
            assert "--read-only" in answer.text
        for page, said in addresses(KEY):
            assert 'method="post"' not in visitor.client.get(page, params=said).text
        assert content(manager) == before


# -- headers and errors ----------------------------------------------------------------------------


def test_every_answer_has_the_headers(looking: Visitor) -> None:
    client = looking.client
    answers = [client.get(page, params=said) for page, said in addresses(KEY)]
    answers += [client.get("/nothing"), client.get("/static/page.js"), client.put("/")]
    answers += [client.get("/", headers={"Host": "evil"}), looking.post("/fork", {"id": "none"})]
    for answer in answers:
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
            if " " in part.strip()
        )
        assert policy.pop("default-src") == "'none'"
        assert set(policy.values()) <= {"'self'", "'none'"}
        assert "unsafe" not in answer.headers["content-security-policy"]
        if "sandbox" not in answer.headers["content-security-policy"]:
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"


def test_pages_have_no_script_or_style_of_their_own(looking: Visitor) -> None:
    for page, said in addresses(KEY):
        html = looking.client.get(page, params=said).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)
        assert all(' src="static/' in tag for tag in re.findall(r"<script[^>]*>", html))
        assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", html)


def test_a_fault_of_ours_tells_neither_a_traceback_nor_a_value(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ValueError("the payload")

    monkeypatch.setattr(type(visitor.manager.store), "head", broken)
    answer = visitor.get("/")
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert "payload" not in answer.text
    said = capsys.readouterr().err
    assert "ValueError" in said
    assert "payload" not in said


@pytest.mark.parametrize(
    "page", ["/static/../guard.py", "/static/%2e%2e/guard.py", "/static/", "/x"]
)
def test_no_other_file_is_served(visitor: Visitor, page: str) -> None:
    answer = visitor.client.get(page)
    assert answer.status_code in (404, 405)
    assert "import" not in answer.text


def test_the_package_has_its_templates_and_scripts() -> None:
    folder = Path(sys.modules["agent_checkpoint.web.app"].__file__ or "").parent
    assert len(list((folder / "templates").glob("*.html"))) >= 10
    assert {path.suffix for path in (folder / "static").iterdir()} == {".css", ".js", ".svg"}
