"""From the four kinds to what the data plane serves by: compile, sign, commit, distribute, acknowledge."""
