"""One round trip for a batch of writes: a function in the database checks the fence and applies all of them.

With separate statements, a batch would take five or six round trips. After each of them, the writer's thread waits for
the interpreter lock, which the event loop of a busy node holds for milliseconds.

Large batches are different: the server needs twice as long to take rows from an array as from COPY. Their blocks go by
COPY, in one transaction with the function, which gets the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, TypeGuard

import asyncpg

from holdfast.dialog.records import BLOCK, POSITION, TABLES
from holdfast.errors import TransactionAborted
from holdfast.machine import Put, Write
from holdfast.stores.dialogs.coalesce import coalesce

COPY_BYTES: Final = 256 << 10
"""Payload from which a batch is large."""
Fence = tuple[str, bytes, int, int]
"""Store, owner, epoch and the number of the last batch, as the database must have them."""
# The tables of every batch come first: the cases are compared in order.
_ORDER: Final = (BLOCK, POSITION, *(table for table in TABLES if table not in (BLOCK, POSITION)))
_PUT: Final = {table: f"+{table}" for table in _ORDER}
_ERASE: Final = {table: f"-{table}" for table in _ORDER}


def _cases() -> str:
    return "".join(
        f"""
    WHEN '{_PUT[table]}' THEN
      INSERT INTO holdfast.{table} VALUES (its_store, one.key, one.value)
      ON CONFLICT (store, key) DO UPDATE SET value = excluded.value;
    WHEN '{_ERASE[table]}' THEN
      DELETE FROM holdfast.{table} AS t WHERE t.store = its_store AND t.key >= one.key AND t.key < one.value;"""
        for table in _ORDER
    )


_BODY: Final = f"""
DECLARE one record;
BEGIN
  UPDATE holdfast.store AS s SET seq = s.seq + 1
  WHERE s.name = its_store AND s.owner = its_owner AND s.epoch = its_epoch AND s.seq = its_seq;
  IF NOT FOUND THEN
    RETURN coalesce((SELECT s.epoch FROM holdfast.store AS s WHERE s.name = its_store), -1);
  END IF;
  FOR one IN SELECT b.act, b.key, b.value FROM unnest(acts, keys, others) AS b (act, key, value) LOOP
    CASE one.act{_cases()}
    END CASE;
  END LOOP;
  RETURN NULL;
END """
"""Returns the epoch of the new owner when the fence is not as expected, and nothing was written; NULL when all was."""
_NAME: Final = f"holdfast.write_batch_{sha256(_BODY.encode()).hexdigest()[:12]}"
"""By its contents: nodes of two versions may share a database, and each calls its own."""
CALL: Final = f"SELECT {_NAME}($1, $2, $3, $4, $5, $6, $7)"
_FUNCTION: Final = f"""
CREATE OR REPLACE FUNCTION {_NAME}(its_store text, its_owner bytea, its_epoch bigint, its_seq bigint,
                                   acts text[], keys bytea[], others bytea[])
RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $${_BODY}$$"""
_EXISTS: Final = f"SELECT to_regprocedure('{_NAME}(text, bytea, bigint, bigint, text[], bytea[], bytea[])') IS NOT NULL"


async def make_function(connection: Any) -> None:
    """Make the function, unless it is there."""
    if not await connection.fetchval(_EXISTS):
        await connection.execute(_FUNCTION)


def columns(writes: Sequence[Write]) -> tuple[list[str], list[bytes], list[bytes]]:
    """The arguments of the function: what to do, with which key, and its value or the end of the range."""
    acts: list[str] = []
    keys: list[bytes] = []
    others: list[bytes] = []
    for write in writes:
        if isinstance(write, Put):
            acts.append(_PUT[write.table])
            keys.append(write.key)
            others.append(bytes(write.value))
        else:
            acts.append(_ERASE[write.table])
            keys.append(write.first)
            others.append(write.stop)
    return acts, keys, others


async def write_batch(
    connection: Any, store: str, owner: bytes, epoch: int, seq: int, writes: Sequence[Write]
) -> int | None:
    """Commit the writes. Gives the present epoch if the fence refused them."""
    fence = (store, owner, epoch, seq)
    if _large(writes):
        try:
            return await _copy(connection, fence, coalesce(writes))
        except asyncpg.UniqueViolationError:
            pass  # A block that exists already is replaced, which COPY cannot do. Nothing was written.
    return await _call(connection, fence, writes)


def _large(writes: Sequence[Write]) -> bool:
    return sum(len(w.value) for w in writes if _is_block(w)) >= COPY_BYTES


def _is_block(write: Write) -> TypeGuard[Put]:
    return isinstance(write, Put) and write.table == BLOCK


async def _call(connection: Any, fence: Fence, writes: Sequence[Write]) -> int | None:
    found: int | None = await connection.fetchval(CALL, *fence, *columns(writes))
    return found


async def _copy(connection: Any, fence: Fence, writes: Sequence[Write]) -> int | None:
    """The blocks come last, after the erasures: of each key, `writes` holds only the last write."""
    blocks = [(fence[0], w.key, bytes(w.value)) for w in writes if _is_block(w)]
    rest = [w for w in writes if not _is_block(w)]
    await connection.execute("BEGIN")
    try:
        found = await _call(connection, fence, rest)
        if found is None:
            await connection.copy_records_to_table(
                BLOCK,
                schema_name="holdfast",
                columns=("store", "key", "value"),
                records=blocks,
            )
    except BaseException:
        # On a lost connection this fails too. The server then rolls back by itself.
        with contextlib.suppress(Exception):
            await connection.execute("ROLLBACK")
        raise
    if found is None:
        await commit_checked(connection)
    else:
        await connection.execute("ROLLBACK")
    return found


async def commit_checked(connection: Any) -> None:
    """COMMIT of a failed transaction answers ROLLBACK, without an error."""
    tag = await connection.execute("COMMIT")
    # rule: D-8a
    if tag != "COMMIT":
        raise TransactionAborted(f"the database answered {tag} to COMMIT: nothing took effect")
