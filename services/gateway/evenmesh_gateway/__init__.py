"""The gateway: the mesh over HTTP, with the caller's credential; nothing of the flow lives in it."""

import os

# Read when gRPC is imported. Its handlers of forks prepare a child that calls on; of the processes that
# uvloop starts to read uploads, three in a hundred crashed in them before they were another program.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
