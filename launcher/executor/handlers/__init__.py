"""Handlers of a host: the workers that connect here, and the launches that wait for them."""
