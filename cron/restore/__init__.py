"""A new life for a cell whose disks are lost: from object storage, or from the one disk left."""
