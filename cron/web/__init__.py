"""HTTP: each call of the API as a route, health, and the OpenAPI document."""

from __future__ import annotations
