"""What both ends of the stream share: names, work, orders, reports, and their encoding."""
