"""Handlers of a host: the workers that connect here, and what waits for them."""
