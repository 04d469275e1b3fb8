"""The conformance suite of dialog stores.

Subclass `DialogStoreSuite` in a test module, and open the store in `make`. Each call opens the same storage again, as
another process would:

    class TestMyStore(DialogStoreSuite):
        def make(self) -> DialogStore:
            return MyStore(self.directory / "store")

A store that supports tables of the application also sets `has_tables` and overrides `create_own`, `write_own` and
`read_own`. `self.directory` is an empty directory for each test. pytest finds the tests of the suite in the subclass.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast.dialog.config import merged
from holdfast.dialog.ids import StoreId, twin
from holdfast.dialog.manager import DialogManager
from holdfast.dialog.ports import (
    Answer,
    Listen,
    Loopback,
    Open,
    Outcome,
    Prepare,
    ReadRows,
    Refused,
    Resolve,
    Resolved,
    Rows,
    Send,
    Take,
)
from holdfast.dialog.records import (
    BLOCK,
    COMMITTED,
    DIALOG,
    LOADED,
    POSITION,
    STAGED,
    TAKEN,
    TX,
    number_key,
)
from holdfast.errors import StoreError, StoreFenced, TransactionAborted, TransactionConflict
from holdfast.links.ports import Received
from holdfast.machine import Erase, Put, Turns, Write
from holdfast.stores.dialogs.port import DAEMON, DISK, PROCESS, DialogStore
from holdfast.types import MILLISECOND, SECOND, NodeId

NODE = NodeId(b"conformance-node")
UNIT = "dialogs/default"
KEY = b"k" * 16


def tx_row(tx: bytes) -> Put:
    return Put(TX, tx, COMMITTED)


class DialogStoreSuite:
    """Tests that every dialog store must pass."""

    has_tables = False
    directory: Path

    def make(self) -> DialogStore:
        """Open the storage of this test; every call opens the same storage."""
        raise NotImplementedError

    def create_own(self, store: DialogStore) -> None:
        """Create a table of the application."""

    def write_own(self, transaction: Any, text: str) -> None:
        """Insert a row into the application's table, in the transaction."""

    def read_own(self, store: DialogStore) -> list[str]:
        """The application's committed rows, in the order in which they were inserted."""
        return []

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> Any:
        self.directory = tmp_path
        self._opened: list[DialogStore] = []
        yield
        for store in self._opened:
            store.close()

    def opened(self) -> DialogStore:
        store = self.make()
        self._opened.append(store)
        return store

    # -- rows ----------------------------------------------------------------------------------------------------

    def test_says_how_far_it_survives(self) -> None:
        assert self.opened().durability in (PROCESS, DAEMON, DISK)

    def test_rows_come_back_by_key(self) -> None:
        store = self.opened()
        store.open()
        store.commit([Put(DIALOG, b"b", b"2"), Put(DIALOG, b"a", b"1"), Put(POSITION, b"a", b"3")])
        assert store.load(DIALOG) == [(b"a", b"1"), (b"b", b"2")]
        assert store.load(POSITION) == [(b"a", b"3")]

    def test_a_later_put_replaces_an_earlier_one(self) -> None:
        store = self.opened()
        store.open()
        store.commit([Put(DIALOG, b"a", b"1"), Put(DIALOG, b"a", b"2")])
        store.commit([Put(DIALOG, b"a", b"3")])
        assert store.load(DIALOG) == [(b"a", b"3")]

    def test_writes_of_one_batch_take_effect_in_order(self) -> None:
        store = self.opened()
        store.open()
        store.commit([Put(DIALOG, b"a", b"1"), Erase(DIALOG, b"a", b"b"), Put(DIALOG, b"a", b"2")])
        assert store.load(DIALOG) == [(b"a", b"2")]

    def test_ranges_are_read_and_erased_half_open(self) -> None:
        store = self.opened()
        store.open()
        store.commit([Put(BLOCK, number_key(n), b"%d" % n) for n in range(10)])
        rows = store.read(BLOCK, number_key(2), number_key(5))
        assert [value for _, value in rows] == [b"2", b"3", b"4"]
        assert [key for key, _ in rows] == [number_key(n) for n in (2, 3, 4)]
        store.commit([Erase(BLOCK, number_key(1), number_key(9))])
        assert [value for _, value in store.load(BLOCK)] == [b"0", b"9"]
        assert store.read(BLOCK, b"", b"\xff" * 9) == store.load(BLOCK)

    def test_random_batches_match_a_dictionary(self) -> None:
        store = self.opened()
        store.open()
        random = Random(7)
        model: dict[tuple[str, bytes], bytes] = {}
        for _ in range(40):
            batch: list[Write] = []
            for _ in range(random.randint(0, 6)):
                table, key = random.choice((DIALOG, POSITION)), bytes((random.randrange(8),))
                if random.random() < 0.7:
                    batch.append(Put(table, key, random.randbytes(3)))
                else:
                    batch.append(Erase(table, key, bytes((random.randrange(8),))))
            store.commit(batch)
            for write in batch:
                if isinstance(write, Put):
                    model[write.table, write.key] = write.value
                else:
                    model = {
                        (t, k): v
                        for (t, k), v in model.items()
                        if t != write.table or not write.first <= k < write.stop
                    }
        for table in (DIALOG, POSITION):
            assert store.load(table) == sorted((k, v) for (t, k), v in model.items() if t == table)

    def test_large_values_come_back_whole(self) -> None:
        store = self.opened()
        store.open()
        value = Random(1).randbytes(1 << 20)
        store.commit([Put(BLOCK, number_key(1), value)])
        assert store.load(BLOCK) == [(number_key(1), value)]

    # -- ownership -----------------------------------------------------------------------------------------------

    def test_opening_again_keeps_id_and_rows_and_raises_the_epoch(self) -> None:
        store = self.opened()
        first = store.open()
        store.commit([Put(DIALOG, b"a", b"1")])
        again = self.opened()
        second = again.open()
        assert len(first.store) == 8
        assert second.store == first.store
        assert second.epoch > first.epoch
        assert again.load(DIALOG) == [(b"a", b"1")]

    def test_an_owner_that_was_replaced_writes_nothing(self) -> None:
        store = self.opened()
        store.open()
        new = self.opened()
        new.open()
        with pytest.raises(StoreFenced):
            store.commit([Put(DIALOG, b"a", b"old")])
        assert new.load(DIALOG) == []
        new.commit([Put(DIALOG, b"a", b"new")])
        assert new.load(DIALOG) == [(b"a", b"new")]

    def test_a_transaction_of_an_owner_that_was_replaced_commits_nothing(self) -> None:
        store = self.opened()
        old = store.open()
        transaction = store.begin()
        new = self.opened()
        new.open()
        with pytest.raises(StoreFenced):
            transaction.commit([Put(STAGED, b"s", b"1"), tx_row(KEY)], old.epoch)
        assert new.load(STAGED) == new.load(TX) == []

    def test_a_closed_store_refuses(self) -> None:
        store = self.opened()
        store.open()
        store.close()
        with pytest.raises(StoreError):
            store.commit([Put(DIALOG, b"a", b"1")])

    # -- transactions --------------------------------------------------------------------------------------------

    def test_a_committed_transaction_leaves_all_of_its_rows(self) -> None:
        store = self.opened()
        epoch = store.open().epoch
        store.begin().commit([Put(STAGED, b"s", b"1"), tx_row(KEY)], epoch)
        assert store.load(STAGED) == [(b"s", b"1")]
        assert store.load(TX) == [(KEY, COMMITTED)]

    def test_an_aborted_transaction_leaves_no_trace(self) -> None:
        store = self.opened()
        store.open()
        transaction = store.begin()
        transaction.abort()
        assert store.load(STAGED) == store.load(TX) == []

    def test_a_row_that_exists_aborts_the_whole_transaction(self) -> None:
        store = self.opened()
        epoch = store.open().epoch
        store.begin().commit([Put(STAGED, b"s", b"1"), tx_row(KEY)], epoch)
        with pytest.raises(TransactionConflict):
            store.begin().commit([Put(STAGED, b"t", b"2"), tx_row(KEY)], epoch)
        assert store.load(STAGED) == [(b"s", b"1")]

    def test_rows_of_a_transaction_are_ordinary_rows_for_the_unit(self) -> None:
        store = self.opened()
        epoch = store.open().epoch
        store.begin().commit([Put(STAGED, b"s", b"1"), tx_row(KEY)], epoch)
        store.commit([Erase(STAGED, b"s", b"t"), Erase(TX, KEY, KEY + b"\x00")])
        assert store.load(STAGED) == store.load(TX) == []

    def test_doubt_is_settled_once_and_for_all(self) -> None:
        store = self.opened()
        epoch = store.open().epoch
        other = b"o" * 16
        store.begin().commit([tx_row(KEY)], epoch)
        assert store.settle(KEY)
        assert not store.settle(other)
        with pytest.raises(TransactionConflict):
            store.begin().commit([tx_row(other)], epoch)
        assert not store.settle(other)

    def test_a_transaction_that_has_done_nothing_does_not_block_the_unit(self) -> None:
        store = self.opened()
        epoch = store.open().epoch
        transaction = store.begin()
        store.commit([Put(DIALOG, b"a", b"1")])
        transaction.commit([tx_row(KEY)], epoch)
        assert store.load(DIALOG) == [(b"a", b"1")]

    def test_own_tables_commit_with_the_messages(self) -> None:
        if not self.has_tables:
            pytest.skip("the store does not support tables of the application")
        store = self.opened()
        epoch = store.open().epoch
        self.create_own(store)
        transaction = store.begin()
        self.write_own(transaction, "one")
        transaction.commit([Put(STAGED, b"s", b"1"), tx_row(KEY)], epoch)
        assert self.read_own(store) == ["one"]
        assert store.load(STAGED) == [(b"s", b"1")]

    def test_own_tables_roll_back_with_the_messages(self) -> None:
        if not self.has_tables:
            pytest.skip("the store does not support tables of the application")
        store = self.opened()
        epoch = store.open().epoch
        self.create_own(store)
        store.begin().commit([tx_row(KEY)], epoch)
        aborted = store.begin()
        self.write_own(aborted, "aborted")
        aborted.abort()
        refused = store.begin()
        self.write_own(refused, "refused")
        with pytest.raises((TransactionConflict, TransactionAborted)):
            refused.commit([tx_row(KEY)], epoch)
        self.opened().open()
        late = store.begin()
        self.write_own(late, "late")
        with pytest.raises(StoreError):
            late.commit([tx_row(b"n" * 16)], epoch)
        assert self.read_own(store) == []

    # -- dialogs on the store ------------------------------------------------------------------------------------

    def test_a_dialog_goes_on_where_it_stopped(self) -> None:
        node = Single(self.opened())
        near, far = node.pair()
        node.send(near, b"one", b"two", b"three")
        assert node.take(far, 1) == [b"one"]
        # It stops without notice, and restarts.
        again = Single(self.opened())
        assert again.take(far, 10) == [b"two", b"three"]
        again.send(near, b"four")
        assert again.take(far, 10) == [b"four"]

    def test_a_transaction_is_whole_after_a_stop_before_the_notice(self) -> None:
        """The unit is never informed of the commit: at its start, the rows of the transaction decide."""
        node = Single(self.opened())
        near, far = node.pair()
        node.send(near, b"job 1", b"job 2")
        assert node.take(far, 1, TRANSACTION) == [b"job 1"]
        node.send(far, b"result 1", tx=TRANSACTION)
        prepared = node.ask(Prepare(token=0, tx=TRANSACTION))
        node.store.begin().commit(prepared.inserts, prepared.epoch)
        again = Single(self.opened())
        assert again.take(far, 10) == [b"job 2"]
        assert again.take(near, 10) == [b"result 1"]
        assert again.store.load(STAGED) == again.store.load(TAKEN) == []
        assert again.store.settle(TRANSACTION), "its application may still be asking"

    def test_transactions_keep_their_order_after_a_stop_before_the_notice(self) -> None:
        node = Single(self.opened())
        near, far = node.pair()
        # Ids are random, so their order is meaningless.
        for tx, body in ((b"z" * 16, b"one"), (b"a" * 16, b"two"), (b"m" * 16, b"three")):
            node.send(near, body, tx=tx)
            prepared = node.ask(Prepare(token=0, tx=tx))
            node.store.begin().commit(prepared.inserts, prepared.epoch)
        again = Single(self.opened())
        assert again.take(far, 10) == [b"one", b"two", b"three"]

    def test_a_transaction_that_stops_before_its_commit_leaves_no_trace(self) -> None:
        node = Single(self.opened())
        near, far = node.pair()
        node.send(near, b"job 1")
        assert node.take(far, 1, TRANSACTION) == [b"job 1"]
        node.send(far, b"result 1", tx=TRANSACTION)
        node.ask(Prepare(token=0, tx=TRANSACTION))
        again = Single(self.opened())
        assert again.take(far, 10) == [b"job 1"]
        assert again.take(near, 10) == []

    def test_a_committed_and_noticed_transaction_leaves_all(self) -> None:
        node = Single(self.opened())
        near, far = node.pair()
        node.send(near, b"job 1")
        assert node.take(far, 1, TRANSACTION) == [b"job 1"]
        node.send(far, b"result 1", tx=TRANSACTION)
        prepared = node.ask(Prepare(token=0, tx=TRANSACTION))
        node.store.begin().commit(prepared.inserts, prepared.epoch)
        node.give(Outcome(TRANSACTION, committed=True))
        assert node.take(near, 10) == [b"result 1"]
        assert node.store.load(STAGED) == node.store.load(TAKEN) == node.store.load(TX) == []


