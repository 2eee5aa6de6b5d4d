"""Control plane: the scheduler, its client, and who proves what to whom."""

import gc
import os

# gRPC's own fork handlers crash forked children at random while other threads are inside gRPC, and ours always are
# (grpc/grpc#41768): a DataLoader's workers must not die of them. A child that leaves gRPC alone needs no handlers.
# It has to be set before gRPC is imported, hence here; whoever sets it otherwise has the last word.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Strangers that fail to speak TLS would be a line of grpc's each.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Objects that own threads or connections may be garbage when a process forks. The child has none of the threads, so
# its collector must leave them alone.
os.register_at_fork(after_in_child=gc.freeze)
