"""session.model: calls are recorded with tokens, cost and time; storage follows what is new."""

import asyncio
import json
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.errors import InvalidInputError, NotFoundError, StorageError
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.loop.usage import tokens_in
from tests.unit.session.stores import Killed, killed

USAGE = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 90}
REPLY = {
    "type": "message",
    "role": "assistant",
    "model": "claude-x-2026",
    "content": [{"type": "text", "text": "hi"}],
    "usage": USAGE,
}
TOOLS = [{"name": "a", "description": "does a"}, {"name": "b", "description": "does b"}]
REQUEST = {"model": "claude-x", "max_tokens": 9, "tools": TOOLS, "system": "be kind"}


def send(**request):
    return REPLY


def test_a_call_is_recorded(memory):
    seen = []

    def look(**request):
        seen.append(request)
        return REPLY

    with Session("job", store=memory) as session:
        session.messages.append({"role": "user", "content": "hello"})
        reply = session.model(look, **REQUEST, messages=session.messages)
        assert reply is REPLY
        (row,) = session.model_calls
        assert seen == [{**REQUEST, "messages": [{"role": "user", "content": "hello"}]}]
        assert type(seen[0]["messages"]) is list
        assert row["model"] == "claude-x"
        assert row["tokens"] == {"input": 93, "output": 5, "cached": 90}
        assert row["reply"] == REPLY
        assert row["seconds"] >= 0
        assert row["ts"] > 0
        assert row["cost"] is None
        assert session.model_request() == seen[0]
        assert session.calls == []
        assert len(session.history()) == 1  # a model call is no step of its own
    with Session("job", store=memory) as session:
        assert list(session.model_calls) == [row]
        assert session.model_request(0) == seen[0]
        with pytest.raises(NotFoundError, match="no model call 1"):
            session.model_request(1)


def test_requests_are_whole_again(memory):
    requests = [
        {"model": "m", "messages": [1]},
        {"model": "m", "messages": [1, 2, 3], "tools": TOOLS},
        {"model": "n", "messages": [1, 2, 4], "tools": TOOLS[:1]},
        {"model": "n", "messages": []},
        {"model": "n", "input": "text", "tools": None, "messages": [5]},
        {"model": "n", "input": "text", "tools": None, "messages": [5]},
        {},
    ]
    with Session("job", store=memory) as session:
        for request in requests:
            session.model(send, **request)
        assert [session.model_request(n) for n in range(len(requests))] == requests
        assert session.model_request(-2) == requests[-2]
        assert session.model_calls[5]["request"] == {}
    with Session("job", store=memory) as session:
        assert [session.model_request(n) for n in range(len(requests))] == requests


def test_headers_keys_and_clients_are_not_recorded(memory):
    with Session("job", store=memory) as session:
        session.model(
            send,
            model="m",
            messages=[],
            extra_headers={"Authorization": "SECRET"},
            api_key="SECRET",
            config={"http_options": {"headers": "SECRET"}, "temperature": 1},
            callback=lambda: None,
            response_format=SimpleNamespace,
        )
        (row,) = session.model_calls
        assert "SECRET" not in json.dumps(row)
        assert row["request"]["config"] == {"temperature": 1}
        assert row["request"]["callback"] == "<function>"
        assert row["request"]["response_format"] == "<SimpleNamespace>"


def test_objects_of_client_libraries_are_recorded_as_json(memory):
    anthropic = pytest.importorskip("anthropic.types")
    message = anthropic.Message.model_validate({**REPLY, "id": "m", "stop_reason": "end_turn"})
    with Session("job", store=memory) as session:
        assert session.model(lambda **_: message, model="m", messages=[message]) is message
        row = session.model_calls[0]
        assert row["reply"]["content"] == REPLY["content"]
        assert row["tokens"]["cached"] == 90
        assert row["request"]["messages"][0]["role"] == "assistant"


