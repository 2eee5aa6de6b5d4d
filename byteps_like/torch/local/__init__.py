"""What the ranks of one host reduce among themselves on their devices before anything goes to the network.

In come gradients on devices and a lane of the ranks of this host; out go slices of their sum. Gradients, hooks of DDP
and process groups may import it; it imports device and job.

Private: choice, peers, peers_ipc, peers_nccl.
"""
