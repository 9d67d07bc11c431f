"""InferencePool: one workload per demanded version, warm before it is ready, removed only when nothing routes to it."""
