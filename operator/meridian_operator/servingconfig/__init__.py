"""The internal kind ServingConfig: keeps what is stored and signed in step with the kinds it was compiled from."""
