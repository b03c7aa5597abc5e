"""The roles' ports: frames over a unix socket, else gRPC; errors keep their class across the wire.

Payloads are msgpack: the request record, then the reply. Every call is idempotent and has a
deadline. Only the metastore's client retries calls: it knows which other replicas may answer.
"""

from maar.adapters.rpc.channel import Channel
from maar.adapters.rpc.metastore import MetastoreClient
from maar.adapters.rpc.refusals import MESSAGE_BYTES_MAX
from maar.adapters.rpc.server import (
    RpcServer,
    serve_metastore,
    serve_query,
    serve_role,
    serve_writer,
)

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Channel",
    "MetastoreClient",
    "RpcServer",
    "serve_metastore",
    "serve_query",
    "serve_role",
    "serve_writer",
]
