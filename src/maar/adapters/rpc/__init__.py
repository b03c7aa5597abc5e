"""The roles' ports over gRPC: the class of an error that goes in at the server comes out again.

Payloads are msgpack: the arguments as one array, the reply as one value. Every call is idempotent
and has a deadline. Only the metastore's client repeats calls: it knows who else may answer.
"""

from maar.adapters.rpc.clients import QueryClient, ReplicaClient, RoleClient, SegmentWriterClient
from maar.adapters.rpc.failover import addresses_in
from maar.adapters.rpc.metastore import MetastoreClient
from maar.adapters.rpc.methods import (
    ADD_BLOCKS,
    BEAT,
    METASTORE_METHODS,
    NOW,
    POLL,
    QUERY_METHODS,
    REPLICA_METHODS,
    ROLE_METHODS,
    WRITER_METHODS,
)
from maar.adapters.rpc.refusals import MESSAGE_BYTES_MAX
from maar.adapters.rpc.server import (
    Role,
    RpcServer,
    serve_metastore,
    serve_query,
    serve_role,
    serve_writer,
)

__all__ = [
    "ADD_BLOCKS",
    "BEAT",
    "MESSAGE_BYTES_MAX",
    "METASTORE_METHODS",
    "NOW",
    "POLL",
    "QUERY_METHODS",
    "REPLICA_METHODS",
    "ROLE_METHODS",
    "WRITER_METHODS",
    "MetastoreClient",
    "QueryClient",
    "ReplicaClient",
    "Role",
    "RoleClient",
    "RpcServer",
    "SegmentWriterClient",
    "addresses_in",
    "serve_metastore",
    "serve_query",
    "serve_role",
    "serve_writer",
]
