"""Evidence in three values. Only Pass advances a release, only Fail counts against it, Inconclusive holds."""
