"""IndexEpoch: an immutable build of an index by an Indexed Job, judged by what the store says."""