@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        ({"type": "message", "usage": {"input_tokens": 7, "output_tokens": 2}}, (7, 2, 0)),
        (
            {"usage": {**USAGE, "cache_creation_input_tokens": 10}},
            (103, 5, 90, 10),
        ),
        (
            {
                "usage": {
                    "prompt_tokens": 50,
                    "completion_tokens": 6,
                    "prompt_tokens_details": {"cached_tokens": 40},
                }
            },
            (50, 6, 40),
        ),
        (
            {
                "object": "response",
                "usage": {
                    "input_tokens": 50,
                    "output_tokens": 6,
                    "input_tokens_details": {"cached_tokens": 40},
                },
            },
            (50, 6, 40),
        ),
        (
            {
                "usage_metadata": {
                    "prompt_token_count": 50,
                    "candidates_token_count": 6,
                    "thoughts_token_count": 4,
                    "cached_content_token_count": 40,
                }
            },
            (50, 10, 40),
        ),
        ({"usage": None}, None),
        ("text", None),
        ({"usage": {"input_tokens": "many", "output_tokens": True}}, (0, 0, 0)),
    ],
)
def test_tokens_of_the_four_apis(memory, reply, tokens):
    with Session("job", store=memory) as session:
        session.model(lambda **_: reply, model="m")
        found = session.model_calls[0].get("tokens")
        names = ("input", "output", "cached", "cache_written")
        assert found == (None if tokens is None else dict(zip(names, tokens)))


def test_the_cost_is_by_the_users_prices(memory):
    prices = {"claude-x": {"input": 3, "output": 15, "cached": 0.3, "cache_written": 3.75}}
    usage = {**USAGE, "cache_creation_input_tokens": 10}
    with Session("job", store=memory, prices=prices) as session:
        session.model(lambda **_: {"usage": usage}, model="claude-x")
        session.model(lambda **_: {"usage": usage, "model": "claude-x"})
        session.model(lambda **_: {"usage": usage}, model="other")
        first, second, third = session.model_calls
        assert first["cost"] == pytest.approx((3 * 3 + 5 * 15 + 90 * 0.3 + 10 * 3.75) / 1e6)
        assert second["cost"] == first["cost"]
        assert third["cost"] is None
        session.model(lambda **_: {"usage": usage}, model="other")
        (notice,) = session.notices
        assert notice == (
            "prices= has no price for the model 'other': the cost of its calls is None."
        )
        with session.fork("other") as fork:
            fork.model(lambda **_: {"usage": usage}, model="claude-x")
            assert fork.model_calls[-1]["cost"] == first["cost"]


@pytest.mark.parametrize(
    "price", [3, {"input": 1}, {"input": 1, "output": "2"}, {"input": 1, "output": 1, "x": 1}]
)
def test_prices_are_checked(memory, price):
    with pytest.raises(InvalidInputError, match="prices"):
        Session("job", store=memory, prices={"m": price})


def test_without_prices_there_is_no_cost_and_no_notice(memory):
    with Session("job", store=memory) as session:
        session.model(send, model="m", messages=[1])
        assert session.model_calls[0]["cost"] is None
        assert session.notices == []
        assert "cost" not in session.manager.history("job")[0]["metrics"]


def test_the_metrics_in_the_history_count_what_a_rollback_took_back(memory):
    prices = {"m": {"input": 1e6, "output": 0}}

    def one_token(**_):
        return {"usage": {"input_tokens": 1, "output_tokens": 1}}

    with Session("job", store=memory, prices=prices) as session:
        start = session.save()
        for _ in range(2):
            session.model(one_token, model="m")
            session.save()
        session.model(one_token, model="m")  # only the safety checkpoint has it
        session.rollback(to=start)
        assert len(session.model_calls) == 0
        session.model(one_token, model="m")
        session.undo()
        assert len(session.model_calls) == 3
        session.save()
        assert sum(row["metrics"].get("cost", 0) for row in session.history()) == 4


def test_errors_are_recorded_and_raised(memory):
    class RateLimitError(Exception):
        status_code = 429

    def fails(**request):
        raise RateLimitError("key SECRET")

    with Session("job", store=memory) as session:
        with pytest.raises(RateLimitError):
            session.model(fails, model="m", messages=[1])
        (row,) = session.model_calls
        assert row["error"] == {"type": "RateLimitError", "status": 429}
        assert "SECRET" not in json.dumps(row)
        session.model(send, model="m", messages=[1])
        assert session.model_calls[1]["prefix"]["unchanged"] == 1


@pytest.mark.parametrize("stream", [iter([]), (n for n in []), open])
def test_a_stream_is_no_reply(memory, stream, tmp_path):
    if stream is open:
        stream = open(tmp_path / "x", "w")  # noqa: SIM115
    session = Session("job", store=memory)
    with pytest.raises(InvalidInputError, match="stream"):
        session.model(lambda **_: stream, model="m")
    getattr(stream, "close", lambda: None)()


