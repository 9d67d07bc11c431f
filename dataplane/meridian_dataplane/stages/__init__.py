"""One module a stage; each docstring says what the stage takes, gives, refuses with and writes."""
