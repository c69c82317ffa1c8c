"""The `pathgrow` command: one file per subcommand."""
