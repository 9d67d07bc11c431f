"""How a replica comes to its snapshot: verify exact bytes, keep on disk, poll for newer ones."""
