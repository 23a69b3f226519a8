"""Scopes, streams and tags, and how the client hears of what cannot be."""

from __future__ import annotations

from typing import Any

from pravega_client import StreamManager, StreamRetentionPolicy, StreamScalingPolicy

from common import attempt, manager


def scopes(uri: str) -> dict[str, Any]:
    made = StreamManager(uri)
    return {
        "created": made.create_scope("a"),
        "again": made.create_scope("a"),
        "refused names": [attempt(lambda name=name: made.create_scope(name)) for name in ("b/c", "b c", "b#c")],
        "listed": sorted(made.list_scope()),
        "deleted": made.delete_scope("a"),
        "missing": made.delete_scope("a"),
        "empty": made.list_scope(),
    }


def streams(uri: str) -> dict[str, Any]:
    made = manager(uri, "a")
    fixed = StreamScalingPolicy.fixed_scaling_policy
    result = {
        "created": made.create_stream("a", "s", 3),
        "again": made.create_stream("a", "s", 3),
        "no scope": attempt(lambda: made.create_stream("no", "s", 1)),
        "refused names": [attempt(lambda name=name: made.create_stream("a", name, 1)) for name in ("b/c", "b c")],
        "policies": [
            made.create_stream_with_policy("a", name, scaling, retention, tags)
            for name, scaling, retention, tags in (
                (
                    "by-events",
                    StreamScalingPolicy.auto_scaling_policy_by_event_rate(10, 2, 2),
                    StreamRetentionPolicy.none(),
                    None,
                ),
                (
                    "by-bytes",
                    StreamScalingPolicy.auto_scaling_policy_by_data_rate(10, 2, 1),
                    StreamRetentionPolicy.none(),
                    ["x"],
                ),
                ("by-time", fixed(1), StreamRetentionPolicy.by_time(60_000), ["x", "y"]),
                ("by-size", fixed(1), StreamRetentionPolicy.by_size(1 << 20), []),
            )
        ],
        "listed": sorted(made.list_stream("a")),
        "scope in use": attempt(lambda: made.delete_scope("a")),
        "not sealed": attempt(lambda: made.delete_stream("a", "s")),
        "sealed": [made.seal_stream("a", "s"), made.seal_stream("a", "s")],
        # This client does not know the answer that a sealed stream gives, and takes it for success.
        "update of a sealed one": [
            made.update_stream_with_policy("a", "s", fixed(3), StreamRetentionPolicy.none(), ["t"]),
            made.get_stream_tags("a", "s"),
        ],
        "deleted": made.delete_stream("a", "s"),
        "deleted again": made.delete_stream("a", "s"),
        "seal of a missing one": attempt(lambda: made.seal_stream("a", "s")),
        "update of a missing one": attempt(
            lambda: made.update_stream_with_policy("a", "s", fixed(3), StreamRetentionPolicy.none(), [])
        ),
        "listed at last": sorted(made.list_stream("a")),
    }
    for name in result["listed at last"]:
        made.seal_stream("a", name)
        made.delete_stream("a", name)
    result["scope deleted"] = made.delete_scope("a")
    return result


def tags(uri: str) -> dict[str, Any]:
    made = manager(uri, "a", plain=1)
    fixed, keep = StreamScalingPolicy.fixed_scaling_policy(1), StreamRetentionPolicy.none()
    made.create_stream_with_policy("a", "tagged", fixed, keep, ["one", "two"])
    return {
        "plain": made.get_stream_tags("a", "plain"),
        "tagged": made.get_stream_tags("a", "tagged"),
        "updated": made.update_stream_with_policy("a", "tagged", fixed, keep, ["three"]),
        "after": made.get_stream_tags("a", "tagged"),
        "removed": made.update_stream_with_policy("a", "tagged", fixed, keep, None),
        "at last": made.get_stream_tags("a", "tagged"),
        "missing": attempt(lambda: made.get_stream_tags("a", "no")),
    }


def listing(uri: str, count: int) -> dict[str, Any]:
    """More scopes and streams than a page holds."""
    made = StreamManager(uri)
    for number in range(count):
        made.create_scope(f"scope{number}")
        made.create_stream("scope0", f"stream{number}", 1)
    return {
        "scopes": sorted(made.list_scope()),
        "streams": sorted(made.list_stream("scope0")),
        "none": made.list_stream("scope1"),
        "no scope": made.list_stream("no"),
    }


def missing(uri: str) -> dict[str, Any]:
    """What is asked of a stream that is not there."""
    made = manager(uri, "a", two=2)
    return {
        "writer": attempt(lambda: _write(made)),
        "reader group": attempt(lambda: made.create_reader_group("g", "a", "no")),
        "byte stream": attempt(lambda: made.create_byte_stream("a", "no")),
        "byte stream of two segments": attempt(lambda: made.create_byte_stream("a", "two")),
        "transaction": attempt(lambda: made.create_transaction_writer("a", "no", 1).begin_txn()),
        "reader group to delete": attempt(lambda: made.delete_reader_group("no", "a")),
        "still serves": made.create_stream("a", "then", 1),
    }


def _write(made: StreamManager) -> None:
    writer = made.create_writer("a", "no")
    writer.write_event("x")
    writer.flush()


def who(uri: str, scope: str) -> dict[str, Any]:
    """What a caller may do, who is known only by the environment."""
    made = StreamManager(uri, auth_enabled=True)
    return {
        "scope": attempt(lambda: made.create_scope(scope)),
        "stream": attempt(lambda: made.create_stream(scope, "s", 2)),
        "listed": attempt(lambda: sorted(made.list_scope())),
    }
