"""What people and programs ask of a cell: one file per noun, with checks, reads and changes."""
