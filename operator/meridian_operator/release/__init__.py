"""The kind Release: a change of what answers users, taken through evidence, and back in one step when it is bad."""
