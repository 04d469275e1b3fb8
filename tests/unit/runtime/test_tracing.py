"""OpenTelemetry spans of the public operations, and that nothing is traced without a tracer provider (U5)."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.conformance.worlds import free_port
from tests.unit.runtime.pairs import PATIENCE_S, eventually, pair

from holdfast.errors import HoldfastError, ObjectNotFound, RoleError, RoleNotFound
from holdfast.node.config import parse_config
from holdfast.runtime.handles import Group
from holdfast.runtime.logs import JsonFormatter
from holdfast.runtime.node import Node
from holdfast.runtime.roles_handles import RoleMessage
from holdfast.runtime.tracing import current_ids, find_tracing
from holdfast.sim.ledger import Ledger

API = "opentelemetry.trace"


class Spans:
    """The spans that were ended, by name."""

    def __init__(self, exporter: Any, tracer: Any) -> None:
        self._exporter = exporter
        self.tracer = tracer

    def named(self, name: str) -> list[Any]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> Any:
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """This process traces into memory, for one test."""
    reason = "opentelemetry-sdk is not installed (extra dev)"
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=reason)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=reason)
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=reason
    )
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    # The process-wide provider can be set only once, so it is not set for other tests.
    monkeypatch.setattr(sys.modules[API], "get_tracer_provider", lambda: provider)
    yield Spans(exporter, provider.get_tracer("test"))
    provider.shutdown()


def config(data: Path) -> str:
    port = free_port(["127.0.0.1"])
    return f"""
