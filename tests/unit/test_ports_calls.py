"""Every request that a port declares can be asked of another process, and the other way round."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from maar import ports
from maar.ports import role
from maar.ports.calls import Call
from maar.ports.metastore import metastore, replica
from maar.ports.metastore.metastore import Metastore
from maar.ports.metastore.replica import MetastoreReplica
from maar.ports.reader import query
from maar.ports.reader.query import QueryEngine
from maar.ports.role import Role
from maar.ports.writer import rates, segment_writer
from maar.ports.writer.rates import RateKeeper
from maar.ports.writer.segment_writer import SegmentWriter

CALLS: tuple[type[Call[Any, Any]], ...] = (
    *metastore.CALLS,
    *replica.CALLS,
    *query.CALLS,
    *segment_writer.CALLS,
    *rates.CALLS,
    *role.CALLS,
)


def test_every_request_that_is_declared_is_served() -> None:
    modules = [
        import_module(one.name) for one in pkgutil.walk_packages(ports.__path__, "maar.ports.")
    ]
    declared = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Call) and "answer" in vars(value)
    } - {Call}
    assert set(CALLS) == declared


def test_no_two_requests_share_a_path() -> None:
    assert len({kind.path() for kind in CALLS}) == len(CALLS)


def test_every_method_of_a_port_answers_a_request() -> None:
    for port, calls in (
        (Metastore, metastore.CALLS),
        (MetastoreReplica, replica.CALLS),
        (QueryEngine, query.CALLS),
        (SegmentWriter, segment_writer.CALLS),
        (RateKeeper, rates.CALLS),
        (Role, role.CALLS),
    ):
        methods = {name for name in dir(port) if not name.startswith("_")}
        assert methods <= {name for kind in calls for name in kind.answer.__code__.co_names}
