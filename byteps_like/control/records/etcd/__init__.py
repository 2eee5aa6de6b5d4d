"""Records in etcd v3, over its public gRPC interface: `location` reads an address, `calls` makes calls, `leadership`
holds the leader key, `changelog` lays records out, `stored_log` stores that, `records` joins them.
Private: calls, changelog, leadership, location, stored_log.
"""