domain = "traced"
name = "ann"
data = "{data}"
security.mode = "plain"
telemetry.enabled = false
[[adapter]]
name = "lo"
address = "127.0.0.1:{port}"
[[group]]
name = "book"
voters = ["ann"]
[[dialogs.store]]
name = "default"
kind = "memory"
[[dialogs.store]]
name = "other"
kind = "memory"
[[dialogs.route]]
service = "orders"
nodes = ["ann"]
[objects]
root = ["ann"]
space_reserve_mb = 1
"""


def node(data: Path) -> Node:
    return Node(parse_config(config(data)), {"book": Ledger()})


def parent_of(span: Any) -> int | None:
    return span.parent.span_id if span.parent is not None else None


def is_error(span: Any) -> bool:
    return bool(span.status.status_code.name == "ERROR")


# -- off ---------------------------------------------------------------------------------------------------------


def test_a_process_that_does_not_use_opentelemetry_does_not_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, API, raising=False)
    assert find_tracing(node="ann") is None
    assert current_ids() == {}
    assert API not in sys.modules, "nothing of it is imported"


def test_a_process_without_a_tracer_provider_does_not_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ProxyTracerProvider:
        """The one that the API has before a provider is set."""

    api = ModuleType(API)
    api.ProxyTracerProvider = ProxyTracerProvider  # type: ignore[attr-defined]  # a stand-in
    api.get_tracer_provider = ProxyTracerProvider  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, API, api)
    assert find_tracing(node="ann") is None


def test_the_api_alone_does_not_trace() -> None:
    api = pytest.importorskip(API, reason="opentelemetry-api is not installed (extra traces)")
    assert isinstance(api.get_tracer_provider(), api.ProxyTracerProvider)
    assert find_tracing(node="ann") is None


def test_without_tracing_a_group_has_its_plain_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.node.find_tracing", lambda **_: None)

    async def story() -> None:
        async with node(tmp_path / "ann") as ann:
            assert type(ann.group("book")) is Group
            assert ann.roles.tracing is None

    asyncio.run(story())


# -- on ----------------------------------------------------------------------------------------------------------


def test_send_and_flush_of_a_group_are_children_of_the_applications_span(
    tmp_path: Path, spans: Spans
) -> None:
    async def story() -> None:
        async with node(tmp_path / "ann") as ann:
            book = ann.group("book")
            with spans.tracer.start_as_current_span("order"):
                await book.send(b"one")
                await book.flush()

    asyncio.run(story())
    order = spans.one("order").context
    for name, kind in (("group.send", "PRODUCER"), ("group.flush", "CLIENT")):
        span = spans.one(name)
        assert parent_of(span) == order.span_id
        assert span.kind.name == kind
        assert dict(span.attributes) == {
            "holdfast.node": "ann",
            "holdfast.domain": "traced",
            "holdfast.group": "book",
        }


def test_the_handler_of_a_role_continues_the_trace_of_the_request(spans: Spans) -> None:
    seen: list[dict[str, str]] = []

    async def at_once(message: RoleMessage) -> bytes:
        seen.append(current_ids())
        await asyncio.sleep(0)
        seen.append(current_ids())
        return b"done"

    async def story() -> None:
        async with pair() as (ann, ben):
            await ben.roles.serve("worker", at_once)
            with spans.tracer.start_as_current_span("order"):
                reply = await ann.roles.request_one("worker", b"x")
            assert reply.data == b"done"

    asyncio.run(story())
    order, request, handled = map(spans.one, ("order", "role.request", "role.handle"))
    assert parent_of(request) == order.context.span_id
    assert parent_of(handled) == request.context.span_id
    assert handled.context.trace_id == order.context.trace_id
    assert (request.kind.name, handled.kind.name) == ("CLIENT", "SERVER")
    assert request.attributes["holdfast.node"] == "ann"
    assert request.attributes["holdfast.outcome"] == "done"
    assert request.attributes["holdfast.replies"] == 1
    assert handled.attributes["holdfast.node"] == "ben"
    assert handled.attributes["holdfast.role"] == "worker"
    assert [ids["span_id"] for ids in seen] == [f"{handled.context.span_id:016x}"] * 2


def test_a_handler_that_raises_marks_its_span_and_the_log_line_has_its_ids(
    spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caplog.handler, "formatter", JsonFormatter())

    def broken(_: RoleMessage) -> bytes:
        raise ValueError("broken")

    async def story() -> None:
        async with pair() as (ann, ben):
            await ben.roles.serve("worker", broken)
            with pytest.raises(RoleError, match="handler_failed"):
                await ann.roles.request_one("worker", b"x")

    with caplog.at_level(logging.ERROR, "holdfast"):
        asyncio.run(story())
    handled = spans.one("role.handle")
    assert is_error(handled)
    assert handled.events[0].attributes["exception.message"] == "broken"
    lines = [json.loads(text) for text in caplog.text.splitlines()]
    (line,) = [line for line in lines if line["event"] == "handler_failed"]
    assert line["span_id"] == f"{handled.context.span_id:016x}"
    assert line["trace_id"] == f"{handled.context.trace_id:032x}"


def test_a_one_way_message_continues_the_trace_as_well(spans: Spans) -> None:
    async def story() -> None:
        async with pair() as (ann, ben):
            await ben.roles.serve("worker", lambda _: None)
            await ann.roles.send("worker", b"x")
            await eventually(lambda: spans.named("role.handle"))

    asyncio.run(story())
    assert parent_of(spans.one("role.handle")) == spans.one("role.send").context.span_id


def test_requests_that_fail_end_their_span_with_an_error(tmp_path: Path, spans: Spans) -> None:
    async def story() -> None:
        ann = node(tmp_path / "ann")
        async with ann:
            with pytest.raises(RoleNotFound):
                await ann.roles.request_one("nobody", b"x")
        with pytest.raises(HoldfastError):
            ann.roles.request("nobody", b"x")

    asyncio.run(story())
    missing, refused = spans.named("role.request")
    assert is_error(missing)
    assert missing.attributes["holdfast.outcome"] == "not_found"
    assert is_error(refused)


def test_a_context_that_cannot_be_read_begins_a_new_trace(spans: Spans) -> None:
    tracing = find_tracing(node="ann")
    assert tracing is not None
    for sender in ("", "rubbish", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 64):
        tracing.begin("role.handle", "SERVER", sender).end()
    assert [span.parent for span in spans.named("role.handle")] == [None] * 4


def test_sends_and_receives_are_children_of_their_transaction(tmp_path: Path, spans: Spans) -> None:
    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), node(tmp_path / "ann") as ann:
            listener = await ann.dialogs.listen("orders", store="other")
            dialog = await ann.dialogs.open("orders")
            await dialog.send(b"one")
            server = await listener.next()
            async with ann.dialogs.transaction() as tx:
                message = await server.receive(tx=tx)
                await server.send(b"re: " + message.body, tx=tx)
            with pytest.raises(ValueError, match="broken"):
                async with ann.dialogs.transaction():
                    raise ValueError("broken")
            assert (await dialog.receive()).body == b"re: one"

    asyncio.run(story())
    good, bad = spans.named("dialog.transaction")
    assert not is_error(good)
    assert is_error(bad)
    sent, answered = spans.named("dialog.send")
    received, last = spans.named("dialog.receive")
    assert parent_of(sent) is None
    assert parent_of(received) == parent_of(answered) == good.context.span_id
    assert parent_of(last) is None
    assert sent.attributes["holdfast.dialog"] == received.attributes["holdfast.dialog"]
    assert sent.attributes["holdfast.first"] == received.attributes["holdfast.first"] == 0
    assert received.attributes["holdfast.count"] == 1


def test_operations_on_objects_are_spans(tmp_path: Path, spans: Spans) -> None:
    async def story() -> None:
        async with asyncio.timeout(PATIENCE_S), node(tmp_path / "ann") as ann:
            await eventually(lambda: ann.objects.service.machine.members.offers)
            await ann.objects.create("/x", b"one", replicas=1)
            assert await ann.objects.read("/x") == b"one"
            with pytest.raises(ObjectNotFound):
                await ann.objects.read("/y")

    asyncio.run(story())
    assert spans.one("object.create").attributes["holdfast.path"] == "/x"
    good, bad = spans.named("object.read")
    assert (good.attributes["holdfast.path"], is_error(good)) == ("/x", False)
    assert (bad.attributes["holdfast.path"], is_error(bad)) == ("/y", True)
