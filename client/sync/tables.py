"""The synchronous classes of `segstore.client.tables`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Self, TypeVar, Unpack

from segstore.client import KeyValueTable as AsyncKeyValueTable
from segstore.client.controller import TableConfig
from segstore.client.sync.proxies import EnteredProxy, Proxy, step
from segstore.client.tables import IterationOptions, Key, TableEntry, TableKey, Version
from segstore.client.tables import TableIterator as AsyncTableIterator

T = TypeVar("T")


class TableIterator(Proxy[AsyncTableIterator[T]], Generic[T]):
    """An iteration over a table, for `for`. Created by `KeyValueTable`. Raises the errors of its `get`.

    Attributes:
        token: continues the iteration after the last returned item; b"" before the first.
    """

    @property
    def token(self) -> bytes:
        return self._lease.call(lambda: self._inner.token)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return step(self._inner, self._lease)


class KeyValueTable(EnteredProxy[AsyncKeyValueTable]):
    """A key-value table. Use with `with`, or `open` and `close`.

    Attributes:
        scope, table: the table's scope and name.
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def table(self) -> str:
        return self._inner.table

    def open(self) -> None:
        """Fetches the table's configuration and partitions. Raises NoSuchTable, and the errors of controller calls."""
        self._lease.run(self._inner.open)

    @property
    def config(self) -> TableConfig:
        """The table's configuration. Raises Closed unless the table is open."""
        return self._lease.call(lambda: self._inner.config)

    def put(self, key: Key, value: bytes, *, version: Version | None = None) -> Version:
        """Sets a value; returns its new version. version: the version that the entry must have now, None for any.

        Raises BadKeyVersion, EntryRefused, NoSuchTable, and the errors of requests.
        """
        return self._lease.run(self._inner.put, key, value, version=version)

    def put_if_absent(self, key: Key, value: bytes) -> Version:
        """Sets the value of a new key. Raises BadKeyVersion if the key exists, and as `put`."""
        return self._lease.run(self._inner.put_if_absent, key, value)

    def put_all(self, entries: Iterable[tuple[Key, bytes] | tuple[Key, bytes, Version | None]]) -> list[Version]:
        """Sets several values of one primary key atomically; returns their versions. Raises as `put`."""
        return self._lease.run(self._inner.put_all, entries)

    def remove(self, key: Key, *, version: Version | None = None) -> None:
        """Removes an entry; a no-op if it does not exist and no version is given. Raises as `put`."""
        self._lease.run(self._inner.remove, key, version=version)

    def remove_all(self, keys: Iterable[tuple[Key, Version | None]]) -> None:
        """Removes several entries of one primary key atomically. Raises as `put`."""
        self._lease.run(self._inner.remove_all, keys)

    def get(self, key: Key) -> TableEntry | None:
        """Returns the entry, or None. Raises EntryRefused, NoSuchTable, and the errors of requests."""
        return self._lease.run(self._inner.get, key)

    def get_all(self, keys: Iterable[Key]) -> list[TableEntry | None]:
        """Returns the entries of any keys, in the order given. They are not read at a single point in time."""
        return self._lease.run(self._inner.get_all, keys)

    def exists(self, key: Key) -> bool:
        """Returns whether a key exists, without fetching its value."""
        return self._lease.run(self._inner.exists, key)

    def entries(self, **chosen: Unpack[IterationOptions]) -> TableIterator[TableEntry]:
        """Iterates over entries in key order.

        primary: restricts the iteration to one primary key; `from_`, `to` (inclusive) and `prefix` then apply to
        secondary keys, else to primary keys. after: the `token` of an earlier iteration to continue. page: number of
        entries per request, 100 by default. Raises EntryRefused.
        """
        return TableIterator(self._lease.call(self._inner.entries, **chosen), self._lease)

    def keys(self, **chosen: Unpack[IterationOptions]) -> TableIterator[TableKey]:
        """Like `entries`, without values."""
        return TableIterator(self._lease.call(self._inner.keys, **chosen), self._lease)

    def close(self) -> None:
        """Closes the table; pending requests fail. Can be called twice."""
        self._lease.call(self._inner.close)
