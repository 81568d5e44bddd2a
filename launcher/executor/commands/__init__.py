"""Commands of a host: started by a spawner, limited, watched, and killed with all they left."""
