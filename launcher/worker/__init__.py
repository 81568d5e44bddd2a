"""Handlers written in Python: what their authors use, and the processes that run them."""