def test_coroutines_need_amodel(memory):
    async def asend(**request):
        return REPLY

    with Session("job", store=memory) as session:
        with pytest.raises(InvalidInputError, match="amodel"):
            session.model(asend, model="m")
        assert asyncio.run(session.amodel(asend, model="m")) is REPLY
        assert asyncio.run(session.amodel(send, model="m")) is REPLY
        assert len(session.model_calls) == 3


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("where", ["capture", "write"])
def test_metrics_of_a_failed_save_are_in_the_next(memory, monkeypatch, is_async, where):
    def fail(*_, **__):
        raise StorageError("disk full")

    def save():
        return asyncio.run(session.asave()) if is_async else session.save()

    with Session("job", store=memory) as session:
        session.model(lambda **_: {"usage": {"input_tokens": 7, "output_tokens": 1}}, model="m")
        with monkeypatch.context() as patch:
            if where == "write":
                patch.setattr(memory.store, "write", fail)
            else:
                patch.setattr(CheckpointWriter, "draft", fail)
            with pytest.raises(StorageError):
                save()
        session.model(lambda **_: {"usage": {"input_tokens": 2, "output_tokens": 1}}, model="m")
        for expected in (9, None):
            save()
            assert session.history(1)[0]["metrics"].get("input_tokens") == expected


def test_the_checkpoint_has_the_metrics_of_its_step(memory):
    prices = {"claude-x": {"input": 3, "output": 15}}
    with Session("job", store=memory, prices=prices) as session:
        session.save()
        assert session.history(1)[0]["metrics"] == {}
        session.model(send, model="claude-x")
        session.model(send, model="claude-x")
        session.save(metrics={"score": 1})
        metrics = session.history(1)[0]["metrics"]
        assert metrics.pop("model_seconds") >= 0
        assert metrics.pop("cost") == pytest.approx(2 * (93 * 3 + 5 * 15) / 1e6)
        expected = {"input_tokens": 186, "output_tokens": 10, "cached_tokens": 180, "score": 1}
        assert metrics == expected
        session.save()
        assert session.history(1)[0]["metrics"] == {}
        session.rollback(steps=2)
        assert session.model_calls == []
        session.model(send, model="claude-x")
        session.save()
        assert session.history(1)[0]["metrics"]["input_tokens"] == 93
    with Session("job", store=memory) as session:
        session.save()
        assert session.history(1)[0]["metrics"] == {}


def test_model_calls_follow_rollback_fork_and_adoption(memory):
    with Session("job", store=memory) as session:
        start = session.save()
        session.model(send, model="m", messages=[1])
        one = session.save()
        session.model(send, model="m", messages=[1, 2])
        session.save()
        session.rollback(to=one)
        assert len(session.model_calls) == 1
        session.rollback(to=start)
        assert session.model_calls == []
        session.undo()
        assert len(session.model_calls) == 1
        session.rollback(to=start)
        with session.fork("other") as fork:
            fork.model(send, model="m", messages=[1])
            session.adopt(fork)
        assert len(session.model_calls) == 1
    with Session("job", store=memory) as session:
        assert len(session.model_calls) == 1


def test_merging_the_files_of_a_fork_keeps_model_calls(memory, place):
    with Session("job", store=memory, workspace=place) as session:
        with session.fork("other") as fork:
            (fork.workspace.path / "new").write_text("x")
            session.model(send, model="m", messages=[1])
            session.adopt(fork, merge="files")
        assert len(session.model_calls) == 1
    with Session("job", store=memory) as session:
        assert len(session.model_calls) == 1


# -- the prefix ------------------------------------------------------------------------------------


def conversation(n):
    return [{"role": "user", "content": [{"type": "text", "text": f"é{k}" * 9}]} for k in range(n)]


def size(*items):
    texts = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in items]
    return sum(len(text.encode()) for text in texts)


def prefixes(session, *requests):
    for request in requests:
        session.model(send, **request)
    row = session.model_calls[-1]["prefix"]
    return row["bytes"], row["unchanged"], row["difference"]


def test_a_longer_conversation_keeps_its_prefix(memory):
    first = {**REQUEST, "messages": conversation(3)}
    second = {**REQUEST, "messages": conversation(5)}
    with Session("job", store=memory) as session:
        total = size(*TOOLS, "be kind", *conversation(3))
        assert prefixes(session, first) == (total, 0, None)
        longer = size(*TOOLS, "be kind", *conversation(5))
        assert prefixes(session, second) == (longer, total, None)
        assert prefixes(session, first) == (total, total, "messages[3]")


