"""The order service behind the `get_order` tool, and the development issuer of identity tokens."""
