"""A simulated vLLM engine: real slots, queue, pacing, streaming and metrics around an honest
extractive answerer."""