def changed(**changes):
    request = json.loads(json.dumps({**REQUEST, "messages": conversation(4)}))
    for path, value in changes.items():
        *names, last = path.split("__")
        inner = request
        for name in names:
            inner = inner[int(name) if name.isdigit() else name]
        inner[int(last) if last.isdigit() else last] = value
    return request


@pytest.mark.parametrize(
    ("request_", "difference", "before"),
    [
        (changed(model="other"), "model", ()),
        (changed(tools__1__description="new"), "tools[1].description", TOOLS[:1]),
        (changed(tools=[*TOOLS, {"name": "c"}]), "tools[2]", TOOLS),
        (changed(tools=TOOLS[:1]), "tools[1]", TOOLS[:1]),
        (changed(system="be terse"), "system", TOOLS),
        (changed(system=None), "system", TOOLS),
        (changed(tool_choice={"type": "any"}), "tool_choice", [*TOOLS, "be kind"]),
        (
            changed(messages__3__content__0__text="é3"),
            "messages[3].content[0].text",
            [*TOOLS, "be kind", *conversation(3)],
        ),
        (
            changed(messages__2={"content": "x", "role": "user"}),
            "messages[2].content",
            [*TOOLS, "be kind", *conversation(2)],
        ),
    ],
)
def test_the_first_difference_is_named_in_the_order_of_the_cache(
    memory, request_, difference, before
):
    with Session("job", store=memory) as session:
        total, unchanged, found = prefixes(session, changed(), request_)
        assert found == difference
        assert size(*before) <= unchanged < min(total, size(*before) + 90)


def test_a_cache_marker_that_moves_changes_nothing(memory):
    marked = conversation(2)
    marked[1]["content"][0]["cache_control"] = {"type": "ephemeral"}
    with Session("job", store=memory) as session:
        _, unchanged, difference = prefixes(
            session, {"messages": marked}, {"messages": conversation(3)}
        )
        assert difference is None
        assert unchanged == size(*conversation(2))


def test_the_configuration_of_gemini_is_compared(memory):
    def asked(tool, text):
        config = {"system_instruction": text, "tools": [{"function_declarations": [tool]}]}
        return {"model": "g", "contents": ["hi"], "config": config}

    with Session("job", store=memory) as session:
        assert prefixes(session, asked("a", "x"), asked("a", "y"))[2] == "config.system_instruction"
        path = "config.tools[0].function_declarations[0]"
        assert prefixes(session, asked("b", "y"))[2] == path


@pytest.mark.parametrize("backend", ["file", "sqlite"])
def test_resume_rollback_and_fork_change_no_byte(tmp_path, backend):
    """The keys of messages keep their order, so what is sent is the same text."""
    message = {
        "z": 1,
        "role": "user",
        "content": [{"b": "x" * 9000, "a": {"y": 1, "c": [2.5, None]}}],
    }
    with CheckpointManager(backend=backend, path=tmp_path / "store") as manager:
        with killed("job", manager) as session:
            session.messages.extend([message, {**message, "n": 2}])
            session.model(send, **REQUEST, messages=session.messages)
            point = session.save()
            session.messages.append(message)
            session.model(send, **REQUEST, messages=session.messages)
            session.save()
            raise Killed
        with Session("job", store=manager) as session:
            total, unchanged, difference = prefixes(
                session, {**REQUEST, "messages": session.messages}
            )
            assert (unchanged, difference) == (total, None)
            session.rollback(to=point)
            total, unchanged, difference = prefixes(
                session, {**REQUEST, "messages": session.messages}
            )
            assert (unchanged, difference) == (total, None)
            with session.fork("other") as fork:
                total, unchanged, difference = prefixes(
                    fork, {**REQUEST, "messages": fork.messages}
                )
                assert (unchanged, difference) == (total, None)


def test_storage_follows_what_is_new(memory):
    """Two hundred turns with long tools and answers: each stores about its own messages."""
    tools = [{"name": f"tool {n}", "description": "d" * 500} for n in range(20)]
    sizes = {}
    with Session("job", store=memory) as session:
        for turn in range(200):
            text = " ".join(str(turn * 1000 + n) for n in range(120))
            session.messages.append({"role": "user", "content": text})
            session.model(send, model="m", tools=tools, messages=session.messages)
            session.messages.append({"role": "assistant", "content": text[::-1]})
            session.save()
            if turn in (20, 60, 159, 199):
                sizes[turn] = memory.stats()["stored_bytes"]
    assert sizes[199] - sizes[159] < 1.5 * (sizes[60] - sizes[20])
    raw = sum(len(json.dumps(message)) for message in session.messages)
    assert sizes[199] < 4 * raw  # every request in full would be a hundred times as much
    assert len(json.dumps(list(session.model_calls))) < 3 * raw  # also in memory


