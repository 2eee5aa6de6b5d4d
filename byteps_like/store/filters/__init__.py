"""What a worker does with rows before it pushes them. In: keys and rows; out: those that go. A new one is a file."""
