"""The summation server process around the native store.

Private: door, door_session, door_socket, imports, native, ports.
"""
