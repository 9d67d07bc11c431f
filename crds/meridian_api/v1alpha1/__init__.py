"""The kinds of meridian.dev/v1alpha1."""
