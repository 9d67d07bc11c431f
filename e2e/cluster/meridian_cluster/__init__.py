"""A real single-node Kubernetes with all that Meridian needs around it, on one Debian-like machine.

`up` starts it, `down` removes it without a trace, `status` looks. Each module is one part of the
machine and can be used by itself; tests use `postgres.temporary` and `apiserver.temporary`.
"""
