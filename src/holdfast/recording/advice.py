"""Advice files: Parquet, so that a node reads only its own rows, with the edition in the file's metadata.

    <directory>/00000042.parquet        numbered by the snapshot that it was made of

A file is created once and never changed. The newest readable one counts; a damaged one is reported and skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.telemetry.advice import Advice, BusyWindow, PathRisk, Placement

_KEY: Final = b"holdfast.advice"
_PATH: Final = ("sender", "sender_adapter", "listener", "listener_adapter", "subnet", "transport")
SCHEMA: Final = pa.schema(
    [
        ("what", pa.string()),
        *((name, pa.string()) for name in _PATH),
        ("risk_ppm", pa.int64()),
        ("start_us", pa.int64()),
        ("until_us", pa.int64()),
        ("avoid", pa.bool_()),
        ("why", pa.string()),
    ]
)
"""Rows of three kinds: `risk` (a path), `busy` (sender is the node) and `placement` (sender is the node)."""


class Found(msgspec.Struct, frozen=True):
    """The newest advice that could be read, if any, and what was wrong with newer files."""

    advice: Advice | None
    path: str = ""
    problems: tuple[str, ...] = ()


def encode_advice(advice: Advice) -> bytes:
    """The content of an advice file."""
    rows = [_risk_row(risk) for risk in advice.risks]
    rows += [
        {
            "what": "busy", "sender": window.node, "sender_adapter": window.adapter,
            "risk_ppm": window.probe_share_ppm, "start_us": window.start_us, "until_us": window.end_us,
        }
        for window in advice.busy
    ]  # fmt: skip
    rows += [
        {"what": "placement", "sender": p.node, "risk_ppm": p.sound_ppm, "start_us": p.at_risk_ppm}
        for p in advice.placements
    ]
    head = msgspec.structs.replace(advice, risks=(), busy=(), placements=())
    schema = SCHEMA.with_metadata({_KEY: msgspec.json.encode(head)})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def decode_advice(content: bytes, node: str = "") -> Advice:
    """Advice from a file, or the part of it that concerns `node`; raises `ValueError` for damaged content."""
    try:
        table = pq.read_table(pa.BufferReader(content))
        head = msgspec.json.decode((table.schema.metadata or {})[_KEY], type=Advice)
        if node:
            mine = pc.or_kleene(pc.equal(table["sender"], node), pc.equal(table["listener"], node))
            # Placements are compared with each other, so every node has all of them.
            mine = pc.or_(pc.fill_null(mine, False), pc.equal(table["what"], "placement"))
            table = table.filter(mine)
        rows = table.to_pylist()
        return msgspec.structs.replace(
            head,
            risks=tuple(_risk(row) for row in rows if row["what"] == "risk"),
            busy=tuple(
                BusyWindow(row["sender"], row["sender_adapter"], row["start_us"], row["until_us"], row["risk_ppm"])
                for row in rows
                if row["what"] == "busy"
            ),
            placements=tuple(
                Placement(row["sender"], row["risk_ppm"], row["start_us"])
                for row in rows
                if row["what"] == "placement"
            ),
        )  # fmt: skip
    except (pa.ArrowException, OSError, KeyError, TypeError, msgspec.MsgspecError) as damage:
        raise ValueError(f"not an advice file: {str(damage)[:200]}") from damage


def editions(directory: Path) -> tuple[str, ...]:
    """The files of a directory, with size and time, newest edition first: equal while nothing is new."""
    found = []
    try:
        for path in sorted(directory.glob("*.parquet"), reverse=True):
            stat = path.stat()
            found.append(f"{path.name} {stat.st_size} {stat.st_mtime_ns}")
    except OSError as failure:
        found.append(str(failure))
    return tuple(found)


def newest_advice(directory: Path, node: str = "") -> Found:
    """The newest advice in a directory; never raises for what lies there."""
    problems: list[str] = []
    try:
        names = sorted((p for p in directory.glob("*.parquet") if p.stem.isdecimal()), reverse=True)
    except OSError as failure:
        return Found(None, problems=(f"{directory}: {failure.strerror}",))
    for path in names:
        try:
            return Found(decode_advice(path.read_bytes(), node), str(path), tuple(problems))
        except (ValueError, OSError) as damage:
            problems.append(f"{path.name}: {damage}")
    return Found(None, problems=tuple(problems))


def _risk_row(risk: PathRisk) -> dict[str, Any]:
    return {
        "what": "risk",
        **dict(zip(_PATH, risk.path, strict=True)),
        "risk_ppm": risk.risk_ppm,
        "until_us": risk.until_us,
        "avoid": risk.avoid,
        "why": risk.why,
    }


def _risk(row: dict[str, Any]) -> PathRisk:
    path = tuple(row[name] for name in _PATH)
    return msgspec.convert(
        {
            "path": path,
            "risk_ppm": row["risk_ppm"],
            "until_us": row["until_us"],
            "avoid": row["avoid"],
            "why": row["why"] or "",
        },
        PathRisk,
    )
