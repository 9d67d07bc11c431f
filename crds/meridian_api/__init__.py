"""Meridian's API types: the one description that both planes, the CRDs and the tests are made from.

Imports pydantic and the standard library only, so that either plane may import it.
"""
