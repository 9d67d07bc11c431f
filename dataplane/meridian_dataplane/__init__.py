"""The data plane: answers requests by the last signed configuration, with or without a control plane."""
