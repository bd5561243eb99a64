"""The subcommands of mien-coordinator, by what they are about."""
