"""The control plane's calls: gRPC server and client, their proofs, what is on the wire, the scheduler's service.

Members, launchers and simulated jobs import it; it imports the other rooms of control.

Private: newcomers, status.
"""
