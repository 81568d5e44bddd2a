"""The Debian package in a clean Debian: `make package-test`. It needs root and systemd-nspawn."""
