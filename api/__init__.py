"""01 Application: what the caller sees. REST, server-sent events and the command line."""