TRANSACTION = b"t" * 16


class Single:
    """One node with one store and dialogs to itself, in virtual time. Every commit completes at once."""

    def __init__(self, store: DialogStore) -> None:
        self.store = store
        ownership = store.open()
        self._random = Random(ownership.epoch)
        self.now = ownership.epoch * 3600 * SECOND
        tables = {table: store.load(table) for table in LOADED}
        self.manager = DialogManager(
            UNIT, NODE, StoreId(ownership.store), ownership.epoch, tables, self._random.randbytes, 0
        )
        self._turns = Turns(lambda _: None, ("dialog",))
        self._turns.add(UNIT, self.manager)
        self._answers: dict[int, Any] = {}
        self._token = 0
        self._queue: list[Any] = []
        self.give(Listen(token=0, service="self", settings=merged(_SETTINGS)))

    def pair(self) -> tuple[bytes, bytes]:
        """Open a dialog of the node with itself; returns the ids of its two ends."""
        opened = self.ask(Open(token=0, uri="self", settings=merged(_SETTINGS)))
        self.settle()
        return bytes(opened.dialog), bytes(twin(opened.dialog))

    def send(self, dialog: bytes, *bodies: bytes, tx: bytes = b"") -> None:
        self.ask(Send(token=0, dialog=dialog, bodies=list(bodies), tx=tx))
        self.settle()

    def take(self, dialog: bytes, count: int, tx: bytes = b"") -> list[bytes]:
        self.settle()
        taken = self.ask(Take(token=0, dialog=dialog, count=count, tx=tx, deadline=0))
        return [bytes(message.body) for message in taken.messages]

    def ask(self, request: Any) -> Any:
        self._token += 1
        token = self._token
        values = {name: getattr(request, name) for name in request.__struct_fields__}
        values["token"] = token
        self.give(type(request)(**values))
        for _ in range(50):
            if token in self._answers:
                break
            self.settle(1)
        answer = self._answers.pop(token)
        assert not isinstance(answer, Refused), answer
        return answer

    def settle(self, steps: int = 20) -> None:
        for _ in range(steps):
            self.now += 100 * MILLISECOND
            self._turn([])

    def give(self, item: Any) -> None:
        self._turn([item])

    def _turn(self, items: list[Any]) -> None:
        self._queue += items
        while True:
            batch, self._queue = self._queue, []
            result = self._turns.run(self.now, [(UNIT, item) for item in batch])
            for failure in result.failures:
                raise failure.error
            writes = result.store_writes.get(UNIT, [])
            if writes:
                self.store.commit(writes)
                self._turns.written(result.number, UNIT)
            for effect in result.effects:
                self._effect(effect)
            if not self._queue and not writes and not result.more:
                return

    def _effect(self, effect: Any) -> None:
        if isinstance(effect, Answer):
            self._answers[effect.token] = effect.value
        elif isinstance(effect, Resolve):
            self._queue.append(Resolved(effect.dialog, effect.attempt, [NODE]))
        elif isinstance(effect, Loopback):
            self._queue.append(Received(NODE, effect.frames, self.now))
        elif isinstance(effect, ReadRows):
            tables = {t: self.store.read(t, first, stop) for t, first, stop in effect.wanted}
            self._queue.append(Rows(effect.token, tables))


_SETTINGS = {"idle_ns": 0}
