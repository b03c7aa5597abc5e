"""Small real parts that tests share."""

import os

# Before gRPC is loaded: what it does at a fork is for children that go on with it, and while other
# threads call it that ended a child before it was the JVM that it should become.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
