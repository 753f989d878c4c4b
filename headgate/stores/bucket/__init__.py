"""The store in a bucket: an object store with conditional writes, and nothing else."""
