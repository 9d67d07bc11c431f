"""PostgreSQL as the operator uses it: schema and partitions as the owner, facts as `meridian_evidence`."""
