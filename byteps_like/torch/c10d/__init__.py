"""The backend "byteps" of torch.distributed: process groups.

In come torch's calls of a process group; out go torch's Work objects. Rooms of FSDP and pipelines import it; it
imports local, sparse and what is below.

Private: collectives, device_work, futures, inner, lanes, launch, let_in, monitored, p2p, reconfiguring, routing,
shrinking, sparse.
"""
