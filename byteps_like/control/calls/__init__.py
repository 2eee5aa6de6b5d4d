"""The control plane's calls: gRPC server and client, their proofs, what is on the wire, the scheduler's service.

Members and launchers import it; it imports the other rooms of control.

Private: journal, ruler, service, session, status, wire.
"""
