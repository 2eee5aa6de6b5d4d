"""The summation server process around the native store.

Private: admin, door, door_session, door_socket, native.
"""
