"""The real implementations of the ports."""
