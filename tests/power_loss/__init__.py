"""Power-loss tests: a recorder of a store's disk operations, and images of what a power loss could leave."""
