"""Which waiting launch is next: classes, priorities, tenants' shares, limits. Pure, in memory."""
