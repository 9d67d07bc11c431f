"""TenantPolicy: a tenant is onboarded when its partitions and row-level security exist."""