def _circular():
    value = {"name": "a"}
    return {**value, "again": value} if value.setdefault("self", value) else value


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": [{"role": "assistant", "content": "x \ud83d"}]},
        {"metadata": {("a", 1): 2}},
        {"metadata": _circular()},
        {"model": {"a": 1}},
        {"model": ["a"]},
        {"temperature": float("nan")},
        {"metadata": SimpleNamespace(a={(1, 2)})},
    ],
)
def test_a_request_that_is_not_json_is_recorded(memory, request_):
    prices = {"m": {"input": 1, "output": 2}}
    with Session("job", store=memory, prices=prices) as session:
        for _ in range(2):
            assert session.model(send, **request_) is REPLY
        assert session.model_calls[-1]["tokens"]["output"] == 5
    with Session("job", store=memory) as session:
        assert list(session.model_request(-1)) == list(request_)


def test_a_circular_value_leaves_the_rest_of_the_request_as_it_is(memory):
    with Session("job", store=memory) as session:
        session.model(send, metadata=_circular(), messages=[{"role": "user", "content": "a"}])
        request = session.model_request(-1)
        assert request["messages"] == [{"role": "user", "content": "a"}]
        assert request["metadata"] == {
            "name": "a",
            "self": {"name": "a", "self": "<dict>"},
            "again": {"name": "a", "self": "<dict>"},
        }


def test_the_status_of_an_error_is_a_plain_number(memory):
    class LimitedError(Exception):
        code = HTTPStatus.TOO_MANY_REQUESTS

    class BrokenError(Exception):
        @property
        def status_code(self):
            raise KeyError

    def fail(error):
        raise error

    with Session("job", store=memory) as session:
        for error in (LimitedError(), BrokenError()):
            with pytest.raises(type(error)):
                session.model(lambda error=error, **_: fail(error), model="m")
        rows = [row["error"] for row in session.model_calls]
        assert rows == [{"type": "LimitedError", "status": 429}, {"type": "BrokenError"}]
        assert type(rows[0]["status"]) is int


@pytest.mark.parametrize(
    "request_",
    [
        {"mcp_servers": [{"url": "u", "authorization_token": "SECRET"}]},
        {"tools": [{"type": "mcp", "headers": {"Authorization": "Bearer SECRET"}}]},
        {"tools": [{"type": "mcp", "authorization": "SECRET"}]},
        {"extra_body": {"api_key": "SECRET"}},
        {"aws_secret_access_key": "SECRET"},
        {"aws_session_token": "SECRET"},
        {"default_headers": {"x-api-key": "SECRET"}},
        {"extra_body": {"x-api-key": "SECRET", "apiKey": "SECRET"}},
        {"config": {"tools": [{"google_maps": {"authConfig": {"apiKeyString": "SECRET"}}}]}},
        {"config": {"httpOptions": {"headers": "SECRET"}}},
    ],
)
def test_credentials_are_not_recorded_at_any_depth(memory, request_):
    with Session("job", store=memory) as session:
        session.model(send, model="m", **request_)
        assert "SECRET" not in json.dumps(session.model_calls.to_list())


def test_what_only_sounds_like_a_credential_is_recorded(memory):
    schema = {"type": "object", "properties": {"password": {"type": "string"}, "headers": {}}}
    request = {
        "max_tokens": 9,
        "prompt_cache_key": "k",
        "tools": [{"name": "a", "input_schema": schema}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "token": 1}]}],
        "thinking": {"budget_tokens": 1024},
    }
    with Session("job", store=memory) as session:
        session.model(send, **request)
        assert session.model_request(-1) == request


def test_messages_removed_at_the_end_are_a_difference(memory):
    messages = [{"role": "user", "content": str(n)} for n in range(4)]
    with Session("job", store=memory) as session:
        for sent in (messages, messages[:2], messages):
            session.model(send, model="m", messages=sent)
        differences = [row["prefix"]["difference"] for row in session.model_calls]
        assert differences == [None, "messages[2]", None]


@pytest.mark.parametrize("details", [{}, {"prompt_tokens_details": {"cached_tokens": 80}}])
def test_cached_tokens_of_a_gateway_are_counted_once(details):
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "cache_read_input_tokens": 80, **details}
    tokens = tokens_in({"object": "chat.completion", "usage": usage})
    assert tokens == {"input": 100, "output": 5, "cached": 80}
