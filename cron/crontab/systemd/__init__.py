"""Units of systemd: their syntax, folders, keys, commands and times."""
