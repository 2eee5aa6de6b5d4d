"""What a user may say about compression, and what it means.

Here live Compression, BytePS's dictionaries, rules by parameter names and the casts. In come users' arguments; out go
policies that name a codec of byteps_like.compression. Rooms of gradients, operations, sharding and pipelines import
it; it imports job for the settings.

Private: params.
"""
