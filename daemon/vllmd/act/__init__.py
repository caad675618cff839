"""I/O out: the server's processes."""
