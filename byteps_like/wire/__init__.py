"""What is on the wire, in pure Python: the frame header, its checksum, notes and the messages of the portable door.

Private: crc32c_numpy.
"""
