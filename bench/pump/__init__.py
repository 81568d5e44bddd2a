"""Salsify's test: 200,000 no-op tasks of 200 tenants through our pool, PostgreSQL and Redis."""
